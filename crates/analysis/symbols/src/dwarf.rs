//! Files, lines and inlined calls from DWARF, for ELF, Mach-O and PE.

use std::{
    borrow::Cow,
    cell::{Cell, OnceCell, RefCell},
    collections::{BTreeMap, HashMap},
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use addr2line::{Context, LookupContinuation as _, LookupResult, SplitDwarfLoad};
use elsa::FrozenVec;
use gimli::{DwarfPackage, DwarfPackageSections, DwarfSections, EndianSlice, RunTimeEndian, Section as _};
use object::Object;
use self_cell::self_cell;

use crate::{
    call::DwarfFrame,
    debug_sections::section,
    dwarf_budget::{self, Budget, Refused},
    dwarf_pass::{self, Answer},
    error::Malformed,
    line_rows::{self, LineRows},
    mapped_file::Bytes,
    naming_budget::{Meter, NamingBudget},
    split_dwarf,
    variables::{FunctionVariables, Reader},
};

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// The DWARF sections of the file and of other files that it refers to.
struct Sections {
    own: DwarfSections<Bytes>,
    supplementary: Option<DwarfSections<Bytes>>,
    /// The symbol file's path, from which other files are found.
    path: PathBuf,
    endian: RunTimeEndian,
    package: OnceCell<Option<DwarfPackageSections<Bytes>>>,
    /// Split units, opened when an address in them is looked up.
    objects: FrozenVec<Box<DwarfSections<Bytes>>>,
}

impl Sections {
    /// Returns the sections of the file itself and of its supplementary file.
    fn borrow(&self) -> gimli::Dwarf<Slice<'_>> {
        self.own.borrow_with_sup(self.supplementary.as_ref(), |section| EndianSlice::new(section, self.endian))
    }
}

/// The index over the sections, built lazily.
struct Index<'a> {
    /// `addr2line`'s index, which is worthwhile if many addresses are looked up.
    context: OnceCell<Context<Slice<'a>>>,
    /// The index's sections with its abbreviation tables.
    in_context: OnceCell<Arc<gimli::Dwarf<Slice<'a>>>>,
    /// Bytes of units that were read for single addresses.
    read: Cell<usize>,
    sections: Arc<gimli::Dwarf<Slice<'a>>>,
    package: OnceCell<Option<DwarfPackage<Slice<'a>>>>,
    budget: Budget,
    /// Results of [`Dwarf::look_up`] by address; `None` for addresses that require the index.
    known: RefCell<HashMap<u64, Option<Vec<DwarfFrame>>>>,
    /// Line rows of units in which `addr2line` may find the wrong line.
    line_rows: RefCell<HashMap<usize, Arc<LineRows>>>,
}

self_cell!(
    /// The sections with the index over them.
    struct Indexed {
        owner: Sections,
        #[not_covariant]
        dependent: Index,
    }
);

pub(crate) struct Dwarf {
    indexed: Indexed,
    file: Bytes,
    /// The offset of `.debug_info` in the file, used for errors without their own offset.
    info_at: u64,
    /// The first error about a missing other file, until it is taken; it stands for all of them.
    missing: RefCell<Option<Malformed>>,
    said_missing: Cell<bool>,
}

impl fmt::Debug for Dwarf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dwarf")
    }
}

impl Dwarf {
    /// Loads a parsed file's debug information, if it has any. `path` is the file's path.
    pub(crate) fn load(file: &object::File<'_>, bytes: &Bytes, path: &Path) -> Result<Option<Self>, Malformed> {
        if file.section_by_name(".debug_info").is_none() {
            return Ok(None);
        }
        let (supplementary, missing) = match split_dwarf::supplementary(file, path) {
            Ok(found) => (found, None),
            Err(missing) => (None, Some(missing)),
        };
        let sections = Sections {
            own: DwarfSections::load(|id| section(file, bytes, id.name()))?,
            supplementary,
            path: path.to_owned(),
            endian: if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big },
            package: OnceCell::new(),
            objects: FrozenVec::new(),
        };
        let info_at = crate::elf::section_offset(file, ".debug_info");
        let indexed = Indexed::try_new(sections, |sections| {
            let own = Arc::new(sections.borrow());
            let budget = Budget::from_units(&own).map_err(|refused| malformed_by(&refused, info_at))?;
            Ok(Index {
                context: OnceCell::new(),
                in_context: OnceCell::new(),
                read: Cell::new(0),
                sections: own,
                package: OnceCell::new(),
                budget,
                known: RefCell::default(),
                line_rows: RefCell::default(),
            })
        })?;
        let (missing, said_missing) = (RefCell::new(missing), Cell::new(false));
        Ok(Some(Self { indexed, file: bytes.clone(), info_at, missing, said_missing }))
    }

    /// Looks up many addresses at once, for later calls of [`Self::frames`].
    ///
    /// Each unit is read once for all of its addresses, and then dropped. Addresses that can't be
    /// answered in this way are left to `frames`.
    pub(crate) fn look_up(&self, svmas: &[u64]) {
        self.indexed.with_dependent(|sections, index| {
            let mut addresses = svmas.to_vec();
            addresses.retain(|svma| !index.known.borrow().contains_key(svma));
            addresses.sort_unstable();
            addresses.dedup();
            if let Some(answers) = in_one_pass(sections, index, &addresses) {
                index.known.borrow_mut().extend(addresses.into_iter().zip(answers));
            }
        });
    }

    /// Returns the calls at an address; empty if no unit contains it.
    pub(crate) fn frames(&self, svma: u64) -> Result<Vec<DwarfFrame>, Malformed> {
        self.indexed.with_dependent(|sections, index| {
            let known = index.known.borrow().get(&svma).cloned();
            if let Some(frames) = known.unwrap_or_else(|| by_single_units(sections, index, svma)) {
                return Ok(frames);
            }
            let context = match index.context.get() {
                Some(context) => context,
                None => {
                    let mut dwarf = sections.borrow();
                    dwarf_budget::check_abbreviations(&dwarf).map_err(|refused| malformed_by(&refused, self.info_at))?;
                    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
                    let dwarf = index.in_context.get_or_init(|| Arc::new(dwarf));
                    let made = Context::from_arc_dwarf(Arc::clone(dwarf))
                        .map_err(|error| malformed(&error, &self.file, self.info_at, "list of units"))?;
                    index.context.get_or_init(|| made)
                }
            };
            let sections_read = index.in_context.get().unwrap_or(&index.sections);
            index
                .budget
                .check_address(sections_read, svma)
                .map_err(|refused| malformed_by(&refused, self.info_at))?;
            let mut lookup = context.find_frames(svma);
            let frames = loop {
                lookup = match lookup {
                    LookupResult::Output(frames) => break frames,
                    LookupResult::Load { load, continuation } => {
                        let unit = split_unit(sections, index, &load, svma)
                            .map_err(|refused| malformed_by(&refused, self.info_at))?;
                        if unit.is_none() && !self.said_missing.replace(true) {
                            let name = load.path.as_ref().map_or_else(|| "?".into(), text);
                            let what = format!(
                                "`{name}` with a unit's debug information was not found, nor a .dwp that contains it; inlined calls are missing"
                            );
                            *self.missing.borrow_mut() = Some(Malformed::new(self.info_at, what));
                        }
                        continuation.resume(unit.map(Arc::new))
                    }
                }
            };
            let mut frames = frames.and_then(collect).map_err(|error| {
                malformed(&error, &self.file, self.info_at, &format!("lookup of {svma:#x}"))
            })?;
            if let (Some(innermost), Some(offset)) = (frames.first_mut(), index.budget.unit_with_dropped(svma)) {
                correct_line(index, offset, svma, innermost);
            }
            Ok(frames)
        })
    }

    /// Returns the variables of the function at an address; `None` if no unit in this file contains
    /// it.
    pub(crate) fn variables(&self, svma: u64) -> Option<FunctionVariables> {
        self.indexed.with_dependent(|_, index| {
            index.budget.check_address(&index.sections, svma).ok()?;
            Reader::new(&index.sections).function(&index.budget.candidates(svma), svma)
        })
    }

    /// Calls `ask` with a reader for types.
    pub(crate) fn types<T>(&self, ask: impl FnOnce(&Reader<'_, '_>) -> T) -> T {
        self.indexed.with_dependent(|_, index| ask(&Reader::new(&index.sections)))
    }

    /// Returns the error about a missing other file since the last call.
    pub(crate) fn take_missing(&self) -> Option<Malformed> {
        self.missing.borrow_mut().take()
    }
}

/// Maximum number of units for a lookup without the index.
const MAX_UNITS_WITHOUT_INDEX: usize = 8;
/// Memory limit for abbreviation tables when single units are read, in bytes.
const ABBREVIATIONS_LIMIT: usize = 256 << 20;

/// Looks up an address in the units that claim it, reading each from its start without keeping it.
///
/// A crash needs some dozens of addresses, which takes less time than building the index of all
/// units. Returns `None` if the index is needed: after reading as many bytes as `.debug_info` has,
/// for debug information in several files, and if units claim the address but have no function
/// there.
fn by_single_units(sections: &Sections, index: &Index<'_>, svma: u64) -> Option<Vec<DwarfFrame>> {
    let dwarf = &*index.sections;
    let mut units = index.budget.candidates(svma);
    units.sort_unstable();
    units.dedup();
    if index.context.get().is_some() || sections.supplementary.is_some() || units.len() > MAX_UNITS_WITHOUT_INDEX {
        return None;
    }
    if units.is_empty() {
        return index.budget.claimants_by_lines(dwarf, svma, false).is_empty().then(Vec::new);
    }
    let size: usize = units.iter().map(|unit| index.budget.size_of(dwarf, *unit)).sum();
    index.read.set(index.read.get().saturating_add(size));
    if index.read.get() > dwarf.debug_info.reader().len() {
        return None;
    }
    // Time is limited by the number of bytes.
    let budget = NamingBudget { memory: ABBREVIATIONS_LIMIT, time: Duration::MAX, clock: || Duration::ZERO };
    let mut asked = BTreeMap::new();
    asked.extend(units.into_iter().map(|unit| (unit, vec![0])));
    let answers = dwarf_pass::frames_in(dwarf, &[svma], &asked, index.budget.units(), &Meter::new(budget))?;
    let answer = answers.into_iter().next().filter(Answer::is_whole)?;
    Some(answer.frames)
}

/// Time limit for a pass over many addresses, for each megabyte of debug information (plus one).
///
/// It is about ten times what compilers' output needs.
const PASS_TIME: Duration = Duration::from_millis(500);

fn uptime() -> Duration {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGAN.elapsed()
}

/// Looks up addresses (sorted and distinct) in the units that claim them; `None` for addresses that
/// require the index.
fn in_one_pass(sections: &Sections, index: &Index<'_>, addresses: &[u64]) -> Option<Vec<Option<Vec<DwarfFrame>>>> {
    if sections.supplementary.is_some() {
        return None;
    }
    let dwarf = &*index.sections;
    let mut units = BTreeMap::<usize, Vec<usize>>::new();
    let mut claims_of = Vec::new();
    for (place, &svma) in addresses.iter().enumerate() {
        let mut claims = index.budget.candidates(svma);
        claims.sort_unstable();
        claims.dedup();
        claims_of.push(claims.len());
        if claims.len() <= MAX_UNITS_WITHOUT_INDEX {
            for unit in claims {
                units.entry(unit).or_default().push(place);
            }
        }
    }
    let megabytes = u32::try_from(dwarf.debug_info.reader().len() >> 20).unwrap_or(u32::MAX);
    let time = PASS_TIME.saturating_mul(megabytes.saturating_add(1));
    let meter = Meter::new(NamingBudget { memory: ABBREVIATIONS_LIMIT, time, clock: uptime });
    let answers = dwarf_pass::frames_in(dwarf, addresses, &units, index.budget.units(), &meter)?;
    let whole = answers.into_iter().zip(addresses).zip(claims_of).map(|((answer, svma), claims)| {
        // Between functions, a single unit has at most a line. Units without ranges may have a
        // function there.
        let is_all = || {
            answer.has_function || claims <= 1 && index.budget.claimants_by_lines(dwarf, *svma, claims > 0).is_empty()
        };
        (!answer.left_out && is_all()).then_some(answer.frames)
    });
    Some(whole.collect())
}

/// Corrects an address's line with the unit's own rows, where sequences overlap.
fn correct_line(index: &Index<'_>, offset: usize, svma: u64, call: &mut DwarfFrame) {
    let sections = &*index.sections;
    let unit = || {
        let header = sections.debug_info.header_from_offset(gimli::DebugInfoOffset(offset)).ok()?;
        sections.unit(header).ok()
    };
    let known = index.line_rows.borrow().get(&offset).cloned();
    let rows = known.unwrap_or_else(|| {
        let rows = Arc::new(unit().map(|unit| LineRows::read(unit.unit_ref(sections))).unwrap_or_default());
        index.line_rows.borrow_mut().insert(offset, Arc::clone(&rows));
        rows
    });
    let Some(row) = rows.find(svma) else { return };
    let line = (row.line != 0).then_some(row.line);
    let column = (row.line != 0 && row.column != 0).then_some(row.column);
    if (call.line, call.column) != (line, column)
        && let Some(unit) = unit()
    {
        call.file = line_rows::file_name(unit.unit_ref(sections), row.file);
        (call.line, call.column) = (line, column);
    }
}

/// Returns the rest of a skeleton unit from the package or a separate object file; `None` if there
/// is none.
fn split_unit<'a>(
    sections: &'a Sections,
    index: &Index<'a>,
    load: &SplitDwarfLoad<Slice<'a>>,
    svma: u64,
) -> Result<Option<gimli::Dwarf<Slice<'a>>>, Refused> {
    let slice = |section: &'a Bytes| EndianSlice::new(section, sections.endian);
    let package = index.package.get_or_init(|| {
        let package = sections.package.get_or_init(|| split_dwarf::package(&sections.path));
        package.as_ref()?.borrow(slice, EndianSlice::new(&[], sections.endian)).ok()
    });
    let packed = package.as_ref().and_then(|package| package.find_cu(load.dwo_id, &load.parent).ok()?);
    let unit = packed.or_else(|| {
        let folder = load.comp_dir.as_ref().map(text).unwrap_or_default();
        let object = split_dwarf::object(&sections.path, &folder, &text(load.path.as_ref()?), load.dwo_id)?;
        let mut unit = sections.objects.push_get(Box::new(object)).borrow(slice);
        unit.make_dwo(&load.parent);
        Some(unit)
    });
    if let Some(unit) = &unit {
        dwarf_budget::check_abbreviations(unit)?;
        Budget::from_units(unit)?.check_address(unit, svma)?;
    }
    Ok(unit)
}

fn text(slice: &Slice<'_>) -> String {
    slice.to_string_lossy().into_owned()
}

fn collect(mut frames: addr2line::FrameIter<'_, Slice<'_>>) -> Result<Vec<DwarfFrame>, gimli::Error> {
    let mut found = Vec::new();
    while let Some(frame) = frames.next()? {
        found.push(DwarfFrame {
            function: frame.function.and_then(|name| name.raw_name().map(Cow::into_owned).ok()),
            file: frame.location.as_ref().and_then(|at| at.file).map(str::to_owned),
            line: frame.location.as_ref().and_then(|at| at.line).filter(|&line| line != 0),
            column: frame.location.as_ref().and_then(|at| at.column).filter(|&column| column != 0),
        });
    }
    Ok(found)
}

/// Converts a DWARF parser error, with its offset in the file. For an unexpected end the parser
/// gives the byte's address; other errors, and those in decompressed sections, get the offset of
/// `.debug_info`.
fn malformed(error: &gimli::Error, file: &Bytes, info_at: u64, what: &str) -> Malformed {
    let mut offset = info_at;
    if let gimli::Error::UnexpectedEof(at) = error {
        let within = at.0.wrapping_sub(file.as_ptr() as u64);
        if within <= file.len() as u64 {
            offset = within;
        }
    }
    Malformed::new(offset, format!("DWARF, {what}: {error}"))
}

fn malformed_by(refused: &Refused, info_at: u64) -> Malformed {
    Malformed::new(info_at.saturating_add(refused.info_offset), format!("DWARF: {}", refused.what))
}

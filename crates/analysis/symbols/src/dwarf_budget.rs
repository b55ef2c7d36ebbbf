//! Limits on the work that a file's DWARF can cause.
//!
//! `addr2line` trusts the structure of its input: it recurses once for each level of inlined calls,
//! parses an abbreviation table for each unit that refers to it, and expands a range list for each
//! entry that refers to it. A file of one megabyte can therefore cause a stack overflow, or use
//! gigabytes and hours. The work is added up here in advance: at the start for all units, and for a
//! unit's contents on the first lookup of an address in it.

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::{HashMap, HashSet},
    sync::Arc,
};

use gimli::{AttributeValue, EndianSlice, Reader as _, RunTimeEndian, Section as _, UnitOffset, UnitRef};

use crate::{
    entry_ranges::EntryRanges,
    naming_budget::{Meter, Reserved},
};

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;
type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;

/// Maximum nesting of entries. LLVM's own limit for expression nesting is 256; real units stay
/// below 100.
pub(crate) const MAX_DEPTH: isize = 384;
/// Maximum number of units that claim the same address.
pub(crate) const MAX_UNITS: usize = 256;

/// Possibly overlapping address ranges, each with its claimant's number.
#[derive(Debug, Default)]
struct Claims {
    /// Sorted by start.
    ranges: Vec<(u64, u64, usize)>,
    /// The greatest end up to each range, so that a search can stop early.
    ends: Vec<u64>,
}

impl Claims {
    fn from_ranges(mut ranges: Vec<(u64, u64, usize)>) -> Self {
        ranges.sort_unstable();
        let mut end = 0;
        let greatest = ranges.iter().map(|range| {
            end = end.max(range.1);
            end
        });
        let ends = greatest.collect();
        Self { ranges, ends }
    }

    /// Returns the claimants of an address.
    fn at(&self, svma: u64) -> Vec<usize> {
        let mut claim = Vec::new();
        let mut index = self.ranges.partition_point(|range| range.0 <= svma);
        while let Some(before) = index.checked_sub(1)
            && self.ends[before] > svma
        {
            index = before;
            if self.ranges[index].1 > svma {
                claim.push(self.ranges[index].2);
            }
        }
        claim
    }
}

/// The address ranges in the line programs of units without ranges.
#[derive(Debug)]
struct ByLines {
    /// For each sequence: the range from its lowest to its highest address, with the program's
    /// number.
    sequences: Claims,
    /// The units of each program. In a well-formed file each has one.
    units: Vec<Vec<usize>>,
}

impl ByLines {
    fn read(dwarf: &Dwarf<'_>, units: &[usize]) -> Self {
        let (mut sequences, mut of_programs) = (Vec::new(), Vec::<Vec<usize>>::new());
        let mut known: HashMap<usize, usize> = HashMap::new();
        let mut roots = Roots::new(dwarf);
        for &offset in units {
            let Ok(header) = dwarf.debug_info.header_from_offset(gimli::DebugInfoOffset(offset)) else { continue };
            let Ok(Ok(unit)) = roots.unit(dwarf, header) else { continue };
            let Some(program) = unit.line_program.clone() else { continue };
            let at = program.header().offset().0;
            if let Some(units) = known.get(&at).and_then(|number| of_programs.get_mut(*number)) {
                units.push(offset);
                continue;
            }
            let number = of_programs.len();
            known.insert(at, number);
            of_programs.push(vec![offset]);
            let mut rows = program.rows();
            let mut sequence: Option<(u64, u64)> = None;
            while let Ok(Some((_, row))) = rows.next_row() {
                let (low, high) = sequence.unwrap_or((u64::MAX, 0));
                sequence = Some((low.min(row.address()), high.max(row.address())));
                if row.end_sequence()
                    && let Some((low, high)) = sequence.take()
                {
                    sequences.push((low, high, number));
                }
            }
        }
        Self { sequences: Claims::from_ranges(sequences), units: of_programs }
    }
}

/// Partial abbreviation tables, with only the declarations of the units' root entries.
///
/// A unit's attributes need nothing else, and this takes a hundredth of the work.
struct Roots {
    /// By table and the entry's code.
    known: HashMap<(usize, u64), Option<Arc<gimli::Abbreviations>>>,
    /// Bytes of tables that may still be skipped in search of declarations.
    left: u64,
}

impl Roots {
    /// If a declaration isn't found within this many bytes, the whole table is parsed.
    const MAX_SKIPPED: usize = 1 << 14;

    fn new(dwarf: &Dwarf<'_>) -> Self {
        Self { known: HashMap::new(), left: tables_limit(dwarf) }
    }

    /// Returns a unit with its attributes but without its entries.
    fn unit<'a>(
        &mut self,
        dwarf: &Dwarf<'a>,
        header: gimli::UnitHeader<Slice<'a>>,
    ) -> Result<gimli::Result<gimli::Unit<Slice<'a>>>, Refused> {
        let at = header.debug_info_offset().map_or(0, |offset| offset.0);
        let table = header.debug_abbrev_offset().0;
        let code = header.range_from(header.root_offset()..).and_then(|mut entries| entries.read_uleb128());
        let Ok(code) = code else { return Ok(dwarf.unit(header)) };
        let mut spend = |bytes: u64| {
            let left = self.left.checked_sub(bytes);
            self.left = left.ok_or_else(|| Refused::new(at, "units refer to overlapping abbreviation tables"))?;
            Ok(())
        };
        let root = match self.known.get(&(table, code)) {
            Some(known) => known.clone(),
            None => {
                let (found, bytes) = root_declaration(dwarf, table, code);
                spend(bytes)?;
                self.known.insert((table, code), found.clone());
                found
            }
        };
        match root {
            Some(root) => Ok(gimli::Unit::new_with_abbreviations(dwarf, header, root)),
            None => {
                spend(abbreviations_size(dwarf.debug_abbrev.reader(), table, u64::MAX - 1))?;
                Ok(dwarf.unit(header))
            }
        }
    }
}

/// Returns a table with only the declaration of `code`, and how many bytes were skipped.
fn root_declaration(dwarf: &Dwarf<'_>, table: usize, code: u64) -> (Option<Arc<gimli::Abbreviations>>, u64) {
    let section = dwarf.debug_abbrev.reader();
    let bytes = section.slice().get(table..).unwrap_or_default();
    let bytes = bytes.get(..Roots::MAX_SKIPPED).unwrap_or(bytes);
    let mut reader = EndianSlice::new(bytes, section.endian());
    loop {
        let start = reader;
        let used = |reader: &Slice<'_>| (bytes.len() - reader.len()) as u64;
        if !skip_declaration(&mut reader, |_| false).unwrap_or(false) {
            return (None, used(&reader));
        }
        if start.clone().read_uleb128() == Ok(code) {
            let declaration = start.slice().get(..start.len() - reader.len()).unwrap_or_default();
            let alone: Vec<u8> = declaration.iter().copied().chain([0]).collect();
            let alone = gimli::DebugAbbrev::new(&alone, section.endian()).abbreviations(gimli::DebugAbbrevOffset(0));
            return (alone.ok().map(Arc::new), used(&reader));
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The unit's or entry's offset in `.debug_info`.
    pub(crate) info_offset: u64,
    pub(crate) what: String,
}

impl Refused {
    fn new(info_offset: usize, what: impl Into<String>) -> Self {
        Self { info_offset: info_offset as u64, what: what.into() }
    }
}

/// Returns how many bytes of abbreviation tables a file's units may refer to. Compilers write one
/// table for each unit; linkers merge some.
fn tables_limit(dwarf: &Dwarf<'_>) -> u64 {
    2 * dwarf.debug_abbrev.reader().len() as u64 + (1 << 16)
}

/// Fails if units refer to overlapping abbreviation tables. Must be called before any table is
/// parsed; with a filled cache, the same table is then parsed only once.
pub(crate) fn check_abbreviations(dwarf: &Dwarf<'_>) -> Result<(), Refused> {
    let mut left = tables_limit(dwarf);
    let mut tables = HashSet::new();
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let table = header.debug_abbrev_offset().0;
        if tables.insert(table) {
            let size = abbreviations_size(dwarf.debug_abbrev.reader(), table, left);
            let at = header.debug_info_offset().map_or(0, |offset| offset.0);
            left = left
                .checked_sub(size)
                .ok_or_else(|| Refused::new(at, "units refer to overlapping abbreviation tables"))?;
        }
    }
    Ok(())
}

/// A file's units, and the remaining budget for the file.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The units' address ranges with the units' offsets in `.debug_info`.
    ranges: Claims,
    /// The offsets of all units, ascending.
    units: Vec<usize>,
    /// Units without ranges.
    silent: Vec<usize>,
    /// Units whose ranges are all from code dropped by the linker.
    dropped: Vec<usize>,
    /// Ranges from line programs, for the silent units and for both kinds; read on demand.
    by_lines: [OnceCell<ByLines>; 2],
    /// Units with a range that starts at address 0: remains of functions dropped by the linker.
    with_dropped: HashSet<usize>,
    checked: RefCell<HashSet<usize>>,
    ranges_left: Cell<u64>,
}

impl Budget {
    /// Reads the attributes of all units. Fails if processing them would be out of proportion to
    /// their size.
    pub(crate) fn from_units(dwarf: &Dwarf<'_>) -> Result<Self, Refused> {
        // Compilers' output refers to each list and each table about once; twice is generous.
        let range_bytes = [
            dwarf.ranges.debug_ranges().reader().len(),
            dwarf.ranges.debug_rnglists().reader().len(),
            dwarf.debug_aranges.reader().len(),
        ];
        let mut budget = Self {
            ranges: Claims::default(),
            units: Vec::new(),
            silent: Vec::new(),
            dropped: Vec::new(),
            by_lines: Default::default(),
            with_dropped: HashSet::new(),
            checked: RefCell::default(),
            ranges_left: Cell::new(2 * range_bytes.iter().sum::<usize>() as u64 + (1 << 16)),
        };
        let aranges = aranges(dwarf, &budget)?;
        let mut ranges = Vec::new();
        let mut roots = Roots::new(dwarf);
        let mut units = dwarf.units();
        // Malformed headers end the list here as in addr2line, which then reports the error.
        while let Ok(Some(header)) = units.next() {
            let Some(offset) = header.debug_info_offset().map(|offset| offset.0) else { continue };
            budget.units.push(offset);
            let Ok(unit) = roots.unit(dwarf, header)? else { continue };
            budget.add_unit(unit.unit_ref(dwarf), offset, &aranges, &mut ranges)?;
        }
        budget.ranges = Claims::from_ranges(ranges);
        Ok(budget)
    }

    /// Adds a unit's ranges in addr2line's order of preference: `DW_AT_ranges`, `.debug_aranges`,
    /// low and high pc.
    fn add_unit(
        &mut self,
        unit: UnitRef<'_, Slice<'_>>,
        offset: usize,
        aranges: &HashMap<usize, Vec<(u64, u64)>>,
        into: &mut Vec<(u64, u64, usize)>,
    ) -> Result<(), Refused> {
        let before = into.len();
        let list = root_ranges(unit);
        let says_ranges = list.is_some();
        if let Some(list) = list {
            into.extend(self.expand(unit, list, offset)?.into_iter().map(|(begin, end)| (begin, end, offset)));
        } else if let Some(sets) = aranges.get(&offset) {
            into.extend(sets.iter().map(|&(begin, end)| (begin, end, offset)));
        } else if let Some((begin, end)) = EntryRanges::read(unit, None).and_then(|mut ranges| ranges.next()) {
            into.push((begin, end, offset));
        }
        let added = into.get(before..).unwrap_or_default();
        if added.is_empty() {
            let units = if says_ranges { &mut self.dropped } else { &mut self.silent };
            units.push(offset);
        }
        if added.iter().any(|range| range.0 == 0) {
            self.with_dropped.insert(offset);
        }
        Ok(())
    }

    /// Expands a range list; each range is charged to the budget.
    fn expand<'a>(
        &self,
        unit: UnitRef<'_, Slice<'a>>,
        list: AttributeValue<Slice<'a>>,
        at: usize,
    ) -> Result<Vec<(u64, u64)>, Refused> {
        let mut expanded = Vec::new();
        let Ok(Some(mut ranges)) = unit.attr_ranges(list) else { return Ok(expanded) };
        while let Ok(Some(range)) = ranges.next() {
            self.spend_range(at)?;
            expanded.push((range.begin, range.end));
        }
        Ok(expanded)
    }

    fn spend_range(&self, at: usize) -> Result<(), Refused> {
        let left = self.ranges_left.get();
        self.ranges_left.set(
            left.checked_sub(1).ok_or_else(|| {
                Refused::new(at, "entries share range lists, and expanding them would exceed the limit")
            })?,
        );
        Ok(())
    }

    /// Checks the contents of the units that may contain an address, each once.
    pub(crate) fn check_address(&self, dwarf: &Dwarf<'_>, svma: u64) -> Result<(), Refused> {
        // For units without ranges, addr2line uses those of their line programs. Large programs
        // have thousands of such units (empty ones, units whose functions the linker dropped, dwz's
        // partial units), and they don't count towards the limit.
        for offset in self.claimants_by_lines(dwarf, svma, true) {
            if self.checked.borrow_mut().insert(offset) {
                self.check_unit(dwarf, offset)?;
            }
        }
        for (number, offset) in self.candidates(svma).into_iter().enumerate() {
            if number >= MAX_UNITS {
                return Err(Refused::new(offset, format!("more than {MAX_UNITS} units claim the address {svma:#x}")));
            }
            if self.checked.borrow_mut().insert(offset) {
                self.check_unit(dwarf, offset)?;
            }
        }
        Ok(())
    }

    /// Returns the units that claim an address.
    pub(crate) fn candidates(&self, svma: u64) -> Vec<usize> {
        self.ranges.at(svma)
    }

    /// Returns the units without ranges whose line program contains an address.
    ///
    /// With `dropped`, also returns those whose ranges are all from dropped code, which addr2line
    /// treats in the same way.
    pub(crate) fn claimants_by_lines(&self, dwarf: &Dwarf<'_>, svma: u64, dropped: bool) -> Vec<usize> {
        let [silent, all] = &self.by_lines;
        let by_lines = match dropped {
            false => silent.get_or_init(|| ByLines::read(dwarf, &self.silent)),
            true => all.get_or_init(|| ByLines::read(dwarf, &[&self.silent[..], &self.dropped].concat())),
        };
        let mut programs = by_lines.sequences.at(svma);
        coroner_process::heap_sort(&mut programs, |first, second| first < second);
        programs.dedup();
        programs.into_iter().filter_map(|program| by_lines.units.get(program)).flatten().copied().collect()
    }

    /// Returns the offsets of all units, ascending.
    pub(crate) fn units(&self) -> &[usize] {
        &self.units
    }

    /// Returns how many bytes must be read to parse a unit: its own, and those of its abbreviation
    /// table.
    pub(crate) fn size_of(&self, dwarf: &Dwarf<'_>, unit: usize) -> usize {
        let Ok(header) = dwarf.debug_info.header_from_offset(gimli::DebugInfoOffset(unit)) else { return 0 };
        let table = header.debug_abbrev_offset().0;
        let abbreviations = abbreviations_size(dwarf.debug_abbrev.reader(), table, u64::MAX);
        header.length_including_self().saturating_add(abbreviations as usize)
    }

    /// Returns the only unit that claims an address, if it also has functions that the linker
    /// dropped.
    pub(crate) fn unit_with_dropped(&self, svma: u64) -> Option<usize> {
        if self.with_dropped.is_empty() {
            return None;
        }
        let candidates = self.candidates(svma);
        let (first, others) = candidates.split_first()?;
        (others.iter().all(|other| other == first) && self.with_dropped.contains(first)).then_some(*first)
    }

    /// Checks the nesting of a unit's entries, and the ranges that they refer to.
    fn check_unit(&self, dwarf: &Dwarf<'_>, offset: usize) -> Result<(), Refused> {
        let Ok(header) = dwarf.debug_info.header_from_offset(gimli::DebugInfoOffset(offset)) else { return Ok(()) };
        let Ok(unit) = dwarf.unit(header) else { return Ok(()) };
        let unit = unit.unit_ref(dwarf);
        // addr2line reports errors in the entries: it stops there as well.
        let Ok(mut entries) = unit.entries_raw(None) else { return Ok(()) };
        while !entries.is_empty() {
            let at = entries.next_offset();
            if entries.next_depth() > MAX_DEPTH {
                return Err(Refused::new(
                    in_section(at, unit),
                    format!("entries are nested more than {MAX_DEPTH} deep"),
                ));
            }
            let Ok(abbreviation) = entries.read_abbreviation() else { return Ok(()) };
            let Some(abbreviation) = abbreviation else { continue };
            let has_ranges = matches!(abbreviation.tag(), gimli::DW_TAG_subprogram | gimli::DW_TAG_inlined_subroutine)
                && abbreviation.attributes().iter().any(|attribute| attribute.name() == gimli::DW_AT_ranges);
            if !has_ranges {
                if entries.skip_attributes(abbreviation.attributes()).is_err() {
                    return Ok(());
                }
                continue;
            }
            for specification in abbreviation.attributes() {
                let Ok(attribute) = entries.read_attribute(*specification) else { return Ok(()) };
                if attribute.name() == gimli::DW_AT_ranges
                    && let Ok(Some(mut ranges)) = unit.attr_ranges(attribute.value())
                {
                    while let Ok(Some(_)) = ranges.next() {
                        self.spend_range(in_section(at, unit))?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn in_section(at: UnitOffset, unit: UnitRef<'_, Slice<'_>>) -> usize {
    at.to_unit_section_offset(&unit.header).0
}

fn root_ranges<'a>(unit: UnitRef<'_, Slice<'a>>) -> Option<AttributeValue<Slice<'a>>> {
    let mut entries = unit.entries_raw(None).ok()?;
    let abbreviation = entries.read_abbreviation().ok()??;
    for specification in abbreviation.attributes() {
        let attribute = entries.read_attribute(*specification).ok()?;
        if attribute.name() == gimli::DW_AT_ranges {
            return Some(attribute.value());
        }
    }
    None
}

/// Returns the ranges in `.debug_aranges` by unit.
fn aranges(dwarf: &Dwarf<'_>, budget: &Budget) -> Result<HashMap<usize, Vec<(u64, u64)>>, Refused> {
    let mut by_unit: HashMap<usize, Vec<(u64, u64)>> = HashMap::new();
    let mut headers = dwarf.debug_aranges.headers();
    while let Ok(Some(header)) = headers.next() {
        let offset = header.debug_info_offset().0;
        let mut entries = header.entries();
        while let Some(entry) = entries.next().transpose() {
            budget.spend_range(offset)?;
            if let Ok(entry) = entry
                && entry.length() != 0
            {
                by_unit.entry(offset).or_default().push((entry.range().begin, entry.range().end));
            }
        }
    }
    Ok(by_unit)
}

/// Skips a declaration; returns `false` at the end of its table. Stops inside a declaration if
/// `is_over` returns `true`.
fn skip_declaration(reader: &mut Slice<'_>, is_over: impl Fn(&Slice<'_>) -> bool) -> gimli::Result<bool> {
    if reader.read_uleb128()? == 0 {
        return Ok(false);
    }
    reader.read_uleb128()?;
    reader.read_u8()?;
    loop {
        let (name, form) = (reader.read_uleb128()?, reader.read_uleb128()?);
        if form == u64::from(gimli::DW_FORM_implicit_const.0) {
            reader.read_sleb128()?;
        }
        if (name, form) == (0, 0) || is_over(reader) {
            return Ok(true);
        }
    }
}

/// Returns the size of the abbreviation table at an offset, in bytes; `limit + 1` if it is larger
/// than `limit`.
///
/// `code, tag (LEB128), children (1 byte), pairs of name and form (LEB128) up to a pair of zeros`,
/// up to a code of zero.
fn abbreviations_size(section: &Slice<'_>, offset: usize, limit: u64) -> u64 {
    let mut reader = *section;
    if reader.skip(offset).is_err() {
        return 0;
    }
    let start = reader.len();
    let used = |reader: &Slice<'_>| (start - reader.len()) as u64;
    while used(&reader) <= limit && skip_declaration(&mut reader, |reader| used(reader) > limit).unwrap_or(false) {}
    used(&reader).min(limit.saturating_add(1))
}

/// Maximum ratio of a parsed abbreviation table's size to its bytes in the file.
///
/// An attribute of two bytes takes 16 bytes, a declaration of four bytes with its attributes 112.
const ABBREVIATIONS_RATIO: usize = 32;

/// Reserves memory for a parsed abbreviation table; `None` if not enough is left.
pub(crate) fn reserve_abbreviations<'a>(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    table: usize,
    meter: &'a Meter,
) -> Option<Reserved<'a>> {
    let most = (meter.memory_left() / ABBREVIATIONS_RATIO) as u64;
    let size = abbreviations_size(dwarf.debug_abbrev.reader(), table, most) as usize;
    meter.reserve(size.saturating_mul(ABBREVIATIONS_RATIO))
}

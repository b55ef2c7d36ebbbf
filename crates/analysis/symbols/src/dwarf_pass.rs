//! Lines and inlined calls of some addresses by one pass over a file's DWARF that keeps nothing.
//!
//! [`Dwarf`](crate::dwarf::Dwarf) makes an index of all units for any number of questions: 33 MB for a program of 85 MB before the first
//! is answered, and more with each unit that is looked into. Here all questions are known before. Each unit is asked whether it
//! has one of the addresses; if it has, its entries and its line program are read from first to last, and then it is forgotten. What is
//! answered is the same (`tests/it/within_budget.rs` compares them), with two exceptions: units that are split off into other files, and names
//! in a file that `dwz` made. These are left out, and it is said of which addresses.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
    sync::Arc,
};

use gimli::{
    Abbreviations, AttributeSpecification, AttributeValue, DebugInfoOffset, Dwarf, DwarfSections, EndianSlice,
    RunTimeEndian, Section as _, SectionId, Unit, UnitHeader, UnitOffset, UnitRef, UnitType,
};
use object::{Object, ObjectSection};

use crate::{
    dwarf::{DwarfFrame, section},
    dwarf_budget::{MAX_DEPTH, MAX_UNITS, abbreviations_size},
    entry_ranges::EntryRanges,
    line_rows::{self, Row, file_name},
    mapped_file::Bytes,
    naming_budget::{Meter, Reserved},
};

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// The sections that lines and inlined calls come from.
const SECTIONS: [SectionId; 10] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// How much larger a parsed table of abbreviations is than its bytes, at most: an attribute of two bytes takes 16, a declaration of
/// four and its attributes 112.
const ABBREVIATIONS_RATIO: usize = 32;
/// And the files of a line program than its header, where each is five bytes and takes 112.
const FILES_RATIO: usize = 24;
/// A name is looked for in so many entries that refer to each other.
const MAX_REFERENCES: usize = 16;

/// What is known of an address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// The calls, the innermost first.
    pub(crate) frames: Vec<DwarfFrame>,
    /// There may be more to say of it than could be read.
    pub(crate) left_out: bool,
    /// A unit has a function there, and not only a line.
    pub(crate) has_function: bool,
}

impl Answer {
    /// Nothing else can say more of the address.
    pub(crate) fn is_whole(&self) -> bool {
        self.has_function && !self.left_out && self.frames.iter().all(|frame| frame.function.is_some())
    }
}

/// Answers for `addresses` (svma), which are sorted and distinct, each at its place.
pub(crate) fn frames(file: &object::File<'_>, bytes: &Bytes, addresses: &[u64], meter: &Meter) -> Vec<Answer> {
    let mut answers = vec![Answer::default(); addresses.len()];
    let leave_out = |answers: &mut Vec<Answer>| {
        let open = answers.iter_mut().filter(|answer| !answer.has_function);
        open.for_each(|answer| answer.left_out = true);
    };
    let unpacked = SECTIONS.iter().filter_map(|id| {
        let data = file.section_by_name(id.name())?.compressed_data().ok()?;
        (data.format != object::CompressionFormat::None).then_some(data.uncompressed_size)
    });
    let unpacked = usize::try_from(unpacked.fold(0, u64::saturating_add)).unwrap_or(usize::MAX);
    let Some(_unpacked) = meter.reserve(unpacked) else {
        leave_out(&mut answers);
        return answers;
    };
    let load = |id: SectionId| match SECTIONS.contains(&id) {
        // Unpacking is the one long step that can't be interrupted.
        true if meter.has_time() => section(file, bytes, id.name()).map_err(|_| gimli::Error::Io),
        true => Err(gimli::Error::Io),
        false => Ok(Bytes::owned(Vec::new())),
    };
    let Ok(sections) = DwarfSections::load(load) else {
        if !meter.has_time() {
            leave_out(&mut answers);
        }
        return answers;
    };
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let dwarf = sections.borrow(|section| EndianSlice::new(section, endian));
    let mut pass = Pass { dwarf: &dwarf, addresses, meter, answers, units: None, other_units: RefCell::default() };
    if pass.run().is_none() {
        leave_out(&mut pass.answers);
    }
    // Names that `dwz` moved into another file are not looked up there.
    if file.gnu_debugaltlink().is_ok_and(|link| link.is_some()) {
        for answer in &mut pass.answers {
            answer.left_out |= answer.frames.iter().any(|frame| frame.function.is_none());
        }
    }
    pass.answers
}

/// What units (each by its offset, with the places of the addresses that it claims, both ascending) say of `addresses`, which are sorted and
/// distinct: of each address what the first unit says that has a function there. `all` has the offsets of all units, ascending. `None` if the
/// budget ended before.
pub(crate) fn frames_in(
    dwarf: &Dwarf<Slice<'_>>,
    addresses: &[u64],
    units: &BTreeMap<usize, Vec<usize>>,
    all: &[usize],
    meter: &Meter,
) -> Option<Vec<Answer>> {
    let answers = vec![Answer::default(); addresses.len()];
    let mut pass = Pass { dwarf, addresses, meter, answers, units: Some(all), other_units: RefCell::default() };
    let mut shared = None;
    for (&offset, places) in units {
        let Ok(header) = dwarf.debug_info.header_from_offset(DebugInfoOffset(offset)) else { continue };
        let places: Vec<usize> = places.iter().copied().filter(|&place| !pass.answers[place].has_function).collect();
        if !is_of_code(header.type_()) || places.is_empty() {
            continue;
        }
        meter.has_time().then_some(())?;
        let _abbreviations = pass.reserve_abbreviations(header.debug_abbrev_offset().0)?;
        if let Some(unit) = pass.open(header, &mut shared) {
            pass.unit(unit.unit_ref(dwarf), &places)?;
        }
    }
    Some(pass.answers)
}

/// Whether a unit of that kind may have code, and is not only what others refer to.
fn is_of_code(kind: UnitType<usize>) -> bool {
    !matches!(kind, UnitType::Partial | UnitType::Type { .. } | UnitType::SplitType { .. })
}

struct Pass<'a> {
    dwarf: &'a Dwarf<Slice<'a>>,
    addresses: &'a [u64],
    meter: &'a Meter,
    answers: Vec<Answer>,
    /// The offsets of all units, ascending, where they are known.
    units: Option<&'a [usize]>,
    /// Units that names were looked for in, by their offsets: what a linker optimised has each function's name in the unit of its source.
    other_units: RefCell<HashMap<usize, Rc<OtherUnit<'a>>>>,
}

struct OtherUnit<'a> {
    unit: Unit<Slice<'a>>,
    _abbreviations: Reserved<'a>,
}

/// So many of them are kept.
const MAX_OTHER_UNITS: usize = 64;

/// A function or an inlined call that the entries being read are in.
struct Scope {
    depth: isize,
    /// Places of the addresses that are in it.
    inside: Vec<usize>,
}

/// A call at an address that is asked for.
#[derive(Clone)]
struct Call {
    name: Option<String>,
    /// Where it was called from, if it was inlined.
    from_file: Option<u64>,
    from_line: u32,
    from_column: u32,
}

/// What a unit says of the addresses that it is asked for: of each from the first to the last of them, whether it is one.
struct ByPlace<T> {
    first: usize,
    each: Vec<Option<T>>,
}

impl<T> ByPlace<T> {
    /// `places` are ascending.
    fn new(places: &[usize], each: impl Fn() -> T) -> Self {
        let (first, last) = places.first().zip(places.last()).map_or((0, 0), |(&first, &last)| (first, last + 1));
        let mut by_place = Self { first, each: Vec::new() };
        by_place.each.resize_with(last - first, || None);
        for place in places {
            by_place.each[place - first] = Some(each());
        }
        by_place
    }

    fn get(&mut self, place: usize) -> Option<&mut T> {
        self.each.get_mut(place.checked_sub(self.first)?)?.as_mut()
    }
}

/// Which addresses an entry has, as it says it.
#[derive(Default)]
struct Extent<'a> {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    list: Option<AttributeValue<Slice<'a>>>,
}

impl<'a> Pass<'a> {
    /// Reads the file once; `None` if the budget ended before that.
    fn run(&mut self) -> Option<()> {
        let by_aranges = self.by_aranges()?;
        let mut shared = None;
        let mut units = self.dwarf.units();
        // What is broken ends the file here, as for others that read it.
        while let Ok(Some(header)) = units.next() {
            self.meter.step().then_some(())?;
            if self.answers.iter().all(|answer| answer.has_function) {
                break;
            }
            if !is_of_code(header.type_()) {
                continue;
            }
            let Some(offset) = header.debug_info_offset() else { continue };
            let _abbreviations = self.reserve_abbreviations(header.debug_abbrev_offset().0)?;
            let Some(unit) = self.open(header, &mut shared) else { continue };
            let files = unit.line_program.as_ref().map_or(0, |program| program.header().header_length());
            let _files = self.meter.reserve(files.saturating_mul(FILES_RATIO))?;
            let unit = unit.unit_ref(self.dwarf);
            let first = by_aranges.partition_point(|(unit, _)| *unit < offset.0);
            let of_unit = by_aranges[first..].iter().take_while(|(unit, _)| *unit == offset.0);
            let mut places: Vec<usize> = of_unit.map(|&(_, place)| place).collect();
            self.places_of_unit(unit, &mut places)?;
            places.retain(|&place| !self.answers[place].has_function);
            coroner_process::heap_sort(&mut places, |first, second| first < second);
            places.dedup();
            if !places.is_empty() {
                self.unit(unit, &places)?;
            }
        }
        Some(())
    }

    /// Opens a unit. `shared` has the table of abbreviations of the one before, and where it is: one table serves many units where dsymutil or a
    /// linker's optimisation made them.
    fn open(
        &self,
        header: UnitHeader<Slice<'a>>,
        shared: &mut Option<(usize, Arc<Abbreviations>)>,
    ) -> Option<Unit<Slice<'a>>> {
        let table = header.debug_abbrev_offset();
        let abbreviations = match shared.take() {
            Some((at, abbreviations)) if at == table.0 => abbreviations,
            _ => Arc::new(self.dwarf.debug_abbrev.abbreviations(table).ok()?),
        };
        *shared = Some((table.0, Arc::clone(&abbreviations)));
        Unit::new_with_abbreviations(self.dwarf, header, abbreviations).ok()
    }

    fn reserve_abbreviations(&self, table: usize) -> Option<Reserved<'a>> {
        let most = (self.meter.memory_left() / ABBREVIATIONS_RATIO) as u64;
        let size = abbreviations_size(self.dwarf.debug_abbrev.reader(), table, most) as usize;
        self.meter.reserve(size.saturating_mul(ABBREVIATIONS_RATIO))
    }

    /// The places of the addresses from `begin` to `end`.
    fn within(&self, begin: u64, end: u64) -> std::ops::Range<usize> {
        let first = self.addresses.partition_point(|&address| address < begin);
        let last = self.addresses.partition_point(|&address| address < end);
        first..last.max(first)
    }

    /// The units (by their offsets) and addresses that `.debug_aranges` brings together.
    fn by_aranges(&self) -> Option<Vec<(usize, usize)>> {
        let mut found = Vec::new();
        let mut headers = self.dwarf.debug_aranges.headers();
        while let Ok(Some(header)) = headers.next() {
            let mut entries = header.entries();
            while let Some(entry) = entries.next().transpose() {
                self.meter.step().then_some(())?;
                let Ok(entry) = entry else { continue };
                let places = self.within(entry.range().begin, entry.range().end);
                found.extend(places.map(|place| (header.debug_info_offset().0, place)));
                if !is_sparse(&mut found, MAX_UNITS * self.addresses.len()) {
                    return None;
                }
            }
        }
        // In a file that is not broken few units claim one address.
        coroner_process::heap_sort(&mut found, |first, second| first < second);
        found.dedup();
        Some(found)
    }

    /// Adds the places of the addresses that a unit says it has; of one that says nothing, those of its line program.
    fn places_of_unit(&self, unit: UnitRef<'_, Slice<'a>>, places: &mut Vec<usize>) -> Option<()> {
        let mut says = !places.is_empty();
        for (begin, end) in EntryRanges::of(unit, None).into_iter().flatten() {
            self.meter.step().then_some(())?;
            if begin < end {
                says = true;
                places.extend(self.within(begin, end));
                is_sparse(places, 2 * self.addresses.len());
            }
        }
        if !says {
            self.rows(unit, |sequence, _| {
                places.extend(sequence);
                is_sparse(places, 2 * self.addresses.len());
            })?;
        }
        Some(())
    }

    /// Reads a line program, and gives `take` the places between two rows, with the first of these.
    fn rows(&self, unit: UnitRef<'_, Slice<'a>>, mut take: impl FnMut(std::ops::Range<usize>, Row)) -> Option<()> {
        line_rows::stretches(
            unit,
            || self.meter.step().then_some(()),
            |stretch, row| {
                let places = self.within(stretch.start, stretch.end);
                if !places.is_empty() {
                    take(places, row);
                }
            },
        )
    }

    /// Looks into a unit that may have these addresses.
    fn unit(&mut self, unit: UnitRef<'_, Slice<'a>>, places: &[usize]) -> Option<()> {
        let mut calls = self.calls(unit, places)?;
        let mut rows: ByPlace<Option<Row>> = ByPlace::new(places, || None);
        self.rows(unit, |between, row| {
            for place in between {
                // Where stretches overlap, the one that begins last is of that code.
                if let Some(known) = rows.get(place)
                    && known.is_none_or(|other| other.address < row.address)
                {
                    *known = Some(row);
                }
            }
        })?;
        for &place in places {
            let answer = &mut self.answers[place];
            if unit.dwo_id.is_some() {
                answer.left_out = true;
            }
            let calls = calls.get(place).map(std::mem::take).unwrap_or_default();
            let row = rows.get(place).copied().flatten();
            if calls.is_empty() && (row.is_none() || !answer.frames.is_empty()) {
                continue;
            }
            // From the outermost call to the innermost, each of which says where it was called from.
            let mut at = row.map(|row| (Some(row.file), row.line, if row.line == 0 { 0 } else { row.column }));
            answer.frames.clear();
            answer.has_function = !calls.is_empty();
            for call in calls.iter().rev().map(Some).chain(calls.is_empty().then_some(None)) {
                let (file, line, column) = at.unwrap_or((None, 0, 0));
                answer.frames.push(DwarfFrame {
                    function: call.and_then(|call| call.name.clone()),
                    file: file.and_then(|file| file_name(unit, file)),
                    line: (line != 0).then_some(line),
                    column: (column != 0).then_some(column),
                });
                at = call.map(|call| (call.from_file, call.from_line, call.from_column));
            }
        }
        Some(())
    }

    /// The function and the inlined calls at each of the addresses, the outermost first.
    fn calls(&self, unit: UnitRef<'_, Slice<'a>>, places: &[usize]) -> Option<ByPlace<Vec<Call>>> {
        let mut calls: ByPlace<Vec<Call>> = ByPlace::new(places, Vec::new);
        let mut without_function = places.len();
        let mut scopes: Vec<Scope> = Vec::new();
        let Ok(mut entries) = unit.entries_raw(None) else { return Some(calls) };
        while !entries.is_empty() {
            self.meter.step().then_some(())?;
            let (depth, offset) = (entries.next_depth(), entries.next_offset());
            let Ok(abbreviation) = entries.read_abbreviation() else { break };
            let Some(abbreviation) = abbreviation else { continue };
            while scopes.last().is_some_and(|scope| scope.depth >= depth) {
                scopes.pop();
            }
            let is_function = abbreviation.tag() == gimli::DW_TAG_subprogram;
            let is_inlined = abbreviation.tag() == gimli::DW_TAG_inlined_subroutine
                && scopes.last().is_some_and(|scope| !scope.inside.is_empty());
            if !is_function && !is_inlined {
                if entries.skip_attributes(abbreviation.attributes()).is_err() {
                    break;
                }
                continue;
            }
            if depth > MAX_DEPTH {
                break;
            }
            // All that is asked for was in functions that are read.
            let is_outside = || scopes.iter().all(|scope| scope.inside.is_empty());
            if is_function && without_function == 0 && is_outside() {
                break;
            }
            let mut extent = Extent::default();
            // Declarations, and what was inlined everywhere.
            let is_code = |attribute: &AttributeSpecification| {
                matches!(attribute.name(), gimli::DW_AT_low_pc | gimli::DW_AT_ranges)
            };
            if !abbreviation.attributes().iter().any(is_code) {
                if entries.skip_attributes(abbreviation.attributes()).is_err() {
                    break;
                }
                scopes.push(Scope { depth, inside: Vec::new() });
                continue;
            }
            for specification in abbreviation.attributes() {
                let Ok(attribute) = entries.read_attribute(*specification) else { return Some(calls) };
                match (attribute.name(), attribute.value()) {
                    (gimli::DW_AT_low_pc, value) => extent.low = unit.attr_address(value).ok().flatten(),
                    (gimli::DW_AT_high_pc, AttributeValue::Udata(size)) => extent.size = Some(size),
                    (gimli::DW_AT_high_pc, value) => extent.high = unit.attr_address(value).ok().flatten(),
                    (gimli::DW_AT_ranges, value) => extent.list = Some(value),
                    _ => {}
                }
            }
            let mut inside = self.places_of(unit, &extent)?;
            if is_function {
                inside.retain(|&place| calls.get(place).is_some_and(|calls| calls.is_empty()));
                without_function -= inside.len();
            } else if let Some(around) = scopes.last() {
                inside.retain(|place| around.inside.binary_search(place).is_ok());
            }
            if !inside.is_empty() {
                self.add_calls(unit, offset, is_inlined, &inside, &mut calls)?;
            }
            scopes.push(Scope { depth, inside });
        }
        Some(calls)
    }

    fn places_of(&self, unit: UnitRef<'_, Slice<'a>>, extent: &Extent<'a>) -> Option<Vec<usize>> {
        let mut places = Vec::new();
        if let Some(list) = extent.list {
            if let Ok(Some(mut ranges)) = unit.attr_ranges(list) {
                while let Ok(Some(range)) = ranges.next() {
                    self.meter.step().then_some(())?;
                    places.extend(self.within(range.begin, range.end));
                    is_sparse(&mut places, 2 * self.addresses.len());
                }
            }
            coroner_process::heap_sort(&mut places, |first, second| first < second);
            places.dedup();
        } else if let Some(low) = extent.low
            && let Some(high) = extent.high.or_else(|| low.checked_add(extent.size?))
        {
            places.extend(self.within(low, high));
        }
        Some(places)
    }

    /// Adds the call that the entry at `offset` is, for each of the addresses inside.
    fn add_calls(
        &self,
        unit: UnitRef<'_, Slice<'a>>,
        offset: UnitOffset,
        is_inlined: bool,
        inside: &[usize],
        calls: &mut ByPlace<Vec<Call>>,
    ) -> Option<()> {
        let name = self.name(unit, offset)?;
        let mut call = Call { name, from_file: None, from_line: 0, from_column: 0 };
        if is_inlined
            && let Ok(mut entries) = unit.entries_raw(Some(offset))
            && let Ok(Some(abbreviation)) = entries.read_abbreviation()
        {
            for specification in abbreviation.attributes() {
                let Ok(attribute) = entries.read_attribute(*specification) else { break };
                match (attribute.name(), attribute.value()) {
                    // No file had the number 0 before version 5.
                    (gimli::DW_AT_call_file, AttributeValue::FileIndex(file)) => {
                        call.from_file = Some(file).filter(|&file| file > 0 || unit.header.version() >= 5);
                    }
                    (gimli::DW_AT_call_line, _) => call.from_line = attribute.udata_value().unwrap_or(0) as u32,
                    (gimli::DW_AT_call_column, _) => call.from_column = attribute.udata_value().unwrap_or(0) as u32,
                    _ => {}
                }
            }
        }
        for &place in inside {
            if let Some(calls) = calls.get(place) {
                calls.push(call.clone());
            }
        }
        Some(())
    }

    /// The name of an entry, or of those that it refers to: the linker's before the source's. `None` if the budget ends.
    #[allow(clippy::option_option)]
    fn name(&self, unit: UnitRef<'_, Slice<'a>>, offset: UnitOffset) -> Option<Option<String>> {
        // Where the entry is: in the unit, or in one elsewhere in the file.
        let mut next = Some((None, offset));
        for _ in 0..MAX_REFERENCES {
            let Some((other, offset)) = next.take() else { break };
            let other = match other {
                None => None,
                Some(at) => match self.unit_with(at)? {
                    Some(unit) => Some(unit),
                    None => break,
                },
            };
            let within = other.as_ref().map_or(unit, |other| other.unit.unit_ref(self.dwarf));
            let offset = match &other {
                Some(other) => match DebugInfoOffset(offset.0).to_unit_offset(&other.unit.header) {
                    Some(offset) => offset,
                    None => break,
                },
                None => offset,
            };
            let Ok(mut entries) = within.entries_raw(Some(offset)) else { break };
            let Ok(Some(abbreviation)) = entries.read_abbreviation() else { break };
            let mut name = None;
            for specification in abbreviation.attributes() {
                let Ok(attribute) = entries.read_attribute(*specification) else { break };
                let text =
                    || within.attr_string(attribute.value()).ok().map(|text| text.to_string_lossy().into_owned());
                match attribute.name() {
                    gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                        if let Some(name) = text() {
                            return Some(Some(name));
                        }
                    }
                    gimli::DW_AT_name => name = text().or(name),
                    gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                        next = match attribute.value() {
                            // Of another unit by now: a reference within it counts from the file's beginning, too.
                            AttributeValue::UnitRef(at) => match at.to_debug_info_offset(&within.header) {
                                Some(whole) if other.is_some() => Some((Some(whole), UnitOffset(whole.0))),
                                _ => Some((None, at)),
                            },
                            AttributeValue::DebugInfoRef(at) => Some((Some(at), UnitOffset(at.0))),
                            _ => None,
                        };
                    }
                    _ => {}
                }
            }
            if name.is_some() {
                return Some(name);
            }
        }
        Some(None)
    }

    /// The unit that has an offset of `.debug_info`. `None` if the budget ends.
    #[allow(clippy::option_option)]
    fn unit_with(&self, at: DebugInfoOffset) -> Option<Option<Rc<OtherUnit<'a>>>> {
        let header = match self.units {
            Some(units) => {
                self.meter.step().then_some(())?;
                let before = units.partition_point(|&offset| offset <= at.0).checked_sub(1);
                before.and_then(|before| self.dwarf.debug_info.header_from_offset(DebugInfoOffset(units[before])).ok())
            }
            None => {
                let mut units = self.dwarf.units();
                loop {
                    let Ok(Some(header)) = units.next() else { break None };
                    self.meter.step().then_some(())?;
                    if at.to_unit_offset(&header).is_some() {
                        break Some(header);
                    }
                }
            }
        };
        let Some(header) = header.filter(|header| at.to_unit_offset(header).is_some()) else { return Some(None) };
        let key = header.debug_info_offset().map_or(at.0, |offset| offset.0);
        let mut others = self.other_units.borrow_mut();
        if let Some(known) = others.get(&key) {
            return Some(Some(Rc::clone(known)));
        }
        if others.len() >= MAX_OTHER_UNITS {
            others.clear();
        }
        let table = header.debug_abbrev_offset().0;
        let abbreviations = self.reserve_abbreviations(table).or_else(|| {
            others.clear();
            self.reserve_abbreviations(table)
        })?;
        let Ok(unit) = self.dwarf.unit(header) else { return Some(None) };
        let other = Rc::new(OtherUnit { unit, _abbreviations: abbreviations });
        others.insert(key, Rc::clone(&other));
        Some(Some(other))
    }
}

/// Keeps a list short to which the same things may be added very often. Says whether that suffices.
fn is_sparse<T: Ord>(list: &mut Vec<T>, limit: usize) -> bool {
    if list.len() > limit.max(64) {
        coroner_process::heap_sort(list, |first, second| first < second);
        list.dedup();
    }
    list.len() <= limit.max(64)
}

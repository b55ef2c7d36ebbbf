//! Limits on what a file's DWARF can make its reader do.
//!
//! `addr2line` trusts the structure of what it reads: it recurses once for each level of inlined calls, parses a table of
//! abbreviations for each unit that refers to it, and expands a list of ranges for each entry that does. A file of a
//! megabyte can so ask for an overflow of the stack, or for gigabytes and hours. What is asked for is added up here, before
//! it is done: at the start for all units, and for a unit's inside when the first address in it is looked up.

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

/// Entries nested deeper than this are refused. LLVM's own limit for expression nesting is 256; real units have below 100.
pub(crate) const MAX_DEPTH: isize = 384;
/// So many units may claim one address.
pub(crate) const MAX_UNITS: usize = 256;

/// Ranges of addresses that may overlap, each with a number of whoever claims it.
#[derive(Debug, Default)]
struct Claims {
    /// By start.
    ranges: Vec<(u64, u64, usize)>,
    /// The greatest end up to each range, so that a search can stop early.
    ends: Vec<u64>,
}

impl Claims {
    fn of(mut ranges: Vec<(u64, u64, usize)>) -> Self {
        ranges.sort_unstable();
        let mut end = 0;
        let greatest = ranges.iter().map(|range| {
            end = end.max(range.1);
            end
        });
        let ends = greatest.collect();
        Self { ranges, ends }
    }

    /// Who claims an address.
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

/// What the line programs of units without ranges have.
#[derive(Debug)]
struct ByLines {
    /// Of each sequence: from its lowest to its highest address, with the program's number.
    sequences: Claims,
    /// The units of each program. Those of a file that is not broken have one each.
    units: Vec<Vec<usize>>,
}

impl ByLines {
    fn of(dwarf: &Dwarf<'_>, units: &[usize]) -> Self {
        let (mut sequences, mut of_programs) = (Vec::new(), Vec::<Vec<usize>>::new());
        let mut known: HashMap<usize, usize> = HashMap::new();
        let mut roots = Roots::of(dwarf);
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
        Self { sequences: Claims::of(sequences), units: of_programs }
    }
}

/// Tables of abbreviations that have the declaration of units' root entries alone: all that a look at a unit from outside needs, and a
/// hundredth of the work.
struct Roots {
    /// By table and the entry's code.
    known: HashMap<(usize, u64), Option<Arc<gimli::Abbreviations>>>,
    /// Bytes of tables that may be passed over in search of declarations.
    left: u64,
}

impl Roots {
    /// A declaration that is not found within so many bytes is left to a look at the whole table.
    const SIZE: usize = 1 << 14;

    fn of(dwarf: &Dwarf<'_>) -> Self {
        Self { known: HashMap::new(), left: tables_limit(dwarf) }
    }

    /// The unit without what it says inside.
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
            self.left = left.ok_or_else(|| Refused::new(at, "units whose tables of abbreviations overlap"))?;
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

/// A table of the declaration of `code` alone, and how many bytes were passed over.
fn root_declaration(dwarf: &Dwarf<'_>, table: usize, code: u64) -> (Option<Arc<gimli::Abbreviations>>, u64) {
    let section = dwarf.debug_abbrev.reader();
    let bytes = section.slice().get(table..).unwrap_or_default();
    let bytes = bytes.get(..Roots::SIZE).unwrap_or(bytes);
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
    /// Where in `.debug_info` the unit or entry is.
    pub(crate) info_offset: u64,
    pub(crate) what: String,
}

impl Refused {
    fn new(info_offset: usize, what: impl Into<String>) -> Self {
        Self { info_offset: info_offset as u64, what: what.into() }
    }
}

/// Bytes of tables of abbreviations that a file's units may refer to: compilers write one table for each unit, linkers share some.
fn tables_limit(dwarf: &Dwarf<'_>) -> u64 {
    2 * dwarf.debug_abbrev.reader().len() as u64 + (1 << 16)
}

/// Fails where units refer to tables of abbreviations that overlap. To be called before any table is parsed; the same table
/// is then parsed once, if the cache of the section is filled.
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
                .ok_or_else(|| Refused::new(at, "units whose tables of abbreviations overlap"))?;
        }
    }
    Ok(())
}

/// What is known of a file's units, and how much of the file's budget is left.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Address ranges of units, with the unit's offset in `.debug_info`.
    ranges: Claims,
    /// The offsets of all units, ascending.
    units: Vec<usize>,
    /// Units that say nothing of ranges.
    silent: Vec<usize>,
    /// Units whose ranges are all of code that the linker dropped.
    dropped: Vec<usize>,
    /// What the line programs of the silent ones have, and of both: read when it is asked for.
    by_lines: [OnceCell<ByLines>; 2],
    /// Units with a range that begins at address 0: what is left of functions that the linker dropped.
    with_dropped: HashSet<usize>,
    checked: RefCell<HashSet<usize>>,
    ranges_left: Cell<u64>,
}

impl Budget {
    /// Looks at all units from outside. Fails where the work on them would be out of proportion to their size.
    pub(crate) fn of_units(dwarf: &Dwarf<'_>) -> Result<Self, Refused> {
        // Each list and each table is referred to about once in what compilers write; twice is generous.
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
        let mut roots = Roots::of(dwarf);
        let mut units = dwarf.units();
        // Broken headers end the list here as they do for addr2line, which then says what is wrong.
        while let Ok(Some(header)) = units.next() {
            let Some(offset) = header.debug_info_offset().map(|offset| offset.0) else { continue };
            budget.units.push(offset);
            let Ok(unit) = roots.unit(dwarf, header)? else { continue };
            budget.add_unit(unit.unit_ref(dwarf), offset, &aranges, &mut ranges)?;
        }
        budget.ranges = Claims::of(ranges);
        Ok(budget)
    }

    /// The unit's ranges in the order that addr2line prefers: `DW_AT_ranges`, `.debug_aranges`, low and high pc.
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
        } else if let Some((begin, end)) = EntryRanges::of(unit, None).and_then(|mut ranges| ranges.next()) {
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

    /// The ranges of a list, each of which costs one.
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
            left.checked_sub(1)
                .ok_or_else(|| Refused::new(at, "entries share lists of ranges that are too long for that"))?,
        );
        Ok(())
    }

    /// Looks into the units that may have an address, each once.
    pub(crate) fn check_address(&self, dwarf: &Dwarf<'_>, svma: u64) -> Result<(), Refused> {
        // addr2line takes the ranges of units that say none from their line programs. Of ordinary large programs these are thousands (empty
        // units, units whose functions the linker dropped, dwz's partial ones), and they are no part of the limit.
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

    /// The units that claim an address.
    pub(crate) fn candidates(&self, svma: u64) -> Vec<usize> {
        self.ranges.at(svma)
    }

    /// The units that say no ranges, and whose line program has an address; with `dropped` also those whose ranges are all of dropped code, of
    /// which addr2line thinks the same.
    pub(crate) fn claimants_by_lines(&self, dwarf: &Dwarf<'_>, svma: u64, dropped: bool) -> Vec<usize> {
        let [silent, all] = &self.by_lines;
        let by_lines = match dropped {
            false => silent.get_or_init(|| ByLines::of(dwarf, &self.silent)),
            true => all.get_or_init(|| ByLines::of(dwarf, &[&self.silent[..], &self.dropped].concat())),
        };
        let mut programs = by_lines.sequences.at(svma);
        coroner_process::heap_sort(&mut programs, |first, second| first < second);
        programs.dedup();
        programs.into_iter().filter_map(|program| by_lines.units.get(program)).flatten().copied().collect()
    }

    /// The offsets of all units, ascending.
    pub(crate) fn units(&self) -> &[usize] {
        &self.units
    }

    /// How many bytes have to be read to look into a unit: its own, and those of its table of abbreviations.
    pub(crate) fn size_of(&self, dwarf: &Dwarf<'_>, unit: usize) -> usize {
        let Ok(header) = dwarf.debug_info.header_from_offset(gimli::DebugInfoOffset(unit)) else { return 0 };
        let table = header.debug_abbrev_offset().0;
        let abbreviations = abbreviations_size(dwarf.debug_abbrev.reader(), table, u64::MAX);
        header.length_including_self().saturating_add(abbreviations as usize)
    }

    /// The unit that claims an address, if it is one alone and also has functions that the linker dropped.
    pub(crate) fn unit_with_dropped(&self, svma: u64) -> Option<usize> {
        if self.with_dropped.is_empty() {
            return None;
        }
        let candidates = self.candidates(svma);
        let (first, others) = candidates.split_first()?;
        (others.iter().all(|other| other == first) && self.with_dropped.contains(first)).then_some(*first)
    }

    /// How deep a unit's entries are, and what ranges they ask for.
    fn check_unit(&self, dwarf: &Dwarf<'_>, offset: usize) -> Result<(), Refused> {
        let Ok(header) = dwarf.debug_info.header_from_offset(gimli::DebugInfoOffset(offset)) else { return Ok(()) };
        let Ok(unit) = dwarf.unit(header) else { return Ok(()) };
        let unit = unit.unit_ref(dwarf);
        // Errors in the entries are addr2line's to tell: it stops there as well.
        let Ok(mut entries) = unit.entries_raw(None) else { return Ok(()) };
        while !entries.is_empty() {
            let at = entries.next_offset();
            if entries.next_depth() > MAX_DEPTH {
                return Err(Refused::new(in_section(at, unit), format!("entries nested deeper than {MAX_DEPTH}")));
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

/// `.debug_aranges` by unit.
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

/// Passes over a declaration; `false` at the end of its table. One that is too long by `is_over` is left within.
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

/// The bytes of the table of abbreviations at an offset; one more than `limit` where it is longer than that.
///
/// `code, tag (LEB128), children (1 byte), pairs of name and form (LEB128) up to a pair of zeros`, up to a code of zero.
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

/// How much larger a parsed table of abbreviations is than its bytes, at most: an attribute of two bytes takes 16, a declaration of
/// four and its attributes 112.
const ABBREVIATIONS_RATIO: usize = 32;

/// Reserves the memory of a parsed table of abbreviations; `None` if that is more than is left.
pub(crate) fn reserve_abbreviations<'a>(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    table: usize,
    meter: &'a Meter,
) -> Option<Reserved<'a>> {
    let most = (meter.memory_left() / ABBREVIATIONS_RATIO) as u64;
    let size = abbreviations_size(dwarf.debug_abbrev.reader(), table, most) as usize;
    meter.reserve(size.saturating_mul(ABBREVIATIONS_RATIO))
}

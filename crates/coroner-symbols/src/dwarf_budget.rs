//! Limits on what a file's DWARF can make its reader do.
//!
//! `addr2line` trusts the structure of what it reads: it recurses once for each level of inlined calls, parses a table of
//! abbreviations for each unit that refers to it, and expands a list of ranges for each entry that does. A file of a
//! megabyte can so ask for an overflow of the stack, or for gigabytes and hours. What is asked for is added up here, before
//! it is done: at the start for all units, and for a unit's inside when the first address in it is looked up.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
};

use gimli::{AttributeValue, EndianSlice, Reader as _, RunTimeEndian, Section as _, UnitOffset, UnitRef};

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;
type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;

/// Entries nested deeper than this are refused. LLVM's own limit for expression nesting is 256; real units have below 100.
pub(crate) const MAX_DEPTH: isize = 384;
/// So many units may claim one address.
pub(crate) const MAX_UNITS: usize = 256;

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

/// Fails where units refer to tables of abbreviations that overlap. To be called before any table is parsed; the same table
/// is then parsed once, if the cache of the section is filled.
pub(crate) fn check_abbreviations(dwarf: &Dwarf<'_>) -> Result<(), Refused> {
    // Compilers write one table for each unit, linkers share some.
    let mut left = 2 * dwarf.debug_abbrev.reader().len() as u64 + (1 << 16);
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
    /// Address ranges of units, by start, with the unit's offset in `.debug_info`.
    ranges: Vec<(u64, u64, usize)>,
    /// The greatest end up to each range, so that a search can stop early.
    ends: Vec<u64>,
    /// Units that say no ranges.
    anywhere: Vec<usize>,
    /// Units with a range that begins at address 0: what is left of functions that the linker dropped.
    with_dropped: HashSet<usize>,
    checked: RefCell<HashSet<usize>>,
    ranges_left: Cell<u64>,
}

impl Budget {
    /// Looks at all units from outside, after [`check_abbreviations`]. Fails where the work on them would be out of proportion to their size.
    pub(crate) fn of_units(dwarf: &Dwarf<'_>) -> Result<Self, Refused> {
        // Each list and each table is referred to about once in what compilers write; twice is generous.
        let range_bytes = [
            dwarf.ranges.debug_ranges().reader().len(),
            dwarf.ranges.debug_rnglists().reader().len(),
            dwarf.debug_aranges.reader().len(),
        ];
        let mut budget = Self {
            ranges: Vec::new(),
            ends: Vec::new(),
            anywhere: Vec::new(),
            with_dropped: HashSet::new(),
            checked: RefCell::default(),
            ranges_left: Cell::new(2 * range_bytes.iter().sum::<usize>() as u64 + (1 << 16)),
        };
        let aranges = aranges(dwarf, &budget)?;
        let mut units = dwarf.units();
        // Broken headers end the list here as they do for addr2line, which then says what is wrong.
        while let Ok(Some(header)) = units.next() {
            let Some(offset) = header.debug_info_offset().map(|offset| offset.0) else { continue };
            let Ok(unit) = dwarf.unit(header) else { continue };
            budget.add_unit(unit.unit_ref(dwarf), offset, &aranges)?;
        }
        budget.ranges.sort_unstable();
        let mut end = 0;
        budget.ends = budget
            .ranges
            .iter()
            .map(|range| {
                end = end.max(range.1);
                end
            })
            .collect();
        Ok(budget)
    }

    /// The unit's ranges in the order that addr2line prefers: `DW_AT_ranges`, `.debug_aranges`, low and high pc.
    fn add_unit(
        &mut self,
        unit: UnitRef<'_, Slice<'_>>,
        offset: usize,
        aranges: &HashMap<usize, Vec<(u64, u64)>>,
    ) -> Result<(), Refused> {
        let before = self.ranges.len();
        if let Some(list) = root_ranges(unit) {
            self.ranges.extend(self.expand(unit, list, offset)?.into_iter().map(|(begin, end)| (begin, end, offset)));
        } else if let Some(sets) = aranges.get(&offset) {
            self.ranges.extend(sets.iter().map(|&(begin, end)| (begin, end, offset)));
        } else if let Ok(mut ranges) = unit.unit_ranges()
            && let Ok(Some(range)) = ranges.next()
        {
            self.ranges.push((range.begin, range.end, offset));
        }
        let added = self.ranges.get(before..).unwrap_or_default();
        if added.is_empty() {
            self.anywhere.push(offset);
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
        // Units without ranges are looked into once, at the first address: addr2line takes their ranges from their line programs when
        // it parses them, so that they claim no other address. Of ordinary large programs they are thousands (empty units, dwz's partial
        // ones, type units).
        for offset in &self.anywhere {
            if self.checked.borrow_mut().insert(*offset) {
                self.check_unit(dwarf, *offset)?;
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
    fn candidates(&self, svma: u64) -> Vec<usize> {
        let mut candidates = Vec::new();
        let mut index = self.ranges.partition_point(|range| range.0 <= svma);
        while let Some(before) = index.checked_sub(1)
            && self.ends[before] > svma
        {
            index = before;
            if self.ranges[index].1 > svma {
                candidates.push(self.ranges[index].2);
            }
        }
        candidates
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

/// The bytes of the table of abbreviations at an offset; one more than `limit` where it is longer than that.
///
/// `code, tag (LEB128), children (1 byte), pairs of name and form (LEB128) up to a pair of zeros`, up to a code of zero.
pub(crate) fn abbreviations_size(section: &Slice<'_>, offset: usize, limit: u64) -> u64 {
    let mut reader = *section;
    if reader.skip(offset).is_err() {
        return 0;
    }
    let start = reader.len();
    let used = |reader: &Slice<'_>| (start - reader.len()) as u64;
    let declaration = |reader: &mut Slice<'_>| -> gimli::Result<bool> {
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
            if (name, form) == (0, 0) || used(reader) > limit {
                return Ok(true);
            }
        }
    };
    while used(&reader) <= limit && declaration(&mut reader).unwrap_or(false) {}
    used(&reader).min(limit.saturating_add(1))
}

//! The functions and inlined calls at addresses, from a DWARF unit's entries.
//!
//! These are `DW_TAG_subprogram` and `DW_TAG_inlined_subroutine`.

use std::{cell::RefCell, collections::HashMap, ops::Range, rc::Rc};

use gimli::{
    AttributeSpecification, AttributeValue, DebugInfoOffset, Dwarf, EndianSlice, RunTimeEndian, Unit, UnitOffset,
    UnitRef,
};

use crate::{
    dwarf_budget::{MAX_DEPTH, reserve_abbreviations},
    naming_budget::{Meter, Reserved},
};

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// Maximum length of a chain of references followed to find a name.
const MAX_REFERENCES: usize = 16;

/// Finds the calls at some addresses in a file's units.
pub(crate) struct InlinedFrames<'a> {
    dwarf: &'a Dwarf<Slice<'a>>,
    /// Sorted and distinct (svma).
    addresses: &'a [u64],
    meter: &'a Meter,
    /// The offsets of all units, ascending, if known.
    units: Option<&'a [usize]>,
    /// Units opened to find names, by offset.
    ///
    /// After link-time optimisation a function's name is in its source's unit.
    other_units: RefCell<HashMap<usize, Rc<OtherUnit<'a>>>>,
}

struct OtherUnit<'a> {
    unit: Unit<Slice<'a>>,
    _abbreviations: Reserved<'a>,
}

/// Maximum number of other units that are kept.
const MAX_OTHER_UNITS: usize = 64;

/// A function or an inlined call that contains the entries being read.
struct Scope {
    depth: isize,
    /// Indices of the addresses inside it.
    inside: Vec<usize>,
}

/// A call at one of the addresses.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) name: Option<String>,
    /// The location that it was called from, if it was inlined.
    pub(crate) from_file: Option<u64>,
    pub(crate) from_line: u32,
    pub(crate) from_column: u32,
}

/// A value for each of some indices; `None` for those in between.
pub(crate) struct ByPlace<T> {
    first: usize,
    each: Vec<Option<T>>,
}

impl<T> ByPlace<T> {
    /// Creates a value with `each` for each of `places`, which must be ascending.
    pub(crate) fn new(places: &[usize], each: impl Fn() -> T) -> Self {
        let (first, last) = places.first().zip(places.last()).map_or((0, 0), |(&first, &last)| (first, last + 1));
        let mut by_place = Self { first, each: Vec::new() };
        by_place.each.resize_with(last - first, || None);
        for place in places {
            by_place.each[place - first] = Some(each());
        }
        by_place
    }

    pub(crate) fn get(&mut self, place: usize) -> Option<&mut T> {
        self.each.get_mut(place.checked_sub(self.first)?)?.as_mut()
    }
}

/// The code range of an entry, from its attributes.
#[derive(Default)]
struct Extent<'a> {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    list: Option<AttributeValue<Slice<'a>>>,
}

impl<'a> InlinedFrames<'a> {
    /// Creates a reader. `addresses` must be sorted and distinct. `units` has the offsets of all
    /// units, ascending, if known.
    pub(crate) fn new(
        dwarf: &'a Dwarf<Slice<'a>>,
        addresses: &'a [u64],
        units: Option<&'a [usize]>,
        meter: &'a Meter,
    ) -> Self {
        Self { dwarf, addresses, meter, units, other_units: RefCell::default() }
    }

    /// Returns the function and the inlined calls at each of the addresses, outermost first.
    pub(crate) fn calls(&self, unit: UnitRef<'_, Slice<'a>>, places: &[usize]) -> Option<ByPlace<Vec<Call>>> {
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
            // Stop when all addresses have been found in functions that were read.
            let is_outside = || scopes.iter().all(|scope| scope.inside.is_empty());
            if is_function && without_function == 0 && is_outside() {
                break;
            }
            let mut extent = Extent::default();
            // Skip declarations and functions that were inlined everywhere.
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
                    places.extend(places_between(self.addresses, range.begin, range.end));
                    is_sparse(&mut places, 2 * self.addresses.len());
                }
            }
            coroner_process::heap_sort(&mut places, |first, second| first < second);
            places.dedup();
        } else if let Some(low) = extent.low
            && let Some(high) = extent.high.or_else(|| low.checked_add(extent.size?))
        {
            places.extend(places_between(self.addresses, low, high));
        }
        Some(places)
    }

    /// Adds the call described by the entry at `offset` to each of the addresses inside it.
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
                    // Before version 5 no file had the number 0.
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

    /// Returns the name of an entry or of those it refers to, preferring linker names to source
    /// names. `None` if the budget runs out.
    #[allow(clippy::option_option)]
    fn name(&self, unit: UnitRef<'_, Slice<'a>>, offset: UnitOffset) -> Option<Option<String>> {
        // The entry's location: in this unit, or in another one in the file.
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
                            // Already in another unit: a reference within it also becomes an offset
                            // in the file.
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

    /// Returns the unit that contains an offset in `.debug_info`. `None` if the budget runs out.
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
        let abbreviations = reserve_abbreviations(self.dwarf, table, self.meter).or_else(|| {
            others.clear();
            reserve_abbreviations(self.dwarf, table, self.meter)
        })?;
        let Ok(unit) = self.dwarf.unit(header) else { return Some(None) };
        let other = Rc::new(OtherUnit { unit, _abbreviations: abbreviations });
        others.insert(key, Rc::clone(&other));
        Some(Some(other))
    }
}

/// Returns the indices of the addresses (sorted) from `begin` up to `end`.
pub(crate) fn places_between(addresses: &[u64], begin: u64, end: u64) -> Range<usize> {
    let first = addresses.partition_point(|&address| address < begin);
    let last = addresses.partition_point(|&address| address < end);
    first..last.max(first)
}

/// Removes the duplicates of a list that has grown beyond `limit`. Returns `false` if it is still
/// longer.
pub(crate) fn is_sparse<T: Ord>(list: &mut Vec<T>, limit: usize) -> bool {
    if list.len() > limit.max(64) {
        coroner_process::heap_sort(list, |first, second| first < second);
        list.dedup();
    }
    list.len() <= limit.max(64)
}

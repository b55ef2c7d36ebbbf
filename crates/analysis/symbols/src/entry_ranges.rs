//! An entry's code ranges. Replaces gimli's `die_ranges`, which adds a hostile size to an address
//! without a check (0.34).

use gimli::{AttributeValue, EndianSlice, RngListIter, RunTimeEndian, UnitOffset, UnitRef};

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// An iterator over an entry's ranges.
pub(crate) enum EntryRanges<'a> {
    /// `DW_AT_low_pc` and `DW_AT_high_pc`.
    One(Option<(u64, u64)>),
    /// `DW_AT_ranges`.
    List(RngListIter<Slice<'a>>),
}

impl<'a> EntryRanges<'a> {
    /// Returns the ranges of the entry at an offset, or of the unit's root. `None` if it can't be
    /// read.
    pub(crate) fn read(unit: UnitRef<'_, Slice<'a>>, offset: Option<UnitOffset>) -> Option<Self> {
        let mut entries = unit.entries_raw(offset).ok()?;
        let abbreviation = entries.read_abbreviation().ok()??;
        let (mut low, mut high, mut size) = (None, None, None);
        for specification in abbreviation.attributes() {
            let attribute = entries.read_attribute(*specification).ok()?;
            match (attribute.name(), attribute.value()) {
                (gimli::DW_AT_low_pc, value) => low = unit.attr_address(value).ok()?,
                (gimli::DW_AT_high_pc, AttributeValue::Udata(bytes)) => size = Some(bytes),
                (gimli::DW_AT_high_pc, value) => high = unit.attr_address(value).ok()?,
                (gimli::DW_AT_ranges, value) => {
                    if let Some(list) = unit.attr_ranges(value).ok()? {
                        return Some(Self::List(list));
                    }
                }
                _ => {}
            }
        }
        let end = |low: u64| size.map_or(high, |size| low.checked_add(size));
        Some(Self::One(low.and_then(|low| Some((low, end(low)?)))))
    }
}

impl Iterator for EntryRanges<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        match self {
            Self::One(range) => range.take(),
            Self::List(list) => list.next().ok().flatten().map(|range| (range.begin, range.end)),
        }
    }
}

//! Looks up lines and inlined calls in one pass over a file's DWARF that keeps nothing.
//!
//! [`Dwarf`](crate::dwarf::Dwarf) builds an index of all units for any number of lookups: 33 MB for
//! a program of 85 MB before the first result, and more with each unit that is parsed. Here all
//! addresses are known in advance. Each unit is checked for the addresses; if it contains one, its
//! entries and its line program are read once from start to end, and then dropped. The results are
//! the same (`tests/it/within_budget.rs` compares them), except for split units in other files, and
//! names in a file made by `dwz`. These are left out, and the affected addresses are marked.

use std::{collections::BTreeMap, sync::Arc};

use gimli::{
    Abbreviations, DebugInfoOffset, Dwarf, DwarfSections, EndianSlice, RunTimeEndian, SectionId, Unit, UnitHeader,
    UnitRef, UnitType,
};
use object::{Object, ObjectSection};

use crate::{
    call::DwarfFrame,
    debug_sections::section,
    dwarf_budget::{MAX_UNITS, reserve_abbreviations},
    entry_ranges::EntryRanges,
    inlined_frames::{ByPlace, InlinedFrames, is_sparse, places_between},
    line_rows::{self, Row, file_name},
    mapped_file::Bytes,
    naming_budget::Meter,
};

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// The sections needed for lines and inlined calls.
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

/// Maximum ratio of a line program's parsed file table to its header.
///
/// Each file is at least five bytes and takes 112.
const FILES_RATIO: usize = 24;
/// The result for an address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// The calls, innermost first.
    pub(crate) frames: Vec<DwarfFrame>,
    /// Whether there may be more information that could not be read.
    pub(crate) left_out: bool,
    /// Whether a unit has a function there, not only a line.
    pub(crate) has_function: bool,
}

impl Answer {
    /// Whether no other source can add information about the address.
    pub(crate) fn is_whole(&self) -> bool {
        self.has_function && !self.left_out && self.frames.iter().all(|frame| frame.function.is_some())
    }
}

/// Returns the results for `addresses` (svma, sorted and distinct), in the same order.
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
        // Decompression is the only long step that can't be interrupted.
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
    let inlined = InlinedFrames::new(&dwarf, addresses, None, meter);
    let mut pass = Pass { dwarf: &dwarf, addresses, meter, answers, inlined };
    if pass.run().is_none() {
        leave_out(&mut pass.answers);
    }
    // Names that `dwz` moved to another file are not looked up there.
    if file.gnu_debugaltlink().is_ok_and(|link| link.is_some()) {
        for answer in &mut pass.answers {
            answer.left_out |= answer.frames.iter().any(|frame| frame.function.is_none());
        }
    }
    pass.answers
}

/// Looks up `addresses` (sorted and distinct) in units; `None` if the budget ran out.
///
/// The first unit with a function at an address provides its result.
///
/// Each unit has its offset and the indices of the addresses that it claims, both ascending. `all`
/// has the offsets of all units, ascending.
pub(crate) fn frames_in(
    dwarf: &Dwarf<Slice<'_>>,
    addresses: &[u64],
    units: &BTreeMap<usize, Vec<usize>>,
    all: &[usize],
    meter: &Meter,
) -> Option<Vec<Answer>> {
    let answers = vec![Answer::default(); addresses.len()];
    let inlined = InlinedFrames::new(dwarf, addresses, Some(all), meter);
    let mut pass = Pass { dwarf, addresses, meter, answers, inlined };
    let mut shared = None;
    for (&offset, places) in units {
        let Ok(header) = dwarf.debug_info.header_from_offset(DebugInfoOffset(offset)) else { continue };
        let places: Vec<usize> = places.iter().copied().filter(|&place| !pass.answers[place].has_function).collect();
        if !may_contain_code(header.type_()) || places.is_empty() {
            continue;
        }
        meter.has_time().then_some(())?;
        let _abbreviations = reserve_abbreviations(dwarf, header.debug_abbrev_offset().0, meter)?;
        if let Some(unit) = pass.open(header, &mut shared) {
            pass.unit(unit.unit_ref(dwarf), &places)?;
        }
    }
    Some(pass.answers)
}

/// Whether a unit of this type may contain code, and is not only referred to by others.
fn may_contain_code(kind: UnitType<usize>) -> bool {
    !matches!(kind, UnitType::Partial | UnitType::Type { .. } | UnitType::SplitType { .. })
}

struct Pass<'a> {
    dwarf: &'a Dwarf<Slice<'a>>,
    addresses: &'a [u64],
    meter: &'a Meter,
    answers: Vec<Answer>,
    inlined: InlinedFrames<'a>,
}

impl<'a> Pass<'a> {
    /// Reads the file once; `None` if the budget ran out first.
    fn run(&mut self) -> Option<()> {
        let by_aranges = self.by_aranges()?;
        let mut shared = None;
        let mut units = self.dwarf.units();
        // A malformed header ends the list here, as in other readers.
        while let Ok(Some(header)) = units.next() {
            self.meter.step().then_some(())?;
            if self.answers.iter().all(|answer| answer.has_function) {
                break;
            }
            if !may_contain_code(header.type_()) {
                continue;
            }
            let Some(offset) = header.debug_info_offset() else { continue };
            let _abbreviations = reserve_abbreviations(self.dwarf, header.debug_abbrev_offset().0, self.meter)?;
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

    /// Opens a unit. `shared` has the previous unit's abbreviation table and its offset: after
    /// dsymutil or a linker's optimisation many units use the same table.
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

    /// Returns pairs of units (by offset) and addresses from `.debug_aranges`.
    fn by_aranges(&self) -> Option<Vec<(usize, usize)>> {
        let mut found = Vec::new();
        let mut headers = self.dwarf.debug_aranges.headers();
        while let Ok(Some(header)) = headers.next() {
            let mut entries = header.entries();
            while let Some(entry) = entries.next().transpose() {
                self.meter.step().then_some(())?;
                let Ok(entry) = entry else { continue };
                let places = places_between(self.addresses, entry.range().begin, entry.range().end);
                found.extend(places.map(|place| (header.debug_info_offset().0, place)));
                if !is_sparse(&mut found, MAX_UNITS * self.addresses.len()) {
                    return None;
                }
            }
        }
        // In a well-formed file few units claim the same address.
        coroner_process::heap_sort(&mut found, |first, second| first < second);
        found.dedup();
        Some(found)
    }

    /// Adds the indices of the addresses that a unit claims.
    ///
    /// For a unit without ranges, these are the addresses in its line program.
    fn places_of_unit(&self, unit: UnitRef<'_, Slice<'a>>, places: &mut Vec<usize>) -> Option<()> {
        let mut says = !places.is_empty();
        for (begin, end) in EntryRanges::read(unit, None).into_iter().flatten() {
            self.meter.step().then_some(())?;
            if begin < end {
                says = true;
                places.extend(places_between(self.addresses, begin, end));
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

    /// Reads a line program and calls `take` for each pair of consecutive rows.
    ///
    /// `take` gets the indices of the addresses between the two rows, and the first row.
    fn rows(&self, unit: UnitRef<'_, Slice<'a>>, mut take: impl FnMut(std::ops::Range<usize>, Row)) -> Option<()> {
        line_rows::stretches(
            unit,
            || self.meter.step().then_some(()),
            |stretch, row| {
                let places = places_between(self.addresses, stretch.start, stretch.end);
                if !places.is_empty() {
                    take(places, row);
                }
            },
        )
    }

    /// Reads a unit that may contain these addresses.
    fn unit(&mut self, unit: UnitRef<'_, Slice<'a>>, places: &[usize]) -> Option<()> {
        let mut calls = self.inlined.calls(unit, places)?;
        let mut rows: ByPlace<Option<Row>> = ByPlace::new(places, || None);
        self.rows(unit, |between, row| {
            for place in between {
                // Where stretches overlap, the one that starts last belongs to the code.
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
            // From the outermost call to the innermost; each inlined call has the location that it
            // was called from.
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
}

//! Lookup of the rule for an address in an image's unwind data: `__unwind_info`, `.eh_frame`,
//! `.sframe`, `.debug_frame`.

use crate::arch::Architecture;
use crate::cfi::eh_frame_hdr::TableCache;
use crate::cfi::fast_path;
use crate::cfi::row::RowState;
use crate::cfi::{Cie, CieCache, Dialect, Fde, FrameSection, for_each_fde};
use crate::compact_unwind::{self, Compact};
use crate::cursor::Cursor;
use crate::frame::{Found, Problem};
use crate::image::{AddressRange, Image};
use crate::rule::{Program, Row, Rule};
use crate::sframe;
use coroner_process::memory::Memory;

/// Maximum length in bytes of an `__eh_frame` without a search table that is read completely for
/// code that compact unwind does not cover.
const MAX_UNINDEXED_EH_FRAME: u64 = 1 << 20;

/// Data read from sections that are shared by all of their entries: search tables and CIEs.
#[derive(Debug)]
pub(crate) struct SectionCache {
    /// Common information entries.
    pub cie: CieCache,
    /// Search tables.
    pub tables: TableCache,
}

impl SectionCache {
    pub(crate) const fn new() -> SectionCache {
        SectionCache { cie: CieCache::new(), tables: TableCache::new() }
    }

    pub(crate) fn clear(&mut self) {
        self.cie.clear();
        self.tables.clear();
    }
}

/// Information from unwind data in addition to the rule, which is written in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnwindEntry {
    /// The function (or functions) that the entry covers.
    pub range: AddressRange,
    /// Whether the function is a signal trampoline.
    pub signal_trampoline: bool,
    /// The kind of unwind data.
    pub found: Found,
}

/// Writes the rule for `address` in a Mach-O image to `into`: from `__unwind_info`, or from
/// `__eh_frame` if `__unwind_info` refers to it or has no entry. The rule holds in function bodies.
pub(crate) fn mach_rule<A: Architecture, M: Memory>(
    memory: &mut M,
    sections: &mut SectionCache,
    image: &Image,
    address: u64,
    into: &mut Rule,
) -> Result<Option<UnwindEntry>, Problem> {
    let eh_frame = FrameSection::eh_frame(image);
    let entry = if image.unwind_info.is_empty() { None } else { compact_unwind::find(memory, image, address)? };
    let meaning = match &entry {
        Some(entry) => entry.decode::<A, M>(memory)?,
        None => Compact::None,
    };
    match meaning {
        Compact::Row(row) => {
            let range = entry.map(|entry| entry.range).unwrap_or_default();
            *into = Rule::Row(row);
            return Ok(Some(UnwindEntry { range, signal_trampoline: false, found: Found::CompactUnwind }));
        }
        Compact::Dwarf(offset) => {
            let at = eh_frame.range.start.wrapping_add(offset.into());
            // The field has 24 bits: linkers write 0 for an entry further away.
            if let Ok(Some(entry)) = rule_at::<A, M>(memory, sections, &eh_frame, at, address, into) {
                return Ok(Some(entry));
            }
        }
        Compact::None if image.eh_frame_hdr.is_empty() && image.eh_frame.len() > MAX_UNINDEXED_EH_FRAME => {
            return Ok(None);
        }
        Compact::None => {}
    }
    section_rule::<A, M>(memory, sections, &eh_frame, image.eh_frame_hdr, address, into)
}

/// Writes the rule for `address` to `into`: from `.eh_frame`, then `.sframe`, then `.debug_frame`.
/// Returns `None` if no entry covers it.
#[inline]
pub(crate) fn frame_rule<A: Architecture, M: Memory>(
    memory: &mut M,
    sections: &mut SectionCache,
    image: &Image,
    address: u64,
    into: &mut Rule,
) -> Result<Option<UnwindEntry>, Problem> {
    let eh_frame = FrameSection::eh_frame(image);
    if let Some(entry) = section_rule::<A, M>(memory, sections, &eh_frame, image.eh_frame_hdr, address, into)? {
        return Ok(Some(entry));
    }
    if !image.sframe.is_empty()
        && let Some(entry) = sframe::find::<A, M>(memory, image.sframe, address)?
    {
        *into = entry.rule;
        let signal_trampoline = entry.signal_trampoline;
        return Ok(Some(UnwindEntry { range: entry.range, signal_trampoline, found: Found::SFrame }));
    }
    if image.debug_frame.is_empty() {
        return Ok(None);
    }
    let debug_frame = FrameSection::debug_frame(image);
    section_rule::<A, M>(memory, sections, &debug_frame, image.debug_frame_hdr, address, into)
}

/// Writes a section's rule for `address` to `into`: through its search table, or else by reading
/// the whole section.
#[inline]
fn section_rule<A: Architecture, M: Memory>(
    memory: &mut M,
    sections: &mut SectionCache,
    section: &FrameSection,
    table: AddressRange,
    address: u64,
    into: &mut Rule,
) -> Result<Option<UnwindEntry>, Problem> {
    if !table.is_empty()
        && let Some(table) = sections.tables.get(memory, table)?
    {
        return match table.find(memory, address)? {
            Some(at) => rule_at::<A, M>(memory, sections, section, at, address, into),
            None => Ok(None),
        };
    }
    if section.range.is_empty() || section.range.end == u64::MAX {
        return Ok(None);
    }
    let mut covering = None;
    for_each_fde(memory, section, &mut sections.cie, |entry| {
        let covers = entry.range.contains(address);
        if covers {
            covering = Some(entry.address);
        }
        covers
    })?;
    match covering {
        Some(at) => rule_at::<A, M>(memory, sections, section, at, address, into),
        None => Ok(None),
    }
}

/// Writes the rule of the entry at `at` for `address` to `into`; returns `None` if the entry does
/// not cover it.
#[inline]
pub(crate) fn rule_at<A: Architecture, M: Memory>(
    memory: &mut M,
    sections: &mut SectionCache,
    section: &FrameSection,
    at: u64,
    address: u64,
    into: &mut Rule,
) -> Result<Option<UnwindEntry>, Problem> {
    let cache = &mut sections.cie;
    *into = Rule::Row(Row::new(0, 0));
    if let Rule::Row(row) = into
        && let Some(plain) = fast_path::row_at::<A, M>(memory, cache, section, at, address, row)
    {
        if plain.outermost {
            *into = Rule::Outermost;
        }
        let entry = UnwindEntry { range: plain.range, signal_trampoline: plain.signal_trampoline, found: Found::Cfi };
        return Ok(plain.covers.then_some(entry));
    }
    let mut cursor = Cursor::new(memory, section.range, at)?;
    let entry = Fde::parse(&mut cursor, section, cache)?;
    if !entry.range.contains(address) {
        return Ok(None);
    }
    let cie = cache.get(cursor.memory, section, entry.cie)?;
    let state = RowState::compute(&mut cursor, cie, &entry, address)?;
    *into = state.rule::<A>(cie, Program::new(at, section.dialect == Dialect::DebugFrame));
    Ok(Some(UnwindEntry { range: entry.range, signal_trampoline: cie.signal_trampoline, found: Found::Cfi }))
}

/// Returns the full row that [`Rule::Program`] stands for.
pub(crate) fn program_row<M: Memory>(
    memory: &mut M,
    sections: &mut SectionCache,
    image: &Image,
    program: Program,
    address: u64,
) -> Result<(RowState, Cie), Problem> {
    let section = if program.debug_frame { FrameSection::debug_frame(image) } else { FrameSection::eh_frame(image) };
    let cache = &mut sections.cie;
    let mut cursor = Cursor::new(memory, section.range, program.address())?;
    let entry = Fde::parse(&mut cursor, &section, cache)?;
    let cie = cache.get(cursor.memory, &section, entry.cie)?;
    Ok((RowState::compute(&mut cursor, cie, &entry, address)?, *cie))
}

//! The rule of an address, out of the call frame information of its image.

use crate::arch::Architecture;
use crate::cfi::{Common, CommonCache, Dialect, Entry, FrameSection, for_each_entry};
use crate::compact::{self, Compact};
use crate::eh_frame_hdr::TableCache;
use crate::frame::Problem;
use crate::image::{AddressRange, Image};
use crate::plain;
use crate::row::RowState;
use crate::rule::{Program, Row, Rule};
use crate::section::Cursor;
use coroner_machine::memory::Memory;

/// How long an `__eh_frame` without a search table may be to be read through for code that compact unwind does not know.
const READ_THROUGH: u64 = 1 << 20;

/// What was read of sections for all of their entries: the heads of search tables and the common information entries.
#[derive(Debug)]
pub struct Heads {
    /// Common information entries.
    pub common: CommonCache,
    /// Search tables.
    pub tables: TableCache,
}

impl Default for Heads {
    fn default() -> Self {
        Heads::new()
    }
}

impl Heads {
    /// Nothing.
    pub const fn new() -> Heads {
        Heads { common: CommonCache::new(), tables: TableCache::new() }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.common.clear();
        self.tables.clear();
    }
}

/// What unwind data state besides a rule, which is made in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stated {
    /// The function (or functions) that it is stated of.
    pub range: AddressRange,
    /// The function is a signal trampoline.
    pub signal_trampoline: bool,
    /// Whether it is stated by a compact encoding rather than by call frame information.
    pub compact: bool,
}

/// Makes `into` the rule for `address` in a Mach-O image: by `__unwind_info`, and where that refers to it or says nothing, by
/// `__eh_frame`. It holds in function bodies.
///
/// # Errors
/// What is malformed or unreadable.
pub fn mach_rule<A: Architecture, M: Memory>(
    memory: &mut M,
    heads: &mut Heads,
    image: &Image,
    address: u64,
    into: &mut Rule,
) -> Result<Option<Stated>, Problem> {
    let eh_frame = FrameSection::eh_frame(image);
    let entry = if image.unwind_info.is_empty() { None } else { compact::find(memory, image, address)? };
    let meaning = match &entry {
        Some(entry) => entry.decode::<A, M>(memory)?,
        None => Compact::None,
    };
    match meaning {
        Compact::Row(row) => {
            let range = entry.map(|entry| entry.range).unwrap_or_default();
            *into = Rule::Row(row);
            return Ok(Some(Stated { range, signal_trampoline: false, compact: true }));
        }
        Compact::Dwarf(offset) => {
            let at = eh_frame.range.start.wrapping_add(offset.into());
            // The field has 24 bits: linkers write 0 for an entry further away.
            if let Ok(Some(stated)) = rule_at::<A, M>(memory, heads, &eh_frame, at, address, into) {
                return Ok(Some(stated));
            }
        }
        Compact::None if image.eh_frame_hdr.is_empty() && image.eh_frame.len() > READ_THROUGH => return Ok(None),
        Compact::None => {}
    }
    section_rule::<A, M>(memory, heads, &eh_frame, image.eh_frame_hdr, address, into)
}

/// Makes `into` the rule for `address` by `.eh_frame`, then `.debug_frame`. `None` where no entry covers it.
///
/// # Errors
/// What is malformed or unreadable.
#[inline]
pub fn frame_rule<A: Architecture, M: Memory>(
    memory: &mut M,
    heads: &mut Heads,
    image: &Image,
    address: u64,
    into: &mut Rule,
) -> Result<Option<Stated>, Problem> {
    let eh_frame = FrameSection::eh_frame(image);
    if let Some(stated) = section_rule::<A, M>(memory, heads, &eh_frame, image.eh_frame_hdr, address, into)? {
        return Ok(Some(stated));
    }
    if image.debug_frame.is_empty() {
        return Ok(None);
    }
    let debug_frame = FrameSection::debug_frame(image);
    section_rule::<A, M>(memory, heads, &debug_frame, image.debug_frame_hdr, address, into)
}

/// Makes `into` the rule that a section states for `address`: by its search table, or else by reading through all of it.
#[inline]
fn section_rule<A: Architecture, M: Memory>(
    memory: &mut M,
    heads: &mut Heads,
    section: &FrameSection,
    table: AddressRange,
    address: u64,
    into: &mut Rule,
) -> Result<Option<Stated>, Problem> {
    if !table.is_empty()
        && let Some(table) = heads.tables.get(memory, table)?
    {
        return match table.find(memory, address)? {
            Some(at) => rule_at::<A, M>(memory, heads, section, at, address, into),
            None => Ok(None),
        };
    }
    if section.range.is_empty() || section.range.end == u64::MAX {
        return Ok(None);
    }
    let mut covering = None;
    for_each_entry(memory, section, &mut heads.common, |entry| {
        let covers = entry.range.contains(address);
        if covers {
            covering = Some(entry.address);
        }
        covers
    })?;
    match covering {
        Some(at) => rule_at::<A, M>(memory, heads, section, at, address, into),
        None => Ok(None),
    }
}

/// Makes `into` the rule that the entry at `at` states for `address`; `None` where it does not cover it.
///
/// # Errors
/// What is malformed or unreadable.
#[inline]
pub fn rule_at<A: Architecture, M: Memory>(
    memory: &mut M,
    heads: &mut Heads,
    section: &FrameSection,
    at: u64,
    address: u64,
    into: &mut Rule,
) -> Result<Option<Stated>, Problem> {
    let cache = &mut heads.common;
    *into = Rule::Row(Row::new(0, 0));
    if let Rule::Row(row) = into
        && let Some(plain) = plain::row_at::<A, M>(memory, cache, section, at, address, row)
    {
        if plain.outermost {
            *into = Rule::Outermost;
        }
        let stated = Stated { range: plain.range, signal_trampoline: plain.signal_trampoline, compact: false };
        return Ok(plain.covers.then_some(stated));
    }
    let mut cursor = Cursor::new(memory, section.range, at)?;
    let entry = Entry::parse(&mut cursor, section, cache)?;
    if !entry.range.contains(address) {
        return Ok(None);
    }
    let common = cache.get(cursor.memory, section, entry.common)?;
    let state = RowState::of(&mut cursor, common, &entry, address)?;
    *into = state.to_rule::<A>(common, Program::new(at, section.dialect == Dialect::DebugFrame));
    Ok(Some(Stated { range: entry.range, signal_trampoline: common.signal_trampoline, compact: false }))
}

/// The full row that [`Rule::Program`] stands for.
///
/// # Errors
/// What is malformed or unreadable.
pub fn program_row<M: Memory>(
    memory: &mut M,
    heads: &mut Heads,
    image: &Image,
    program: Program,
    address: u64,
) -> Result<(RowState, Common), Problem> {
    let section = if program.debug_frame { FrameSection::debug_frame(image) } else { FrameSection::eh_frame(image) };
    let cache = &mut heads.common;
    let mut cursor = Cursor::new(memory, section.range, program.address())?;
    let entry = Entry::parse(&mut cursor, &section, cache)?;
    let common = cache.get(cursor.memory, &section, entry.common)?;
    Ok((RowState::of(&mut cursor, common, &entry, address)?, *common))
}

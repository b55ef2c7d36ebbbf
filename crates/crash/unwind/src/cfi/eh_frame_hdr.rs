//! Search table of `.eh_frame_hdr`: finds the FDE of an address by binary search, in place.
//!
//! Format: Linux Standard Base, "Exception Frames", section "The .eh_frame_hdr section". Only
//! tables of 4-byte and 8-byte relative rows are searched, which is what linkers and
//! [`build_search_table`] write.

use crate::cfi::{CieCache, Dialect, FrameSection, for_each_fde};
use crate::cursor::{Bases, Cursor, DW_EH_PE_OMIT};
use crate::frame::{Malformed, Problem};
use crate::image::AddressRange;
use core::hint::select_unpredictable;
use coroner_process::memory::Memory;

/// A search table whose header was read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SearchTable {
    /// Base of `DW_EH_PE_datarel`.
    hdr: u64,
    rows: AddressRange,
    count: u64,
    form: Form,
}

/// Row encodings that linkers and [`build_search_table`] write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    /// `DW_EH_PE_datarel | DW_EH_PE_sdata4`
    #[default]
    Relative4,
    /// `DW_EH_PE_datarel | DW_EH_PE_sdata8`
    Relative8,
}

impl Form {
    const fn row(self) -> u64 {
        match self {
            Form::Relative4 => 8,
            Form::Relative8 => 16,
        }
    }
}

impl SearchTable {
    /// Reads the header. Returns `None` if it has no searchable table.
    ///
    /// # Errors
    /// A [`Problem`] if the data are malformed or unreadable.
    #[inline]
    pub(crate) fn read<M: Memory>(memory: &mut M, hdr: AddressRange) -> Result<Option<SearchTable>, Problem> {
        let mut cursor = Cursor::new(memory, hdr, hdr.start)?;
        let [version, pointer, count, table] = cursor.bytes()?;
        if version != 1 {
            return Err(Problem::Malformed { what: Malformed::Version, address: hdr.start });
        }
        let bases = Bases { data: Some(hdr.start), ..Bases::default() };
        // The section's address, which the caller already has.
        cursor.pointer(pointer, &bases)?;
        if count == DW_EH_PE_OMIT {
            return Ok(None);
        }
        let count = cursor.pointer(count, &bases)?.unwrap_or(0);
        let form = match table {
            0x3b => Form::Relative4,
            0x3c => Form::Relative8,
            _ => return Ok(None),
        };
        let start = cursor.address();
        let end = count.checked_mul(form.row()).and_then(|length| start.checked_add(length));
        match end {
            Some(end) if end <= hdr.end => {
                let rows = AddressRange { start, end };
                Ok(Some(SearchTable { hdr: hdr.start, rows, count, form }))
            }
            _ => Err(Problem::Malformed { what: Malformed::Truncated, address: start }),
        }
    }

    /// Returns the address of the entry with the greatest start at or below `address`. The entry
    /// may end before `address`.
    ///
    /// # Errors
    /// [`Problem::Unreadable`] if the table can't be read.
    #[inline]
    pub(crate) fn find<M: Memory>(&self, memory: &mut M, address: u64) -> Result<Option<u64>, Problem> {
        match self.form {
            Form::Relative4 => self.search(memory, address, Form::Relative4),
            Form::Relative8 => self.search(memory, address, Form::Relative8),
        }
    }

    /// [`Self::find`], compiled for each form.
    #[inline]
    fn search<M: Memory>(&self, memory: &mut M, address: u64, form: Form) -> Result<Option<u64>, Problem> {
        let distance = address.wrapping_sub(self.hdr) as i64;
        // Starts are compared in their encoded form.
        let key = match form {
            Form::Relative4 if distance < i64::from(i32::MIN) => return Ok(None),
            Form::Relative4 => distance.min(i32::MAX.into()),
            Form::Relative8 => distance,
        };
        // The matching row is among the `count` rows from `low` on, of which the first starts at or
        // below the address, or there is no matching row. The number of iterations does not depend
        // on the result, and neither does a branch, which would be mispredicted half of the time.
        let (mut low, mut count) = (self.rows.start, self.count);
        while count > 1 {
            let half = count >> 1;
            let middle = low.wrapping_add(half.wrapping_mul(form.row()));
            let word = memory.read_u64(middle)?;
            let starts_below = match form {
                Form::Relative4 => word as i32 <= key as i32,
                Form::Relative8 => word as i64 <= key,
            };
            low = select_unpredictable(starts_below, middle, low);
            count = count.wrapping_sub(half);
        }
        if count == 0 {
            return Ok(None);
        }
        let (start, entry) = match form {
            Form::Relative4 => {
                let both = memory.read_u64(low)?;
                (i64::from(both as i32), i64::from((both >> 32) as i32))
            }
            Form::Relative8 => {
                let (start, entry) = memory.read_pair(low)?;
                (start as i64, entry as i64)
            }
        };
        Ok((start <= key).then_some(self.hdr.wrapping_add_signed(entry)))
    }
}

/// The tables that were read last: the addresses of a walk are in few images.
#[derive(Debug)]
pub(crate) struct TableCache {
    tables: [KnownTable; 8],
}

#[derive(Clone, Copy, Debug, Default)]
struct KnownTable {
    /// Range of the section.
    hdr: AddressRange,
    /// Whether the section has a searchable table.
    searchable: bool,
    table: SearchTable,
}

impl TableCache {
    pub(crate) const fn new() -> TableCache {
        const EMPTY: AddressRange = AddressRange { start: 0, end: 0 };
        const TABLE: SearchTable = SearchTable { hdr: 0, rows: EMPTY, count: 0, form: Form::Relative4 };
        TableCache { tables: [KnownTable { hdr: EMPTY, searchable: false, table: TABLE }; 8] }
    }

    pub(crate) fn clear(&mut self) {
        for known in &mut self.tables {
            known.hdr = AddressRange::default();
        }
    }

    /// Calls [`SearchTable::read`] for a section that is not empty, once.
    ///
    /// # Errors
    /// See [`SearchTable::read`].
    #[inline]
    pub(crate) fn get<M: Memory>(
        &mut self,
        memory: &mut M,
        hdr: AddressRange,
    ) -> Result<Option<&SearchTable>, Problem> {
        // Sections are aligned to 4, the images that contain them to pages.
        let index = (hdr.start.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as usize & 7;
        let known = &mut self.tables[index];
        if known.hdr != hdr {
            let read = SearchTable::read(memory, hdr)?;
            *known = KnownTable { hdr, searchable: read.is_some(), table: read.unwrap_or_default() };
        }
        Ok(known.searchable.then_some(&known.table))
    }
}

/// Reason why no table was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The section is malformed or unreadable.
    Section(Problem),
    /// The table needs more room than provided: this many bytes.
    TooSmall(usize),
}

impl core::fmt::Display for BuildError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            BuildError::Section(problem) => core::fmt::Display::fmt(problem, f),
            BuildError::TooSmall(bytes) => write!(f, "the table needs {bytes} bytes"),
        }
    }
}

impl core::error::Error for BuildError {}

/// Builds a search table in the format of `.eh_frame_hdr` for a section that has none (static
/// programs without one, Mach-O `__eh_frame`, `.debug_frame`), into `table`, which is at
/// `table_address`. Returns the length used: [`Image::eh_frame_hdr`](crate::Image::eh_frame_hdr) or
/// [`Image::debug_frame_hdr`](crate::Image::debug_frame_hdr) is then
/// `table_address .. table_address + length`. Not async-signal-safe.
///
/// The table needs 16 bytes per entry, plus 32.
///
/// # Errors
/// [`BuildError::TooSmall`] with the required size, [`BuildError::Section`] if the section is
/// malformed or unreadable.
pub fn build_search_table<M: Memory>(
    memory: &mut M,
    section: &FrameSection,
    table_address: u64,
    table: &mut [u8],
) -> Result<usize, BuildError> {
    let header: usize = 20;
    let (head, rest) = match table.split_at_mut_checked(header) {
        Some(parts) => parts,
        None => (&mut [][..], &mut [][..]),
    };
    let (rows, _) = rest.as_chunks_mut::<16>();
    let mut count = 0usize;
    for_each_fde(memory, section, &mut CieCache::new(), |entry| {
        if !entry.range.is_empty() {
            if let Some(row) = rows.get_mut(count) {
                let relative = |address: u64| u128::from(address.wrapping_sub(table_address));
                *row = (relative(entry.range.start) | relative(entry.address) << 64).to_le_bytes();
            }
            count = count.saturating_add(1);
        }
        false
    })
    .map_err(BuildError::Section)?;
    let used = count.saturating_mul(16).saturating_add(header);
    let Some(rows) = rows.get_mut(..count).filter(|_| !head.is_empty()) else {
        return Err(BuildError::TooSmall(used));
    };
    rows.sort_unstable_by_key(|row| u128::from_le_bytes(*row) as u64 as i64);
    // version 1; .eh_frame absolute udata8; count udata8; rows datarel sdata8
    let pointer = if section.dialect == Dialect::EhFrame { section.range.start } else { 0 };
    let mut header = [0u8; 20];
    for (place, byte) in header
        .iter_mut()
        .zip([1, 0x04, 0x04, 0x3c].into_iter().chain(pointer.to_le_bytes()).chain((count as u64).to_le_bytes()))
    {
        *place = byte;
    }
    for (place, byte) in head.iter_mut().zip(header) {
        *place = byte;
    }
    Ok(used)
}

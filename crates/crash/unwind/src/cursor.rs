//! Cursor for reading unwind data and code in place, one window at a time. Nothing after the end of
//! its range is read.

use crate::frame::{Malformed, Problem};
use crate::image::AddressRange;
use coroner_process::memory::{BLOCK, Memory};

/// Number of bytes read at once. Most entries of `.eh_frame` are shorter.
const WINDOW: usize = BLOCK;

/// A position in a section, and the memory to read from. Nothing after the section's end is ever
/// read.
#[derive(Debug)]
pub(crate) struct Cursor<'m, M> {
    /// The memory; also used for reads outside the section.
    pub memory: &'m mut M,
    end: u64,
    /// Address of the window's first byte.
    base: u64,
    /// Offset of the cursor in the window.
    position: usize,
    /// Number of window bytes that were read, and number of them that are before the end.
    filled: usize,
    limit: usize,
    window: [u8; WINDOW],
}

impl<'m, M: Memory> Cursor<'m, M> {
    /// Creates a cursor at `at` in `range`.
    ///
    /// # Errors
    /// [`Malformed::OutOfRange`] if `at` is not in `range` (the end is allowed).
    #[inline]
    pub(crate) fn new(memory: &'m mut M, range: AddressRange, at: u64) -> Result<Cursor<'m, M>, Problem> {
        if at < range.start || at > range.end {
            return Err(Problem::Malformed { what: Malformed::OutOfRange, address: at });
        }
        Ok(Cursor { memory, end: range.end, base: at, position: 0, filled: 0, limit: 0, window: [0; WINDOW] })
    }

    /// Returns the address of the next byte to read.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.base.wrapping_add(self.position as u64)
    }

    /// Returns the end of the section or of the part selected by [`Self::narrow`].
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns `true` if there is nothing more to read.
    #[inline]
    pub(crate) fn is_at_end(&self) -> bool {
        self.address() >= self.end
    }

    /// Returns a problem at the cursor.
    #[inline]
    pub(crate) fn malformed(&self, what: Malformed) -> Problem {
        Problem::Malformed { what, address: self.address() }
    }

    /// Ends the section at `end`.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if `end` is before the cursor or after the current end.
    #[inline]
    pub(crate) fn narrow(&mut self, end: u64) -> Result<(), Problem> {
        if end < self.address() || end > self.end {
            return Err(self.malformed(Malformed::Truncated));
        }
        self.set_end(end);
        Ok(())
    }

    #[inline]
    fn set_end(&mut self, end: u64) {
        self.end = end;
        let before_end = usize::try_from(end.saturating_sub(self.base)).unwrap_or(usize::MAX);
        self.limit = self.filled.min(before_end);
    }

    /// Moves to another address in the section, which ends at `end`. Bytes already read stay in the
    /// window.
    ///
    /// # Errors
    /// [`Malformed::OutOfRange`] if `at` is after `end`.
    #[inline]
    pub(crate) fn seek(&mut self, at: u64, end: u64) -> Result<(), Problem> {
        if at > end {
            return Err(Problem::Malformed { what: Malformed::OutOfRange, address: at });
        }
        match at.checked_sub(self.base) {
            Some(position) if position <= self.filled as u64 => self.position = position as usize,
            _ => {
                self.base = at;
                self.position = 0;
                self.filled = 0;
            }
        }
        self.set_end(end);
        Ok(())
    }

    /// Skips `count` bytes.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if fewer remain.
    #[inline]
    pub(crate) fn skip(&mut self, count: u64) -> Result<(), Problem> {
        match self.address().checked_add(count) {
            Some(at) if at <= self.end => self.seek(at, self.end),
            _ => Err(self.malformed(Malformed::Truncated)),
        }
    }

    /// Reads the bytes at the cursor into the window: as many as there are before the section's
    /// end, or before the end of the page if the next page can't be read, or else `count`.
    #[inline(never)]
    fn fill(&mut self, count: usize) -> Result<(), Problem> {
        let at = self.address();
        let left = self.end.saturating_sub(at);
        if left < count as u64 {
            return Err(self.malformed(Malformed::Truncated));
        }
        self.base = at;
        self.position = 0;
        self.filled = 0;
        self.limit = 0;
        let all = left.min(WINDOW as u64);
        if all == WINDOW as u64 && self.memory.read_block(at, &mut self.window).is_ok() {
            self.filled = WINDOW;
            self.limit = WINDOW;
            return Ok(());
        }
        let page_left = 0x1000 - (at & 0xfff);
        let mut error = Problem::Unreadable { address: at };
        // Memory ends at page boundaries, saved memory anywhere.
        for length in [all, all.min(page_left), count as u64] {
            let Some(into) = self.window.get_mut(..length as usize) else { break };
            match self.memory.read(at, into) {
                Ok(()) => {
                    self.filled = length as usize;
                    self.limit = length as usize;
                    break;
                }
                Err(unreadable) => error = unreadable.into(),
            }
        }
        // If the bytes straddle two pages and the second one can't be read, there are too few.
        if self.limit < count { Err(error) } else { Ok(()) }
    }

    /// Reads the next `N` bytes.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if fewer remain, [`Problem::Unreadable`] if they can't be read.
    #[inline]
    pub(crate) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        if self.limit.wrapping_sub(self.position) < N || self.position > self.limit {
            self.fill(N)?;
        }
        let bytes = self.window.get(self.position..).and_then(<[u8]>::first_chunk::<N>).copied();
        self.position = self.position.wrapping_add(N);
        bytes.ok_or(Problem::Malformed { what: Malformed::Truncated, address: self.base })
    }

    /// Reads the next byte.
    ///
    /// # Errors
    /// See [`Self::bytes`].
    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, Problem> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    /// Reads the next 16-bit number, little endian.
    ///
    /// # Errors
    /// See [`Self::bytes`].
    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, Problem> {
        self.bytes().map(u16::from_le_bytes)
    }

    /// Reads the next 32-bit number, little endian.
    ///
    /// # Errors
    /// See [`Self::bytes`].
    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, Problem> {
        self.bytes().map(u32::from_le_bytes)
    }

    /// Reads the next 64-bit number, little endian.
    ///
    /// # Errors
    /// See [`Self::bytes`].
    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, Problem> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Reads an unsigned LEB128 number. Bits beyond 64 are dropped, as linkers pad with zeros.
    ///
    /// # Errors
    /// See [`Self::bytes`]; [`Malformed::OutOfRange`] if the number is longer than 16 bytes.
    #[inline]
    pub(crate) fn uleb(&mut self) -> Result<u64, Problem> {
        let byte = self.u8()?;
        if byte < 0x80 { Ok(u64::from(byte)) } else { Ok(self.leb_rest(byte)?.0) }
    }

    /// Reads a signed LEB128 number.
    ///
    /// # Errors
    /// See [`Self::uleb`].
    #[inline]
    pub(crate) fn sleb(&mut self) -> Result<i64, Problem> {
        let byte = self.u8()?;
        let (value, bits) = if byte < 0x80 { (u64::from(byte), 7) } else { self.leb_rest(byte)? };
        let unused = 64u32.saturating_sub(bits);
        Ok(value.wrapping_shl(unused) as i64 >> (unused & 63))
    }

    /// Reads the rest of a LEB128 number of more than one byte; returns the value and its number of
    /// bits.
    #[cold]
    fn leb_rest(&mut self, first: u8) -> Result<(u64, u32), Problem> {
        let mut value = u64::from(first & 0x7f);
        for index in 1..16u32 {
            let byte = self.u8()?;
            let shift = index.wrapping_mul(7);
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok((value, shift.wrapping_add(7)));
            }
        }
        Err(self.malformed(Malformed::OutOfRange))
    }

    /// Reads a pointer in one of the `DW_EH_PE_*` encodings (LSB Core, "DWARF Exception Header
    /// Encoding"); `None` for `DW_EH_PE_omit`.
    ///
    /// # Errors
    /// [`Malformed::PointerEncoding`] for an encoding that does not exist or has no base here, and
    /// the errors of reading.
    #[inline]
    pub(crate) fn pointer(&mut self, encoding: u8, bases: &Bases) -> Result<Option<u64>, Problem> {
        let start = self.address();
        if encoding == DW_EH_PE_PCREL_SDATA4 {
            let offset = self.u32()? as i32;
            return Ok(Some(start.wrapping_add_signed(offset.into())));
        }
        if encoding == DW_EH_PE_OMIT {
            return Ok(None);
        }
        let bad = Problem::Malformed { what: Malformed::PointerEncoding, address: start };
        let base = match encoding & 0x70 {
            0x00 => 0,
            0x10 => start,
            0x20 => bases.text.ok_or(bad)?,
            0x30 => bases.data.ok_or(bad)?,
            0x40 => bases.function.ok_or(bad)?,
            0x50 => {
                // DW_EH_PE_aligned: padded to the next multiple of the address size, then an
                // absolute pointer
                self.skip(start.wrapping_neg() & 7)?;
                return self.u64().map(Some);
            }
            _ => return Err(bad),
        };
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.u64()?,
            0x01 => self.uleb()?,
            0x02 => self.u16()?.into(),
            0x03 => self.u32()?.into(),
            0x09 => self.sleb()? as u64,
            0x0a => self.u16()? as i16 as u64,
            0x0b => self.u32()? as i32 as u64,
            _ => return Err(bad),
        };
        let address = base.wrapping_add(value);
        if encoding & 0x80 != 0 { Ok(Some(self.memory.read_u64(address)?)) } else { Ok(Some(address)) }
    }
}

/// Bases for relative encoded pointers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bases {
    /// `DW_EH_PE_textrel`.
    pub text: Option<u64>,
    /// `DW_EH_PE_datarel`.
    pub data: Option<u64>,
    /// `DW_EH_PE_funcrel`.
    pub function: Option<u64>,
}

/// `DW_EH_PE_omit`: there is no pointer.
pub(crate) const DW_EH_PE_OMIT: u8 = 0xff;
/// `DW_EH_PE_pcrel | DW_EH_PE_absptr`, used by Mach-O.
pub(crate) const DW_EH_PE_PCREL: u8 = 0x10;
/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`, used by nearly all ELF files.
pub(crate) const DW_EH_PE_PCREL_SDATA4: u8 = 0x1b;

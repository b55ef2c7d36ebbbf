//! A range of readable bytes, and a window over it that turns small reads into large ones.

use crate::memory::Memory;

use super::{Problem, ScanError};

/// The range of a table or file in a reader's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extent {
    /// The address of the first byte, in the address space of its [`Memory`].
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

impl Extent {
    /// Returns a part of the range; `None` if it extends beyond the end.
    pub fn part(self, offset: u64, size: u64) -> Option<Self> {
        let end = offset.checked_add(size)?;
        if end > self.size {
            return None;
        }
        Some(Self { address: self.address.checked_add(offset)?, size })
    }

    /// Reads exactly `into.len()` bytes at an offset.
    ///
    /// Never inlined, so that no loop around it keeps the address of the memory's own routine in a
    /// register: a proof of what crash time can reach has to see where calls go.
    #[inline(never)]
    pub(crate) fn read<M: Memory>(self, memory: &mut M, offset: u64, into: &mut [u8]) -> Result<(), ScanError> {
        let error = |problem| ScanError { offset, problem };
        let part = self.part(offset, into.len() as u64).ok_or(error(Problem::BeyondEnd))?;
        memory.read(part.address, into).map_err(|_| error(Problem::Unreadable))
    }

    /// Reads exactly `N` bytes at an offset.
    pub(crate) fn array<const N: usize, M: Memory>(self, memory: &mut M, offset: u64) -> Result<[u8; N], ScanError> {
        let mut bytes = [0; N];
        self.read(memory, offset, &mut bytes)?;
        Ok(bytes)
    }
}

/// Number of bytes read at once.
///
/// A multiple of the size of an `Elf64_Sym` (24) and of an `nlist_64` (16), and three pages, so
/// that a kernel copy costs little more than one of a byte.
pub const CHUNK: usize = 12 << 10;

/// Bytes of one extent, read ahead by [`CHUNK`].
#[derive(Debug)]
pub(crate) struct Window<'a, M> {
    memory: &'a mut M,
    extent: Extent,
    chunk: &'a mut [u8; CHUNK],
    /// Offset of the part of the extent that is in the chunk.
    start: u64,
    filled: usize,
}

impl<'a, M: Memory> Window<'a, M> {
    pub(crate) fn new(memory: &'a mut M, extent: Extent, chunk: &'a mut [u8; CHUNK]) -> Self {
        Self { memory, extent, chunk, start: 0, filled: 0 }
    }

    pub(crate) fn size(&self) -> u64 {
        self.extent.size
    }

    /// Returns the buffered bytes from an offset on: at least one, or none at the extent's end.
    pub(crate) fn from(&mut self, offset: u64) -> Result<&[u8], ScanError> {
        let within = offset.wrapping_sub(self.start);
        if within >= self.filled as u64 {
            self.fill(offset)?;
        }
        let skip = offset.wrapping_sub(self.start) as usize;
        Ok(self.chunk.get(skip..self.filled).unwrap_or(&[]))
    }

    /// Returns the next whole chunk of a table whose entry size divides [`CHUNK`].
    pub(crate) fn entries(&mut self, offset: u64) -> Result<&[u8], ScanError> {
        self.fill(offset)?;
        Ok(self.chunk.get(..self.filled).unwrap_or(&[]))
    }

    fn fill(&mut self, offset: u64) -> Result<(), ScanError> {
        let left = self.extent.size.saturating_sub(offset);
        let size = left.min(CHUNK as u64) as usize;
        self.filled = 0;
        self.start = offset;
        if let Some(into) = self.chunk.get_mut(..size) {
            self.extent.read(self.memory, offset, into)?;
            self.filled = size;
        }
        Ok(())
    }

    pub(crate) fn byte(&mut self, offset: u64) -> Result<u8, ScanError> {
        self.from(offset)?.first().copied().ok_or(ScanError { offset, problem: Problem::BeyondEnd })
    }

    /// Reads an unsigned LEB128 number; returns it with the offset after it.
    pub(crate) fn uleb128(&mut self, mut offset: u64) -> Result<(u64, u64), ScanError> {
        let begin = offset;
        let mut value = 0u64;
        let mut shift = 0u32;
        loop {
            let byte = self.byte(offset)?;
            offset = offset.wrapping_add(1);
            let bits = u64::from(byte & 0x7f);
            // The tenth byte can contribute only one bit; longer numbers, even if padded with
            // zeros, are rejected.
            if shift > 63 || (shift == 63 && bits > 1) {
                return Err(ScanError { offset: begin, problem: Problem::NumberTooLarge });
            }
            value |= bits.wrapping_shl(shift);
            if byte & 0x80 == 0 {
                return Ok((value, offset));
            }
            shift = shift.wrapping_add(7);
        }
    }
}

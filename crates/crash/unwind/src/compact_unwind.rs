//! Apple's compact unwind: `__TEXT,__unwind_info`.
//!
//! Format: `mach-o/compact_unwind_encoding.h` of Apple's libunwind. A first-level index of pages by
//! function offset, each page an array of functions in one of two forms; a 32-bit encoding
//! describes how a function's body is unwound. Consecutive functions with the same encoding are one
//! entry, so an entry's start need not be a function's.

use crate::arch::Architecture;
use crate::frame::{Malformed, Problem};
use crate::image::{AddressRange, Image};
use crate::rule::Row;
use coroner_process::memory::Memory;
use coroner_process::registers::Arch;

/// Entry of `__unwind_info` for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactEntry {
    /// The encoding; 0 means that there is no unwind information.
    pub encoding: u32,
    /// The code that the entry covers.
    pub range: AddressRange,
}

/// Decoded meaning of an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compact {
    /// A row for the function's body.
    Row(Row),
    /// The entry of `__eh_frame` at this offset.
    Dwarf(u32),
    /// No unwind information.
    None,
}

/// An array in the section: its address and number of elements, checked to be inside the section.
#[derive(Clone, Copy)]
struct Array {
    start: u64,
    count: u32,
    stride: u64,
}

impl Array {
    fn new(section: AddressRange, start: u64, count: u32, stride: u64) -> Result<Array, Problem> {
        let end = u64::from(count).checked_mul(stride).and_then(|length| start.checked_add(length));
        if start < section.start || end.is_none_or(|end| end > section.end) {
            return Err(Problem::Malformed { what: Malformed::OutOfRange, address: start });
        }
        Ok(Array { start, count, stride })
    }

    #[inline]
    fn address(self, index: u32) -> u64 {
        self.start.wrapping_add(u64::from(index).wrapping_mul(self.stride))
    }

    /// Returns the index of the last element whose key is at or below `key`; elements are sorted.
    #[inline]
    fn search<M: Memory>(self, memory: &mut M, key: u32, mask: u32) -> Result<Option<u32>, Problem> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.wrapping_add(high.wrapping_sub(low) >> 1);
            if read_u32(memory, self.address(middle))? & mask <= key {
                low = middle.wrapping_add(1);
            } else {
                high = middle;
            }
        }
        Ok(low.checked_sub(1))
    }
}

#[inline]
fn read_u32<M: Memory>(memory: &mut M, address: u64) -> Result<u32, Problem> {
    let mut bytes = [0; 4];
    memory.read(address, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

#[inline]
fn read_words<M: Memory, const N: usize>(memory: &mut M, address: u64) -> Result<[u32; N], Problem> {
    let mut bytes = [[0; 4]; N];
    memory.read(address, bytes.as_flattened_mut())?;
    Ok(bytes.map(u32::from_le_bytes))
}

/// Finds the section's entry for `address`; `None` if it is before or after all functions.
///
/// # Errors
/// A [`Problem`] if the data are malformed or unreadable.
pub(crate) fn find<M: Memory>(memory: &mut M, image: &Image, address: u64) -> Result<Option<CompactEntry>, Problem> {
    let section = image.unwind_info;
    let Some(offset) = address.checked_sub(image.base).and_then(|offset| u32::try_from(offset).ok()) else {
        return Ok(None);
    };
    if section.len() < 28 {
        return Err(Problem::Malformed { what: Malformed::Truncated, address: section.start });
    }
    let at = |offset: u32| section.start.wrapping_add(offset.into());
    let [version, common_offset, common_count, _, _, index_offset, index_count] = read_words(memory, section.start)?;
    if version != 1 {
        return Err(Problem::Malformed { what: Malformed::Version, address: section.start });
    }
    let common = Array::new(section, at(common_offset), common_count, 4)?;
    let index = Array::new(section, at(index_offset), index_count, 12)?;
    let Some(page_index) = index.search(memory, offset, u32::MAX)? else { return Ok(None) };
    // The last element is a sentinel: its offset is the end of the last function.
    if page_index.wrapping_add(1) >= index.count {
        return Ok(None);
    }
    let [page_function, page_offset, _, next_function] = read_words(memory, index.address(page_index))?;
    let page = at(page_offset);
    // The larger of the two headers, so that everything read from either is in the section.
    Array::new(section, page, 1, 12)?;
    let [kind, places] = read_words(memory, page)?;
    let (entries_offset, entries_count) = (places & 0xffff, places >> 16);
    let entries = page.wrapping_add(entries_offset.into());
    let absolute = |offset: u32| image.base.wrapping_add(offset.into());
    match kind {
        // UNWIND_SECOND_LEVEL_REGULAR
        2 => {
            let entries = Array::new(section, entries, entries_count, 8)?;
            let Some(found) = entries.search(memory, offset, u32::MAX)? else { return Ok(None) };
            let [function, encoding] = read_words(memory, entries.address(found))?;
            let next = found.wrapping_add(1);
            let end = if next < entries.count { read_u32(memory, entries.address(next))? } else { next_function };
            Ok(Some(CompactEntry { encoding, range: AddressRange { start: absolute(function), end: absolute(end) } }))
        }
        // UNWIND_SECOND_LEVEL_COMPRESSED: 24 bits of offset from the page's first function, 8 of
        // encoding
        3 => {
            let entries = Array::new(section, entries, entries_count, 4)?;
            let [places] = read_words(memory, page.wrapping_add(8))?;
            let encodings = Array::new(section, page.wrapping_add((places & 0xffff).into()), places >> 16, 4)?;
            let relative = offset.wrapping_sub(page_function);
            let Some(found) = entries.search(memory, relative, 0x00ff_ffff)? else { return Ok(None) };
            let word = read_u32(memory, entries.address(found))?;
            let number = word >> 24;
            let encoding = match number.checked_sub(common.count) {
                None => common.address(number),
                Some(local) if local < encodings.count => encodings.address(local),
                Some(_) => {
                    let address = entries.address(found);
                    return Err(Problem::Malformed { what: Malformed::OutOfRange, address });
                }
            };
            let encoding = read_u32(memory, encoding)?;
            let next = found.wrapping_add(1);
            let end = if next < entries.count {
                page_function.wrapping_add(read_u32(memory, entries.address(next))? & 0x00ff_ffff)
            } else {
                next_function
            };
            let start = absolute(page_function.wrapping_add(word & 0x00ff_ffff));
            Ok(Some(CompactEntry { encoding, range: AddressRange { start, end: absolute(end) } }))
        }
        _ => Err(Problem::Malformed { what: Malformed::Version, address: page }),
    }
}

impl CompactEntry {
    /// Decodes the encoding.
    ///
    /// # Errors
    /// [`Malformed::CompactEncoding`] for encodings that do not exist; [`Problem::Unreadable`] for
    /// code that can't be read, which the indirect encoding of large x86_64 stacks requires.
    pub(crate) fn decode<A: Architecture, M: Memory>(&self, memory: &mut M) -> Result<Compact, Problem> {
        match A::ARCH {
            Arch::X86_64 => self.decode_x86_64::<A, M>(memory),
            Arch::Aarch64 => self.decode_aarch64::<A>(),
        }
    }

    fn bad(&self) -> Problem {
        Problem::Malformed { what: Malformed::CompactEncoding, address: self.range.start }
    }

    fn decode_aarch64<A: Architecture>(&self) -> Result<Compact, Problem> {
        let encoding = self.encoding;
        let mut row = match encoding & MODE {
            0 => return Ok(Compact::None),
            // UNWIND_ARM64_MODE_FRAMELESS: the return address is in lr
            0x0200_0000 => Row::new(A::SP, ((encoding >> 12 & 0xfff) as i32).wrapping_mul(16)),
            // UNWIND_ARM64_MODE_DWARF
            0x0300_0000 => return Ok(Compact::Dwarf(encoding & 0x00ff_ffff)),
            // UNWIND_ARM64_MODE_FRAME
            0x0400_0000 => Row::frame_record_at::<A>(A::FP, 0),
            _ => return Err(self.bad()),
        };
        // Pairs are below the frame record (or below the CFA of a frameless function), x19 and x20
        // first, each register 8 bytes below the previous one.
        let mut place = if row.cfa_register == A::FP { -16 } else { 0 };
        for pair in 0..5u8 {
            if encoding & 1u32.wrapping_shl(pair.into()) != 0 {
                for half in 0..2u8 {
                    place -= 8;
                    let number = 19u8.wrapping_add(pair.wrapping_mul(2)).wrapping_add(half);
                    row = row.with_saved::<A>(number, place).ok_or(self.bad())?;
                }
            }
        }
        Ok(Compact::Row(row))
    }

    fn decode_x86_64<A: Architecture, M: Memory>(&self, memory: &mut M) -> Result<Compact, Problem> {
        let encoding = self.encoding;
        match encoding & MODE {
            0 => Ok(Compact::None),
            // UNWIND_X86_64_MODE_RBP_FRAME: up to five registers, three bits each, from
            // `rbp − 8 · offset` upwards
            0x0100_0000 => {
                let mut row = Row::frame_record_at::<A>(A::FP, 0);
                let mut place = -16 - 8 * i64::from(encoding >> 16 & 0xff);
                let mut numbers = encoding & 0x7fff;
                for _ in 0..5 {
                    if numbers & 7 != 0 {
                        let number = saved_register(numbers & 7).ok_or(self.bad())?;
                        row = row.with_saved::<A>(number, place).ok_or(self.bad())?;
                    }
                    place += 8;
                    numbers >>= 3;
                }
                Ok(Compact::Row(row))
            }
            // UNWIND_X86_64_MODE_STACK_IMMD and _IND
            mode @ (0x0200_0000 | 0x0300_0000) => {
                let size = encoding >> 16 & 0xff;
                let size = if mode == 0x0200_0000 {
                    u64::from(size) * 8
                } else {
                    // The size is the operand of a `sub rsp, imm32` at that offset in the function.
                    let operand = read_u32(memory, self.range.start.wrapping_add(size.into()))?;
                    u64::from(operand).wrapping_add(u64::from(encoding >> 13 & 7) * 8)
                };
                let size = i32::try_from(size).map_err(|_| self.bad())?;
                let mut row = Row::new(A::SP, size).with_saved::<A>(A::RA, -8).ok_or(self.bad())?;
                let count = encoding >> 10 & 7;
                let registers = permutation(count, encoding & 0x3ff).ok_or(self.bad())?;
                let mut place = -8 - 8 * i64::from(count);
                for register in registers.iter().take(count as usize) {
                    let number = saved_register((*register).into()).ok_or(self.bad())?;
                    row = row.with_saved::<A>(number, place).ok_or(self.bad())?;
                    place += 8;
                }
                Ok(Compact::Row(row))
            }
            // UNWIND_X86_64_MODE_DWARF
            0x0400_0000 => Ok(Compact::Dwarf(encoding & 0x00ff_ffff)),
            _ => Err(self.bad()),
        }
    }
}

/// `UNWIND_X86_64_MODE_MASK` and `UNWIND_ARM64_MODE_MASK`.
const MODE: u32 = 0x0f00_0000;

/// Returns the DWARF number of `UNWIND_X86_64_REG_*`: rbx, r12–r15, rbp.
const fn saved_register(number: u32) -> Option<u8> {
    match number {
        1 => Some(3),
        2..=5 => Some(number as u8 + 10),
        6 => Some(6),
        _ => None,
    }
}

/// Returns the registers of a frameless function, numbers 1 to 6, in the order of their addresses:
/// a permutation of `count` out of six as a number in the mixed radix that the header's comment
/// describes.
const fn permutation(count: u32, number: u32) -> Option<[u8; 6]> {
    let radices: [u32; 6] = match count {
        0 => [1; 6],
        1 => [1, 1, 1, 1, 1, 1],
        2 => [5, 1, 1, 1, 1, 1],
        3 => [20, 4, 1, 1, 1, 1],
        4 => [60, 12, 3, 1, 1, 1],
        5 | 6 => [120, 24, 6, 2, 1, 1],
        _ => return None,
    };
    let mut registers = [0u8; 6];
    let mut used = 0u8;
    let mut left = number;
    let mut place = 0;
    while place < 6 && (place as u32) < count {
        let radix = radices[place];
        // The sixth of six is the remaining one.
        let mut rank = if place == 5 || radix == 0 { 0 } else { left / radix };
        if place != 5 && radix != 0 {
            left %= radix;
        }
        let mut register = 1u8;
        loop {
            if register > 6 {
                return None;
            }
            if used & (1 << register) == 0 {
                if rank == 0 {
                    break;
                }
                rank -= 1;
            }
            register += 1;
        }
        used |= 1 << register;
        registers[place] = register;
        place += 1;
    }
    Some(registers)
}

#[cfg(test)]
mod tests;

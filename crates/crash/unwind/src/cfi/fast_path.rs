//! Fast path for call frame information: computes the row at an address directly from the bytes of
//! an FDE.
//!
//! Nearly all FDEs of `.eh_frame` and `__eh_frame` are in the 32-bit format, have relative
//! pointers, and a CIE that defines a row of which they change little. Such FDEs are called plain
//! here.
//!
//! Guarantees: for a plain FDE the result is that of [`crate::cfi`] and [`crate::cfi::row`]. For
//! any other one (expressions, other registers, malformed data) it is `None`, and the caller uses
//! the full parser, which also reports errors.

use crate::arch::{Architecture, SLOTS};
use crate::cfi::{Cie, CieCache, Dialect, FrameSection};
use crate::cursor::{DW_EH_PE_PCREL, DW_EH_PE_PCREL_SDATA4};
use crate::image::AddressRange;
use crate::rule::Row;
use core::marker::PhantomData;
use coroner_process::memory::{BLOCK, Memory};

/// Content of a plain CIE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FastCie {
    /// Size of a pointer in bytes, 4 or 8. (A number, so that `NONE` is all zero in memory.)
    pointer_bytes: u8,
    /// Unit of offsets, in words of 8 bytes.
    words: i32,
    /// Unit of `DW_CFA_advance_loc`.
    code: u32,
    /// The row after the initial instructions.
    row: Row,
    /// 1 if the initial instructions then define the return address as undefined, like those of
    /// x86_64's `_start`. (A number, as above.)
    outermost: u8,
}

/// Offset of the augmentation letters in a CIE, after `z`.
const AUGMENTATION_LETTERS: usize = 10;

impl FastCie {
    /// Returns the content of `cie`, if it is plain. `row` is its row after the initial
    /// instructions.
    pub(crate) fn from_cie(cie: &Cie, row: Row) -> Option<FastCie> {
        let pointer_bytes = pointer_bytes(cie.pointer_encoding)?;
        let words = i32::try_from(cie.data_alignment >> 3).ok().filter(|words| (-16..=16).contains(words))?;
        let code = u32::try_from(cie.code_alignment).ok().filter(|code| *code <= 16)?;
        let is_plain = cie.has_augmentation && cie.bias == 0 && cie.data_alignment % 8 == 0;
        is_plain.then_some(FastCie { pointer_bytes, words, code, row, outermost: 0 })
    }

    /// Returns the content of the entry at `address`, read without [`Cie::parse`], and whether its
    /// entries are for signal trampolines. Returns `None` if it is not in the form that compilers
    /// write: one short piece of augmentation, numbers of one byte, instructions that define a row
    /// and nothing else.
    ///
    /// The first walk of a process has to fetch each line of code that it runs; this code runs once
    /// per image.
    fn read<A: Architecture, M: Memory>(
        memory: &mut M,
        section: &FrameSection,
        address: u64,
    ) -> Option<(FastCie, bool)> {
        let mut window = [0; BLOCK];
        fill(memory, section, address, &mut window)?;
        // Offsets after the window are cut off by the mask, and are found to be after the entry in
        // the end.
        let byte = |at: usize| window[at & (BLOCK - 1)];
        let total = usize::try_from(u32_at(&window, 0)).ok()?.checked_add(4).filter(|total| *total <= BLOCK)?;
        if u32_at(&window, 4) != 0 || !matches!(byte(8), 1 | 3) || byte(9) != b'z' || section.bias != 0 {
            return None;
        }
        let end = (AUGMENTATION_LETTERS..AUGMENTATION_LETTERS + 6).find(|at| byte(*at) == 0)?;
        let (code, data, column, length) = (byte(end + 1), byte(end + 2), byte(end + 3), byte(end + 4));
        if (code | data | column | length) & 0x80 != 0 || code > 16 || data & 7 != 0 || column != A::RA {
            return None;
        }
        let mut at = end + 5;
        let mut position = at + usize::from(length);
        let mut pointer_encoding = None;
        let mut signal_trampoline = false;
        for letter in AUGMENTATION_LETTERS..end {
            match byte(letter) {
                b'R' => {
                    pointer_encoding = Some(byte(at));
                    at += 1;
                }
                b'L' => at += 1,
                b'P' => {
                    let bytes = match byte(at) & 0x7f {
                        0x0b | 0x1b => 4,
                        0x00 | 0x10 => 8,
                        _ => return None,
                    };
                    at += 1 + bytes;
                }
                b'S' => signal_trampoline = true,
                b'B' => {}
                _ => return None,
            }
        }
        if at > position || position > total {
            return None;
        }
        let pointer_bytes = pointer_bytes(pointer_encoding?)?;
        // Seven bits with a sign, in bytes.
        let words = (i32::from(data) ^ 0x40).wrapping_sub(0x40) >> 3;
        let (mut row, mut outermost) = (None, false);
        while position < total {
            let instruction = byte(position);
            position += 1;
            match instruction {
                // DW_CFA_nop
                0x00 => {}
                _ if outermost => return None,
                UNDEFINED if byte(position) == A::RA => {
                    position += 1;
                    outermost = true;
                }
                // DW_CFA_def_cfa
                0x0c if row.is_none() => {
                    let number = register(uleb(&window, &mut position)?)?;
                    row = Some(Row::new(number, i32::try_from(uleb(&window, &mut position)?).ok()?));
                }
                // DW_CFA_offset
                0x80..=0xbf => {
                    let offset = i64::from(uleb(&window, &mut position)?).wrapping_mul(i64::from(words)) << 3;
                    row = Some(row?.with_saved::<A>(instruction & 0x3f, offset)?);
                }
                _ => return None,
            }
        }
        let row = row.filter(|row| A::LINK_REGISTER || row.saved_words::<A>(A::RA).is_some())?;
        let plain = FastCie { pointer_bytes, words, code: code.into(), row, outermost: outermost.into() };
        (position == total).then_some((plain, signal_trampoline))
    }
}

/// Returns the size of a plain pointer in bytes.
#[inline]
const fn pointer_bytes(encoding: u8) -> Option<u8> {
    match encoding {
        DW_EH_PE_PCREL_SDATA4 => Some(4),
        DW_EH_PE_PCREL => Some(8),
        _ => None,
    }
}

/// A CIE for which it is known whether it is plain. All zero is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedCie {
    address: u64,
    is_plain: bool,
    signal_trampoline: bool,
    plain: FastCie,
}

impl CachedCie {
    pub(crate) const NONE: CachedCie = CachedCie {
        address: 0,
        is_plain: false,
        signal_trampoline: false,
        plain: FastCie { pointer_bytes: 0, words: 0, code: 0, row: Row::new(0, 0), outermost: 0 },
    };
}

/// Returns the content of the CIE at `address`, if it is plain.
#[inline]
fn cie_at<'c, A: Architecture, M: Memory>(
    memory: &mut M,
    cache: &'c mut CieCache,
    section: &FrameSection,
    address: u64,
) -> Option<&'c CachedCie> {
    let index = CieCache::index(address);
    if cache.plain[index].address != address || address == 0 {
        cache.plain[index] = find_cie::<A, M>(memory, cache, section, address)?;
    }
    Some(&cache.plain[index]).filter(|known| known.is_plain)
}

#[inline(never)]
fn find_cie<A: Architecture, M: Memory>(
    memory: &mut M,
    cache: &mut CieCache,
    section: &FrameSection,
    address: u64,
) -> Option<CachedCie> {
    if let Some((plain, signal_trampoline)) = FastCie::read::<A, M>(memory, section, address) {
        return Some(CachedCie { address, is_plain: true, signal_trampoline, plain });
    }
    let cie = cache.get(memory, section, address).ok()?;
    let plain = cie.plain.filter(|_| cie.return_register == A::RA);
    Some(CachedCie {
        address,
        is_plain: plain.is_some(),
        signal_trampoline: cie.signal_trampoline,
        plain: plain.unwrap_or(CachedCie::NONE.plain),
    })
}

/// Content of a plain entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastFde {
    /// The function's address range.
    pub range: AddressRange,
    /// Whether the row was computed: whether the function covers the address.
    pub covers: bool,
    /// Whether the function is a signal trampoline.
    pub signal_trampoline: bool,
    /// Whether the function has no caller, and there is no row.
    pub outermost: bool,
}

/// The longest instruction here, `DW_CFA_def_cfa` with numbers of two and three bytes, fits twice.
const MAX_LENGTH: usize = 16;

/// Writes the row of the entry at `at` that holds at `address` to `row`. Returns `None` if the
/// entry is not plain, not an FDE, malformed, or unreadable.
#[inline]
pub(crate) fn row_at<A: Architecture, M: Memory>(
    memory: &mut M,
    cache: &mut CieCache,
    section: &FrameSection,
    at: u64,
    address: u64,
    row: &mut Row,
) -> Option<FastFde> {
    let mut window = [0; BLOCK];
    fill(memory, section, at, &mut window)?;
    let length = u64::from(u32_at(&window, 0));
    let id = u64::from(u32_at(&window, 4));
    if section.dialect != Dialect::EhFrame || length >= 0xffff_fff0 || id == 0 {
        return None;
    }
    let total = length + 4;
    if at.checked_add(total)? > section.range.end {
        return None;
    }
    let id_address = at.wrapping_add(4);
    let cie = cie_at::<A, M>(memory, cache, section, id_address.checked_sub(id)?)?;
    let plain = &cie.plain;
    let pointer = id_address.wrapping_add(4);
    let (start, size, augmentation) = if plain.pointer_bytes == 8 {
        (pointer.wrapping_add(u64_at(&window, 8)), u64_at(&window, 16), 24)
    } else {
        let start = pointer.wrapping_add_signed(i64::from(u32_at(&window, 8) as i32));
        // The size has the pointer's format, which is signed.
        (start, u64::try_from(u32_at(&window, 12) as i32).ok()?, 16)
    };
    let range = AddressRange { start, end: start.checked_add(size)? };
    let skipped = usize::from(window[augmentation]);
    let position = augmentation + 1 + skipped;
    if skipped >= 0x20 || position as u64 > total {
        return None;
    }
    let covers = range.contains(address);
    let outermost = if plain.outermost != 0 {
        is_only_nops(&window, position, total).then_some(true)?
    } else {
        window[position & (BLOCK - 1)] == UNDEFINED
            && window[(position + 1) & (BLOCK - 1)] == A::RA
            && is_only_nops(&window, position + 2, total)
    };
    if covers && !outermost {
        let instructions = Instructions { memory, section, at, total, window, position };
        instructions.run::<A>(plain, address.wrapping_sub(start), row)?;
    }
    Some(FastFde { range, covers, signal_trampoline: cie.signal_trampoline, outermost })
}

/// `DW_CFA_undefined`: for the return address, and with nothing after it, it marks the functions
/// where threads begin.
const UNDEFINED: u8 = 0x07;

/// Whether everything of an entry from `position` on is in the window, and is `DW_CFA_nop`.
#[inline]
fn is_only_nops(window: &[u8; BLOCK], position: usize, total: u64) -> bool {
    let total = usize::try_from(total).unwrap_or(usize::MAX);
    window.get(position..total).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
}

/// Reads the bytes at `at`, if the section contains that many there.
#[inline]
fn fill<M: Memory>(memory: &mut M, section: &FrameSection, at: u64, window: &mut [u8; BLOCK]) -> Option<()> {
    if at < section.range.start || section.range.end.checked_sub(at)? < BLOCK as u64 {
        return None;
    }
    memory.read_block(at, window).ok()
}

#[inline]
fn u32_at(window: &[u8; BLOCK], at: usize) -> u32 {
    window.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_le_bytes)
}

#[inline]
fn u64_at(window: &[u8; BLOCK], at: usize) -> u64 {
    window.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_le_bytes)
}

/// Table of each register's slot, [`STACK_POINTER`] or [`NO_SLOT`].
struct SlotOf<A>(PhantomData<A>);

/// A register that a row has no slot for and that the caller doesn't need.
const NO_SLOT: u8 = 0xff;
/// The stack pointer, whose saved value a row can't express.
const STACK_POINTER: u8 = 0xfe;

impl<A: Architecture> SlotOf<A> {
    const TABLE: [u8; 64] = {
        let mut table = [NO_SLOT; 64];
        let mut slot = 0;
        while slot < A::SAVED_COUNT && slot < SLOTS {
            table[A::SAVED[slot] as usize & 63] = slot as u8;
            slot += 1;
        }
        table[A::SP as usize & 63] = STACK_POINTER;
        table
    };
}

/// `DW_CFA_def_cfa_offset`
const DEF_CFA_OFFSET: u8 = 0x0e;

/// The part of a row that changes, except for the places, which are written directly to the row.
#[derive(Clone, Copy)]
struct State {
    register: u8,
    offset: i32,
    saved: u16,
}

impl State {
    #[inline]
    fn put_into(self, row: &mut Row) {
        row.cfa_register = self.register;
        row.cfa_offset = self.offset;
        row.saved = self.saved;
    }
}

/// Call frame instructions of a plain entry.
struct Instructions<'a, M> {
    memory: &'a mut M,
    section: &'a FrameSection,
    /// Address of the window's first byte.
    at: u64,
    /// Number of bytes of the entry from there on.
    total: u64,
    window: [u8; BLOCK],
    /// Offset of the next instruction in the window.
    position: usize,
}

impl<M: Memory> Instructions<'_, M> {
    /// Writes the row that holds `distance` bytes after the function's start to `row`. Returns
    /// `None` if an instruction is not plain.
    #[inline]
    fn run<A: Architecture>(mut self, cie: &FastCie, distance: u64, row: &mut Row) -> Option<()> {
        *row = cie.row;
        let mut now = State { register: row.cfa_register, offset: row.cfa_offset, saved: row.saved };
        let mut location = 0u64;
        let mut remembered = [Row::new(0, 0); 2];
        let mut depth = 0usize;
        // Instructions begin before this offset in the window, and end in it.
        let mut edge = self.edge();
        let mut position = self.position;
        loop {
            if position >= edge {
                if edge as u64 >= self.total {
                    now.put_into(row);
                    // The last instruction must not end after the entry.
                    return if position as u64 == self.total { Some(()) } else { None };
                }
                self.at = self.at.wrapping_add(position as u64);
                self.total = self.total.wrapping_sub(position as u64);
                fill(self.memory, self.section, self.at, &mut self.window)?;
                edge = self.edge();
                position = 0;
                continue;
            }
            let window = &self.window;
            let mut byte = window[position & (BLOCK - 1)];
            // Prologues: `DW_CFA_advance_loc`, `DW_CFA_def_cfa_offset` for every push, then
            // `DW_CFA_offset` for every register. Two loops that each have one exit are predicted
            // better than one that has a branch for each instruction.
            while byte >> 6 == 1 {
                location += u64::from(byte & 0x3f) * u64::from(cie.code);
                position += 1;
                if location > distance {
                    now.put_into(row);
                    return Some(());
                }
                byte = window[position & (BLOCK - 1)];
                if byte == DEF_CFA_OFFSET && position < edge {
                    position += 1;
                    now.offset = i32::try_from(uleb(window, &mut position)?).ok()?;
                    byte = window[position & (BLOCK - 1)];
                }
                if position >= edge {
                    break;
                }
            }
            while byte >> 6 == 2 && position < edge {
                position += 1;
                let words = i32::try_from(uleb(window, &mut position)?).ok()?.wrapping_mul(cie.words);
                let slot = SlotOf::<A>::TABLE[usize::from(byte & 0x3f)];
                if let Some(place) = row.slots.get_mut(usize::from(slot)) {
                    *place = i16::try_from(words).ok()?;
                    now.saved |= 1u16.wrapping_shl(slot.into());
                } else if slot == STACK_POINTER {
                    return None;
                }
                byte = window[position & (BLOCK - 1)];
            }
            if position >= edge || byte >> 6 == 1 {
                continue;
            }
            position += 1;
            match byte {
                // DW_CFA_nop; whether the return address is signed (codes are always removed)
                0x00 | 0x2d => {}
                // DW_CFA_advance_loc1, 2, 4
                0x02..=0x04 => {
                    let (bytes, mask) = match byte {
                        0x02 => (1, 0xff),
                        0x03 => (2, 0xffff),
                        _ => (4, u32::MAX),
                    };
                    location += u64::from(u32_at(window, position) & mask) * u64::from(cie.code);
                    position += bytes;
                    if location > distance {
                        now.put_into(row);
                        return Some(());
                    }
                }
                // DW_CFA_remember_state, DW_CFA_restore_state
                0x0a => {
                    now.put_into(row);
                    *remembered.get_mut(depth)? = *row;
                    depth += 1;
                }
                0x0b => {
                    depth = depth.checked_sub(1)?;
                    *row = *remembered.get(depth)?;
                    now = State { register: row.cfa_register, offset: row.cfa_offset, saved: row.saved };
                }
                // DW_CFA_def_cfa, DW_CFA_def_cfa_register
                0x0c => {
                    now.register = register(uleb(window, &mut position)?)?;
                    now.offset = i32::try_from(uleb(window, &mut position)?).ok()?;
                }
                0x0d => now.register = register(uleb(window, &mut position)?)?,
                DEF_CFA_OFFSET => now.offset = i32::try_from(uleb(window, &mut position)?).ok()?,
                // DW_CFA_GNU_args_size
                0x2e => {
                    uleb(window, &mut position)?;
                }
                // DW_CFA_restore
                0xc0..=0xff => {
                    let slot = SlotOf::<A>::TABLE[usize::from(byte & 0x3f)];
                    if let (Some(place), Some(words)) =
                        (row.slots.get_mut(usize::from(slot)), cie.row.slots.get(usize::from(slot)))
                    {
                        let bit = 1u16.wrapping_shl(slot.into());
                        *place = *words;
                        now.saved = now.saved & !bit | cie.row.saved & bit;
                    }
                }
                _ => return None,
            }
        }
    }

    /// Returns the offset before which an instruction must begin to be completely in the window:
    /// the end of the entry if that is there.
    #[inline]
    fn edge(&self) -> usize {
        if self.total <= BLOCK as u64 { self.total as usize } else { BLOCK - MAX_LENGTH }
    }
}

/// Reads an unsigned LEB128 number of at most three bytes.
#[inline]
fn uleb(window: &[u8; BLOCK], position: &mut usize) -> Option<u32> {
    let byte = |at: usize| u32::from(window[at & (BLOCK - 1)]);
    let first = byte(*position);
    *position += 1;
    if first < 0x80 {
        return Some(first);
    }
    let second = byte(*position);
    *position += 1;
    let two = first & 0x7f | (second & 0x7f) << 7;
    if second < 0x80 {
        return Some(two);
    }
    let third = byte(*position);
    *position += 1;
    if third < 0x80 { Some(two | third << 14) } else { None }
}

/// Returns the number of a register that is carried.
#[inline]
fn register(number: u32) -> Option<u8> {
    if number < 32 { Some(number as u8) } else { None }
}

#[cfg(test)]
mod tests;

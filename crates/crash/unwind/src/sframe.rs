//! SFrame, the "simple frame" table of ELF (`.sframe`, `PT_GNU_SFRAME`), versions 2 and 3,
//! little-endian.
//!
//! Format: "The SFrame Format", version 3 of February 2026 and version 2 (errata 1), published with
//! GNU Binutils. The section consists of a header; function descriptors of a fixed size in
//! ascending order of address; and rows for each function that give, from an address on, the CFA,
//! and the places of the return address and the frame pointer relative to it. Rows hold at every
//! instruction.
//!
//! # Limits
//! * The table contains nothing about other callee-saved registers: they are taken as unchanged. It
//!   is used if `.eh_frame` has no entry.
//! * Sections without the flag for sorted descriptors (those of object files) and version 1 are not
//!   read.
//! * Rows of version 3's flexible type whose CFA is a word in memory (functions that realign their
//!   stack through a register) have no rule here.

use crate::arch::Architecture;
use crate::cursor::Cursor;
use crate::frame::{Malformed, Problem};
use crate::image::AddressRange;
use crate::rule::{Row, Rule};
use coroner_process::memory::Memory;
use coroner_process::registers::Arch;

/// `SFRAME_MAGIC`.
const MAGIC: u16 = 0xdee2;
/// `SFRAME_F_FDE_SORTED`: descriptors are in ascending order.
const SORTED: u8 = 0x1;
/// `SFRAME_F_FDE_FUNC_START_PCREL`: a function's start is relative to the field that contains it,
/// otherwise to the section.
const START_RELATIVE_TO_FIELD: u8 = 0x4;
/// Length in bytes of preamble and header without the auxiliary header.
const HEADER_LENGTH: u64 = 28;

/// The rule of an address, and the code that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SFrameRule {
    /// The rule: a row, or [`Rule::Outermost`] if the return address is undefined.
    pub rule: Rule,
    /// The function.
    pub range: AddressRange,
    /// Whether the function is a signal trampoline (version 3).
    pub signal_trampoline: bool,
}

/// Content of the section's header.
#[derive(Clone, Copy, Debug)]
struct Header {
    version: u8,
    flags: u8,
    /// Fixed offsets of the frame pointer and the return address from the CFA; 0 if the rows
    /// contain them.
    fixed_fp: i8,
    fixed_ra: i8,
    functions: u32,
    /// Address of the descriptors, and range of the rows.
    descriptors: u64,
    rows: AddressRange,
}

/// Content of a descriptor, which is in two places in version 3.
#[derive(Clone, Copy, Debug)]
struct Function {
    range: AddressRange,
    /// Address of the function's first row.
    rows: u64,
    row_count: u32,
    /// Size of a row's start address in bytes.
    start_width: u8,
    /// If not 0, addresses are taken modulo this: the stubs of a procedure linkage table.
    repeats: u8,
    flexible: bool,
    signal_trampoline: bool,
}

/// Finds the section's rule for `address`; `None` if no entry covers it, or if no [`Rule`] can
/// express the entry.
///
/// # Errors
/// A [`Problem`] if the section is malformed or unreadable.
pub(crate) fn find<A: Architecture, M: Memory>(
    memory: &mut M,
    section: AddressRange,
    address: u64,
) -> Result<Option<SFrameRule>, Problem> {
    let Some(header) = Header::read::<A, M>(memory, section)? else { return Ok(None) };
    let Some(at) = header.search(memory, section, address)? else { return Ok(None) };
    let function = header.function(memory, section, at)?;
    if !function.range.contains(address) {
        return Ok(None);
    }
    let mut offset = address.wrapping_sub(function.range.start);
    if let Some(rest) = offset.checked_rem(function.repeats.into()) {
        offset = rest;
    }
    let Some(rule) = header.rule::<A, M>(memory, &function, offset)? else { return Ok(None) };
    Ok(Some(SFrameRule { rule, range: function.range, signal_trampoline: function.signal_trampoline }))
}

impl Header {
    /// Reads the header. Returns `None` if the section is for another processor or is not sorted.
    fn read<A: Architecture, M: Memory>(memory: &mut M, section: AddressRange) -> Result<Option<Header>, Problem> {
        let mut cursor = Cursor::new(memory, section, section.start)?;
        if cursor.u16()? != MAGIC {
            return Err(Problem::Malformed { what: Malformed::Version, address: section.start });
        }
        let [version, flags, arch, fixed_fp, fixed_ra, auxiliary] = cursor.bytes()?;
        if !matches!(version, 2 | 3) {
            return Err(Problem::Malformed { what: Malformed::Version, address: section.start });
        }
        let (functions, _row_count) = (cursor.u32()?, cursor.u32()?);
        let (rows_length, descriptors, rows) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        let arch_is_ours = match A::ARCH {
            Arch::Aarch64 => arch == 2,
            Arch::X86_64 => arch == 3,
        };
        if !arch_is_ours || flags & SORTED == 0 {
            return Ok(None);
        }
        // Both offsets are from the end of the header.
        let body = section.start.saturating_add(HEADER_LENGTH).saturating_add(auxiliary.into());
        let descriptors = body.saturating_add(descriptors.into());
        let start = body.saturating_add(rows.into());
        let rows = AddressRange { start, end: start.saturating_add(rows_length.into()) };
        let length = u64::from(functions).saturating_mul(Header::descriptor_length(version));
        if descriptors.saturating_add(length) > section.end || rows.end > section.end {
            return Err(Problem::Malformed { what: Malformed::Truncated, address: section.start });
        }
        let (fixed_fp, fixed_ra) = (fixed_fp as i8, fixed_ra as i8);
        Ok(Some(Header { version, flags, fixed_fp, fixed_ra, functions, descriptors, rows }))
    }

    const fn descriptor_length(version: u8) -> u64 {
        if version == 2 { 20 } else { 16 }
    }

    fn descriptor(&self, index: u32) -> u64 {
        self.descriptors.wrapping_add(u64::from(index).wrapping_mul(Header::descriptor_length(self.version)))
    }

    /// Returns the start of the function whose descriptor is at `at`.
    fn start<M: Memory>(&self, memory: &mut M, section: AddressRange, at: u64) -> Result<u64, Problem> {
        let word = memory.read_u64(at)?;
        let offset = if self.version == 2 { i64::from(word as i32) } else { word as i64 };
        let base = if self.flags & START_RELATIVE_TO_FIELD != 0 { at } else { section.start };
        Ok(base.wrapping_add_signed(offset))
    }

    /// Returns the descriptor of the last function that starts at or below `address`.
    fn search<M: Memory>(&self, memory: &mut M, section: AddressRange, address: u64) -> Result<Option<u64>, Problem> {
        let (mut low, mut high) = (0, self.functions);
        while low < high {
            let middle = low.wrapping_add(high.wrapping_sub(low) >> 1);
            if self.start(memory, section, self.descriptor(middle))? <= address {
                low = middle.wrapping_add(1);
            } else {
                high = middle;
            }
        }
        Ok(low.checked_sub(1).map(|index| self.descriptor(index)))
    }

    fn function<M: Memory>(&self, memory: &mut M, section: AddressRange, at: u64) -> Result<Function, Problem> {
        let start = self.start(memory, section, at)?;
        let mut cursor = Cursor::new(memory, section, at)?;
        cursor.skip(if self.version == 2 { 4 } else { 8 })?;
        let (size, rows) = (cursor.u32()?, cursor.u32()?);
        let mut rows = self.rows.start.wrapping_add(rows.into());
        let (row_count, info, kind, repeats);
        if self.version == 2 {
            row_count = cursor.u32()?;
            [info, repeats] = cursor.bytes()?;
            kind = 0;
        } else {
            cursor.seek(rows, self.rows.end)?;
            row_count = cursor.u16()?.into();
            [info, kind, repeats] = cursor.bytes()?;
            rows = cursor.address();
        }
        let bad = Problem::Malformed { what: Malformed::Version, address: at };
        let start_width = match info & 0xf {
            0 => 1,
            1 => 2,
            2 => 4,
            _ => return Err(bad),
        };
        let flexible = match kind & 0x1f {
            0 => false,
            1 => true,
            _ => return Err(bad),
        };
        Ok(Function {
            range: AddressRange { start, end: start.saturating_add(size.into()) },
            rows,
            row_count,
            start_width,
            repeats: if info & 0x10 != 0 { repeats } else { 0 },
            flexible,
            signal_trampoline: self.version == 3 && info & 0x80 != 0,
        })
    }

    /// Returns the rule of the last row that starts at or below `offset`.
    fn rule<A: Architecture, M: Memory>(
        &self,
        memory: &mut M,
        function: &Function,
        offset: u64,
    ) -> Result<Option<Rule>, Problem> {
        let mut cursor = Cursor::new(memory, self.rows, function.rows)?;
        let mut found = None;
        for _ in 0..function.row_count {
            let start: u32 = match function.start_width {
                1 => cursor.bytes::<1>()?[0].into(),
                2 => cursor.u16()?.into(),
                _ => cursor.u32()?,
            };
            if u64::from(start) > offset {
                break;
            }
            found = Some(Words::read(&mut cursor)?);
        }
        let Some(words) = found else { return Ok(None) };
        Ok(if function.flexible { self.flexible_row::<A>(&words) } else { self.plain_row::<A>(&words) })
    }

    fn plain_row<A: Architecture>(&self, words: &Words) -> Option<Rule> {
        let [cfa, rest @ ..] = words.all() else { return Some(Rule::Outermost) };
        let base = if words.is_of_stack_pointer { A::SP } else { A::FP };
        let mut row = Row::new(base, *cfa);
        let mut rest = rest.iter().map(|offset| i64::from(*offset));
        let fixed = |offset: i8| (offset != 0).then_some(i64::from(offset));
        // A link register may still hold the return address.
        let return_address = fixed(self.fixed_ra).or_else(|| rest.next());
        let frame_pointer = fixed(self.fixed_fp).or_else(|| rest.next());
        if let Some(offset) = return_address {
            row = row.with_saved::<A>(A::RA, offset)?;
        } else if !A::LINK_REGISTER {
            return None;
        }
        if let Some(offset) = frame_pointer {
            row = row.with_saved::<A>(A::FP, offset)?;
        }
        Some(Rule::Row(row))
    }

    fn flexible_row<A: Architecture>(&self, words: &Words) -> Option<Rule> {
        let mask = words.mask;
        let mut words = words.all().iter().copied();
        let Some(control) = words.next() else { return Some(Rule::Outermost) };
        let cfa = Location::new(control & mask, words.next()?);
        if !cfa.of_register || cfa.in_memory {
            return None;
        }
        let mut row = Row::new(u8::try_from(cfa.register).ok()?, cfa.offset);
        for (register, fixed) in [(A::RA, self.fixed_ra), (A::FP, self.fixed_fp)] {
            let offset = match words.next() {
                // Padding: the register is at its fixed place, or was not saved.
                None | Some(0) if fixed == 0 => continue,
                None | Some(0) => i64::from(fixed),
                Some(control) => Location::new(control & mask, words.next()?).saved_at(&cfa)?,
            };
            row = row.with_saved::<A>(register, offset)?;
        }
        (A::LINK_REGISTER || row.saved_words::<A>(A::RA).is_some()).then_some(Rule::Row(row))
    }
}

/// A pair of words in a flexible row: a register or the CFA, an offset from it, and whether the
/// value is in memory there.
#[derive(Clone, Copy, Debug)]
struct Location {
    of_register: bool,
    in_memory: bool,
    register: u32,
    offset: i32,
}

impl Location {
    const fn new(control: i32, offset: i32) -> Location {
        let control = control as u32;
        Location { of_register: control & 1 != 0, in_memory: control & 2 != 0, register: control >> 3, offset }
    }

    /// Returns the place of the saved register relative to the CFA, in bytes; `None` if it was not
    /// saved, or not at a fixed distance.
    fn saved_at(self, cfa: &Location) -> Option<i64> {
        let offset = i64::from(self.offset);
        match self.of_register {
            _ if !self.in_memory => None,
            false => Some(offset),
            true if self.register == cfa.register => Some(offset.wrapping_sub(cfa.offset.into())),
            true => None,
        }
    }
}

/// Data words of a row.
#[derive(Clone, Copy, Debug)]
struct Words {
    is_of_stack_pointer: bool,
    /// Mask for the bits of a word, which is stored sign-extended.
    mask: i32,
    words: [i32; 6],
    count: usize,
}

impl Words {
    /// Reads a row's words. Words after the sixth, which have no meaning, are skipped.
    fn read<M: Memory>(cursor: &mut Cursor<M>) -> Result<Words, Problem> {
        let [info] = cursor.bytes()?;
        let count = usize::from(info >> 1 & 0xf);
        let mask = [0xff, 0xffff].get(usize::from(info >> 5 & 3)).copied().unwrap_or(-1);
        let mut read = Words { is_of_stack_pointer: info & 1 != 0, mask, words: [0; 6], count: count.min(6) };
        for index in 0..count {
            let word = match info >> 5 & 3 {
                0 => i32::from(cursor.bytes::<1>()?[0] as i8),
                1 => i32::from(cursor.u16()? as i16),
                2 => cursor.u32()? as i32,
                _ => return Err(cursor.malformed(Malformed::Version)),
            };
            if let Some(place) = read.words.get_mut(index) {
                *place = word;
            }
        }
        Ok(read)
    }

    fn all(&self) -> &[i32] {
        self.words.get(..self.count).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests;

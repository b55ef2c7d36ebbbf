//! The rule that finds the caller of a frame, as plain data.
//!
//! In the equations `reg` is the register file of the frame, primed names are the caller's, `*a` is the 64-bit word at
//! `a`. Registers that an equation does not name are the caller's unchanged as far as a call preserves them.

use crate::arch::SLOTS;

/// How to find the caller of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `cfa = reg[r] + o; sp' = cfa; reg'[s] = *(cfa + 8·slot(s))` for each saved register `s`; and
    /// `pc' = *(cfa + 8·slot(ra))`, or on arm64, if the return address was not saved, `pc' = lr`.
    Row(Row),
    /// `pc' = *(fp + 8); fp' = *fp; sp' = cfa = fp + 16`, if `fp' > fp` or `fp' = 0`: a frame record that nothing proves.
    FrameRecord,
    /// There is no caller.
    Outermost,
    /// What the call frame instructions of an entry say for this address, evaluated each time: they contain
    /// expressions, or save a register in another one.
    Program(Program),
    /// All registers from the context that the kernel saved for a signal handler: `reg' = context`.
    SignalContext(SignalContext),
}

const _: () = assert!(size_of::<Rule>() <= 36);

/// The rule of nearly all frames. It holds where everything that was saved lies within 256 KiB of the canonical frame
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The DWARF number of the register that the CFA is relative to.
    pub cfa_register: u8,
    /// Which slots are used: bit `i` for register [`crate::Architecture::SAVED`]`[i]`.
    pub saved: u16,
    /// The CFA minus that register.
    pub cfa_offset: i32,
    /// Where each register was saved, in words of 8 bytes from the CFA.
    pub slots: [i16; SLOTS],
}

impl Row {
    /// A row that saves nothing: `cfa = reg[r] + offset`.
    pub const fn new(cfa_register: u8, cfa_offset: i32) -> Row {
        Row { cfa_register, saved: 0, cfa_offset, slots: [0; SLOTS] }
    }

    /// The same row with register `number` saved at `offset` bytes from the CFA; `None` if the row
    /// has no place for that: the register has no slot, or the offset is no multiple of 8 or too far.
    pub fn with_saved<A: crate::Architecture>(mut self, number: u8, offset: i64) -> Option<Row> {
        self.save(A::slot_of(number)?, offset).then_some(self)
    }

    /// Where register `number` was saved, in words of 8 bytes from the CFA.
    #[inline]
    pub fn saved_words<A: crate::Architecture>(&self, number: u8) -> Option<i16> {
        let slot = A::slot_of(number)?;
        if self.saved & 1u16.wrapping_shl(slot as u32) == 0 { None } else { self.slots.get(slot).copied() }
    }

    /// Says that the register of `slot` was saved at `offset` bytes from the CFA; `false`, and the row
    /// is as it was, where it has no place for that.
    #[inline]
    pub(crate) fn save(&mut self, slot: usize, offset: i64) -> bool {
        let words = i16::try_from(offset >> 3);
        match (self.slots.get_mut(slot), words) {
            (Some(place), Ok(words)) if offset % 8 == 0 => {
                *place = words;
                self.saved |= 1u16.wrapping_shl(slot as u32);
                true
            }
            _ => false,
        }
    }

    /// A frame record (saved frame pointer, then return address) `offset` bytes from a register, not necessarily the
    /// frame pointer: `cfa = reg[r] + offset + 16; fp' = *(cfa − 16); pc' = *(cfa − 8)`.
    ///
    /// This is the rule to register for trampolines of virtual machines; ART's generic JNI trampoline has its record at
    /// `sp + 0xd0`.
    pub fn frame_record_at<A: crate::Architecture>(register: u8, offset: i32) -> Row {
        let row = Row::new(register, offset.saturating_add(16));
        row.with_saved::<A>(A::FP, -16).and_then(|row| row.with_saved::<A>(A::RA, -8)).unwrap_or(row)
    }
}

/// A FDE to evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// The entry's address, low and high half (a rule is aligned to 4).
    entry: [u32; 2],
    /// Whether the entry is one of `.debug_frame`.
    pub debug_frame: bool,
}

impl Program {
    /// The entry at `address`.
    pub const fn new(address: u64, debug_frame: bool) -> Program {
        Program { entry: [address as u32, (address >> 32) as u32], debug_frame }
    }

    /// The entry's address.
    pub const fn address(self) -> u64 {
        self.entry[0] as u64 | (self.entry[1] as u64) << 32
    }
}

/// Where and in which form the kernel saved the registers of the code that a signal interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignalContext {
    /// Linux, a frame of rt_sigreturn(2), at the instruction that makes that call: `sp` is the address of the `ucontext`
    /// (x86_64) or of the `siginfo` before it (arm64).
    Linux,
    /// Darwin, in `_sigtramp`: the `ucontext64` is at `reg[register] + offset`.
    Darwin {
        /// The register's DWARF number.
        register: u8,
        /// Bytes.
        offset: i32,
    },
}

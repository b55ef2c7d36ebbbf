//! The rule that finds the caller of a frame, as plain data.
//!
//! In the equations `reg` is the frame's register file, primed names are the caller's, `*a` is the
//! 64-bit word at `a`. Registers that an equation does not name are unchanged in the caller as far
//! as a call preserves them.

use crate::arch::SLOTS;

/// Rule for finding the caller of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `cfa = reg[r] + o; sp' = cfa; reg'[s] = *(cfa + 8·slot(s))` for each saved register `s`; and
    /// `pc' = *(cfa + 8·slot(ra))`, or on arm64, if the return address was not saved, `pc' = lr`.
    Row(Row),
    /// `pc' = *(fp + 8); fp' = *fp; sp' = cfa = fp + 16`, if `fp' > fp` or `fp' = 0`: a frame
    /// record that isn't confirmed by unwind data.
    FrameRecord,
    /// There is no caller.
    Outermost,
    /// The call frame instructions of an entry for this address, evaluated each time: they contain
    /// expressions, or save a register in another one.
    Program(Program),
    /// All registers from the context that the kernel saved for a signal handler: `reg' = context`.
    SignalContext(SignalContext),
}

const _: () = assert!(size_of::<Rule>() <= 36);

/// The rule for nearly all frames. It can express everything that was saved within 256 KiB of the
/// canonical frame address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// DWARF number of the register that the CFA is relative to.
    pub cfa_register: u8,
    /// Used slots: bit `i` for register [`crate::Architecture::SAVED`]`[i]`.
    pub saved: u16,
    /// The CFA minus that register, in bytes.
    pub cfa_offset: i32,
    /// Place of each saved register, in words of 8 bytes from the CFA.
    pub slots: [i16; SLOTS],
}

impl Row {
    /// Creates a row that saves nothing: `cfa = reg[r] + offset`.
    pub const fn new(cfa_register: u8, cfa_offset: i32) -> Row {
        Row { cfa_register, saved: 0, cfa_offset, slots: [0; SLOTS] }
    }

    /// Returns the row with register `number` saved at `offset` bytes from the CFA; `None` if the
    /// row can't express that: the register has no slot, or the offset isn't a multiple of 8 or is
    /// too large.
    pub fn with_saved<A: crate::Architecture>(mut self, number: u8, offset: i64) -> Option<Row> {
        self.save(A::slot_of(number)?, offset).then_some(self)
    }

    /// Returns the place where register `number` was saved, in words of 8 bytes from the CFA.
    #[inline]
    pub fn saved_words<A: crate::Architecture>(&self, number: u8) -> Option<i16> {
        let slot = A::slot_of(number)?;
        if self.saved & 1u16.wrapping_shl(slot as u32) == 0 { None } else { self.slots.get(slot).copied() }
    }

    /// Records that the register of `slot` was saved at `offset` bytes from the CFA; returns
    /// `false`, with the row unchanged, if the row can't express that.
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

    /// Creates the row for a frame record (saved frame pointer, then return address) `offset` bytes
    /// from a register, not necessarily the frame pointer: `cfa = reg[r] + offset + 16; fp' = *(cfa
    /// − 16); pc' = *(cfa − 8)`.
    ///
    /// This is the rule to register for trampolines of virtual machines; ART's generic JNI
    /// trampoline has its record at `sp + 0xd0`.
    pub fn frame_record_at<A: crate::Architecture>(register: u8, offset: i32) -> Row {
        let row = Row::new(register, offset.saturating_add(16));
        row.with_saved::<A>(A::FP, -16).and_then(|row| row.with_saved::<A>(A::RA, -8)).unwrap_or(row)
    }
}

/// An FDE to evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Address of the entry, low and high half (a rule is aligned to 4).
    entry: [u32; 2],
    /// Whether the entry is in `.debug_frame`.
    pub debug_frame: bool,
}

impl Program {
    /// Creates the program of the entry at `address`.
    pub const fn new(address: u64, debug_frame: bool) -> Program {
        Program { entry: [address as u32, (address >> 32) as u32], debug_frame }
    }

    /// Returns the entry's address.
    pub const fn address(self) -> u64 {
        self.entry[0] as u64 | (self.entry[1] as u64) << 32
    }
}

/// Place and form of the registers that the kernel saved of the code interrupted by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignalContext {
    /// Linux, a frame of rt_sigreturn(2), at the instruction that makes that call: `sp` is the
    /// address of the `ucontext` (x86_64) or of the `siginfo` before it (arm64).
    Linux,
    /// Darwin, in `_sigtramp`: the `ucontext64` is at `reg[register] + offset`.
    Darwin {
        /// DWARF number of the register.
        register: u8,
        /// Offset in bytes.
        offset: i32,
    },
}

//! The registers of one frame, and which of them are certain.

use crate::arch::Architecture;
use crate::rule::Row;
use crate::swift_async::without_mark;
use core::marker::PhantomData;
use coroner_process::memory::{Memory, Unreadable};

/// The registers of one frame by DWARF number, and the program counter.
///
/// A register that a callee saved is kept as the address where it was saved and is read when it is needed: most saved
/// registers of most frames never are. This is right while the stack does not change under the walk.
#[derive(Clone, Copy, Debug)]
pub struct RegisterFile<A> {
    /// The value, or where [`Self::in_memory`] has the bit, the address of the value.
    values: [u64; 32],
    /// Registers of which a value is held at all.
    held: u32,
    /// Registers whose value is at the address in [`Self::values`].
    in_memory: u32,
    /// Registers whose value is certainly that of this frame.
    certain: u32,
    /// The program counter of this frame: the instruction that runs next in it.
    pub pc: u64,
    arch: PhantomData<A>,
}

impl<A: Architecture> RegisterFile<A> {
    /// A file with the program counter and nothing else.
    #[inline]
    pub const fn new(pc: u64) -> RegisterFile<A> {
        RegisterFile { values: [0; 32], held: 0, in_memory: 0, certain: 0, pc, arch: PhantomData }
    }

    /// Sets a thread's registers, which are certain.
    #[inline]
    pub(crate) fn load(&mut self, registers: &A::Registers) {
        let (values, (number, value), pc) = A::values(registers);
        for (place, value) in self.values.iter_mut().zip(values) {
            *place = *value;
        }
        self.pc = pc;
        self.set(number, value);
        let known = (1_u32.wrapping_shl(values.len() as u32)).wrapping_sub(1);
        self.held |= known;
        self.certain |= known;
        self.in_memory &= !known;
    }

    /// Gives register `number` (below 32) a value.
    #[inline]
    pub fn set(&mut self, number: u8, value: u64) {
        let index = number & 31;
        self.values[usize::from(index)] = value;
        let bit = 1 << index;
        self.held |= bit;
        self.certain |= bit;
        self.in_memory &= !bit;
    }

    /// States that the value of register `number` (below 32) is the word at `address`.
    #[inline]
    pub fn set_saved_at(&mut self, number: u8, address: u64) {
        let index = number & 31;
        self.values[usize::from(index)] = address;
        let bit = 1 << index;
        self.held |= bit;
        self.certain |= bit;
        self.in_memory |= bit;
    }

    /// What a call and its return do, seen from the callee's row: callee-saved registers that the row names were saved at
    /// their places, those that a call does not preserve are no longer certain ([`Self::after_call`]), the stack pointer
    /// is the CFA.
    #[inline]
    pub fn return_by(&mut self, row: &Row, cfa: u64, pc: u64) {
        self.save_by(row, cfa, row.saved & Self::SLOTS);
        self.return_to(pc, cfa);
    }

    /// States that the registers of `slots` are where `row` says that they were saved.
    #[inline]
    fn save_by(&mut self, row: &Row, cfa: u64, slots: u16) {
        self.save_places(row, cfa, slots);
        self.hold_places(slots);
    }

    /// The one half of [`Self::save_by`]: where they are.
    #[inline]
    pub(crate) fn save_places(&mut self, row: &Row, cfa: u64, slots: u16) {
        let mut left = slots;
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            let (Some(number), Some(words)) = (A::SAVED.get(slot), row.slots.get(slot)) else { break };
            self.values[usize::from(*number & 31)] = cfa.wrapping_add_signed(i64::from(*words) << 3);
        }
    }

    /// The other half: that they are there.
    #[inline]
    pub(crate) fn hold_places(&mut self, slots: u16) {
        let bits = A::registers_of_slots(slots);
        self.held |= bits;
        self.in_memory |= bits;
        self.certain |= bits;
    }

    /// The slots of a row but for that of the return address, which is not a register of the caller's.
    pub(crate) const SLOTS: u16 = (1 << (A::SAVED_COUNT - 1)) - 1;

    /// What calls and their returns do besides what each saved.
    #[inline]
    pub(crate) fn return_to(&mut self, pc: u64, sp: u64) {
        self.after_call(A::PRESERVED);
        self.set(A::SP, sp);
        self.pc = pc;
    }

    /// States that nothing is known of register `number`.
    #[inline]
    pub fn forget(&mut self, number: u8) {
        let bit = 1 << (number & 31);
        self.held &= !bit;
        self.certain &= !bit;
        self.in_memory &= !bit;
    }

    /// What a call does: registers outside `preserved` keep their values here, but are no longer certain. They still
    /// answer [`Self::value`], since unwind data that names such a register is of a callee that preserves it
    /// (outlined functions keep lr in a scratch register).
    #[inline]
    pub fn after_call(&mut self, preserved: u32) {
        self.certain &= preserved;
    }

    /// The value of register `number`; `None` if none is held.
    ///
    /// # Errors
    /// [`Unreadable`] if the register was saved at an address that can't be read.
    #[inline]
    pub fn value<M: Memory>(&mut self, number: u8, memory: &mut M) -> Result<Option<u64>, Unreadable> {
        if number >= 32 {
            return Ok(None);
        }
        let bit = 1u32 << (number & 31);
        if self.held & bit == 0 {
            return Ok(None);
        }
        let index = usize::from(number & 31);
        if self.in_memory & bit != 0 {
            self.values[index] = memory.read_u64(self.values[index])?;
            self.in_memory &= !bit;
        }
        Ok(Some(self.values[index]))
    }

    /// The value of register `number` where an address is to be computed from it: as [`Self::value`], but a frame pointer
    /// without the mark that Swift's async functions give it, which no address has.
    ///
    /// # Errors
    /// As [`Self::value`].
    #[inline]
    pub fn address<M: Memory>(&mut self, number: u8, memory: &mut M) -> Result<Option<u64>, Unreadable> {
        let value = self.value(number, memory)?;
        Ok(if number == A::FP { value.map(without_mark) } else { value })
    }

    /// The value of register `number` if it is certain and was not left in memory.
    #[inline]
    pub fn certain(&self, number: u8) -> Option<u64> {
        let bit = 1u32.checked_shl(u32::from(number))?;
        if self.certain & bit == 0 || self.in_memory & bit != 0 {
            return None;
        }
        self.values.get(usize::from(number)).copied()
    }

    /// Whether register `number`'s value is certainly this frame's (even if it still lies in memory).
    #[inline]
    pub const fn is_certain(&self, number: u8) -> bool {
        number < 32 && self.certain & (1 << (number & 31)) != 0
    }

    /// Reads what still lies in memory; registers that can't be read are forgotten.
    pub fn settle<M: Memory>(&mut self, memory: &mut M) {
        for number in 0..32 {
            if self.value(number, memory).is_err() {
                self.forget(number);
            }
        }
    }

    /// The stack pointer (0 if unknown).
    #[inline]
    pub fn sp(&self) -> u64 {
        self.values[usize::from(A::SP & 31)]
    }
}

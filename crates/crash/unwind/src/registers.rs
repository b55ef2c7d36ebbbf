//! Registers of a frame, and which of them are certain.

use crate::arch::Architecture;
use crate::rule::Row;
use crate::swift_async::without_mark;
use core::marker::PhantomData;
use coroner_process::memory::{Memory, Unreadable};

/// A frame's registers by DWARF number, and the program counter.
///
/// A register that a callee saved is kept as the address where it was saved and is read when
/// needed: most saved registers of most frames never are. This is correct as long as the stack does
/// not change during the walk.
#[derive(Clone, Copy, Debug)]
pub struct RegisterFile<A> {
    /// The value, or if [`Self::in_memory`] has the bit, the address of the value.
    values: [u64; 32],
    /// Registers that have a value.
    held: u32,
    /// Registers whose value is at the address in [`Self::values`].
    in_memory: u32,
    /// Registers whose value is certainly this frame's.
    certain: u32,
    /// This frame's program counter: the next instruction that runs in it.
    pub pc: u64,
    arch: PhantomData<A>,
}

impl<A: Architecture> RegisterFile<A> {
    /// Creates a file with only the program counter.
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

    /// Sets the value of register `number` (below 32).
    #[inline]
    pub fn set(&mut self, number: u8, value: u64) {
        let index = number & 31;
        self.values[usize::from(index)] = value;
        let bit = 1 << index;
        self.held |= bit;
        self.certain |= bit;
        self.in_memory &= !bit;
    }

    /// Sets the value of register `number` (below 32) to the word at `address`, to be read when
    /// needed.
    #[inline]
    pub fn set_saved_at(&mut self, number: u8, address: u64) {
        let index = number & 31;
        self.values[usize::from(index)] = address;
        let bit = 1 << index;
        self.held |= bit;
        self.certain |= bit;
        self.in_memory |= bit;
    }

    /// Applies the effect of a call and its return, from the point of view of the callee's row:
    /// callee-saved registers that the row names were saved at their places, those that a call does
    /// not preserve are no longer certain ([`Self::after_call`]), the stack pointer is the CFA.
    #[inline]
    pub fn return_by(&mut self, row: &Row, cfa: u64, pc: u64) {
        self.save_by(row, cfa, row.saved & Self::SLOTS);
        self.return_to(pc, cfa);
    }

    /// Sets the registers of `slots` to the places where `row` saved them.
    #[inline]
    fn save_by(&mut self, row: &Row, cfa: u64, slots: u16) {
        self.save_places(row, cfa, slots);
        self.hold_places(slots);
    }

    /// First half of [`Self::save_by`]: sets the addresses.
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

    /// Second half of [`Self::save_by`]: marks the registers as being at these addresses.
    #[inline]
    pub(crate) fn hold_places(&mut self, slots: u16) {
        let bits = A::registers_of_slots(slots);
        self.held |= bits;
        self.in_memory |= bits;
        self.certain |= bits;
    }

    /// The slots of a row except that of the return address, which is not a register of the caller.
    pub(crate) const SLOTS: u16 = (1 << (A::SAVED_COUNT - 1)) - 1;

    /// Applies the effect of calls and their returns apart from saved registers.
    #[inline]
    pub(crate) fn return_to(&mut self, pc: u64, sp: u64) {
        self.after_call(A::PRESERVED);
        self.set(A::SP, sp);
        self.pc = pc;
    }

    /// Marks the value of register `number` as unknown.
    #[inline]
    pub fn forget(&mut self, number: u8) {
        self.forget_all(1 << (number & 31));
    }

    /// Marks the values of registers, as bits by number, as unknown.
    #[inline]
    pub(crate) fn forget_all(&mut self, registers: u32) {
        self.held &= !registers;
        self.certain &= !registers;
        self.in_memory &= !registers;
    }

    /// Applies the effect of a call: registers outside `preserved` keep their values here, but are
    /// no longer certain. [`Self::value`] still returns them, since unwind data that name such a
    /// register are of a callee that preserves it (outlined functions keep lr in a scratch
    /// register).
    #[inline]
    pub fn after_call(&mut self, preserved: u32) {
        self.certain &= preserved;
    }

    /// Returns the value of register `number`; `None` if it is unknown.
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

    /// Returns the value of register `number` for computing an address: the same as
    /// [`Self::value`], but a frame pointer without the mark of Swift's async functions, which no
    /// address has.
    ///
    /// # Errors
    /// See [`Self::value`].
    #[inline]
    pub fn address<M: Memory>(&mut self, number: u8, memory: &mut M) -> Result<Option<u64>, Unreadable> {
        let value = self.value(number, memory)?;
        Ok(if number == A::FP { value.map(without_mark) } else { value })
    }

    /// Returns the value of register `number` if it is certain and not still in memory.
    #[inline]
    pub fn certain(&self, number: u8) -> Option<u64> {
        let bit = 1u32.checked_shl(u32::from(number))?;
        if self.certain & bit == 0 || self.in_memory & bit != 0 {
            return None;
        }
        self.values.get(usize::from(number)).copied()
    }

    /// Returns `true` if register `number`'s value is certainly this frame's (even if it is still
    /// in memory).
    #[inline]
    pub const fn is_certain(&self, number: u8) -> bool {
        number < 32 && self.certain & (1 << (number & 31)) != 0
    }

    /// Reads the values that are still in memory; registers that can't be read become unknown.
    pub fn settle<M: Memory>(&mut self, memory: &mut M) {
        for number in 0..32 {
            if self.value(number, memory).is_err() {
                self.forget(number);
            }
        }
    }

    /// Returns the stack pointer (0 if unknown).
    #[inline]
    pub fn sp(&self) -> u64 {
        self.values[usize::from(A::SP & 31)]
    }
}

//! Architectures: register numbers by DWARF, and the registers that a call preserves.

use core::fmt::Debug;
use coroner_process::registers::{Aarch64Registers, Arch, X86_64Registers};

/// Number of callee-saved registers (with the return address) that a [`crate::Row`] has places for.
pub const SLOTS: usize = 12;

/// An architecture as a type: a walk is compiled for one architecture.
///
/// Registers are numbered as in DWARF: System V AMD64 psABI figure 3.36; DWARF for the Arm 64-bit
/// Architecture (AADWARF64), section 4.1. Numbers of 32 and above (vector registers and states) are
/// not carried.
pub trait Architecture: Copy + Debug + 'static {
    /// The machine's registers in the form that the operating system provides.
    type Registers;
    /// The architecture's number in reports.
    const ARCH: Arch;
    /// Number of the stack pointer.
    const SP: u8;
    /// Number of the frame pointer.
    const FP: u8;
    /// Number of the return address: column 16 on x86_64 (not a register), the link register x30 on
    /// arm64.
    const RA: u8;
    /// Whether a call leaves its return address in the register [`Self::RA`] (arm64) rather than on
    /// the stack.
    const LINK_REGISTER: bool;
    /// The registers that a [`crate::Row`] has slots for, in slot order; the remaining slots are
    /// unused. The last used one is [`Self::RA`].
    const SAVED: [u8; SLOTS];
    /// Number of used entries in [`Self::SAVED`].
    const SAVED_COUNT: usize;
    /// The registers that a call preserves, as bits by number (with the stack pointer).
    const PRESERVED: u32;
    /// Bits that a return address can't have: those of pointer authentication and of tags. This is
    /// the default for [`crate::Options::authentication_mask`], correct for 48-bit addresses; the
    /// system may have more.
    const AUTHENTICATION_MASK: u64;

    /// Returns a thread's registers from number 0 on, one more register with its number, and the
    /// program counter.
    fn values(registers: &Self::Registers) -> (&[u64], (u8, u64), u64);

    /// Returns the slot of register `number` in a [`crate::Row`].
    fn slot_of(number: u8) -> Option<usize>;

    /// Returns the registers of slots, as bits by number.
    fn registers_of_slots(slots: u16) -> u32;
}

/// AMD64 with the System V calling convention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct X86_64;

/// AArch64 with AAPCS64; Apple's arm64 and arm64e too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aarch64;

impl Architecture for X86_64 {
    type Registers = X86_64Registers;
    const ARCH: Arch = Arch::X86_64;
    const SP: u8 = 7;
    const FP: u8 = 6;
    const RA: u8 = 16;
    const LINK_REGISTER: bool = false;
    // rbx, rbp, r12–r15, return address
    const SAVED: [u8; SLOTS] = [3, 6, 12, 13, 14, 15, 16, 0, 0, 0, 0, 0];
    const SAVED_COUNT: usize = 7;
    const PRESERVED: u32 = 1 << 3 | 1 << 6 | 1 << 7 | 0xf << 12;
    const AUTHENTICATION_MASK: u64 = 0;

    #[inline]
    fn values(registers: &X86_64Registers) -> (&[u64], (u8, u64), u64) {
        (&registers.gpr, (Self::RA, registers.pc), registers.pc)
    }

    #[inline]
    fn slot_of(number: u8) -> Option<usize> {
        match number {
            3 => Some(0),
            6 => Some(1),
            12..=16 => Some(usize::from(number) - 10),
            _ => None,
        }
    }

    #[inline]
    fn registers_of_slots(slots: u16) -> u32 {
        let slots = u32::from(slots);
        (slots & 1) << 3 | (slots & 2) << 5 | (slots & 0x7c) << 10
    }
}

impl Architecture for Aarch64 {
    type Registers = Aarch64Registers;
    const ARCH: Arch = Arch::Aarch64;
    const SP: u8 = 31;
    const FP: u8 = 29;
    const RA: u8 = 30;
    const LINK_REGISTER: bool = true;
    const SAVED: [u8; SLOTS] = [19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30];
    const SAVED_COUNT: usize = 12;
    // x19–x29 and sp; x30 belongs to the callee as soon as it is called
    const PRESERVED: u32 = 0x7ff << 19 | 1 << 31;
    const AUTHENTICATION_MASK: u64 = 0xffff_0000_0000_0000;

    #[inline]
    fn values(registers: &Aarch64Registers) -> (&[u64], (u8, u64), u64) {
        (&registers.x, (Self::SP, registers.sp), registers.pc)
    }

    #[inline]
    fn slot_of(number: u8) -> Option<usize> {
        match number {
            19..=30 => Some(usize::from(number) - 19),
            _ => None,
        }
    }

    #[inline]
    fn registers_of_slots(slots: u16) -> u32 {
        u32::from(slots & 0xfff) << 19
    }
}

#[cfg(test)]
mod tests;

//! The calling thread's registers.

use coroner_process::registers::Registers;

/// Returns the calling thread's registers at this place. Always inlined: the registers are those of
/// the caller's frame.
#[inline(always)]
#[must_use]
pub fn current_registers() -> Registers {
    let mut registers = Registers::default();
    store_current_registers(&mut registers);
    registers
}

/// Stores those of the calling thread's registers at this place that a call preserves, and leaves
/// the others unchanged. Always inlined, like [`current_registers`].
#[inline(always)]
pub fn store_current_registers(registers: &mut Registers) {
    if cfg!(miri) {
        // Miri runs no assembly: the registers stay unchanged.
        return;
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: stores the callee-saved registers, the stack pointer and the address of an
    // instruction of this very block into the registers' place; reads nothing else. (Numbers: DWARF
    // order, see `X86_64Registers`.)
    unsafe {
        core::arch::asm!(
            "mov [{to} + 24], rbx",
            "mov [{to} + 48], rbp",
            "mov [{to} + 56], rsp",
            "mov [{to} + 96], r12",
            "mov [{to} + 104], r13",
            "mov [{to} + 112], r14",
            "mov [{to} + 120], r15",
            "lea {pc}, [rip]",
            "mov [{to} + 128], {pc}",
            to = in(reg) &raw mut *registers,
            pc = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "stp x19, x20, [{to}, #152]",
            "stp x21, x22, [{to}, #168]",
            "stp x23, x24, [{to}, #184]",
            "stp x25, x26, [{to}, #200]",
            "stp x27, x28, [{to}, #216]",
            "stp x29, x30, [{to}, #232]",
            "mov {at}, sp",
            "str {at}, [{to}, #248]",
            "adr {at}, .",
            "str {at}, [{to}, #256]",
            to = in(reg) &raw mut *registers,
            at = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

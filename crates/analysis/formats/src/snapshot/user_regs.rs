//! Registers as the Linux kernel writes them: `user_regs_struct`, in core dumps and from
//! `PTRACE_GETREGSET`.
//!
//! Sources: Linux `arch/x86/include/asm/user_64.h`, `arch/arm64/include/uapi/asm/ptrace.h`.

use coroner_process::registers::Arch;

/// Returns the little-endian 64-bit word at the offset `at`.
pub fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the little-endian 32-bit word at the offset `at`.
pub fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the current system call from `user_regs_struct`; only x86_64's contains it.
pub fn system_call(user_regs: &[u8], arch: Arch) -> Option<i64> {
    // `orig_rax` is negative outside system calls.
    let call = word(user_regs, 8 * 15).map(|call| call as i64).filter(|call| *call >= 0);
    call.filter(|_| arch == Arch::X86_64)
}

/// Returns the registers in `user_regs_struct`, in the order used in reports.
pub fn general_registers(user_regs: &[u8], arch: Arch) -> Option<Vec<u64>> {
    let register = |index: usize| word(user_regs, 8 * index);
    match arch {
        // r15 r14 r13 r12 bp bx r11 r10 r9 r8 ax cx dx si di orig_ax ip cs flags sp …, as DWARF
        // numbers them.
        Arch::X86_64 => {
            [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16, 18].into_iter().map(register).collect()
        }
        // x0 … x30, sp, pc, pstate.
        Arch::Aarch64 => (0..34).map(register).collect(),
    }
}

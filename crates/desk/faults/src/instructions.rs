//! Faults of single instructions.

use std::arch::asm;

/// x86_64 only: on arm64, division by zero returns zero.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
pub(crate) fn divide_by_zero() -> u64 {
    let quotient: u64;
    // SAFETY: none is claimed; the division traps.
    unsafe {
        asm!("xor edx, edx", "div {zero}", zero = in(reg) std::hint::black_box(0_u64), inout("rax") 1_u64 => quotient, out("rdx") _);
    }
    quotient
}

/// Sets EFLAGS.AC (x86_64), which is still set when a signal handler starts.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[inline(never)]
pub(crate) fn alignment_check() -> u64 {
    // SAFETY: none is claimed; the store faults.
    unsafe {
        asm!(
            "pushfq", "or dword ptr [rsp], {flag}", "popfq", "mov dword ptr [{null}], 1",
            flag = const 1 << 18, null = in(reg) std::hint::black_box(0_usize),
        );
    }
    0
}

#[inline(never)]
pub(crate) fn illegal_instruction() -> u64 {
    // SAFETY: none is claimed; the instruction traps.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("ud2");
        #[cfg(target_arch = "aarch64")]
        asm!("udf #0");
    }
    0
}

#[inline(never)]
pub(crate) fn breakpoint() -> u64 {
    // SAFETY: none is claimed; the instruction traps.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("int3");
        #[cfg(target_arch = "aarch64")]
        asm!("brk #1");
    }
    0
}

#[inline(never)]
pub(crate) fn privileged_instruction() -> u64 {
    // SAFETY: none is claimed; the instruction traps outside the kernel.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("hlt");
        #[cfg(target_arch = "aarch64")]
        asm!("tlbi vmalle1");
    }
    0
}

//! Stack faults: overflow, depth, functions without a frame pointer, and destroyed stack registers.
//!
//! The assembly functions have call frame information: everything a correct unwinder needs, and
//! nothing more.

use std::arch::naked_asm;
use std::hint::black_box;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Overflows the main thread's stack, which grows up to the resource limit, possibly "unlimited".
#[inline(never)]
pub(crate) fn overflow_main() -> u64 {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_STACK)
        && soft > 64 << 20
    {
        let _ = setrlimit(Resource::RLIMIT_STACK, 8 << 20, hard);
    }
    overflow()
}

#[inline(never)]
pub(crate) fn overflow() -> u64 {
    recurse_for_ever(black_box(0))
}

#[inline(never)]
fn recurse_for_ever(depth: u64) -> u64 {
    let mut frame = [depth; 32];
    let mut unknown = depth;
    // Like `black_box`, but inlined in every build, so that the stack overflows in this function
    // and not in one that it calls.
    // SAFETY: it contains no instruction; the compiler must assume that the frame is used and the
    // number changed.
    unsafe { core::arch::asm!("/* {0} {1} */", in(reg) &raw mut frame, inout(reg) unknown, options(nostack)) };
    // Without this an optimizer may prove that the function never returns, and drop the code after
    // the call.
    if unknown == u64::MAX {
        return frame[0];
    }
    let below = recurse_for_ever(depth + 1);
    black_box(&mut frame)[7].wrapping_add(below)
}

/// The number of frames of [`deep_recursion`].
pub(crate) const DEEP: u64 = 100_000;

#[inline(never)]
pub(crate) fn deep_recursion() -> u64 {
    recurse_to(black_box(DEEP)).wrapping_add(1)
}

#[inline(never)]
fn recurse_to(remaining: u64) -> u64 {
    let below = if black_box(remaining) == 0 { crate::memory::null_store() } else { recurse_to(remaining - 1) };
    black_box(below).wrapping_add(1)
}

#[inline(never)]
pub(crate) fn no_frame_pointer() -> u64 {
    // SAFETY: the assembly follows the C calling convention until it faults.
    unsafe { frameless_outer() }.wrapping_add(1)
}

#[inline(never)]
pub(crate) fn broken_stack_pointer() -> u64 {
    // SAFETY: the assembly never returns.
    unsafe { broken_stack_pointer_leaf() }.wrapping_add(1)
}

#[inline(never)]
pub(crate) fn broken_stack_and_frame_pointer() -> u64 {
    // SAFETY: the assembly never returns.
    unsafe { broken_both_leaf() }.wrapping_add(1)
}

/// Saves the callee-saved registers, then uses the frame pointer as a counter.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn frameless_outer() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp", ".cfi_adjust_cfa_offset 8", ".cfi_rel_offset rbp, 0",
        "push rbx", ".cfi_adjust_cfa_offset 8", ".cfi_rel_offset rbx, 0",
        "sub rsp, 40", ".cfi_adjust_cfa_offset 40",
        "xor ebp, ebp",
        "mov ebx, 0x0b0b0b0b",
        "call {middle}",
        "add rsp, 40", ".cfi_adjust_cfa_offset -40",
        "pop rbx", ".cfi_adjust_cfa_offset -8", ".cfi_restore rbx",
        "pop rbp", ".cfi_adjust_cfa_offset -8", ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
        middle = sym frameless_middle,
    )
}

/// Its caller's frame is found through rbx, not the stack pointer, as in a function with `alloca`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn frameless_middle() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbx", ".cfi_adjust_cfa_offset 8", ".cfi_rel_offset rbx, 0",
        "mov rbx, rsp", ".cfi_def_cfa_register rbx",
        "sub rsp, 64", "and rsp, -16",
        "mov rbp, -1",
        "call {leaf}",
        "mov rsp, rbx", ".cfi_def_cfa_register rsp",
        "pop rbx", ".cfi_adjust_cfa_offset -8", ".cfi_restore rbx",
        "ret",
        ".cfi_endproc",
        leaf = sym frameless_leaf,
    )
}

/// A leaf that moves the stack pointer.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn frameless_leaf() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 24",
        ".cfi_adjust_cfa_offset 24",
        "xor eax, eax",
        "mov dword ptr [rax], eax",
        "add rsp, 24",
        ".cfi_adjust_cfa_offset -24",
        "ret",
        ".cfi_endproc",
    )
}

/// Its frame is found through rbp; the push goes to 0x1228.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn broken_stack_pointer_leaf() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov esp, 0x1230",
        "push rax",
        "ud2",
        ".cfi_endproc",
    )
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn broken_both_leaf() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov esp, 0x1230",
        "mov ebp, 0x4560",
        "push rax",
        "ud2",
        ".cfi_endproc",
    )
}

/// Saves x29 and x30, then uses x29 as a counter.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn frameless_outer() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "sub sp, sp, #64", ".cfi_def_cfa_offset 64",
        "stp x29, x30, [sp, #32]", ".cfi_rel_offset x29, 32", ".cfi_rel_offset x30, 40",
        "str x19, [sp, #48]", ".cfi_rel_offset x19, 48",
        "mov x29, #0",
        "mov x19, #0x1919",
        "bl {middle}",
        "ldr x19, [sp, #48]", ".cfi_restore x19",
        "ldp x29, x30, [sp, #32]", ".cfi_restore x29", ".cfi_restore x30",
        "add sp, sp, #64", ".cfi_def_cfa_offset 0",
        "ret",
        ".cfi_endproc",
        middle = sym frameless_middle,
    )
}

/// Its caller's frame is found through x19, not the stack pointer, as in a function with `alloca`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn frameless_middle() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "stp x19, x30, [sp, #-16]!", ".cfi_def_cfa_offset 16", ".cfi_rel_offset x19, 0", ".cfi_rel_offset x30, 8",
        "mov x19, sp", ".cfi_def_cfa_register x19",
        "sub sp, sp, #64",
        "mov x29, #-1",
        "bl {leaf}",
        "mov sp, x19", ".cfi_def_cfa_register sp",
        "ldp x19, x30, [sp], #16", ".cfi_restore x19", ".cfi_restore x30", ".cfi_def_cfa_offset 0",
        "ret",
        ".cfi_endproc",
        leaf = sym frameless_leaf,
    )
}

/// A leaf that moves the stack pointer and keeps its return address in the link register.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn frameless_leaf() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "sub sp, sp, #32",
        ".cfi_def_cfa_offset 32",
        "mov x0, #0",
        "str wzr, [x0]",
        "add sp, sp, #32",
        ".cfi_def_cfa_offset 0",
        "ret",
        ".cfi_endproc",
    )
}

/// Its frame is found through x29; the store goes to 0x1220.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn broken_stack_pointer_leaf() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_rel_offset x29, 0",
        ".cfi_rel_offset x30, 8",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "mov x9, #0x1230",
        "mov sp, x9",
        "str x0, [sp, #-16]!",
        "udf #0",
        ".cfi_endproc",
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn broken_both_leaf() -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_rel_offset x29, 0",
        ".cfi_rel_offset x30, 8",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "mov x9, #0x1230",
        "mov sp, x9",
        "mov x29, #0x4560",
        "str x0, [sp, #-16]!",
        "udf #0",
        ".cfi_endproc",
    )
}

//! Code that a signal handler leaves with `siglongjmp`, as in interpreters and virtual machines.
//!
//! `sigsetjmp` returns twice, which Rust functions can't do: assembly calls it, and then the
//! function to run.

use std::cell::Cell;

/// Larger than any C library's `sigjmp_buf`, with sufficient alignment.
#[repr(C, align(16))]
struct JumpBuffer([u8; 1024]);

thread_local! {
    /// The buffer of the function that runs on this thread; null for none.
    static CURRENT: Cell<*mut JumpBuffer> = const { Cell::new(std::ptr::null_mut()) };
}

unsafe extern "C" {
    /// glibc only has it under this name.
    #[cfg_attr(target_env = "gnu", link_name = "__sigsetjmp")]
    fn sigsetjmp(buffer: *mut JumpBuffer, saves_mask: libc::c_int) -> libc::c_int;
    fn siglongjmp(buffer: *mut JumpBuffer, value: libc::c_int) -> !;
    /// Calls `body`; returns 0, or 1 if it was left.
    fn coroner_tests_call_recoverable(buffer: *mut JumpBuffer, body: extern "C" fn()) -> libc::c_int;
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".text",
    ".globl coroner_tests_call_recoverable",
    ".type coroner_tests_call_recoverable, @function",
    "coroner_tests_call_recoverable:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "mov rbx, rsi",
    "mov esi, 1",
    "call {sigsetjmp}@PLT",
    "test eax, eax",
    "jnz 2f",
    "call rbx",
    "xor eax, eax",
    "2: pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "ret",
    ".cfi_endproc",
    ".size coroner_tests_call_recoverable, . - coroner_tests_call_recoverable",
    sigsetjmp = sym sigsetjmp,
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".text",
    ".globl coroner_tests_call_recoverable",
    ".type coroner_tests_call_recoverable, @function",
    "coroner_tests_call_recoverable:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-32]!",
    ".cfi_adjust_cfa_offset 32",
    ".cfi_rel_offset x29, 0",
    ".cfi_rel_offset x30, 8",
    "str x19, [sp, #16]",
    ".cfi_rel_offset x19, 16",
    "mov x29, sp",
    "mov x19, x1",
    "mov w1, #1",
    "bl {sigsetjmp}",
    "cbnz w0, 2f",
    "blr x19",
    "mov w0, #0",
    "2: ldr x19, [sp, #16]",
    "ldp x29, x30, [sp], #32",
    ".cfi_adjust_cfa_offset -32",
    ".cfi_restore x29",
    ".cfi_restore x30",
    ".cfi_restore x19",
    "ret",
    ".cfi_endproc",
    ".size coroner_tests_call_recoverable, . - coroner_tests_call_recoverable",
    sigsetjmp = sym sigsetjmp,
);

/// Calls `body`; returns whether a handler left it ([`leave`]). `body` and its callees must own
/// nothing that needs to be dropped.
pub fn call(body: extern "C" fn()) -> bool {
    let mut buffer = JumpBuffer([0; 1024]);
    let before = CURRENT.replace(&raw mut buffer);
    // SAFETY: the buffer outlives the call, and no frame between here and the jump has anything to
    // drop.
    let left = unsafe { coroner_tests_call_recoverable(&raw mut buffer, body) } != 0;
    CURRENT.set(before);
    left
}

/// Leaves the function that [`call`] runs on this thread; returns if there is none.
/// Async-signal-safe.
pub fn leave() {
    let buffer = CURRENT.replace(std::ptr::null_mut());
    if !buffer.is_null() {
        // SAFETY: `call` is still running on this thread and owns the buffer.
        unsafe { siglongjmp(buffer, 1) }
    }
}

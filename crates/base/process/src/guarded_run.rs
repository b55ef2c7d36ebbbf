//! Runs a part of the crash path so that a fault in it ends that part and not the report.
//!
//! [`run`] calls a function. If the thread faults inside it, the handler of the fault (on Linux a
//! signal handler on the same thread, on Darwin another thread, which receives its exceptions)
//! continues the thread at the return of [`run`] by [`Point::recover`]. The frames in between are
//! dropped without running destructors: only functions whose frames hold nothing to drop may be run
//! this way.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::assembly_routine::routine;
use crate::os::context::Context;

/// The point at which a guarded run can be left.
///
/// Its words are atomic: a fault handler reads what the run wrote, on the same thread (Linux) or
/// another one (Darwin).
#[derive(Debug, Default)]
#[repr(C)]
pub struct Point {
    /// The stack pointer inside `coroner_guarded_run`, 0 if no run is active.
    sp: AtomicU64,
    /// The address inside that routine at which to continue.
    ///
    /// The routine itself stores it: Mach-O linkers would treat a label of its own as the start of
    /// another routine, and might move it away.
    land: AtomicU64,
}

// coroner_guarded_run(point, function, argument) -> code
//
// Keeps every callee-saved register on the stack below `point.sp`, so that landing requires only
// that. The dropped frames are also dropped from the shadow stack, as longjmp(3) does it (x86_64:
// Intel's manual, volume 1, 17.2.3; arm64: Arm's manual, D11, GCSPOPM). It continues after a
// landing pad: `leave` jumps there through a register.
#[cfg(target_arch = "x86_64")]
routine!(
    "coroner_guarded_run",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    // The shadow stack pointer. Without a shadow stack (CET is off, or an older processor) the
    // instruction does nothing.
    "xor eax, eax",
    "rdsspq rax",
    "push rax",
    // Again, for stack alignment.
    "push rax",
    "push rdi",
    ".cfi_offset rbx, -24",
    ".cfi_offset r12, -32",
    ".cfi_offset r13, -40",
    ".cfi_offset r14, -48",
    ".cfi_offset r15, -56",
    "lea rax, [rip + 2f]",
    "mov [rdi + 8], rax",
    "mov [rdi], rsp",
    "mov rdi, rdx",
    "call rsi",
    "xor eax, eax",
    "2: endbr64",
    "pop rdi",
    "mov qword ptr [rdi], 0",
    "pop rdx",
    "pop rdx",
    // Calls since then that did not return are still on the shadow stack: at most 255 words are
    // dropped at once.
    "test rdx, rdx",
    "jz 4f",
    "rdsspq rcx",
    "sub rdx, rcx",
    "jbe 4f",
    "shr rdx, 3",
    "3: mov ecx, 255",
    "cmp rdx, rcx",
    "cmovb rcx, rdx",
    "incsspq rcx",
    "sub rdx, rcx",
    "jnz 3b",
    "4: pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
);
#[cfg(target_arch = "aarch64")]
routine!(
    "coroner_guarded_run",
    "stp x29, x30, [sp, #-176]!",
    ".cfi_def_cfa_offset 176",
    ".cfi_offset x29, -176",
    ".cfi_offset x30, -168",
    "mov x29, sp",
    ".cfi_def_cfa_register x29",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]",
    "stp x25, x26, [sp, #64]",
    "stp x27, x28, [sp, #80]",
    "stp d8, d9, [sp, #96]",
    "stp d10, d11, [sp, #112]",
    "stp d12, d13, [sp, #128]",
    "stp d14, d15, [sp, #144]",
    // Whether the thread has a shadow stack: CHKFEAT, which does nothing on an older processor,
    // clears the bit if it has. Then its pointer, or 0.
    "mov x16, #1",
    "hint #40",
    "mov x9, #0",
    "tbnz x16, #0, 1f",
    "mrs x9, s3_3_c2_c5_1", // GCSPR_EL0
    "1: stp x0, x9, [sp, #160]",
    "adr x9, 2f",
    "str x9, [x0, #8]",
    "mov x9, sp",
    "str x9, [x0]",
    "mov x0, x2",
    "blr x1",
    "mov x0, #0",
    "2: hint #36", // bti j
    "ldp x9, x10, [sp, #160]",
    "str xzr, [x9]",
    // Calls since then that did not return are still on the shadow stack.
    "cbz x10, 4f",
    "mrs x11, s3_3_c2_c5_1",
    "3: cmp x11, x10",
    "b.hs 4f",
    "sysl xzr, #3, c7, c7, #1", // GCSPOPM
    "add x11, x11, #8",
    "b 3b",
    "4: ldp x19, x20, [sp, #16]",
    "ldp x21, x22, [sp, #32]",
    "ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]",
    "ldp x27, x28, [sp, #80]",
    "ldp d8, d9, [sp, #96]",
    "ldp d10, d11, [sp, #112]",
    "ldp d12, d13, [sp, #128]",
    "ldp d14, d15, [sp, #144]",
    "ldp x29, x30, [sp], #176",
    ".cfi_def_cfa sp, 0",
    "ret",
);

/// A function that can be run guarded. It doesn't unwind.
///
/// Only under Miri, a fake kernel unwinds its frames instead of dropping them.
#[cfg(not(miri))]
pub type Function = unsafe extern "C" fn(*mut libc::c_void);
/// A function that can be run guarded. Under Miri it may unwind.
#[cfg(miri)]
pub type Function = unsafe extern "C-unwind" fn(*mut libc::c_void);

unsafe extern "C" {
    fn coroner_guarded_run(point: *const Point, function: Function, argument: *mut libc::c_void) -> u64;
}

/// Calls `function(argument)` and returns 0, or the code passed to [`Point::recover`].
///
/// # Safety
/// `point` must stay valid and be used by this thread alone for the run. Nothing that `function`
/// calls may hold a value whose destructor matters. `function(argument)` must be sound to call.
pub unsafe fn run(point: *const Point, function: Function, argument: *mut libc::c_void) -> u64 {
    // SAFETY: the routine keeps the C calling convention; the rest is the caller's promise.
    // Async-signal-safe: no call but `function`.
    unsafe { coroner_guarded_run(point, function, argument) }
}

impl Point {
    /// Clears a run that is not to be returned to, because its frames are gone.
    pub fn clear(&self) {
        self.sp.store(0, Ordering::Relaxed);
    }

    /// Creates a point with no active run.
    pub const fn new() -> Self {
        Point { sp: AtomicU64::new(0), land: AtomicU64::new(0) }
    }

    /// Changes a thread's context so that it continues at the return of the active [`run`].
    ///
    /// That call returns `code`. Returns `false` if no run is active.
    ///
    /// # Safety
    /// The thread must be the one that is inside that run, and must be stopped.
    pub unsafe fn recover(&self, context: &mut Context, code: u64) -> bool {
        let sp = self.sp.load(Ordering::Relaxed);
        if sp == 0 {
            return false;
        }
        context.set_sp(sp);
        #[cfg(target_arch = "x86_64")]
        context.clear_direction();
        context.set_result(code);
        context.set_pc(self.land.load(Ordering::Relaxed));
        true
    }

    /// Continues at the return of the active [`run`], which returns `code`.
    ///
    /// Like [`Self::recover`], for code inside the run that can't return. Returns only if no run is
    /// active.
    ///
    /// # Safety
    /// The calling thread must be the one that is inside that run.
    pub unsafe fn leave(&self, code: u64) {
        let (sp, land) = (self.sp.load(Ordering::Relaxed), self.land.load(Ordering::Relaxed));
        if sp == 0 {
            return;
        }
        // SAFETY: the run's frame is below on this stack, by the contract; landing requires only
        // its stack pointer and the code.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!(
                "mov rsp, {sp}",
                "jmp {land}",
                sp = in(reg) sp,
                land = in(reg) land,
                in("rax") code,
                options(noreturn),
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!(
                "mov sp, {sp}",
                "br {land}",
                sp = in(reg) sp,
                land = in(reg) land,
                in("x0") code,
                options(noreturn),
            );
        }
    }
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests;

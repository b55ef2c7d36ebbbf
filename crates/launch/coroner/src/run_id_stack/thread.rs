//! The thread with the stack that encodes the run's id.
//!
//! The thread creates the stack by its calls, and then waits for a kernel semaphore that only the
//! uninstall signals. It never wakes up, blocks all signals, and touches two pages of its stack.
//! Neither reports nor live backtraces include it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use coroner_process::threads;
use coroner_report::model::Id;
use mach2::kern_return::{KERN_ABORTED, KERN_SUCCESS};
use mach2::semaphore::{semaphore_create, semaphore_destroy, semaphore_signal, semaphore_wait};
use mach2::sync_policy::SYNC_POLICY_FIFO;
use mach2::traps::mach_task_self;
use nix::sys::signal::{SigSet, SigmaskHow};

use super::{LENGTH, calls};

/// The thread's stack size in bytes: the minimum that all Apple systems allow.
const STACK: usize = 16 << 10;

/// The thread's calls.
static CALLS: [AtomicU8; LENGTH + 1] = [const { AtomicU8::new(super::END) }; LENGTH + 1];
/// The semaphore that the thread waits for.
static SEMAPHORE: AtomicU32 = AtomicU32::new(0);

// `coroner_run_id(calls)`: each call takes the next digit and jumps to that piece of code, which
// creates a frame record and calls again. A value that is not a digit jumps to `wait`. The pieces
// have one symbol, so that linkers don't separate them.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".p2align 4",
    ".private_extern _coroner_run_id",
    "_coroner_run_id:",
    ".cfi_startproc",
    "movzx eax, byte ptr [rdi]",
    "inc rdi",
    "cmp eax, 16",
    "jae {wait}",
    "shl eax, 4",
    "lea rcx, [rip + Lcoroner_run_id_pieces]",
    "add rax, rcx",
    "jmp rax",
    ".p2align 4",
    "Lcoroner_run_id_pieces:",
    ".rept 16",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "call _coroner_run_id",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    ".cfi_restore rbp",
    "ret",
    ".p2align 4",
    ".endr",
    ".cfi_endproc",
    wait = sym wait,
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".p2align 5",
    ".private_extern _coroner_run_id",
    "_coroner_run_id:",
    ".cfi_startproc",
    "ldrb w9, [x0], #1",
    "cmp w9, #16",
    "b.lo Lcoroner_run_id_digit",
    "b {wait}",
    "Lcoroner_run_id_digit:",
    "adr x10, Lcoroner_run_id_pieces",
    "add x10, x10, x9, lsl #5",
    "br x10",
    ".p2align 5",
    "Lcoroner_run_id_pieces:",
    ".rept 16",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset w29, -16",
    ".cfi_offset w30, -8",
    "mov x29, sp",
    ".cfi_def_cfa w29, 16",
    "bl _coroner_run_id",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa wsp, 0",
    ".cfi_restore w29",
    ".cfi_restore w30",
    "ret",
    ".p2align 5",
    ".endr",
    ".cfi_endproc",
    wait = sym wait,
);

unsafe extern "C" {
    fn coroner_run_id(calls: *const AtomicU8);
}

/// Coroner's innermost function in the stack.
extern "C" fn wait() {
    let semaphore = SEMAPHORE.load(Ordering::Acquire);
    // SAFETY: the name of a semaphore of this task, or an invalid one, which is an error.
    while unsafe { semaphore_wait(semaphore) } == KERN_ABORTED {}
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    // SAFETY: the name ends in NUL; the calls end with a value that is not a digit.
    unsafe {
        libc::pthread_setname_np(c"coroner.run_id".as_ptr());
        coroner_run_id(CALLS.as_ptr());
    }
    std::ptr::null_mut()
}

/// The waiting thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct RunIdThread {
    thread: libc::pthread_t,
    semaphore: u32,
}

impl RunIdThread {
    /// Starts the thread.
    ///
    /// `None` if the system can't create a thread or a semaphore. Each install has one such thread.
    pub(crate) fn start(id: Id) -> Option<Self> {
        let mut semaphore = 0;
        // SAFETY: the kernel writes one name.
        let created = unsafe { semaphore_create(mach_task_self(), &raw mut semaphore, SYNC_POLICY_FIFO, 0) };
        if created != KERN_SUCCESS {
            return None;
        }
        CALLS.iter().zip(calls(id)).for_each(|(to, digit)| to.store(digit, Ordering::Release));
        SEMAPHORE.store(semaphore, Ordering::Release);
        // The thread inherits the mask.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        // SAFETY: zeros may be initialized, and the attributes are local.
        let thread = unsafe {
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            libc::pthread_attr_init(&raw mut attributes);
            libc::pthread_attr_setstacksize(&raw mut attributes, STACK.max(libc::PTHREAD_STACK_MIN));
            let mut thread = 0;
            let answer = libc::pthread_create(&raw mut thread, &raw const attributes, run, std::ptr::null_mut());
            libc::pthread_attr_destroy(&raw mut attributes);
            (answer == 0).then_some(thread)
        };
        let _ = before.map(|before| before.thread_set_mask());
        let Some(thread) = thread else {
            // SAFETY: created above, and not used by anyone else.
            unsafe { semaphore_destroy(mach_task_self(), semaphore) };
            return None;
        };
        // SAFETY: the thread has not been joined.
        let facts = threads::facts(unsafe { libc::pthread_mach_thread_np(thread) });
        threads::leave_out(facts.map_or(0, |facts| facts.tid));
        Some(Self { thread, semaphore })
    }
}

impl Drop for RunIdThread {
    fn drop(&mut self) {
        // SAFETY: both belong to this value. The thread exits when it is signaled, and is joined
        // once. In a child of fork, where the thread doesn't exist, the semaphore's name is
        // invalid.
        unsafe {
            if semaphore_signal(self.semaphore) == KERN_SUCCESS {
                libc::pthread_join(self.thread, std::ptr::null_mut());
            }
            semaphore_destroy(mach_task_self(), self.semaphore);
        }
        threads::leave_out(0);
    }
}

//! Processes that share their signal handlers with another one.
//!
//! Such a child is created by clone(2) with `CLONE_SIGHAND` and without `CLONE_THREAD`. To die by a
//! signal's default action it must remove the handler, which is the parent's, too.
//!
//! A helper, created by a bare clone with the same handlers, restores the handler when the process
//! is gone. Until then, some tenths of a millisecond, or the duration of a core dump, the parent
//! has none: the kernel has one table for both.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use super::process::has_seccomp_filter;
use super::signals::{SignalAction, bit, block_exactly};
use super::stop_the_world::futex::{self, Reach};
use super::syscall::syscall;
use super::threads::{monotonic_now, process_id};
use super::tracer::coroner_tracer_clone;

/// Size of the helper's stack: it calls two small functions.
const STACK: usize = 8 * 1024;

/// Maximum time to wait for the end of the process, including a core dump, in seconds.
const SECONDS: i64 = 120;

/// Maximum time to wait for the helper of another dying process, in nanoseconds.
const WAIT_NS: u64 = 1_000_000_000;

#[repr(C, align(16))]
struct Helper {
    /// Nonzero from before the helper is created until the kernel reports its end.
    busy: AtomicU32,
    /// Id of the process whose end the helper waits for.
    pid: AtomicI32,
    signal: AtomicI32,
    action: UnsafeCell<SignalAction>,
    stack: UnsafeCell<[u8; STACK]>,
}

// SAFETY: whoever has set `busy` writes the action before the helper is created, which alone reads
// it; the stack is the helper's.
unsafe impl Sync for Helper {}

static HELPER: Helper = Helper {
    busy: AtomicU32::new(0),
    pid: AtomicI32::new(0),
    signal: AtomicI32::new(0),
    action: UnsafeCell::new(SignalAction::DEFAULT),
    stack: UnsafeCell::new([0; STACK]),
};

/// Whether another process has the same table of handlers.
///
/// False if the kernel doesn't report it (kcmp(2) requires the right to trace).
pub fn are_shared_with(other: i32) -> bool {
    /// `KCMP_SIGHAND` of linux/kcmp.h.
    const HANDLERS: usize = 4;
    // SAFETY: only asks. Async-signal-safe: one system call.
    !has_seccomp_filter() && unsafe { syscall!(libc::SYS_kcmp, process_id(), other, HANDLERS, 0, 0) } == Ok(0)
}

/// Restores a signal's action after the calling process has terminated.
///
/// Does nothing if no process can be created.
///
/// # Safety
/// As for [`SignalAction::set`].
pub unsafe fn restore_after_death(signal: i32, action: &SignalAction) {
    let until = monotonic_now().saturating_add(WAIT_NS);
    while HELPER.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        if monotonic_now() >= until {
            return;
        }
        futex::wait(&HELPER.busy, Reach::Shared, HELPER.busy.load(Ordering::Relaxed), until);
    }
    HELPER.pid.store(process_id(), Ordering::Relaxed);
    HELPER.signal.store(signal, Ordering::Relaxed);
    // SAFETY: `busy` makes this the only user.
    unsafe { *HELPER.action.get() = *action };
    let flags = libc::CLONE_VM
        | libc::CLONE_SIGHAND
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_UNTRACED
        | libc::CLONE_CHILD_CLEARTID;
    let top = HELPER.stack.get() as usize + STACK;
    let before = block_exactly(u64::MAX);
    // SAFETY: the stack and the table are static, and used by nobody else until the kernel has
    // cleared `busy`. Async-signal-safe: one system call.
    let made = unsafe {
        let table = (&raw const HELPER).cast();
        coroner_tracer_clone(flags as u64, top, restore, table, HELPER.busy.as_ptr())
    };
    if made < 0 {
        HELPER.busy.store(0, Ordering::Release);
    }
    block_exactly(before);
}

/// The helper's main function, run with all signals blocked.
unsafe extern "C" fn restore(helper: *const c_void) -> i32 {
    // SAFETY: the static of this module.
    let helper = unsafe { &*helper.cast::<Helper>() };
    let (set, time) = (bit(libc::SIGCHLD), [SECONDS, 0]);
    // SAFETY: an attribute of this process alone. The signal comes when the process that created
    // this one is gone.
    let asked = unsafe { syscall!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGCHLD) };
    // SAFETY: no arguments, no effects.
    let lives = unsafe { syscall!(libc::SYS_getppid) } == Ok(helper.pid.load(Ordering::Relaxed) as usize);
    if asked.is_ok() && lives {
        // SAFETY: the kernel reads the set and the timespec.
        let _ = unsafe { syscall!(libc::SYS_rt_sigtimedwait, &raw const set, 0, time.as_ptr(), 8) };
    }
    // SAFETY: written before this process was created; the handler is the starter's promise.
    let _ = unsafe { (*helper.action.get()).set(helper.signal.load(Ordering::Relaxed)) };
    0
}

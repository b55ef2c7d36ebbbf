//! The process and the thread, asked of the kernel each time: a child made by fork or vfork is another process.

use core::sync::atomic::AtomicU32;

use coroner_process::stop_the_world::futex::{self, Reach};
use coroner_process::syscall::syscall;
use coroner_process::threads::monotonic_now;

/// The parent process.
pub(crate) fn parent_pid() -> i32 {
    // SAFETY: no arguments, no effects. Async-signal-safe: one system call.
    unsafe { syscall!(libc::SYS_getppid) }.map_or(0, |pid| pid as i32)
}

/// Ends the process at once, without running anything.
pub(crate) fn exit(status: i32) -> ! {
    loop {
        // SAFETY: does not return. Async-signal-safe: one system call.
        let _ = unsafe { syscall!(libc::SYS_exit_group, status) };
    }
}

pub(crate) use coroner_process::stop_the_world::is_alive;
pub(crate) use coroner_walk::authentication_mask;

/// Wakes all threads that wait for a word, which lives as long as the process.
pub(crate) fn wake_all(word: &AtomicU32) {
    futex::wake(word, Reach::Private, i32::MAX);
}

/// Waits while a word is `value`, at most so many nanoseconds; may return early.
pub(crate) fn wait_for_word(word: &AtomicU32, value: u32, nanoseconds: u64) {
    futex::wait(word, Reach::Private, value, monotonic_now().saturating_add(nanoseconds));
}

/// Whether a seccomp filter is in force on this thread (`PR_GET_SECCOMP`). It may forbid what a report would do for its
/// convenience, and may kill the process for it: what is not necessary is left out then. A filter that refuses the question is one.
pub(crate) fn has_seccomp_filter() -> bool {
    // SAFETY: only asks. Async-signal-safe: one system call.
    let mode = unsafe { syscall!(libc::SYS_prctl, libc::PR_GET_SECCOMP) };
    mode != Ok(0)
}

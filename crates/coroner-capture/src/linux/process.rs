//! The process and the thread, asked of the kernel each time: a child made by fork or vfork is another process.

use core::sync::atomic::AtomicU32;

use coroner_process::syscall::{Errno, syscall};
use coroner_process::threads::Tid;

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

pub(crate) use coroner_walk::authentication_mask;

/// Whether a thread of this process lives.
pub(crate) fn is_alive(pid: i32, tid: Tid) -> bool {
    // SAFETY: signal 0 only asks. Async-signal-safe: one system call.
    let answer = unsafe { syscall!(libc::SYS_tgkill, pid, tid, 0) };
    answer != Err(Errno(libc::ESRCH))
}

/// Wakes all threads that wait for a word, which lives as long as the process.
pub(crate) fn wake_all(word: &AtomicU32) {
    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the word's address alone. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_futex, word.as_ptr(), wake, i32::MAX) };
}

/// Waits while a word is `value`, at most so many nanoseconds; may return early.
pub(crate) fn wait_for_word(word: &AtomicU32, value: u32, nanoseconds: u64) {
    let timeout = [nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000];
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word and one 64-bit `timespec`. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_futex, word.as_ptr(), wait, value, timeout.as_ptr()) };
}

/// Whether a seccomp filter is in force on this thread (`PR_GET_SECCOMP`). It may forbid what a report would do for its
/// convenience, and may kill the process for it: what is not necessary is left out then. A filter that refuses the question is one.
pub(crate) fn has_seccomp_filter() -> bool {
    // SAFETY: only asks. Async-signal-safe: one system call.
    let mode = unsafe { syscall!(libc::SYS_prctl, libc::PR_GET_SECCOMP) };
    mode != Ok(0)
}

//! Waiting for a word of memory to change, futex(2).

use core::sync::atomic::AtomicU32;

use crate::linux::syscall::syscall;

/// The parties that wait for and wake a word.
#[derive(Clone, Copy, Debug)]
pub enum Reach {
    /// Only threads that use [`wait`] and [`wake`] with this reach. Cheaper.
    Private,
    /// Also the kernel, which clears and wakes `CLONE_CHILD_CLEARTID` words.
    Shared,
}

impl Reach {
    fn flag(self) -> i32 {
        match self {
            Reach::Private => libc::FUTEX_PRIVATE_FLAG,
            Reach::Shared => 0,
        }
    }
}

/// Waits while `word` is `value`; may return early, and the caller checks again.
///
/// Ends when the word is woken, a signal arrives, or the absolute `CLOCK_MONOTONIC` time `deadline`
/// in nanoseconds is reached (`u64::MAX` is never).
pub fn wait(word: &AtomicU32, reach: Reach, value: u32, deadline: u64) {
    let until = [(deadline / 1_000_000_000) as i64, (deadline % 1_000_000_000) as i64];
    let timeout = if deadline == u64::MAX { core::ptr::null() } else { until.as_ptr() };
    let operation = libc::FUTEX_WAIT_BITSET | reach.flag();
    // SAFETY: the kernel reads the word and the timespec. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_futex, word.as_ptr(), operation, value, timeout, 0, u32::MAX) };
}

/// Wakes at most `count` threads that wait for `word`.
pub fn wake(word: &AtomicU32, reach: Reach, count: i32) {
    let operation = libc::FUTEX_WAKE | reach.flag();
    // SAFETY: the kernel uses the word's address only. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_futex, word.as_ptr(), operation, count) };
}

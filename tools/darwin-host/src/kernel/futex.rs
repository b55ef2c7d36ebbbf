//! Waiting on a word of memory: the primitive for everything that blocks.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Sleeps while `word` holds `expected`, until woken, until `timeout` has passed, or spuriously.
///
/// Errno stays unchanged: the host's own waiting must not affect the program.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let span = timeout.map(|t| libc::timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
    let span = span.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word and the time outlive the call; errno is this thread's.
    unsafe {
        let errno = *libc::__errno_location();
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, span);
        *libc::__errno_location() = errno;
    }
}

/// Wakes up to `count` sleepers of `word`.
pub(crate) fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: FUTEX_WAKE only uses the address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, count) };
}

/// Adds one to `word`, an event counter, and wakes all its sleepers.
pub(crate) fn advance(word: &AtomicU32) {
    word.fetch_add(1, Ordering::SeqCst);
    wake(word, i32::MAX);
}

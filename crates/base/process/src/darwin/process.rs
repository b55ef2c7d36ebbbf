//! The process and its threads, queried from the kernel each time.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::threads::{ThreadList, Tid, facts, process_id};

/// Returns the parent's process id.
pub fn parent_pid() -> i32 {
    // SAFETY: no arguments, no effects. Async-signal-safe (sigaction(2)).
    unsafe { libc::getppid() }
}

/// Returns the system's name for a process: not available to a signal handler on Darwin.
pub fn process_name(_pid: u32) -> [u64; 2] {
    [0; 2]
}

/// Whether a thread of this process is alive. If that can't be determined, returns `true`.
pub fn is_alive(pid: i32, tid: Tid) -> bool {
    if pid != process_id() {
        return false;
    }
    let Ok(list) = ThreadList::take() else { return true };
    list.ports().iter().any(|port| facts(*port).is_some_and(|facts| facts.tid == tid))
}

/// Whether another process uses this one's memory.
///
/// Always false: on Darwin a child has a copy, or no code of this process.
pub fn shares_memory(_other: i32) -> bool {
    false
}

/// Wakes all threads that wait for a word.
///
/// Does nothing, since they poll the word: see [`wait_for_word`].
pub fn wake_all(_word: &AtomicU32) {}

/// Waits while a word is `value`, at most `nanoseconds`; may return early.
///
/// The thread sleeps and checks again. This is only for an install or an uninstall that coincides
/// with a report: crashes wait in messages. (A wait on an address, `os_sync_wait_on_address`,
/// requires newer systems than the ones supported.)
pub fn wait_for_word(word: &AtomicU32, value: u32, nanoseconds: u64) {
    /// Maximum duration of a sleep in nanoseconds: a release is noticed that much later.
    const STEP_NS: u64 = 5_000_000;
    if word.load(Ordering::Acquire) == value {
        let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds.min(STEP_NS) as libc::c_long };
        // SAFETY: the kernel reads one timespec.
        unsafe { libc::nanosleep(&raw const time, core::ptr::null_mut()) };
    }
}

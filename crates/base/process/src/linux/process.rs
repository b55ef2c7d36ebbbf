//! The process and the thread, queried from the kernel each time.
//!
//! A child created by fork or vfork is another process.

use core::sync::atomic::AtomicU32;

use super::proc_files::read_file;
use super::stop_the_world::futex::{self, Reach};
use super::syscall::{Errno, syscall};
use super::threads::{monotonic_now, process_id};
use crate::files::Descriptor;
use crate::path::Path;

/// Returns the parent's process id.
pub fn parent_pid() -> i32 {
    // SAFETY: no arguments, no effects. Async-signal-safe: one system call.
    unsafe { syscall!(libc::SYS_getppid) }.map_or(0, |pid| pid as i32)
}

/// Returns the kernel's name for a process (`/proc/PID/comm`), as two words of its 16 bytes.
///
/// Zeros if the process is gone, or if a seccomp filter could kill this process for the query.
/// Async-signal-safe.
pub fn process_name(pid: u32) -> [u64; 2] {
    let mut name = [0; 16];
    if pid != 0 && !has_seccomp_filter() {
        let path = Path::new().push(b"/proc/").push_decimal(pid).push(b"/comm");
        let length = read_file(Descriptor::WORKING_DIRECTORY, path.as_c_str(), &mut name).unwrap_or(0);
        if let Some(end) = name.iter().position(|byte| *byte == b'\n').or(Some(length)) {
            name.iter_mut().skip(end).for_each(|byte| *byte = 0);
        }
    }
    let word =
        |at: usize| name.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word));
    [word(0), word(8)]
}

/// Exits the process at once, without running anything.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: does not return. Async-signal-safe: one system call.
        let _ = unsafe { syscall!(libc::SYS_exit_group, status) };
    }
}

pub use super::stop_the_world::is_alive;

/// Whether another process uses this one's memory.
///
/// This is the case for one created by `vfork`, `posix_spawn` or a bare `clone` that has neither
/// executed a program nor exited. True if the kernel doesn't report it (kcmp(2) requires the right
/// to trace).
pub fn shares_memory(other: i32) -> bool {
    /// `KCMP_VM` of linux/kcmp.h.
    const MEMORY: usize = 1;
    if has_seccomp_filter() {
        return true;
    }
    // SAFETY: only asks. Async-signal-safe: one system call.
    match unsafe { syscall!(libc::SYS_kcmp, process_id(), other, MEMORY, 0, 0) } {
        Ok(order) => order == 0,
        Err(Errno(errno)) => errno != libc::ESRCH,
    }
}

/// Wakes all threads that wait for a word, which must live as long as the process.
pub fn wake_all(word: &AtomicU32) {
    futex::wake(word, Reach::Private, i32::MAX);
}

/// Wakes all threads, in any process, that wait for a word in a shared mapping.
pub fn wake_all_processes(word: &AtomicU32) {
    futex::wake(word, Reach::Shared, i32::MAX);
}

/// Waits while a word in a shared mapping is `value`, at most `nanoseconds`; may return early. Any
/// process that has mapped it may wake the thread.
pub fn wait_for_shared_word(word: &AtomicU32, value: u32, nanoseconds: u64) {
    futex::wait(word, Reach::Shared, value, monotonic_now().saturating_add(nanoseconds));
}

/// Waits while a word is `value`, at most `nanoseconds`; may return early.
pub fn wait_for_word(word: &AtomicU32, value: u32, nanoseconds: u64) {
    futex::wait(word, Reach::Private, value, monotonic_now().saturating_add(nanoseconds));
}

/// Whether a seccomp filter is active on this thread (`PR_GET_SECCOMP`).
///
/// It may forbid optional actions of a report, and may kill the process for them: anything
/// unnecessary is then left out. A filter that rejects the query counts as one.
pub fn has_seccomp_filter() -> bool {
    // SAFETY: only asks. Async-signal-safe: one system call.
    let mode = unsafe { syscall!(libc::SYS_prctl, libc::PR_GET_SECCOMP) };
    mode != Ok(0)
}

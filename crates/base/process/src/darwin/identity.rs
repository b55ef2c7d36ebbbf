//! Process identities through `sysctl` (`KERN_PROC_PID`).

use super::threads::process_id;
use crate::process_identity::ProcessIdentity;

/// `sizeof(struct kinfo_proc)` (`<sys/sysctl.h>`).
const KINFO_PROC: usize = 648;

pub(crate) fn in_this_boot(_pid: i32) -> ProcessIdentity {
    of_this_process()
}

pub(crate) fn of_this_process() -> ProcessIdentity {
    let pid = process_id();
    ProcessIdentity {
        pid: pid.unsigned_abs(),
        start: information(pid).and_then(|info| start_of(&info)).unwrap_or(0),
        ..ProcessIdentity::default()
    }
}

pub(crate) fn lives(process: &ProcessIdentity, _own: &ProcessIdentity) -> Option<bool> {
    if process.pid == 0 || process.start == 0 {
        return None;
    }
    // If a sandbox hides other processes (iOS), there is no answer.
    let pid = i32::try_from(process.pid).ok()?;
    // SAFETY: signal 0 only asks (kill(2)).
    let is_there = unsafe { libc::kill(pid, 0) } == 0;
    match information(pid) {
        Some(info) => Some(start_of(&info) == Some(process.start) && info.get(STATE_AT) != Some(&ZOMBIE)),
        None => (!is_there).then_some(false),
    }
}

/// Offset of `kp_proc.p_stat` (`<sys/proc.h>`).
const STATE_AT: usize = 36;
/// `SZOMB`: the process has exited, and its parent has not waited for it yet.
const ZOMBIE: u8 = 5;

/// Returns the start time of a process in microseconds since the Unix epoch.
///
/// This is `p_starttime`, the first field of `struct kinfo_proc`.
fn start_of(info: &[u8; KINFO_PROC]) -> Option<u64> {
    let seconds = i64::from_le_bytes(*info.first_chunk::<8>()?);
    let microseconds = i32::from_le_bytes(*info.get(8..)?.first_chunk::<4>()?);
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
    seconds.checked_mul(1_000_000)?.checked_add(u64::try_from(microseconds).ok()?)
}

/// Returns the kernel's information about a process.
///
/// `None` if there is no such process, or a sandbox hides it.
fn information(pid: i32) -> Option<[u8; KINFO_PROC]> {
    let mut name = [libc::CTL_KERN, libc::KERN_PROC, libc::KERN_PROC_PID, pid];
    let mut bytes = [0_u8; KINFO_PROC];
    let mut size = bytes.len();
    // SAFETY: the kernel reads four words and writes at most `size` bytes.
    let answer = unsafe {
        libc::sysctl(name.as_mut_ptr(), 4, bytes.as_mut_ptr().cast(), &raw mut size, core::ptr::null_mut(), 0)
    };
    // For a missing process, the answer has no bytes.
    (answer == 0 && size >= KINFO_PROC).then_some(bytes)
}

/// Returns the start time of a process, in nanoseconds since the epoch.
pub(crate) fn started_at(identity: &ProcessIdentity) -> Option<u64> {
    identity.start.checked_mul(1000).filter(|time| *time > 0)
}

/// Returns `None` as the start time, and the memory [`used`](super::memory_use::used).
///
/// The start time of the calling process isn't available at crash time: sysctl is not a system call
/// that a handler may make. Async-signal-safe.
pub fn start_and_memory(page_size: u32) -> (Option<u64>, Option<u64>) {
    (None, super::memory_use::used(page_size))
}

/// Whether a debugger traces this process (not async-signal-safe).
///
/// `P_TRACED` in `kp_proc.p_flag` (<sys/sysctl.h>, <sys/proc.h>).
pub fn is_traced() -> bool {
    const P_TRACED: i32 = 0x800;
    /// Offset of `p_flag` in `struct kinfo_proc`.
    const FLAG_AT: usize = 32;
    let flags = information(process_id()).and_then(|info| info.get(FLAG_AT..)?.first_chunk::<4>().copied());
    flags.map_or(0, i32::from_le_bytes) & P_TRACED != 0
}

unsafe extern "C" {
    /// <mach-o/dyld.h>: the program's path, or -1 if the buffer is too small.
    fn _NSGetExecutablePath(to: *mut libc::c_char, size: *mut u32) -> i32;
}

/// Returns the path of the program's file; empty if it doesn't fit.
pub fn program_path(into: &mut [u8]) -> &[u8] {
    let mut size = into.len() as u32;
    // SAFETY: dyld writes at most `size` bytes.
    if unsafe { _NSGetExecutablePath(into.as_mut_ptr().cast(), &raw mut size) } != 0 {
        return &[];
    }
    let length = into.iter().position(|byte| *byte == 0).unwrap_or(0);
    into.get(..length).unwrap_or_default()
}

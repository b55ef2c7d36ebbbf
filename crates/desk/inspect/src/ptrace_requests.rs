//! Requests of ptrace(2) that `nix` lacks, or has without real-time signals.

use std::ptr::null_mut;

use nix::errno::Errno;
use nix::unistd::Pid;

/// Lets a stopped thread continue, with a signal or 0.
pub(crate) fn cont(tid: Pid, signal: i32) -> nix::Result<()> {
    request(libc::PTRACE_CONT, tid, signal)
}

/// Lets a stopped thread continue untraced, with a signal or 0.
pub(crate) fn detach(tid: Pid, signal: i32) -> nix::Result<()> {
    request(libc::PTRACE_DETACH, tid, signal)
}

/// Leaves a thread in its group's stop.
pub(crate) fn listen(tid: Pid) -> nix::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0)
}

#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

fn request(request: Request, tid: Pid, data: i32) -> nix::Result<()> {
    // SAFETY: these requests take only numbers.
    let result = unsafe { libc::ptrace(request, tid.as_raw(), null_mut::<libc::c_void>(), data as usize) };
    Errno::result(result).map(drop)
}

//! Counts a program's system calls, using ptrace.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::ensure;

/// Counts the system calls of one launch, including its threads but not its child processes.
///
/// `each` is called with their numbers.
///
/// # Errors
/// The command can't be traced, or fails.
pub fn system_calls(mut command: Command, each: &mut dyn FnMut(i64)) -> anyhow::Result<i64> {
    command.stderr(Stdio::null());
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let main = command.spawn()?.id() as libc::pid_t;
    let mut stops = 0;
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes the status.
        let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        ensure!(tid > 0, "the traced program has exited");
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            if tid == main {
                break;
            }
            continue;
        }
        let signal = libc::WSTOPSIG(status);
        let mut forward = 0;
        if signal == libc::SIGTRAP | 0x80 {
            stops += 1;
            // SAFETY: all zero is valid; the kernel writes at most this size.
            let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
            let size = size_of_val(&info);
            // SAFETY: a stopped child of this process; as above.
            unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, size, &raw mut info) };
            if info.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
                // SAFETY: the kernel has written an entry.
                each(unsafe { info.u.entry.nr } as i64);
            }
        } else if signal == libc::SIGTRAP && status >> 16 == 0 {
            // The program starts.
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
            // SAFETY: a stopped child of this process.
            unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, tid, 0, options) };
        } else if signal != libc::SIGTRAP && signal != libc::SIGSTOP {
            forward = signal;
        }
        // SAFETY: as above.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, tid, 0, forward) };
    }
    // One stop at a call's entry and one at its exit.
    Ok(stops / 2)
}

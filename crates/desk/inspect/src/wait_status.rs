//! The status of a traced thread, as waitpid(2) returns it.
//!
//! `nix`'s own type has no real-time signals.

use nix::errno::Errno;
use nix::unistd::Pid;

/// `PTRACE_EVENT_STOP` of <linux/ptrace.h>.
const EVENT_STOP: i32 = 128;

/// A thread's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitStatus(i32);

/// A stop of a seized thread (ptrace(2), "Stopped states").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The signal is about to be delivered.
    Signal(i32),
    /// The process was stopped by job control.
    Group,
    /// The thread has just started, was interrupted, or may leave its group's stop.
    Trap,
    /// A `PTRACE_EVENT_…`.
    Event(i32),
}

impl WaitStatus {
    /// Waits for any traced thread or child.
    pub(crate) fn wait() -> nix::Result<(Pid, WaitStatus)> {
        Self::call(Pid::from_raw(-1), libc::__WALL).and_then(|found| found.ok_or(Errno::ECHILD))
    }

    /// Returns the thread's status if it has changed.
    pub(crate) fn poll(tid: Pid) -> nix::Result<Option<(Pid, WaitStatus)>> {
        Self::call(tid, libc::__WALL | libc::WNOHANG)
    }

    fn call(tid: Pid, options: i32) -> nix::Result<Option<(Pid, WaitStatus)>> {
        let mut status = 0;
        loop {
            // SAFETY: the status is written to a local variable.
            match Errno::result(unsafe { libc::waitpid(tid.as_raw(), &raw mut status, options) }) {
                Ok(0) => return Ok(None),
                Ok(found) => return Ok(Some((Pid::from_raw(found), WaitStatus(status)))),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the thread has stopped; otherwise it has ended.
    pub(crate) fn is_stop(self) -> bool {
        libc::WIFSTOPPED(self.0)
    }

    /// Returns the kind of a stop.
    pub(crate) fn stop(self) -> Stop {
        match (self.0 >> 16, libc::WSTOPSIG(self.0)) {
            (0, signal) => Stop::Signal(signal),
            (EVENT_STOP, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) => Stop::Group,
            (EVENT_STOP, _) => Stop::Trap,
            (event, _) => Stop::Event(event),
        }
    }

    /// Returns the signal that is delivered when the thread continues, or 0.
    pub(crate) fn pending_signal(self) -> i32 {
        if let Stop::Signal(signal) = self.stop() { signal } else { 0 }
    }
}

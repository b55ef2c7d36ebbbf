//! The outcome of a run. `run_end.rs` decides it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// There was no run before this one, in this store.
    FirstLaunch,
    /// The app ended by itself: `exit`, a return from `main`, or [`Coroner::mark_clean_exit`](crate::Coroner::mark_clean_exit). Or its process went
    /// on as another program (execve(2)) and lived when the next launch looked; [`LastRun::termination`] says so.
    CleanExit,
    /// It was asked to end by SIGTERM.
    Terminated,
    /// It crashed, and there is a report.
    Crashed,
    /// It did not answer when it was ended, by the user or the system; known where it was watched for that
    /// ([`Config::hang_threshold`](crate::Config::hang_threshold)).
    Hung,
    /// Coroner was uninstalled while it ran; what came after is not known.
    Uninstalled,
    /// The system ended it to have its memory: Android says so ([`ExitInfo`](crate::ExitInfo)), on Linux the kernel's log or the counters of its
    /// cgroup; [`LastRun::termination`] has the evidence.
    OutOfMemory,
    /// Its user ended it, as the system says.
    EndedByUser,
    /// The system ended it for another reason, as it says: an update of the app, a permission that was taken back, too much load.
    EndedBySystem,
    /// It ended by a signal that ends a process by default and is no crash: Ctrl-C (SIGINT), the end of its terminal (SIGHUP), an alarm, a limit of
    /// processor time; [`LastRun::signal`] says which.
    EndedBySignal,
    /// The machine was started again: a reboot, a power failure, a crash of the system.
    SystemRestart,
    /// The kernel killed it at the limit of its processor time (`RLIMIT_CPU`).
    CpuLimit,
    /// It was ended while a debugger was attached.
    Debugged,
    /// It ended without a trace: SIGKILL, `_exit`; or for want of memory, where the system does not say enough of it. [`LastRun::termination`] may
    /// have what speaks for one of them.
    Unknown,
}

impl Outcome {
    /// The outcome in words that complete "the last run …".
    pub fn describe(self) -> &'static str {
        match self {
            Self::FirstLaunch => "does not exist: this is the first launch",
            Self::CleanExit => "ended by itself",
            Self::Terminated => "was asked to end (SIGTERM)",
            Self::Crashed => "crashed",
            Self::Hung => "did not answer any more when it was ended",
            Self::Uninstalled => "uninstalled Coroner before it ended",
            Self::OutOfMemory => "was ended by the system, which needed its memory",
            Self::EndedByUser => "was ended by its user",
            Self::EndedBySystem => "was ended by the system",
            Self::EndedBySignal => "was ended by a signal that is no crash (Ctrl-C, a hangup, an alarm)",
            Self::SystemRestart => "was there when the machine was started again, or was killed before that",
            Self::CpuLimit => "was killed at the limit of its processor time",
            Self::Debugged => "was ended under a debugger",
            Self::Unknown => "ended without a trace (killed, out of memory, or power failure)",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.describe())
    }
}

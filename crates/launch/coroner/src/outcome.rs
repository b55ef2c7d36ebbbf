//! [`Outcome`], how a run ended. `run_end.rs` determines it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// This is the first run in this store.
    FirstLaunch,
    /// The app exited.
    ///
    /// It called `exit` or [`Coroner::mark_clean_exit`](crate::Coroner::mark_clean_exit), or
    /// returned from `main`. Also if its process continued as another program (execve(2)) and was
    /// alive when the next launch checked; [`LastRun::termination`](crate::LastRun::termination)
    /// then records that.
    CleanExit,
    /// The app was terminated by SIGTERM.
    Terminated,
    /// The app crashed, and there is a report.
    Crashed,
    /// The app was not responding when the user or the system killed it.
    ///
    /// Detected only if the hung thread was watched
    /// ([`Config::hang_threshold`](crate::Config::hang_threshold)).
    Hung,
    /// Coroner was uninstalled during the run; what happened afterwards is unknown.
    Uninstalled,
    /// The system killed the app to free memory.
    ///
    /// [`LastRun::termination`](crate::LastRun::termination) contains the evidence: on Android an
    /// [`ExitInfo`](crate::ExitInfo), on Linux the kernel's log or the counters of the app's
    /// cgroup.
    OutOfMemory,
    /// The user quit or force-stopped the app, according to the system.
    EndedByUser,
    /// The system terminated the app for another reason, which it recorded.
    ///
    /// Examples are an app update, a revoked permission, and excessive resource usage.
    EndedBySystem,
    /// A signal that isn't a crash terminated the app.
    ///
    /// [`LastRun::signal`](crate::LastRun::signal) contains the signal. Examples are Ctrl-C
    /// (SIGINT), a closed terminal (SIGHUP), an alarm, and a CPU time limit.
    EndedBySignal,
    /// The machine rebooted or lost power, or the system crashed.
    SystemRestart,
    /// The kernel killed the app at its CPU time limit (`RLIMIT_CPU`).
    CpuLimit,
    /// The app ended while a debugger was attached.
    Debugged,
    /// The app ended without a trace.
    ///
    /// Possible causes are SIGKILL, `_exit`, and running out of memory on a system that doesn't
    /// record it. [`LastRun::termination`](crate::LastRun::termination) may contain evidence for
    /// one of them.
    Unknown,
}

impl Outcome {
    /// Returns the outcome as text that completes "the last run …".
    pub fn describe(self) -> &'static str {
        match self {
            Self::FirstLaunch => "does not exist: this is the first launch",
            Self::CleanExit => "exited normally",
            Self::Terminated => "was terminated (SIGTERM)",
            Self::Crashed => "crashed",
            Self::Hung => "was not responding when it was killed",
            Self::Uninstalled => "uninstalled Coroner before it ended",
            Self::OutOfMemory => "was killed by the system to free memory",
            Self::EndedByUser => "was terminated by the user",
            Self::EndedBySystem => "was terminated by the system",
            Self::EndedBySignal => "was terminated by a signal that is not a crash (Ctrl-C, a hangup, an alarm)",
            Self::SystemRestart => "was running when the machine rebooted, or was killed shortly before",
            Self::CpuLimit => "was killed at its CPU time limit",
            Self::Debugged => "ended under a debugger",
            Self::Unknown => "ended without a trace (killed, out of memory, or power failure)",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.describe())
    }
}

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
    /// The app ended by itself.
    ///
    /// That is by `exit`, a return from `main`, or
    /// [`Coroner::mark_clean_exit`](crate::Coroner::mark_clean_exit).
    ///
    /// Also if its process continued as another program (execve(2)) and was alive when the next
    /// launch checked; [`LastRun::termination`](crate::LastRun::termination) then records that.
    CleanExit,
    /// SIGTERM asked the app to end.
    Terminated,
    /// The app crashed, and there is a report.
    Crashed,
    /// The app was hung when the user or the system killed it.
    ///
    /// Known only if the hung thread was watched
    /// ([`Config::hang_threshold`](crate::Config::hang_threshold)).
    Hung,
    /// Coroner was uninstalled while the app ran; what happened afterwards is unknown.
    Uninstalled,
    /// The system killed the app to free memory.
    ///
    /// The evidence is in [`LastRun::termination`](crate::LastRun::termination): on Android an [`ExitInfo`](crate::ExitInfo), on
    /// Linux the kernel's log or the counters of the app's cgroup.
    OutOfMemory,
    /// The user killed the app, as reported by the system.
    EndedByUser,
    /// The system killed the app for another reason that it reported.
    ///
    /// Examples are an app update, a revoked permission, and too much load.
    EndedBySystem,
    /// A signal that is not a crash, but ends a process by default, ended the app.
    ///
    /// The signal is in [`LastRun::signal`](crate::LastRun::signal). Examples are Ctrl-C (SIGINT), the end of the app's
    /// terminal (SIGHUP), an alarm, and a limit of processor time.
    EndedBySignal,
    /// The machine was restarted: a reboot, a power failure, a crash of the system.
    SystemRestart,
    /// The kernel killed the app at its limit of processor time (`RLIMIT_CPU`).
    CpuLimit,
    /// The app was killed while a debugger was attached.
    Debugged,
    /// The app ended without a trace.
    ///
    /// Causes are SIGKILL, `_exit`, or out of memory where the system does not record enough about
    /// it.
    ///
    /// [`LastRun::termination`](crate::LastRun::termination) may contain evidence for one of these.
    Unknown,
}

impl Outcome {
    /// Returns the outcome in words that complete "the last run …".
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

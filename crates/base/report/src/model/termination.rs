//! Why a process ended that did not crash: the reason, how certain that is, and what speaks for it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::timestamp::Timestamp;

/// What explains an end without a trace, as it was when it was last read; counters say something by what they are at a later launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Vitals {
    /// When that was. If it is before the install, an earlier run of the same boot has read it.
    pub read: Timestamp,
    /// `oom_score_adj`: from -1,000, never chosen when memory is short, to 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i16>,
    /// Hundredths of a percent of ten seconds in which some task of the cgroup, or else of the machine, waited for memory (`avg10` of PSI).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_pressure: Option<u16>,
    /// Processes of the machine that were killed for want of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_oom_kills: Option<u64>,
    /// The process's memory cgroup, by the inode of its directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<u64>,
    /// Processes of it that were killed for want of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_oom_kills: Option<u64>,
    /// The most memory that it may use, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_memory_limit: Option<u64>,
    /// Processes in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_processes: Option<u32>,
    /// Processor time that the process had used, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_used_ms: Option<u64>,
    /// The hard limit of that, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit_s: Option<u64>,
}

/// Why a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TerminationReason {
    /// Not known. The evidence says what it was not.
    #[default]
    Unknown,
    /// The kernel killed it for want of memory, of its cgroup or of the machine.
    OutOfMemory,
    /// The machine was started again: a reboot, a power loss, a crash of the system.
    SystemRestart,
    /// It used up its processor time (`RLIMIT_CPU`).
    CpuLimit,
    /// It was ended while a debugger was attached.
    Debugger,
    /// The app was updated.
    AppUpdate,
    /// A signal that ends a process by default.
    Signal,
    /// It was asked to end by a signal that it has a handler for, and did not end by itself: what stops services and containers kills it after
    /// a while.
    StopTimeout,
    /// It executed another program in its place, or its own file again (execve(2)): the process goes on.
    Replaced,
}

impl TerminationReason {
    /// The reason in words that complete "the process …".
    pub fn words(self) -> &'static str {
        match self {
            Self::Unknown => "ended without a trace",
            Self::OutOfMemory => "was killed for want of memory",
            Self::SystemRestart => "ended because the machine was started again (reboot, power loss)",
            Self::CpuLimit => "was killed at the limit of its processor time",
            Self::Debugger => "was ended under a debugger",
            Self::AppUpdate => "was ended for an update of the app",
            Self::Signal => "was ended by a signal",
            Self::StopTimeout => "was asked to end, and did not end by itself",
            Self::Replaced => "executed another program in its place",
        }
    }
}

/// How far a reason can be relied on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TerminationCertainty {
    /// It may be so; what else is as likely can't be distinguished from it.
    #[default]
    Possible,
    /// All that is known speaks for it, and nothing for another.
    Likely,
    /// The system says so of this very process.
    Certain,
}

/// Why a process ended that did not crash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Termination {
    /// The reason.
    pub reason: TerminationReason,
    /// How certain it is.
    pub certainty: TerminationCertainty,
    /// What speaks for it, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
}

impl fmt::Display for Termination {
    /// `likely was killed for want of memory: …; …`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason, self.certainty) {
            (TerminationReason::Unknown, _) | (_, TerminationCertainty::Certain) => {}
            (_, TerminationCertainty::Likely) => out.write_str("most likely ")?,
            (_, TerminationCertainty::Possible) => out.write_str("possibly ")?,
        }
        out.write_str(self.reason.words())?;
        if !self.evidence.is_empty() {
            write!(out, ": {}", self.evidence.join("; "))?;
        }
        Ok(())
    }
}

//! Why a process ended that did not crash: the reason, its certainty and the evidence.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::timestamp::Timestamp;

/// Measurements that explain an end without a trace, as last read.
///
/// Counters are compared with their values at a later launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Vitals {
    /// Time of the reading. A time before the install is from an earlier run in the same boot.
    pub read: Timestamp,
    /// `oom_score_adj`, from −1,000 (never killed when memory is short) to 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i16>,
    /// Memory pressure, in hundredths of a percent (`avg10` of PSI).
    ///
    /// The share of ten seconds in which some task of the cgroup, or else of the machine, waited
    /// for memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_pressure: Option<u16>,
    /// Number of processes on the machine that were killed because memory ran out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_oom_kills: Option<u64>,
    /// The process's memory cgroup, as the inode of its directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<u64>,
    /// Number of the cgroup's processes that were killed because memory ran out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_oom_kills: Option<u64>,
    /// Memory limit of the cgroup in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_memory_limit: Option<u64>,
    /// Number of processes in the cgroup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_processes: Option<u32>,
    /// Processor time that the process had used, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_used_ms: Option<u64>,
    /// Hard limit of the processor time, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit_s: Option<u64>,
}

/// Reason for which a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TerminationReason {
    /// Unknown; the evidence rules out some reasons.
    #[default]
    Unknown,
    /// The kernel killed the process because its cgroup or the machine ran out of memory.
    OutOfMemory,
    /// The machine restarted: a reboot, a power loss or a system crash.
    SystemRestart,
    /// The process reached its CPU time limit (`RLIMIT_CPU`).
    CpuLimit,
    /// The process was killed while a debugger was attached.
    Debugger,
    /// The app was updated.
    AppUpdate,
    /// The process received a signal that terminates by default.
    Signal,
    /// The process received a signal to stop, which it handles, but didn't exit by itself.
    ///
    /// Service and container managers kill it after a while.
    StopTimeout,
    /// The process executed another program or its own file again (execve(2)), and continues.
    Replaced,
}

impl TerminationReason {
    /// Returns the reason as text that completes "the process …".
    pub fn words(self) -> &'static str {
        match self {
            Self::Unknown => "ended without a trace",
            Self::OutOfMemory => "was killed because memory ran out",
            Self::SystemRestart => "ended when the machine restarted (reboot or power loss)",
            Self::CpuLimit => "was killed at its CPU time limit",
            Self::Debugger => "was killed under a debugger",
            Self::AppUpdate => "was stopped for an app update",
            Self::Signal => "was killed by a signal",
            Self::StopTimeout => "was asked to stop, but didn't exit by itself",
            Self::Replaced => "replaced itself with another program (exec)",
        }
    }
}

/// Reliability of a reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TerminationCertainty {
    /// Possible, but other reasons are equally likely.
    #[default]
    Possible,
    /// All evidence supports this reason, and none supports another.
    Likely,
    /// The system reports this reason for this process.
    Certain,
}

/// Reason, certainty and evidence for an end that was not a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Termination {
    /// The reason.
    pub reason: TerminationReason,
    /// Certainty of the reason.
    pub certainty: TerminationCertainty,
    /// Evidence for the reason, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
}

impl fmt::Display for Termination {
    /// Formats like `most likely was killed because memory ran out: …; …`.
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

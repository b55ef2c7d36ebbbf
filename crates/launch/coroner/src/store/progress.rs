//! Progress of processing one run.
//!
//! It is kept in the run's directory so that a crash loses neither the report nor the record of
//! which sinks have it. The file `progress.json` is replaced as a whole at each step. If a step is
//! not written, the worst consequence is that a sink gets a report a second time; sinks recognize
//! it by its event id.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::raw_run;

pub(super) const FILE: &str = "progress.json";
/// Sinks' answers about reports while the run's process continued, by the reports' numbers.
pub(crate) const LIVE: &str = "live.json";

/// The sinks' answers about one report, by sink name.
pub(crate) type Answers = BTreeMap<String, SinkState>;

/// Many sinks with long reasons for rejections stay far below this limit.
const MAX_BYTES: u64 = 1 << 20;

/// The contents of `progress.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Progress {
    /// Number of times that processing ended in a fault or panic of its own.
    ///
    /// A kill is no evidence against the report and doesn't count.
    pub(crate) attempts: u32,
    /// Whether the app has been notified of the run's outcome.
    pub(crate) notified: bool,
    /// Whether the run's reports were offered to the sinks as the crash left them.
    pub(crate) stored_early: bool,
    /// Whether all sinks stored all of the reports then.
    pub(crate) stored: bool,
    /// Whether one of the reports was complete then.
    pub(crate) whole: bool,
    /// Number of launches that began to name the run's reports and ended before that was done.
    pub(crate) unnamed: u32,
    /// Number of launches that found the run stored early and not done: each ended before its
    /// delivery thread got to it.
    pub(crate) cut_short: u32,
    /// Whether this run's crash while it processed another run has been counted against that other
    /// run.
    pub(crate) counted: bool,
    /// For each of the run's reports (0 is the first), the sinks' answers by sink name.
    ///
    /// A sink that is missing here has not been asked yet.
    pub(crate) reports: BTreeMap<u32, Answers>,
}

/// A sink's answer about one report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SinkState {
    /// The sink has accepted the report.
    Delivered,
    /// The sink will never accept the report.
    Rejected { reason: String },
    /// The sink wants the report again later.
    Retry {
        /// Earliest time of the next attempt, in seconds since 1970 (UTC).
        not_before: u64,
        /// Number of attempts so far.
        tries: u32,
        reason: String,
    },
}

impl SinkState {
    /// Whether nothing more is to be done for this sink.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Delivered | Self::Rejected { .. })
    }

    /// Whether the sink may be asked at `now`.
    ///
    /// A `not_before` more than a day ahead means that the clock was wrong when it was written, or
    /// is wrong now, and doesn't delay the report.
    pub(crate) fn may_be_asked(&self, now: SystemTime) -> bool {
        const MAX_WAIT: u64 = 24 * 60 * 60;
        match self {
            Self::Delivered | Self::Rejected { .. } => false,
            Self::Retry { not_before, .. } => {
                let now = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
                now >= *not_before || *not_before - now > MAX_WAIT
            }
        }
    }
}

impl Progress {
    /// Reads the progress from a run's directory.
    ///
    /// A run without the file was never processed. An invalid file was written by a damaged disk or
    /// another program, and counts as one attempt. An entry that is not a file (a directory, a
    /// named pipe) is removed.
    pub(crate) fn read(run: &Directory) -> io::Result<Self> {
        match run.read(OsStr::new(FILE), MAX_BYTES) {
            Ok(bytes) => Ok(Self::of_bytes(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::of_living(run)),
            Err(_) if run.is_other_than_file(OsStr::new(FILE)) => {
                run.remove_tree(OsStr::new(FILE))?;
                Ok(Self::default())
            }
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(Self::damaged()),
            Err(error) => Err(error),
        }
    }

    /// Reads the progress of a run that is not claimed: cheap, and changes nothing.
    pub(super) fn peek(run: &Directory) -> Self {
        run.read(OsStr::new(FILE), MAX_BYTES).map_or_else(|_| Self::default(), |bytes| Self::of_bytes(&bytes))
    }

    /// Returns the progress that the run's own process has made.
    fn of_living(run: &Directory) -> Self {
        let bytes = run.read(OsStr::new(LIVE), MAX_BYTES).unwrap_or_default();
        let mut said: BTreeMap<u32, Answers> = serde_json::from_slice(&bytes).unwrap_or_default();
        let reports = if said.is_empty() { Vec::new() } else { raw_run::numbered(run).unwrap_or_default() };
        let mut progress = Self::default();
        for (index, (number, _)) in reports.iter().enumerate() {
            if let Some(said) = said.remove(number) {
                progress.reports.insert(index as u32, said);
            }
        }
        progress
    }

    fn damaged() -> Self {
        Self { attempts: 1, ..Self::default() }
    }

    /// Parses the file.
    ///
    /// An empty file results from a power failure, and doesn't count as an attempt.
    fn of_bytes(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::default();
        }
        serde_json::from_slice(bytes).unwrap_or_else(|_| Self::damaged())
    }

    /// Writes the progress without waiting for the disk: a power failure can only lose that a sink
    /// was asked, and sinks recognize a report that they have by its id.
    pub(crate) fn write(&self, run: &Directory) -> io::Result<()> {
        run.write_quickly(OsStr::new(FILE), &serde_json::to_vec(self)?)
    }
}

/// Parses `bytes` as `progress.json`, for the fuzz target.
///
/// Returns it written again, and how many sinks may be asked at `now`.
#[doc(hidden)]
pub fn reread_progress(bytes: &[u8], now: SystemTime) -> (Vec<u8>, usize) {
    let progress = Progress::of_bytes(bytes);
    let sinks = progress.reports.values().flat_map(|answers| answers.iter());
    let asked = sinks.filter(|(_, said)| said.may_be_asked(now) && !said.is_final()).count();
    (serde_json::to_vec(&progress).unwrap_or_default(), asked)
}

#[cfg(test)]
mod tests;

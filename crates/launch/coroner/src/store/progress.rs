//! The progress of processing one run.
//!
//! It is stored in the run's directory, so that a crash loses neither the report nor the record of
//! which sinks have accepted it. The file `progress.json` is replaced atomically at each step. If a
//! step can't be written, at worst a sink gets a report twice; sinks recognize it by its event id.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::raw_run;

pub(super) const FILE: &str = "progress.json";
/// Name of the file with the sinks' answers while the run's process was running, by report number.
pub(crate) const LIVE: &str = "live.json";

/// The sinks' answers about one report, by sink name.
pub(crate) type Answers = BTreeMap<String, SinkState>;

/// Maximum size of the file in bytes, far more than many sinks with long reasons need.
const MAX_BYTES: u64 = 1 << 20;

/// The contents of `progress.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Progress {
    /// Number of times that processing crashed or panicked. A kill doesn't count.
    pub(crate) attempts: u32,
    /// Whether the app has been notified of the run's outcome.
    pub(crate) notified: bool,
    /// Whether the run's reports were offered to the sinks in their original form.
    pub(crate) stored_early: bool,
    /// Whether all sinks stored all of these reports.
    pub(crate) stored: bool,
    /// Whether one of these reports was complete.
    pub(crate) whole: bool,
    /// Number of launches that ended while they named the run's reports.
    pub(crate) unnamed: u32,
    /// Number of launches that found the run stored early, and ended before their delivery threads
    /// processed it.
    pub(crate) cut_short: u32,
    /// Whether this run's crash while it processed another run has been counted against that run.
    pub(crate) counted: bool,
    /// The sinks' answers by sink name, for each of the run's reports by index.
    ///
    /// A missing sink has not been asked yet.
    pub(crate) reports: BTreeMap<u32, Answers>,
}

/// A sink's answer about one report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SinkState {
    /// The sink accepted the report.
    Delivered,
    /// The sink rejected the report.
    Rejected { reason: String },
    /// The sink wants the report later.
    Retry {
        /// Earliest time of the next attempt, in seconds since 1970 (UTC).
        not_before: u64,
        /// Number of attempts so far.
        tries: u32,
        reason: String,
    },
}

impl SinkState {
    /// Whether the answer is final.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Delivered | Self::Rejected { .. })
    }

    /// Whether the sink may be asked at `now`.
    ///
    /// A `not_before` more than a day in the future means that the clock was or is wrong, and is
    /// ignored.
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
    /// A run without the file was never processed. An invalid file comes from a damaged disk or
    /// another program, and counts as one attempt. An entry that is not a file (a directory, a
    /// named pipe) is removed.
    pub(crate) fn read(run: &Directory) -> io::Result<Self> {
        match run.read(OsStr::new(FILE), MAX_BYTES) {
            Ok(bytes) => Ok(Self::parse(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::read_live(run)),
            Err(_) if run.is_other_than_file(OsStr::new(FILE)) => {
                run.remove_tree(OsStr::new(FILE))?;
                Ok(Self::default())
            }
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(Self::damaged()),
            Err(error) => Err(error),
        }
    }

    /// Reads the progress of a run without claiming it. Cheap; changes nothing.
    pub(super) fn peek(run: &Directory) -> Self {
        run.read(OsStr::new(FILE), MAX_BYTES).map_or_else(|_| Self::default(), |bytes| Self::parse(&bytes))
    }

    /// Returns the progress that the run's own process has made.
    fn read_live(run: &Directory) -> Self {
        let bytes = run.read(OsStr::new(LIVE), MAX_BYTES).unwrap_or_default();
        let mut live: BTreeMap<u32, Answers> = serde_json::from_slice(&bytes).unwrap_or_default();
        let reports = if live.is_empty() { Vec::new() } else { raw_run::numbered(run).unwrap_or_default() };
        let mut progress = Self::default();
        for (index, (number, _)) in reports.iter().enumerate() {
            if let Some(answers) = live.remove(number) {
                progress.reports.insert(index as u32, answers);
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
    fn parse(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::default();
        }
        serde_json::from_slice(bytes).unwrap_or_else(|_| Self::damaged())
    }

    /// Writes the progress without waiting for the disk.
    ///
    /// A power failure can lose only that a sink was asked, and sinks recognize a repeated report
    /// by its id.
    pub(crate) fn write(&self, run: &Directory) -> io::Result<()> {
        run.write_quickly(OsStr::new(FILE), &serde_json::to_vec(self)?)
    }
}

/// Parses `bytes` as `progress.json`, for the fuzz target.
///
/// Returns the progress serialized again, and how many sinks may be asked at `now`.
#[doc(hidden)]
pub fn reread_progress(bytes: &[u8], now: SystemTime) -> (Vec<u8>, usize) {
    let progress = Progress::parse(bytes);
    let sinks = progress.reports.values().flat_map(|answers| answers.iter());
    let asked = sinks.filter(|(_, state)| state.may_be_asked(now) && !state.is_final()).count();
    (serde_json::to_vec(&progress).unwrap_or_default(), asked)
}

#[cfg(test)]
mod tests;

//! How far the processing of one run has come, kept in its directory so that a crash loses neither the report nor the
//! knowledge of who has it already.
//!
//! The file is `progress.json`, replaced as a whole at each step. Of a step that was not written, the worst that follows
//! is that a sink gets a report a second time, which sinks take by event id as the same.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::raw_run;

pub(super) const FILE: &str = "progress.json";
/// What sinks said of reports while the run's process went on, by the reports' numbers.
pub(crate) const LIVE: &str = "live.json";

/// What each sink said of one report, by the sink's name.
pub(crate) type Answers = BTreeMap<String, SinkState>;

/// Many sinks with long reasons for rejecting stay far below it.
const MAX_BYTES: u64 = 1 << 20;

/// The contents of `progress.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Progress {
    /// How many times processing ended by a fault or a panic of its own. That it was killed is no evidence against the report.
    pub(crate) attempts: u32,
    /// The app has been notified of the run's outcome.
    pub(crate) notified: bool,
    /// Its reports were offered to the sinks as the crash left them.
    pub(crate) stored_early: bool,
    /// All sinks have stored all of them then.
    pub(crate) stored: bool,
    /// One of them was whole then.
    pub(crate) whole: bool,
    /// How many launches have begun to name its reports, and ended before that was done.
    pub(crate) unnamed: u32,
    /// How many launches have found it stored early and not done: each ended before its delivery thread came to it.
    pub(crate) cut_short: u32,
    /// That this run crashed while it processed another has been counted against that one.
    pub(crate) counted: bool,
    /// For each of the run's reports (0 is the first), what each sink said of it, by the sink's name. A sink that is not
    /// here was not asked yet.
    pub(crate) reports: BTreeMap<u32, Answers>,
}

/// What one sink said of one report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SinkState {
    /// It has it.
    Delivered,
    /// It will never take it.
    Rejected { reason: String },
    /// It wants to be asked again.
    Retry {
        /// Not before this time, in seconds since 1970 (UTC).
        not_before: u64,
        /// How many times it has been asked.
        tries: u32,
        reason: String,
    },
}

impl SinkState {
    /// Whether nothing more is to be done for this sink.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Delivered | Self::Rejected { .. })
    }

    /// Whether the sink may be asked at `now`. A `not_before` more than a day ahead is a clock that was wrong when it was
    /// written, or is now, and does not hold anything back for years.
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
    /// Reads it from a run's directory. A run without the file was never processed; a file that can't be understood is
    /// one that a damaged disk or another program wrote, and counts as one attempt. What is no file (a directory, a named pipe)
    /// is removed.
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

    /// What stands there, for a run that nobody has claimed: a cheap look that changes nothing.
    pub(super) fn peek(run: &Directory) -> Self {
        run.read(OsStr::new(FILE), MAX_BYTES).map_or_else(|_| Self::default(), |bytes| Self::of_bytes(&bytes))
    }

    /// What the run's own process has done.
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

    /// An empty file is what a power failure leaves, and no attempt.
    fn of_bytes(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::default();
        }
        serde_json::from_slice(bytes).unwrap_or_else(|_| Self::damaged())
    }

    /// Writes it, and does not wait for the disk: what a power failure takes from it is that a sink was asked, and sinks know a report
    /// that they have by its id.
    pub(crate) fn write(&self, run: &Directory) -> io::Result<()> {
        run.write_quickly(OsStr::new(FILE), &serde_json::to_vec(self)?)
    }
}

/// What a `progress.json` of these bytes is written as again, and how many sinks may be asked at `now`: for the fuzz target.
#[doc(hidden)]
pub fn reread_progress(bytes: &[u8], now: SystemTime) -> (Vec<u8>, usize) {
    let progress = Progress::of_bytes(bytes);
    let sinks = progress.reports.values().flat_map(|answers| answers.iter());
    let asked = sinks.filter(|(_, said)| said.may_be_asked(now) && !said.is_final()).count();
    (serde_json::to_vec(&progress).unwrap_or_default(), asked)
}

#[cfg(test)]
mod tests;

//! The last run and its outcome, as the app gets it and as the store records it.
//!
//! `run_end.rs` determines the outcome.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use coroner_report::model::{Id, Termination, TerminationReason};
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::store::directory::Directory;

/// The last run of the app, and how it ended.
///
/// Of this app's runs ([`Config::new`](crate::Config::new)) that have ended and that no launch has
/// processed before, this is the one that began last. If there is none (two processes of one app
/// were started at once), this is the result of an earlier launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LastRun {
    /// The run's outcome.
    pub outcome: Outcome,
    /// The run's id; `None` for [`Outcome::FirstLaunch`].
    #[serde(default)]
    pub run: Option<Id>,
    /// The event id of the run's report, if the run crashed or hung.
    ///
    /// A server lists the event under it.
    #[serde(default)]
    pub event_id: Option<Id>,
    /// When the run began.
    pub began: Option<SystemTime>,
    /// The time from install to the crash or to the hang's report, if the run ended so.
    ///
    /// A crash soon after the start may come again each time before a report is sent.
    pub ran_for: Option<Duration>,
    /// The signal that ended the run, for [`Outcome::EndedBySignal`] and [`Outcome::Terminated`].
    #[serde(default)]
    pub signal: Option<i32>,
    /// The cause of the end, with its certainty and evidence.
    ///
    /// It is set if the run did not crash, and the system or the signal provides more than the
    /// outcome.
    #[serde(default)]
    pub termination: Option<Termination>,
    /// A description of which code took which crash signal from Coroner in that run, if detected.
    ///
    /// A crash by such a signal has no report.
    #[serde(default)]
    pub signals_taken: Option<String>,
    /// This run's crash and those of the runs directly before it that crashed too, the last one
    /// first; empty if this run did not crash.
    #[serde(default)]
    pub(crate) crashes: Vec<PastCrash>,
}

/// The record of a past crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PastCrash {
    /// Time from install to the crash in milliseconds, if known.
    #[serde(rename = "ms")]
    pub(crate) ran_for_ms: Option<u64>,
    /// The id of the crash's [`Signature`](coroner_report::signature::Signature), computed from
    /// what the crash itself found.
    #[serde(rename = "of")]
    pub(crate) signature: Option<String>,
}

/// Maximum number of crashes that are recorded.
pub(crate) const MAX_CRASHES: usize = 8;

/// The run's tag that describes which code has taken a crash signal from Coroner.
pub(crate) const SIGNALS_TAKEN: &str = "coroner.signals_taken";

/// Returns the name of the store's file about the last run of the app with this number
/// ([`app_number`]).
fn record_file_name(app: u64) -> OsString {
    format!("last_run-{app:016x}.json").into()
}

/// Whether `name` is the name of such a file.
fn is_record_file_name(name: &str) -> bool {
    name.strip_prefix("last_run-").and_then(|rest| rest.strip_suffix(".json")).is_some_and(|number| number.len() == 16)
}

/// Returns a number for each app identifier, never 0: the apps that share a store (an app and its
/// extensions) have a last run each.
pub(crate) fn app_number(app: &str) -> u64 {
    app.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
        .max(1)
}

impl LastRun {
    pub(crate) const FIRST_LAUNCH: LastRun = LastRun {
        outcome: Outcome::FirstLaunch,
        run: None,
        event_id: None,
        began: None,
        ran_for: None,
        signal: None,
        termination: None,
        signals_taken: None,
        crashes: Vec::new(),
    };

    /// Whether the run crashed.
    pub fn crashed(&self) -> bool {
        self.outcome == Outcome::Crashed
    }

    /// Returns how many runs in a row crashed, up to the last one; 0 if that one did not crash.
    ///
    /// At most 8 are counted.
    pub fn consecutive_crashes(&self) -> u32 {
        self.crashes.len() as u32
    }

    /// Returns how many of the [`consecutive_crashes`](Self::consecutive_crashes) were the same.
    ///
    /// They are counted from the last one on, while the signature is the same. The signature
    /// ([`coroner_report::signature`]) is computed from the names and addresses that the crashes
    /// themselves found, which are those of one build.
    pub fn same_crashes(&self) -> u32 {
        let first = self.crashes.first().and_then(|crash| crash.signature.as_ref());
        let same =
            self.crashes.iter().take_while(|crash| crash.signature.is_some() && crash.signature.as_ref() == first);
        same.count() as u32
    }

    /// Adds the crashes that were `noted` of the run before this one (or of this one).
    #[must_use]
    pub(crate) fn following(mut self, noted: &LastRun) -> LastRun {
        if !self.crashed() {
            return self;
        }
        let before = match noted.run == self.run {
            true => noted.crashes.get(1..).unwrap_or_default(),
            false if noted.began <= self.began => &noted.crashes[..],
            false => &[],
        };
        self.crashes.extend_from_slice(before);
        self.crashes.truncate(MAX_CRASHES);
        self
    }

    /// Reads the record of an earlier launch.
    ///
    /// If it is missing or invalid, this is the first launch.
    pub(crate) fn read(store: &Directory, app: u64) -> LastRun {
        let noted = store.read(&record_file_name(app), 1 << 16).ok();
        noted.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(Self::FIRST_LAUNCH)
    }

    /// Reads the records of all apps that share the store, and returns that of the run that began
    /// last.
    pub(crate) fn read_latest(store: &Directory) -> LastRun {
        let is_record_file_name = |name: &OsString| is_record_file_name(&name.to_string_lossy());
        let names = store.names().unwrap_or_default().into_iter().filter(is_record_file_name);
        let read = |name: OsString| serde_json::from_slice::<LastRun>(&store.read(&name, 1 << 16).ok()?).ok();
        names.filter_map(read).max_by_key(|noted| noted.began).unwrap_or(Self::FIRST_LAUNCH)
    }

    /// Writes the record without waiting for the disk: after a power failure this may be the first
    /// launch.
    pub(crate) fn write(&self, store: &Directory, app: u64) -> io::Result<()> {
        store.write_quickly(&record_file_name(app), &serde_json::to_vec(self)?)
    }

    /// Like [`write`](Self::write), but overwrites the existing file with a few system calls, for
    /// every launch. A reader at the same instant, or after a power failure, may find nothing.
    pub(crate) fn write_in_place(&self, store: &Path, app: u64) -> io::Result<()> {
        /// No record is longer, so that the rest of the file is blank.
        const LENGTH: usize = 1024;
        let mut bytes = serde_json::to_vec(self)?;
        bytes.resize(LENGTH.max(bytes.len()), b' ');
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600),
            libc::O_NOFOLLOW,
        );
        options.open(store.join(record_file_name(app)))?.write_all(&bytes)
    }
}

/// Completes "the last run …", with the evidence for the cause of its end, if there is some.
impl fmt::Display for LastRun {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.termination {
            None => self.outcome.fmt(out),
            // Evidence from the run itself takes precedence over an unknown cause.
            Some(found)
                if found.reason == TerminationReason::Unknown
                    && self.outcome == Outcome::Unknown
                    && !found.evidence.is_empty() =>
            {
                write!(out, "ended without a trace: killed, or by `_exit` ({})", found.evidence.join("; "))
            }
            Some(found) if found.reason == TerminationReason::Unknown => self.outcome.fmt(out),
            Some(found) => found.fmt(out),
        }
    }
}

#[cfg(test)]
mod tests;

//! [`LastRun`], the app's last run, and its record in the store. `run_end.rs` determines the
//! outcome.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use coroner_report::model::{Id, Termination, TerminationReason};
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::store::directory::Directory;

/// The app's last run and how it ended.
///
/// This is the most recently started of the app's runs ([`Config::new`](crate::Config::new)) that
/// have ended and that no launch has processed before. If there is none (two processes of one app
/// were started at once), this is the run that an earlier launch determined.
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
    /// Servers list the event under it.
    #[serde(default)]
    pub event_id: Option<Id>,
    /// When the run began.
    pub began: Option<SystemTime>,
    /// The time from install to the crash, or to the hang's report; `None` for other outcomes.
    ///
    /// A crash soon after the start may happen again at each launch before a report is sent.
    pub ran_for: Option<Duration>,
    /// The signal that ended the run, for [`Outcome::EndedBySignal`] and [`Outcome::Terminated`].
    #[serde(default)]
    pub signal: Option<i32>,
    /// The cause of the run's end, with its certainty and evidence.
    ///
    /// Set if the run did not crash, and the system or the signal provides more than the outcome.
    #[serde(default)]
    pub termination: Option<Termination>,
    /// A description of the code that replaced Coroner's signal handlers in that run, if detected.
    ///
    /// A crash by such a signal leaves no report.
    #[serde(default)]
    pub signals_taken: Option<String>,
    /// This run's crash and those of the runs directly before it, the last one first; empty if this
    /// run did not crash.
    #[serde(default)]
    pub(crate) crashes: Vec<PastCrash>,
}

/// The record of a past crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PastCrash {
    /// Time from install to the crash in milliseconds, if known.
    #[serde(rename = "ms")]
    pub(crate) ran_for_ms: Option<u64>,
    /// The id of the crash's [`Signature`](coroner_report::signature::Signature), computed from the
    /// names and addresses that the crash itself found.
    #[serde(rename = "of")]
    pub(crate) signature: Option<String>,
}

/// Maximum number of crashes that are recorded.
pub(crate) const MAX_CRASHES: usize = 8;

/// The run's tag that describes which code has replaced Coroner's signal handlers.
pub(crate) const SIGNALS_TAKEN: &str = "coroner.signals_taken";

/// Returns the name of the file with the last run of the app with this number ([`app_number`]).
fn record_file_name(app: u64) -> OsString {
    format!("last_run-{app:016x}.json").into()
}

/// Whether `name` is the name of such a file.
fn is_record_file_name(name: &str) -> bool {
    name.strip_prefix("last_run-").and_then(|rest| rest.strip_suffix(".json")).is_some_and(|number| number.len() == 16)
}

/// Returns an app identifier's number, which is never 0.
///
/// Apps that share a store, such as an app and its extensions, have separate last runs.
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

    /// Returns how many runs in a row crashed up to the last one; 0 if the last one did not crash.
    ///
    /// At most 8 are counted.
    pub fn consecutive_crashes(&self) -> u32 {
        self.crashes.len() as u32
    }

    /// Returns how many of the [`consecutive_crashes`](Self::consecutive_crashes) were the same.
    ///
    /// They are counted backwards from the last one while the signature
    /// ([`coroner_report::signature`]) is the same. It is computed from the names and addresses
    /// that the crashes themselves found, and differs between builds.
    pub fn same_crashes(&self) -> u32 {
        let first = self.crashes.first().and_then(|crash| crash.signature.as_ref());
        let same =
            self.crashes.iter().take_while(|crash| crash.signature.is_some() && crash.signature.as_ref() == first);
        same.count() as u32
    }

    /// Adds the crashes recorded in `noted`, about the run before this one or this one.
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

    /// Reads the record of an earlier launch; the first launch if it is missing or invalid.
    pub(crate) fn read(store: &Directory, app: u64) -> LastRun {
        let noted = store.read(&record_file_name(app), 1 << 16).ok();
        noted.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(Self::FIRST_LAUNCH)
    }

    /// Reads the records of all apps that share the store; returns the most recently started run's.
    pub(crate) fn read_latest(store: &Directory) -> LastRun {
        let is_record_file_name = |name: &OsString| is_record_file_name(&name.to_string_lossy());
        let names = store.names().unwrap_or_default().into_iter().filter(is_record_file_name);
        let read = |name: OsString| serde_json::from_slice::<LastRun>(&store.read(&name, 1 << 16).ok()?).ok();
        names.filter_map(read).max_by_key(|noted| noted.began).unwrap_or(Self::FIRST_LAUNCH)
    }

    /// Writes the record without waiting for the disk. A power failure may lose it.
    pub(crate) fn write(&self, store: &Directory, app: u64) -> io::Result<()> {
        store.write_quickly(&record_file_name(app), &serde_json::to_vec(self)?)
    }

    /// Like [`write`](Self::write), but overwrites the existing file, which is cheap enough for
    /// every launch.
    ///
    /// A simultaneous reader, or one after a power failure, may find no record.
    pub(crate) fn write_in_place(&self, store: &Path, app: u64) -> io::Result<()> {
        /// Longer than any record; the rest of the file is blank.
        const LENGTH: usize = 1024;
        let mut bytes = serde_json::to_vec(self)?;
        bytes.resize(LENGTH.max(bytes.len()), b' ');
        let (store, name) = (Directory::open_own(store)?, record_file_name(app));
        let file = store.file(&name, true).or_else(|error| {
            // Another user's file, or a link.
            if error.kind() != io::ErrorKind::NotFound {
                store.remove_file(&name)?;
            }
            store.new_file(&name)
        });
        file?.write_all(&bytes)
    }
}

/// Writes text that completes "the last run …", with evidence for the cause of its end, if any.
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
                write!(out, "ended without a trace: killed or by `_exit` ({})", found.evidence.join("; "))
            }
            Some(found) if found.reason == TerminationReason::Unknown => self.outcome.fmt(out),
            Some(found) => found.fmt(out),
        }
    }
}

#[cfg(test)]
mod tests;

//! The last run and its outcome, as the app is notified of it and as the store remembers it. `run_end.rs` decides the outcome.

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

/// How the last run of the app ended, by its identifier ([`Config::new`](crate::Config::new)): of the runs that have ended and that no launch has looked at before, the one that began last. If
/// there is none (two processes of one app were started at once), what an earlier launch found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LastRun {
    /// How it ended.
    pub outcome: Outcome,
    /// Which run it was; `None` for [`Outcome::FirstLaunch`].
    #[serde(default)]
    pub run: Option<Id>,
    /// The event id of its report, if it crashed or hung: under which a server shows it.
    #[serde(default)]
    pub event_id: Option<Id>,
    /// When it began.
    pub began: Option<SystemTime>,
    /// How long it ran from install to the crash or to the report of the hang, if it ended so. A crash soon after the start may come again each time before
    /// a report gets out.
    pub ran_for: Option<Duration>,
    /// The signal that ended it, or asked it to end: of [`Outcome::EndedBySignal`] and [`Outcome::Terminated`].
    #[serde(default)]
    pub signal: Option<i32>,
    /// Why it ended, if it did not crash and the system or the signal says more than the outcome: with how certain that is, and the evidence.
    #[serde(default)]
    pub termination: Option<Termination>,
    /// Who took which crash signal from Coroner in that run, in words, if it was seen: its crash then has no report.
    #[serde(default)]
    pub signals_taken: Option<String>,
    /// This run's crash and those of the runs directly before it that crashed, too, the last one first; none if it did not crash.
    #[serde(default)]
    pub(crate) crashes: Vec<PastCrash>,
}

/// What is remembered of a crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PastCrash {
    /// How long the run was, milliseconds from install to the crash, as far as that is known.
    #[serde(rename = "ms")]
    pub(crate) ran_for_ms: Option<u64>,
    /// The id of its [`Signature`](coroner_report::signature::Signature), by what the crash itself found.
    #[serde(rename = "of")]
    pub(crate) signature: Option<String>,
}

/// So many crashes are remembered.
pub(crate) const MAX_CRASHES: usize = 8;

/// The tag of a run that says who has taken a crash signal from Coroner.
pub(crate) const SIGNALS_TAKEN: &str = "coroner.signals_taken";

/// In the store, how the last run that was looked at ended, of the app with that number ([`app_number`]).
fn file_of(app: u64) -> OsString {
    format!("last_run-{app:016x}.json").into()
}

/// Whether that is the name of such a file.
fn is_note(name: &str) -> bool {
    name.strip_prefix("last_run-").and_then(|rest| rest.strip_suffix(".json")).is_some_and(|number| number.len() == 16)
}

/// Another number for each app by its identifier: those that have one store (an app and its extensions) have a last run each. Not 0.
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

    /// Whether it crashed.
    pub fn crashed(&self) -> bool {
        self.outcome == Outcome::Crashed
    }

    /// How many runs crashed, one directly after the other, up to the last one; 0 if that did not crash. At most 8 are counted.
    pub fn consecutive_crashes(&self) -> u32 {
        self.crashes.len() as u32
    }

    /// How many of the [`consecutive_crashes`](Self::consecutive_crashes), from the last one on, were the same death: of one signature
    /// ([`coroner_report::signature`]), by the names and addresses that the crashes themselves found, which are those of one build.
    pub fn same_crashes(&self) -> u32 {
        let first = self.crashes.first().and_then(|crash| crash.signature.as_ref());
        let same =
            self.crashes.iter().take_while(|crash| crash.signature.is_some() && crash.signature.as_ref() == first);
        same.count() as u32
    }

    /// The same, after what was `noted` of the run before (or of this one).
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

    /// Reads what an earlier launch noted. Without it, or with one that can't be understood, this is the first launch.
    pub(crate) fn read(store: &Directory, app: u64) -> LastRun {
        let noted = store.read(&file_of(app), 1 << 16).ok();
        noted.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(Self::FIRST_LAUNCH)
    }

    /// What was noted of the apps that have the store: of the run that began last.
    pub(crate) fn read_latest(store: &Directory) -> LastRun {
        let is_note = |name: &OsString| is_note(&name.to_string_lossy());
        let names = store.names().unwrap_or_default().into_iter().filter(is_note);
        let read = |name: OsString| serde_json::from_slice::<LastRun>(&store.read(&name, 1 << 16).ok()?).ok();
        names.filter_map(read).max_by_key(|noted| noted.began).unwrap_or(Self::FIRST_LAUNCH)
    }

    /// Writes it, and does not wait for the disk: after a power failure this is the first launch.
    pub(crate) fn write(&self, store: &Directory, app: u64) -> io::Result<()> {
        store.write_quickly(&file_of(app), &serde_json::to_vec(self)?)
    }

    /// As [`write`](Self::write), in the file that is there, with a few system calls: for every launch. Who reads it in
    /// the same instant, or after a power failure, may find nothing.
    pub(crate) fn write_in_place(&self, store: &Path, app: u64) -> io::Result<()> {
        /// No note is longer, so that what is behind this one is blank.
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
        options.open(store.join(file_of(app)))?.write_all(&bytes)
    }
}

/// In words that complete "the last run …": with the evidence of why it ended, if there is some.
impl fmt::Display for LastRun {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.termination {
            None => self.outcome.fmt(out),
            // What the run said of itself goes before what is not known of its end.
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

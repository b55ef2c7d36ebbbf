//! Sessions, from which a server computes release health: how many runs of a release crash.
//!
//! A session is one run. A server counts it when it receives an update with `init`, and counts it
//! as crashed or abnormal when an update has that status; no update may follow one that ends the
//! session (develop.sentry.dev, *Sessions*).

use std::borrow::Cow;
use std::ops::Deref;
use std::time::Duration;

use coroner_report::model::{RunFacts, TerminationReason, Timestamp};
use coroner_report::run_state::{ExitKind, Foreground};
use coroner_report::wire::Monitor;
use sentry_types::protocol::v7::{self as protocol, SessionAttributes, SessionStatus, Uuid};
use serde::{Deserialize, Deserializer, Serialize};

use crate::event::{environment, micros, release};
use crate::extensions::SessionExtensions;

mod items;

pub use items::items;

/// Maximum number of updates in one envelope that servers accept.
pub const MAX_IN_ENVELOPE: usize = 100;

/// The mode of sending sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionMode {
    /// No sessions.
    Off,
    /// Each run individually: its start and its end. For interactive apps.
    #[default]
    Individual,
    /// Counts of finished runs by the minute in which they started. For programs that are started
    /// often and run briefly.
    Aggregated,
    /// Only runs that crashed or ended without a trace, each after its end. For apps whose `sentry`
    /// client tracks the sessions of runs that exit normally and can't detect the others.
    CrashesOnly,
}

impl SessionMode {
    /// Whether a run's last update is sent in this mode.
    pub fn takes(self, update: &SessionUpdate) -> bool {
        match self {
            Self::Off => false,
            Self::Individual | Self::Aggregated => true,
            Self::CrashesOnly => matches!(update.status, SessionStatus::Crashed | SessionStatus::Abnormal),
        }
    }
}

/// Whether the run's `sentry` client has reported its session although the run crashed.
///
/// The client does with each error that it sends, and when a panic unwinds out of `main`.
pub fn is_counted_by_client(run: &RunFacts) -> bool {
    let has_errors = run.session.as_ref().is_some_and(|session| session.errors > 0);
    has_errors || (cfg!(panic = "unwind") && run.lifecycle.crashed_by == Some(Monitor::PANIC))
}

/// A session update: the model of `sentry-types`, to which this type derefs, and what this lacks.
///
/// The session's id is the run's UUID; an update is recognised by it and its sequence number. A
/// server counts the session by its first update, which has `init`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionUpdate {
    /// The update in the model of `sentry-types`.
    #[serde(flatten)]
    pub protocol: protocol::SessionUpdate<'static>,
    /// The field that this model lacks.
    #[serde(flatten)]
    pub extensions: SessionExtensions,
}

impl Deref for SessionUpdate {
    type Target = protocol::SessionUpdate<'static>;

    fn deref(&self) -> &Self::Target {
        &self.protocol
    }
}

impl SessionUpdate {
    /// Returns the session's id with hyphens.
    pub fn sid(&self) -> String {
        self.session_id.to_string()
    }

    /// Returns the update with `init` as given: whether it is the session's first.
    #[must_use]
    pub fn with_init(mut self, init: bool) -> Self {
        self.protocol.init = init;
        self
    }

    /// Whether a server may receive the update twice. Relay adds to a counter for `init`, `crashed`
    /// and `abnormal`; for other ends it only adds the session's id to a set, if there were errors
    /// (`extract_session_metrics`).
    pub fn may_repeat(&self) -> bool {
        !self.init && self.status == SessionStatus::Exited
    }
}

/// Numbers of reports from a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Number of reports of any kind; each is an error of the session.
    pub all: usize,
    /// Number of crash reports, not counting hangs and errors that the run survived.
    pub crashes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exited,
    Crashed,
    /// With the mechanism, if known.
    Abnormal(Option<&'static str>),
}

impl End {
    fn status(self) -> SessionStatus {
        match self {
            Self::Exited => SessionStatus::Exited,
            Self::Crashed => SessionStatus::Crashed,
            Self::Abnormal(_) => SessionStatus::Abnormal,
        }
    }
}

/// Determines how a finished run ended. A crash that the run survived doesn't count as its end.
fn end(run: &RunFacts, reports: Reports) -> End {
    let lifecycle = &run.lifecycle;
    // Every complete report is recorded in the run state; a report that isn't was truncated when
    // the process terminated.
    if reports.crashes > 0 && lifecycle.crashed_by.is_none() {
        return End::Crashed;
    }
    let hang = match lifecycle.foreground {
        Foreground::BACKGROUND => "anr_background",
        _ => "anr_foreground",
    };
    match lifecycle.exit {
        ExitKind::CRASHED => End::Crashed,
        // Exited on request: not an error.
        ExitKind::CLEAN | ExitKind::SIGTERM | ExitKind::UNINSTALLED => End::Exited,
        // Terminated by its user, its terminal, or the reader of its output. An unhandled alarm or
        // resource limit is an unwanted end.
        ExitKind::SIGNAL if lifecycle.exit_signal.is_some_and(|signal| WANTED.contains(&signal)) => End::Exited,
        // Debuggers routinely end their target with SIGKILL.
        _ if lifecycle.debugged => End::Exited,
        // The process replaced itself with another program (exec).
        _ if run.termination.as_ref().is_some_and(|found| found.reason == TerminationReason::Replaced) => End::Exited,
        _ => End::Abnormal(lifecycle.hang_since.map(|_| hang)),
    }
}

/// SIGHUP, SIGINT, SIGQUIT, SIGPIPE: the same numbers on all systems.
const WANTED: [i32; 4] = [1, 2, 3, 13];

/// Creates session updates from run states.
#[derive(Clone, Debug, Default)]
pub struct SessionTeller {
    /// The release; overrides the run state's.
    pub release: Option<String>,
    /// The environment; overrides the run state's.
    pub environment: Option<String>,
    /// The installation's id, by which a server counts users. If `None`, the user's id is used.
    pub installation: Option<String>,
}

impl SessionTeller {
    /// Creates the first update of a running session. `None` without a release or a session.
    pub fn began(&self, run: &RunFacts) -> Option<SessionUpdate> {
        let started = micros(started(run)?);
        let environment = self.environment.clone().or_else(|| run.app.environment.clone()).and_then(environment);
        let attributes = SessionAttributes {
            release: self.release.clone().or_else(|| run.app.release.clone()).and_then(release).map(Cow::Owned)?,
            environment: environment.map(Cow::Owned),
            ip_address: None,
            user_agent: None,
        };
        let protocol = protocol::SessionUpdate {
            session_id: Uuid::from_bytes(run.session.as_ref().map_or(run.run_id, |session| session.id).0),
            distinct_id: self.installation.clone().or_else(|| user_id(run)),
            sequence: Some(0),
            timestamp: Some(started),
            started,
            init: true,
            duration: None,
            status: SessionStatus::Ok,
            errors: 0,
            attributes,
        };
        Some(SessionUpdate { protocol, extensions: SessionExtensions::default() })
    }

    /// Creates the last update of a session whose run has ended and left `reports`. `init` is
    /// `false`: the caller must set it if the first update was not sent.
    pub fn ended(&self, run: &RunFacts, reports: Reports) -> Option<SessionUpdate> {
        let mut update = self.began(run)?;
        let started = started(run)?;
        let end = end(run, reports);
        let lifecycle = &run.lifecycle;
        let session_end = run.session.as_ref().and_then(|session| session.ended);
        let at = [lifecycle.crash_time, session_end, lifecycle.exit_time, lifecycle.last_alive];
        let at = at.into_iter().flatten().find(|at| *at >= started);
        let errors = run.session.as_ref().map_or(0, |session| session.errors).max(reports.all as u64);
        update.protocol = protocol::SessionUpdate {
            sequence: Some(1),
            init: false,
            timestamp: Some(micros(at.unwrap_or(started))),
            duration: at.map(|at| Duration::from_nanos(at.0 - started.0).as_secs_f64()),
            status: end.status(),
            errors: if end == End::Crashed { errors.max(1) } else { errors },
            ..update.protocol
        };
        if let End::Abnormal(mechanism) = end {
            update.extensions.abnormal_mechanism = mechanism.map(ToOwned::to_owned);
        }
        Some(update)
    }
}

fn user_id(run: &RunFacts) -> Option<String> {
    match run.user.as_ref()?.to_json().get("id")? {
        serde_json::Value::String(id) => Some(id.clone()).filter(|id| !id.is_empty()),
        serde_json::Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

fn started(run: &RunFacts) -> Option<Timestamp> {
    run.session.as_ref().map(|session| session.started).or(run.app.installed)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting {
    update: SessionUpdate,
    /// Whether the update has been put into an envelope; it can no longer be changed.
    #[serde(default)]
    attempted: bool,
}

/// Session updates waiting to be sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct PendingSessions {
    updates: Vec<Waiting>,
}

/// Leaves out what it can't read, so that the rest of a state isn't lost with it.
impl<'de> Deserialize<'de> for PendingSessions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let updates = Vec::<serde_json::Value>::deserialize(deserializer)?;
        Ok(Self { updates: updates.into_iter().filter_map(|update| serde_json::from_value(update).ok()).collect() })
    }
}

impl PendingSessions {
    /// Returns `true` if there are no updates.
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    /// Returns the number of updates.
    pub fn len(&self) -> usize {
        self.updates.len()
    }

    /// Adds an update. If the session's first update is still here and was never sent, both are
    /// merged into one.
    pub fn push(&mut self, update: SessionUpdate) {
        let is_older = |waiting: &Waiting| {
            waiting.update.session_id == update.session_id && waiting.update.sequence >= update.sequence
        };
        if self.updates.iter().any(is_older) {
            return;
        }
        let begun = self.take(update.session_id);
        let init = update.init || begun.is_some_and(|begun| begun.init);
        self.updates.push(Waiting { update: update.with_init(init), attempted: false });
    }

    /// Removes and returns the session's update, if it was never sent.
    pub fn take(&mut self, session_id: Uuid) -> Option<SessionUpdate> {
        let is_it = |waiting: &Waiting| waiting.update.session_id == session_id && !waiting.attempted;
        let place = self.updates.iter().position(is_it)?;
        Some(self.updates.remove(place).update)
    }

    /// Removes the oldest updates until at most `most` are left; returns how many were removed.
    pub fn limit(&mut self, most: usize) -> usize {
        let excess = self.updates.len().saturating_sub(most);
        self.updates.drain(..excess);
        excess
    }

    /// Returns the updates for the next envelope. They are marked as attempted and stay here until
    /// they are [removed](Self::remove) or [put back](Self::put_back). `held` returns whether
    /// a session's next update is in an envelope.
    pub fn next_batch(&mut self, mode: SessionMode, held: impl Fn(&str) -> bool) -> Vec<SessionUpdate> {
        let most = match mode {
            SessionMode::Off => 0,
            SessionMode::Individual | SessionMode::CrashesOnly => MAX_IN_ENVELOPE,
            SessionMode::Aggregated => usize::MAX,
        };
        // In aggregated mode, running sessions are only sent after their end.
        let ready = |waiting: &&mut Waiting| {
            !waiting.attempted
                && !held(&waiting.update.sid())
                && (mode == SessionMode::Individual || waiting.update.status != SessionStatus::Ok)
        };
        let mut batch = Vec::new();
        for waiting in self.updates.iter_mut().filter(ready).take(most) {
            waiting.attempted = true;
            batch.push(waiting.update.clone());
        }
        batch
    }

    /// Removes updates that were sent.
    pub fn remove(&mut self, sent: &[SessionUpdate]) {
        self.updates.retain(|waiting| !is_in(sent, &waiting.update));
    }

    /// Marks updates that certainly did not arrive as not attempted, so that they are sent again.
    pub fn put_back(&mut self, batch: &[SessionUpdate]) {
        for waiting in self.updates.iter_mut().filter(|waiting| is_in(batch, &waiting.update)) {
            waiting.attempted = false;
        }
    }

    /// Resolves attempted updates after a failed or interrupted sending; returns how many are lost.
    ///
    /// Sending fails if the network does, or is interrupted when the process is killed.
    ///
    /// If the updates have `left` this machine they are removed, otherwise they are sent again. A
    /// server's counters count an update each time it is received, so an update must arrive at most
    /// once, unless it changes no counter ([`SessionUpdate::may_repeat`]).
    pub fn settle(&mut self, left: bool, mode: SessionMode) -> usize {
        let before = self.updates.len();
        let may_repeat = |update: &SessionUpdate| mode != SessionMode::Aggregated && update.may_repeat();
        self.updates.retain(|waiting| !(left && waiting.attempted) || may_repeat(&waiting.update));
        self.updates.iter_mut().for_each(|waiting| waiting.attempted = false);
        before - self.updates.len()
    }
}

fn is_in(batch: &[SessionUpdate], update: &SessionUpdate) -> bool {
    batch.iter().any(|one| (one.session_id, one.sequence) == (update.session_id, update.sequence))
}

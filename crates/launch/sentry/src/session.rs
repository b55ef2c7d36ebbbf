//! Sessions, by which a server works out release health: how many runs of a release crash.
//!
//! A session is one run. A server counts it when an update says `init`, and counts it as crashed or abnormal when an update says
//! so; no more may come after one that ends it (develop.sentry.dev, *Sessions*).

use std::time::Duration;

use coroner_report::model::{RunFacts, TerminationReason, Timestamp};
use coroner_report::run_state::{ExitKind, Foreground};
use coroner_report::wire::Monitor;
use serde::{Deserialize, Serialize};

use crate::event::{environment, release, time_text};

mod items;

pub use items::{Aggregate, items};

/// Most updates in one envelope that servers take.
pub const MAX_IN_ENVELOPE: usize = 100;

/// How sessions are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionMode {
    /// None.
    Off,
    /// Each run by itself: that it began, and how it ended. For apps that people use.
    #[default]
    Individual,
    /// Runs are counted by the minute in which they began, once they have ended. For programs that start often and end soon.
    Aggregated,
    /// Only runs that crashed or ended without a trace, each once it has ended: for apps whose `sentry` client tracks the sessions of
    /// those that end by themselves, and can't tell of the others.
    CrashesOnly,
}

impl SessionMode {
    /// Whether the last update of a run is sent.
    pub fn takes(self, update: &SessionUpdate) -> bool {
        match self {
            Self::Off => false,
            Self::Individual | Self::Aggregated => true,
            Self::CrashesOnly => matches!(update.status.as_str(), "crashed" | "abnormal"),
        }
    }
}

/// Whether the `sentry` client of a run has reported its session, though the run crashed: it does with each error that it sends, and
/// where a panic unwinds out of `main`.
pub fn is_counted_by_client(run: &RunFacts) -> bool {
    let has_errors = run.session.as_ref().is_some_and(|session| session.errors > 0);
    has_errors || (cfg!(panic = "unwind") && run.lifecycle.crashed_by == Some(Monitor::PANIC))
}

/// An update of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionUpdate {
    /// The session: a UUID, that of the run.
    pub sid: String,
    /// Who: an anonymous identifier of the installation, or the user's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub did: Option<String>,
    /// Which update it is, so that one that comes twice can be recognised: 0 the first, then greater.
    pub seq: u64,
    /// Whether it is the first, by which the session is counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub init: bool,
    /// When the session began.
    pub started: String,
    /// When this came to be.
    pub timestamp: String,
    /// Seconds from its beginning to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<f64>,
    /// `ok`, `exited`, `crashed` or `abnormal`.
    pub status: String,
    /// Errors in it; at least 1 if it crashed.
    pub errors: u64,
    /// `anr_foreground` or `anr_background`, where it ended abnormally because it hung.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abnormal_mechanism: Option<String>,
    /// What it was a session of.
    pub attrs: SessionAttributes,
}

impl SessionUpdate {
    /// Whether a server may get it twice. Relay adds to a counter for `init`, for `crashed` and for `abnormal`; of an end without
    /// these it adds the session's id to a set, if there were errors (`extract_session_metrics`).
    pub fn may_repeat(&self) -> bool {
        !self.init && self.status == "exited"
    }
}

/// What a session was of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionAttributes {
    /// The release. There are no sessions without one.
    pub release: String,
    /// Where it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
}

/// What a run has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// How many reports of any kind: each is an error of the session.
    pub all: usize,
    /// How many of them are of crashes, and not of what the run survived, nor of hangs.
    pub crashes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exited,
    Crashed,
    /// With its mechanism, where one is known.
    Abnormal(Option<&'static str>),
}

impl End {
    fn status(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Crashed => "crashed",
            Self::Abnormal(_) => "abnormal",
        }
    }
}

/// How a run that has ended did so. A crash that it survived is none of its ends.
fn end(run: &RunFacts, reports: Reports) -> End {
    let lifecycle = &run.lifecycle;
    // A report that is whole is noted in the run state; one without that note was cut short by the end of the process.
    if reports.crashes > 0 && lifecycle.crashed_by.is_none() {
        return End::Crashed;
    }
    let hang = match lifecycle.foreground {
        Foreground::BACKGROUND => "anr_background",
        _ => "anr_foreground",
    };
    match lifecycle.exit {
        ExitKind::CRASHED => End::Crashed,
        // Asked to end, it ended: nothing went wrong.
        ExitKind::CLEAN | ExitKind::SIGTERM | ExitKind::UNINSTALLED => End::Exited,
        // Its user, its terminal or whom it wrote to ended it. An alarm or a limit that nobody deals with is an end that nobody wanted.
        ExitKind::SIGNAL if lifecycle.exit_signal.is_some_and(|signal| WANTED.contains(&signal)) => End::Exited,
        // A debugger ends what it debugs by SIGKILL, as a matter of course.
        _ if lifecycle.debugged => End::Exited,
        // Its process went on as another program, as it chose.
        _ if run.termination.as_ref().is_some_and(|found| found.reason == TerminationReason::Replaced) => End::Exited,
        _ => End::Abnormal(lifecycle.hang_since.map(|_| hang)),
    }
}

/// SIGHUP, SIGINT, SIGQUIT, SIGPIPE: the same numbers on all systems.
const WANTED: [i32; 4] = [1, 2, 3, 13];

/// The sessions of runs: what they hold of a run is what its run state holds.
#[derive(Clone, Debug, Default)]
pub struct SessionTeller {
    /// The release, instead of the one that the run state says.
    pub release: Option<String>,
    /// The environment, in the same way.
    pub environment: Option<String>,
    /// The installation of the app, by which a server counts users. Without one it is the user's id.
    pub installation: Option<String>,
}

impl SessionTeller {
    /// The first update of the session of a run that goes on. `None` without a release or a session.
    pub fn began(&self, run: &RunFacts) -> Option<SessionUpdate> {
        let started = started(run)?;
        Some(SessionUpdate {
            sid: run.session.as_ref().map_or(run.run_id, |session| session.id).hyphenated(),
            did: self.installation.clone().or_else(|| user_id(run)),
            seq: 0,
            init: true,
            started: time_text(started),
            timestamp: time_text(started),
            duration: None,
            status: "ok".to_owned(),
            errors: 0,
            abnormal_mechanism: None,
            attrs: SessionAttributes {
                release: self.release.clone().or_else(|| run.app.release.clone()).and_then(release)?,
                environment: self.environment.clone().or_else(|| run.app.environment.clone()).and_then(environment),
            },
        })
    }

    /// The last update of the session of a run that has ended and left these reports. Whether the first was sent is not known
    /// here: `init` is false.
    pub fn ended(&self, run: &RunFacts, reports: Reports) -> Option<SessionUpdate> {
        let began = self.began(run)?;
        let started = started(run)?;
        let end = end(run, reports);
        let lifecycle = &run.lifecycle;
        let session_end = run.session.as_ref().and_then(|session| session.ended);
        let at = [lifecycle.crash_time, session_end, lifecycle.exit_time, lifecycle.last_alive];
        let at = at.into_iter().flatten().find(|at| *at >= started);
        let errors = run.session.as_ref().map_or(0, |session| session.errors).max(reports.all as u64);
        Some(SessionUpdate {
            seq: 1,
            init: false,
            timestamp: time_text(at.unwrap_or(started)),
            duration: at.map(|at| Duration::from_nanos(at.0 - started.0).as_secs_f64()),
            status: end.status().to_owned(),
            errors: if end == End::Crashed { errors.max(1) } else { errors },
            abnormal_mechanism: match end {
                End::Abnormal(mechanism) => mechanism.map(ToOwned::to_owned),
                _ => None,
            },
            ..began
        })
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
    /// It is put into an envelope: nothing more can become part of it.
    #[serde(default)]
    attempted: bool,
}

/// Updates that wait to be sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PendingSessions {
    updates: Vec<Waiting>,
}

impl PendingSessions {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.updates.len()
    }

    /// One more. A session whose beginning is still here, and was never sent, gets one update that says both.
    pub fn push(&mut self, update: SessionUpdate) {
        if self.updates.iter().any(|waiting| waiting.update.sid == update.sid && waiting.update.seq >= update.seq) {
            return;
        }
        let begun = self.take(&update.sid);
        let init = update.init || begun.is_some_and(|begun| begun.init);
        self.updates.push(Waiting { update: SessionUpdate { init, ..update }, attempted: false });
    }

    /// The update of that session that was never sent, taken out.
    pub fn take(&mut self, sid: &str) -> Option<SessionUpdate> {
        let place = self.updates.iter().position(|waiting| waiting.update.sid == sid && !waiting.attempted)?;
        Some(self.updates.remove(place).update)
    }

    /// Takes the oldest away until `most` are left; says how many went.
    pub fn limit(&mut self, most: usize) -> usize {
        let excess = self.updates.len().saturating_sub(most);
        self.updates.drain(..excess);
        excess
    }

    /// The updates for the next envelope. They count as attempted from here on, and stay until they are
    /// [removed](Self::remove) or [put back](Self::put_back). `held` are sessions whose next update waits elsewhere.
    pub fn next_batch(&mut self, mode: SessionMode, held: impl Fn(&str) -> bool) -> Vec<SessionUpdate> {
        let most = match mode {
            SessionMode::Off => 0,
            SessionMode::Individual | SessionMode::CrashesOnly => MAX_IN_ENVELOPE,
            SessionMode::Aggregated => usize::MAX,
        };
        // In counts, those that go on are sent when they have ended.
        let ready = |waiting: &&mut Waiting| {
            !waiting.attempted
                && !held(&waiting.update.sid)
                && (mode == SessionMode::Individual || waiting.update.status != "ok")
        };
        let mut batch = Vec::new();
        for waiting in self.updates.iter_mut().filter(ready).take(most) {
            waiting.attempted = true;
            batch.push(waiting.update.clone());
        }
        batch
    }

    /// Takes out what was sent.
    pub fn remove(&mut self, sent: &[SessionUpdate]) {
        self.updates.retain(|waiting| !is_in(sent, &waiting.update));
    }

    /// These have surely not arrived: they may go again.
    pub fn put_back(&mut self, batch: &[SessionUpdate]) {
        for waiting in self.updates.iter_mut().filter(|waiting| is_in(batch, &waiting.update)) {
            waiting.attempted = false;
        }
    }

    /// After a process was killed while it sent, or the network failed: takes out what has been attempted, if it `left`, or else gives
    /// it free. A server's counters take an update as often as it comes, so it may come once at most, unless it counts nothing
    /// ([`SessionUpdate::may_repeat`]). Says how many are lost.
    pub fn settle(&mut self, left: bool, mode: SessionMode) -> usize {
        let before = self.updates.len();
        let may_repeat = |update: &SessionUpdate| mode != SessionMode::Aggregated && update.may_repeat();
        self.updates.retain(|waiting| !(left && waiting.attempted) || may_repeat(&waiting.update));
        self.updates.iter_mut().for_each(|waiting| waiting.attempted = false);
        before - self.updates.len()
    }
}

fn is_in(batch: &[SessionUpdate], update: &SessionUpdate) -> bool {
    batch.iter().any(|one| (&one.sid, one.seq) == (&update.sid, update.seq))
}

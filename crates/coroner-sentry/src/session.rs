//! Sessions, by which a server works out release health: how many runs of a release crash.
//!
//! A session is one run. A server counts it when an update says `init`, and counts it as crashed or abnormal when an update says
//! so; no more may come after one that ends it (develop.sentry.dev, *Sessions*).

use std::collections::BTreeMap;

use coroner_report::model::{Id, RunFacts, Timestamp};
use coroner_report::run_state::{ExitKind, Foreground};
use serde::{Deserialize, Serialize};

use crate::envelope::{Item, item_type};
use crate::event::{environment, release, time_text};

/// Most updates in one envelope that servers take.
pub const MOST_IN_ENVELOPE: usize = 100;

/// How sessions are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionMode {
    /// None.
    Off,
    /// Each run by itself: that it began, and how it ended. For apps that people use.
    #[default]
    Individual,
    /// Runs are counted by the minute in which they began, once they have ended. For programs that start often and end soon.
    Aggregated,
}

/// An update of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionUpdate {
    /// The session: a UUID, that of the run.
    pub sid: String,
    /// Who: an anonymous identifier of the installation, or the user's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub did: Option<String>,
    /// Which update it is, so that one that comes twice can be told: 0 the first, then greater.
    pub seq: u64,
    /// Whether it is the first, by which the session is counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub init: bool,
    /// When the session began.
    pub started: String,
    /// When this came to be.
    pub timestamp: String,
    /// Seconds from its beginning to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<f64>,
    /// `ok`, `exited`, `crashed` or `abnormal`.
    pub status: String,
    /// Errors in it; at least 1 if it crashed.
    pub errors: u64,
    /// `anr_foreground` or `anr_background`, where it ended abnormally because it hung.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abnormal_mechanism: Option<String>,
    /// What it was a session of.
    pub attrs: SessionAttributes,
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

/// How a session ended.
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
        // A debugger ends what it debugs by SIGKILL, as a matter of course.
        _ if lifecycle.debugged => End::Exited,
        _ => End::Abnormal(lifecycle.hang_since.map(|_| hang)),
    }
}

/// Tells the sessions of runs: what they are told of is what a run state holds.
#[derive(Clone, Debug, Default)]
pub struct SessionTeller {
    /// The release, instead of the one that the run state says.
    pub release: Option<String>,
    /// The environment, in the same way.
    pub environment: Option<String>,
}

impl SessionTeller {
    /// The first update of the session of a run that goes on. `None` without a release or a session.
    pub fn began(&self, run: &RunFacts) -> Option<SessionUpdate> {
        let started = started(run)?;
        Some(SessionUpdate {
            sid: hyphenated(run.session.as_ref().map_or(run.run_id, |session| session.id)),
            did: run.app.installation_id.clone(),
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

    /// The last update of the session of a run that has ended and left these reports. Whether the first was told is not known
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
            duration: at.map(|at| (at.0 - started.0) as f64 / 1e9),
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

fn started(run: &RunFacts) -> Option<Timestamp> {
    run.session.as_ref().map(|session| session.started).or(run.app.installed)
}

/// An id as a UUID with hyphens, as `sid` is written.
fn hyphenated(id: Id) -> String {
    let digits = id.to_string();
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}

/// An update that waits to be sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting {
    update: SessionUpdate,
    /// It may have been sent: the process was killed before there was an answer, or the network failed. It can go out again as
    /// it is, which a server can tell by its sequence, but not as part of another.
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

    /// The beginning of that session, if it is still here and was never sent.
    pub fn unsent(&self, sid: &str) -> Option<&SessionUpdate> {
        let unsent = self.updates.iter().find(|waiting| waiting.update.sid == sid && !waiting.attempted);
        unsent.map(|waiting| &waiting.update)
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
    /// [removed](Self::remove). `held` are sessions whose next update waits elsewhere.
    pub fn next_batch(&mut self, mode: SessionMode, held: impl Fn(&str) -> bool) -> Vec<SessionUpdate> {
        let most = match mode {
            SessionMode::Off => 0,
            SessionMode::Individual => MOST_IN_ENVELOPE,
            SessionMode::Aggregated => usize::MAX,
        };
        // What was attempted goes as it is. In counts, those that go on are told when they have ended.
        let ready = |waiting: &&mut Waiting| {
            (waiting.attempted || !held(&waiting.update.sid))
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
        let is_sent =
            |update: &SessionUpdate| sent.iter().any(|sent| (&sent.sid, sent.seq) == (&update.sid, update.seq));
        self.updates.retain(|waiting| !is_sent(&waiting.update));
    }
}

/// The items of a batch.
pub fn items(batch: &[SessionUpdate], mode: SessionMode) -> Vec<Item> {
    match mode {
        SessionMode::Aggregated => aggregate(batch),
        _ => batch.iter().map(|update| Item::json(item_type::SESSION, update)).collect(),
    }
}

/// Counts of sessions that began in one minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregate {
    /// The minute.
    pub started: String,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub did: Option<String>,
    /// Those that ended well.
    #[serde(default)]
    pub exited: u64,
    /// Those that ended well and had errors.
    #[serde(default)]
    pub errored: u64,
    /// Those that crashed.
    #[serde(default)]
    pub crashed: u64,
    /// Those that ended otherwise.
    #[serde(default)]
    pub abnormal: u64,
}

/// One `sessions` item for each release and environment.
fn aggregate(updates: &[SessionUpdate]) -> Vec<Item> {
    let mut counts: BTreeMap<&SessionAttributes, BTreeMap<(String, Option<String>), Aggregate>> = BTreeMap::new();
    for update in updates {
        // `2026-11-21T01:02:03.4Z` to the minute.
        let minute = update.started.get(..16).unwrap_or(&update.started);
        let started = format!("{minute}:00Z");
        let key = (started.clone(), update.did.clone());
        let count = counts.entry(&update.attrs).or_default().entry(key).or_default();
        count.started = started;
        count.did.clone_from(&update.did);
        match (update.status.as_str(), update.errors) {
            ("crashed", _) => count.crashed += 1,
            ("abnormal", _) => count.abnormal += 1,
            (_, 0) => count.exited += 1,
            _ => count.errored += 1,
        }
    }
    let item = |(attrs, counts): (&SessionAttributes, BTreeMap<_, Aggregate>)| {
        let aggregates: Vec<Aggregate> = counts.into_values().collect();
        Item::json(item_type::SESSIONS, &serde_json::json!({ "aggregates": aggregates, "attrs": attrs }))
    };
    counts.into_iter().map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_report::model::{Lifecycle, Session};
    use coroner_report::wire::Monitor;

    const SECOND: u64 = 1_000_000_000;

    fn run(lifecycle: Lifecycle, errors: u64) -> RunFacts {
        let session = Session { id: Id([0xab; 16]), started: Timestamp(100 * SECOND), errors, ..Session::default() };
        let mut run = RunFacts { lifecycle, session: Some(session), ..RunFacts::default() };
        run.app.release = Some("app@1".into());
        run
    }

    fn ended(lifecycle: Lifecycle, errors: u64, crashes: usize) -> (String, u64, Option<f64>, Option<String>) {
        ended_with(lifecycle, errors, Reports { all: crashes, crashes })
    }

    fn ended_with(lifecycle: Lifecycle, errors: u64, reports: Reports) -> (String, u64, Option<f64>, Option<String>) {
        let update = SessionTeller::default().ended(&run(lifecycle, errors), reports).unwrap();
        (update.status, update.errors, update.duration, update.abnormal_mechanism)
    }

    #[test]
    fn each_end_has_its_status() {
        let at = |exit| Lifecycle { exit, exit_time: Some(Timestamp(130 * SECOND)), ..Lifecycle::default() };
        let ok = |status: &str, errors| (status.to_owned(), errors, Some(30.0), None);
        assert_eq!(ended(at(ExitKind::CLEAN), 0, 0), ok("exited", 0));
        assert_eq!(ended(at(ExitKind::CLEAN), 2, 0), ok("exited", 2));
        assert_eq!(ended(at(ExitKind::SIGTERM), 0, 0), ok("exited", 0));
        assert_eq!(ended(at(ExitKind::CLEAN), 0, 1), ok("crashed", 1));
        let survived = Lifecycle { crashed_by: Some(Monitor::SIGNAL), ..at(ExitKind::CLEAN) };
        assert_eq!(ended(survived, 0, 1), ok("exited", 1));
        let crashed = Lifecycle { crash_time: Some(Timestamp(103 * SECOND)), ..at(ExitKind::CRASHED) };
        assert_eq!(ended(crashed, 0, 0), ("crashed".into(), 1, Some(3.0), None));
        let killed = Lifecycle::default();
        assert_eq!(ended(killed.clone(), 0, 0), ("abnormal".into(), 0, None, None));
        assert_eq!(ended(Lifecycle { debugged: true, ..killed.clone() }, 0, 0).0, "exited");
        let hung = Lifecycle { hang_since: Some(Timestamp(1)), ..killed };
        assert_eq!(ended(hung.clone(), 0, 0).3.as_deref(), Some("anr_foreground"));
        let one = Reports { all: 1, crashes: 0 };
        assert_eq!(ended_with(hung.clone(), 0, one), ("abnormal".into(), 1, None, Some("anr_foreground".into())));
        assert_eq!(ended_with(at(ExitKind::CLEAN), 0, one), ok("exited", 1), "handled, or a hang that ended");
        let hung = Lifecycle { foreground: Foreground::BACKGROUND, ..hung };
        assert_eq!(ended(hung, 0, 0).3.as_deref(), Some("anr_background"));
    }

    #[test]
    fn there_is_no_session_without_a_release() {
        let run = RunFacts { app: Default::default(), ..run(Lifecycle::default(), 0) };
        assert_eq!(SessionTeller::default().began(&run), None);
        let teller = SessionTeller { release: Some("r@1".into()), environment: None };
        assert_eq!(teller.began(&run).unwrap().attrs.release, "r@1");
    }

    #[test]
    fn one_that_began_and_ended_offline_is_one_update() {
        let teller = SessionTeller::default();
        let facts = run(Lifecycle { exit: ExitKind::CLEAN, ..Lifecycle::default() }, 0);
        let (began, ended) = (teller.began(&facts).unwrap(), teller.ended(&facts, Reports::default()).unwrap());
        assert_eq!(began.sid, "abababab-abab-abab-abab-abababababab");
        let mut pending = PendingSessions::default();
        let free = |_: &str| false;
        for update in [&began, &ended, &ended, &began] {
            pending.push(update.clone());
        }
        assert!(pending.next_batch(SessionMode::Individual, |_| true).is_empty(), "an envelope holds it");
        let batch = pending.next_batch(SessionMode::Individual, free);
        assert!(batch.len() == 1 && batch[0].init && batch[0].status == "exited");
        pending.remove(&batch);
        assert!(pending.is_empty());

        // Once the beginning has been sent, or may have been, the end comes by itself, and it is sent again as it was.
        pending.push(began.clone());
        let first = pending.next_batch(SessionMode::Individual, free);
        pending.push(ended.clone());
        let both = pending.next_batch(SessionMode::Individual, free);
        assert_eq!((&both[..1], both[1].init, both.len()), (&first[..], false, 2));
        pending.remove(&first);
        assert_eq!(pending.len(), 1);
        pending.remove(&both);

        // One that is told by an event's envelope is taken out.
        pending.push(began);
        assert!(pending.unsent(&ended.sid).is_some() && pending.take(&ended.sid).is_some() && pending.is_empty());
    }

    #[test]
    fn counts_are_by_minute_and_release() {
        let teller = SessionTeller::default();
        let mut pending = PendingSessions::default();
        let clean = Lifecycle { exit: ExitKind::CLEAN, ..Lifecycle::default() };
        let crashed = Lifecycle { exit: ExitKind::CRASHED, ..Lifecycle::default() };
        let runs = [(clean.clone(), 0), (clean.clone(), 3), (crashed, 0), (Lifecycle::default(), 0)];
        for (number, (lifecycle, errors)) in runs.into_iter().enumerate() {
            let mut facts = run(lifecycle, errors);
            facts.session.as_mut().unwrap().id = Id([number as u8; 16]);
            pending.push(teller.ended(&facts, Reports::default()).unwrap());
        }
        let mut living = run(clean, 0);
        living.session.as_mut().unwrap().id = Id([9; 16]);
        pending.push(teller.began(&living).unwrap());

        let batch = pending.next_batch(SessionMode::Aggregated, |_| false);
        let items = items(&batch, SessionMode::Aggregated);
        pending.remove(&batch);
        assert_eq!((items.len(), batch.len(), pending.len()), (1, 4, 1));
        let json: serde_json::Value = serde_json::from_slice(&items[0].payload).unwrap();
        let counts = &json["aggregates"][0];
        assert_eq!(counts["started"], "1970-01-01T00:01:00Z");
        for (what, count) in [("exited", 1), ("errored", 1), ("crashed", 1), ("abnormal", 1)] {
            assert_eq!(counts[what], count, "{json}");
        }
        assert_eq!(json["attrs"]["release"], "app@1");
    }
}

//! The last session update of a run, by how the run ended.

use coroner_report::model::{AppFacts, Id, RunFacts, Timestamp};
use coroner_report::model::{Lifecycle, Session, Termination, TerminationReason};
use coroner_report::run_state::{ExitKind, Foreground};
use coroner_report::wire::Monitor;
use coroner_sentry::protocol::SessionStatus;
use coroner_sentry::session::{PendingSessions, Reports, SessionMode, SessionTeller, items};

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
    (update.status.to_string(), update.errors, update.duration, update.extensions.abnormal_mechanism)
}

#[test]
fn each_kind_of_end_has_its_status() {
    let at = |exit| Lifecycle { exit, exit_time: Some(Timestamp(130 * SECOND)), ..Lifecycle::default() };
    let ok = |status: &str, errors| (status.to_owned(), errors, Some(30.0), None);
    assert_eq!(ended(at(ExitKind::CLEAN), 0, 0), ok("exited", 0));
    assert_eq!(ended(at(ExitKind::CLEAN), 2, 0), ok("exited", 2));
    assert_eq!(ended(at(ExitKind::SIGTERM), 0, 0), ok("exited", 0));
    let by_signal = |signal| Lifecycle { exit_signal: Some(signal), ..at(ExitKind::SIGNAL) };
    assert_eq!(ended(by_signal(2), 0, 0), ok("exited", 0), "Ctrl-C");
    assert_ne!(ended(by_signal(14), 0, 0), ok("exited", 0), "an alarm that nobody deals with");
    assert_eq!(ended(at(ExitKind::CLEAN), 0, 1), ok("crashed", 1));
    let survived = Lifecycle { crashed_by: Some(Monitor::SIGNAL), ..at(ExitKind::CLEAN) };
    assert_eq!(ended(survived, 0, 1), ok("exited", 1));
    let crashed = Lifecycle { crash_time: Some(Timestamp(103 * SECOND)), ..at(ExitKind::CRASHED) };
    assert_eq!(ended(crashed, 0, 0), ("crashed".into(), 1, Some(3.0), None));
    let killed = Lifecycle::default();
    assert_eq!(ended(killed.clone(), 0, 0), ("abnormal".into(), 0, None, None));
    assert_eq!(ended(Lifecycle { debugged: true, ..killed.clone() }, 0, 0).0, "exited");
    let found = Termination { reason: TerminationReason::Replaced, ..Termination::default() };
    let replaced = RunFacts { termination: Some(found), ..run(killed.clone(), 0) };
    assert_eq!(SessionTeller::default().ended(&replaced, Reports::default()).unwrap().status, SessionStatus::Exited);
    let hung = Lifecycle { hang_since: Some(Timestamp(1)), ..killed };
    assert_eq!(ended(hung.clone(), 0, 0).3.as_deref(), Some("anr_foreground"));
    let one = Reports { all: 1, crashes: 0 };
    assert_eq!(ended_with(hung.clone(), 0, one), ("abnormal".into(), 1, None, Some("anr_foreground".into())));
    assert_eq!(ended_with(at(ExitKind::CLEAN), 0, one), ok("exited", 1), "handled, or a hang that ended");
    let hung = Lifecycle { foreground: Foreground::BACKGROUND, ..hung };
    assert_eq!(ended(hung, 0, 0).3.as_deref(), Some("anr_background"));
}

#[test]
fn a_run_without_a_release_has_no_session() {
    let run = RunFacts { app: AppFacts::default(), ..run(Lifecycle::default(), 0) };
    assert_eq!(SessionTeller::default().began(&run), None);
    let teller = SessionTeller { release: Some("r@1".into()), ..SessionTeller::default() };
    assert_eq!(teller.began(&run).unwrap().attributes.release, "r@1");
}

#[test]
fn a_session_that_began_and_ended_offline_is_one_update() {
    let teller = SessionTeller::default();
    let facts = run(Lifecycle { exit: ExitKind::CLEAN, ..Lifecycle::default() }, 0);
    let (began, ended) = (teller.began(&facts).unwrap(), teller.ended(&facts, Reports::default()).unwrap());
    assert_eq!(began.sid(), "abababab-abab-abab-abab-abababababab");
    let mut pending = PendingSessions::default();
    let free = |_: &str| false;
    for update in [&began, &ended, &ended, &began] {
        pending.push(update.clone());
    }
    assert!(pending.next_batch(SessionMode::Individual, |_| true).is_empty(), "an envelope holds it");
    let batch = pending.next_batch(SessionMode::Individual, free);
    assert!(batch.len() == 1 && batch[0].init && batch[0].status == SessionStatus::Exited);
    pending.remove(&batch);
    assert!(pending.is_empty());

    // Once the beginning is on its way, the end comes by itself.
    pending.push(began.clone());
    assert_eq!(pending.next_batch(SessionMode::Individual, free).len(), 1);
    pending.push(ended.clone());
    let last = pending.next_batch(SessionMode::Individual, free);
    assert_eq!((last.len(), last[0].init), (1, false));
    // What did not leave goes again; of what left, nobody knows.
    let mode = SessionMode::Individual;
    assert_eq!((pending.settle(false, mode), pending.next_batch(mode, free).len()), (0, 2));
    // A server counts a beginning, a crash and an end without a trace each time that it comes, but
    // not that a session exited.
    assert_eq!((pending.settle(true, mode), pending.len()), (1, 1));
    assert_eq!(pending.next_batch(mode, free), std::slice::from_ref(&ended));
    assert_eq!((pending.settle(true, SessionMode::Aggregated), pending.len()), (1, 0));

    // One that is sent by an event's envelope is taken out.
    pending.push(began);
    assert!(pending.take(ended.session_id).is_some() && pending.is_empty());
}

#[test]
fn aggregates_are_by_minute_and_release() {
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

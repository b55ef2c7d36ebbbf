//! The client's handling of answers and of their absence. The transport returns the answers that a
//! test sets.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_report::model::{
    Crash, Frame, Header, Id, Lifecycle, Report, RunFacts, Session, Signal, Thread, Timestamp,
};
use coroner_report::run_state::ExitKind;
use coroner_report::wire::Monitor;
use coroner_sentry::envelope::Envelope;
use coroner_sentry::outbox::{OutboxLimits, State};
use coroner_sentry::session::{Reports, SessionMode};
use coroner_sentry::transport::{Answer, SendError, Transport};
use coroner_sentry::{Captured, Client, Options};
use serde_json::Value;

type Script = dyn FnMut(&Envelope) -> Result<Answer, SendError> + Send;

type Sent = (Envelope, Result<u16, SendError>);

/// Remembers what it was given.
#[derive(Clone)]
struct Fake {
    /// With the status of the answer.
    sent: Arc<Mutex<Vec<Sent>>>,
    script: Arc<Mutex<Box<Script>>>,
}

impl Fake {
    fn new(script: impl FnMut(&Envelope) -> Result<Answer, SendError> + Send + 'static) -> Self {
        Self { sent: Arc::default(), script: Arc::new(Mutex::new(Box::new(script))) }
    }

    fn sent(&self) -> Vec<Envelope> {
        self.sent.lock().unwrap().iter().map(|(envelope, _)| envelope.clone()).collect()
    }

    /// Those of which the server has said that it took them.
    fn accepted(&self) -> Vec<Envelope> {
        let sent = self.sent.lock().unwrap();
        sent.iter().filter(|(_, answer)| *answer == Ok(200)).map(|(envelope, _)| envelope.clone()).collect()
    }

    /// Those that the server took, though the answer may have been lost.
    fn arrived(&self) -> Vec<Envelope> {
        let sent = self.sent.lock().unwrap();
        let arrived = |answer: &Result<u16, SendError>| matches!(answer, Ok(200 | KILLED) | Err(SendError::Network(_)));
        sent.iter().filter(|(_, answer)| arrived(answer)).map(|(envelope, _)| envelope.clone()).collect()
    }

    fn items(&self, kind: &str) -> Vec<Value> {
        let sent = self.sent();
        let items = sent.iter().flat_map(|envelope| &envelope.items).filter(|item| item.kind() == kind);
        items.map(|item| serde_json::from_slice(&item.payload).unwrap()).collect()
    }
}

/// The status of an answer that never comes, because the process is killed before it.
const KILLED: u16 = 0;

impl Transport for Fake {
    fn send(&self, envelope: &[u8]) -> Result<Answer, SendError> {
        self.send_noting(envelope, &mut || Ok(()))
    }

    fn send_noting(
        &self,
        envelope: &[u8],
        leaves: &mut dyn FnMut() -> std::io::Result<()>,
    ) -> Result<Answer, SendError> {
        let envelope = Envelope::parse(envelope).unwrap();
        let answer = (self.script.lock().unwrap())(&envelope);
        // As over HTTP: what finds no connection does not leave.
        if !matches!(answer, Err(SendError::Offline(_))) {
            leaves().map_err(|error| SendError::Offline(error.to_string()))?;
        }
        let noted = answer.as_ref().map(|answer| answer.status).map_err(Clone::clone);
        self.sent.lock().unwrap().push((envelope, noted.clone()));
        assert_ne!(noted, Ok(KILLED), "killed between request and answer");
        answer
    }
}

fn ok() -> Result<Answer, SendError> {
    status(200)
}

#[allow(clippy::unnecessary_wraps)]
fn status(status: u16) -> Result<Answer, SendError> {
    Ok(Answer { status, ..Answer::default() })
}

fn options() -> Options {
    Options {
        pause: Duration::ZERO,
        retry_after: Duration::ZERO,
        ..Options::new("http://key@localhost/1".parse().unwrap())
    }
}

fn client(directory: &Path, options: Options, fake: &Fake) -> Client {
    Client::with_transport(options, directory, Box::new(fake.clone())).unwrap()
}

fn report(event: u8) -> Report {
    let thread = Thread { tid: 7, crashed: true, frames: vec![Frame::default(); 3], ..Thread::default() };
    let now = Timestamp::from(SystemTime::now());
    let crash =
        Crash { time: now, monitor: Monitor::SIGNAL, tid: 7, signal: Some(Signal::default()), ..Crash::default() };
    let session = Session { id: Id([event; 16]), started: now, ..Session::default() };
    let lifecycle = Lifecycle { exit: ExitKind::CRASHED, ..Lifecycle::default() };
    let mut run = RunFacts { session: Some(session), lifecycle, ..RunFacts::default() };
    run.app.release = Some("app@1".into());
    Report {
        header: Header { event_id: Id([event; 16]), ..Header::default() },
        crash: Some(crash),
        threads: vec![thread],
        run: Some(run),
        ..Report::default()
    }
}

const LONG: Duration = Duration::from_secs(30);

/// Returns the attempts of the only envelope in the queue, and the seconds that it has to wait.
fn waits(client: &Client) -> (u32, i64) {
    let queue = client.outbox().queue().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    (queue[0].tries, queue[0].not_before as i64 - now as i64)
}

#[test]
fn a_failing_network_is_retried_with_growing_waits() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| Err(SendError::Network("reset".into())));
    let minutes = |tries: u32| 15 * 60 * (1_i64 << tries.min(5));
    let options = Options { retry_after: Duration::from_mins(15), ..options() };
    let client = client(folder.path(), options, &fake);
    assert_eq!(client.capture(&report(1)).unwrap(), Captured::Kept);
    assert_eq!(client.capture(&report(1)).unwrap(), Captured::Known);
    assert!(!client.flush(LONG));
    // It is not due, and is not tried however often one asks.
    assert!(!client.flush(LONG));
    assert_eq!(fake.items("event").len(), 1);
    for tries in 0..10 {
        let (after, wait) = waits(&client);
        assert!(after == tries + 1 && (minutes(tries) - 5..=minutes(tries)).contains(&wait), "{after} {wait}");
        let entry = client.outbox().queue().unwrap().remove(0);
        client.outbox().put_off(&entry, tries + 1, UNIX_EPOCH).unwrap();
        assert!(!client.flush(LONG));
    }
    // The server is there for another: what waits for eight hours goes along.
    *fake.script.lock().unwrap() = Box::new(|_| ok());
    client.capture(&report(2)).unwrap();
    assert!(client.flush(LONG));
    assert_eq!(fake.items("event").len(), 12 + 1);
}

/// Simulates a day: makes all times in the names of the queue a day older.
fn age_by_a_day(outbox: &Path) {
    const DAY: u64 = 24 * 60 * 60;
    for file in std::fs::read_dir(outbox.join("queue")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut parts: Vec<&str> = name.splitn(4, '-').collect();
        let made = format!("{:013}", parts[0].parse::<u64>().unwrap() - DAY * 1000);
        let not_before = parts[2].parse::<u64>().unwrap().saturating_sub(DAY).to_string();
        (parts[0], parts[2]) = (&made, &not_before);
        match std::fs::rename(&path, path.with_file_name(parts.join("-"))) {
            // A thread of an earlier launch, woken on a slow machine, has just put it off.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            renamed => renamed.unwrap(),
        }
    }
}

#[test]
fn forty_days_of_network_failures_lose_nothing() {
    let offline = |why: &str| Err(SendError::Offline(why.to_owned()));
    // What `tests/it/https.rs` and the transport's own tests show that the network's failures are.
    let failures: [Box<dyn Fn() -> Result<Answer, SendError> + Send>; 6] = [
        Box::new(move || offline("failed to lookup address information")),
        Box::new(move || offline("network is unreachable")),
        Box::new(|| status(302)),
        Box::new(move || offline("the certificate is not valid yet")),
        Box::new(move || offline("CONNECT failed")),
        Box::new(|| Err(SendError::Network("connection reset by peer".into()))),
    ];
    let folder = tempfile::tempdir().unwrap();
    let day = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let today = Arc::clone(&day);
    // Ten days in which it fails in one way, and then one in which it does not, or it fails in all
    // ways by turns.
    let fake = Fake::new(move |_| match today.load(std::sync::atomic::Ordering::SeqCst) {
        40.. => ok(),
        day if day % 14 == 13 => ok(),
        day if day < 28 => failures[day / 5]().clone(),
        day => failures[day % 6](),
    });
    for number in 1..=41_u8 {
        // Each day is a launch of its own, which has the crash of the one before to tell.
        let options = Options { retry_after: Duration::from_mins(15), ..options() };
        let client = client(folder.path(), options, &fake);
        client.capture(&report(number)).unwrap();
        let printed = client.flush(LONG);
        assert_eq!(printed, client.outbox().queue().unwrap().is_empty(), "day {number}");
        assert_eq!(client.outbox().given_up().unwrap(), [], "day {number}");
        drop(client);
        age_by_a_day(folder.path());
        day.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
    let accepted = fake.accepted();
    let mut ids: Vec<String> =
        accepted.iter().filter_map(|envelope| envelope.event_id().map(ToOwned::to_owned)).collect();
    ids.sort();
    assert_eq!(ids, (1..=41_u8).map(|number| format!("{number:02x}").repeat(16)).collect::<Vec<_>>(), "each once");
}

/// Returns the counts of a server: it counts each update with `init`, whatever its `seq`.
fn count(envelopes: &[Envelope]) -> (usize, usize) {
    let items = envelopes.iter().flat_map(|envelope| &envelope.items).filter(|item| item.kind() == "session");
    let updates: Vec<Value> = items.map(|item| serde_json::from_slice(&item.payload).unwrap()).collect();
    let number = |what: &dyn Fn(&Value) -> bool| updates.iter().filter(|update| what(update)).count();
    (number(&|update| update["init"] == true), number(&|update| update["status"] == "crashed"))
}

/// The server is asked for sessions at once.
fn ask_again(state: &mut State) {
    state.rate_limits.clear();
    state.sessions_after = 0;
}

#[test]
fn each_of_500_runs_is_counted_once_whatever_happens_to_requests_and_answers() {
    // In memory where that can be had: it writes thousands of small files.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    // What arrived counts, whether the answer came back or not: the process is killed, or the
    // connection lost, in between.
    let mut number = 0;
    let fake = Fake::new(move |_| {
        number += 1;
        match number % 11 {
            2 => Err(SendError::Network("the answer is lost".into())),
            4 => status(KILLED),
            6 => Err(SendError::Offline("no network".into())),
            8 => status(302),
            10 => status(429),
            _ => ok(),
        }
    });
    let mut crashes = 0;
    for number in 0..500_u32 {
        let client = client(folder.path(), Options { tries: 1, ..options() }, &fake);
        // A server that is asked too often is asked again when the limit is over; here that is at
        // once.
        client.outbox().update(ask_again).unwrap();
        let id = Id(std::array::from_fn(|place| (number >> (8 * (place % 4))) as u8 ^ 0x5a));
        let mut crashed = report(1);
        crashed.header.event_id = id;
        let run = crashed.run.as_mut().unwrap();
        run.session.as_mut().unwrap().id = id;
        client.run_began(&RunFacts { lifecycle: Lifecycle::default(), ..run.clone() }).unwrap();
        if number % 3 == 0 {
            client.flush(LONG);
        }
        let next = self::client(folder.path(), options(), &fake);
        if number % 2 == 0 {
            crashes += 1;
            next.capture(&crashed).unwrap();
            next.run_ended(crashed.run.as_ref().unwrap(), Reports { all: 1, crashes: 1 }).unwrap();
        } else {
            let lifecycle = Lifecycle { exit: ExitKind::CLEAN, ..Lifecycle::default() };
            next.run_ended(&RunFacts { lifecycle, ..crashed.run.unwrap() }, Reports::default()).unwrap();
        }
        next.flush(LONG);
    }
    *fake.script.lock().unwrap() = Box::new(|_| ok());
    let last = client(folder.path(), options(), &fake);
    last.outbox().update(ask_again).unwrap();
    for _ in 0..3 {
        last.flush(LONG);
    }
    assert_eq!(last.outbox().queue().unwrap(), []);
    assert_eq!(count(&fake.arrived()), (500, crashes));
}

#[test]
fn a_crashed_sessions_errors_include_those_it_survived() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| ok());
    let client = client(folder.path(), options(), &fake);
    let mut crashed = report(1);
    // Its own process has delivered them.
    crashed.run.as_mut().unwrap().lifecycle.reports_delivered = 3;
    client.capture(&crashed).unwrap();
    assert!(client.flush(LONG));
    assert_eq!(fake.items("session")[0]["errors"], 4);
}

/// Gives this answer to what comes first, which has left, and is then the other.
struct AtFirst(Mutex<Option<Result<Answer, SendError>>>, Fake);

impl Transport for AtFirst {
    fn send(&self, envelope: &[u8]) -> Result<Answer, SendError> {
        self.1.send(envelope)
    }

    fn send_noting(
        &self,
        envelope: &[u8],
        leaves: &mut dyn FnMut() -> std::io::Result<()>,
    ) -> Result<Answer, SendError> {
        let Some(first) = self.0.lock().unwrap().take() else { return self.1.send_noting(envelope, leaves) };
        leaves().unwrap();
        first
    }
}

#[test]
fn sessions_are_sent_again_after_a_proxy_or_server_error() {
    for first in [Err(SendError::Offline("the proxy answered with status 407".into())), status(500), status(503)] {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::new(|_| ok());
        let transport = Box::new(AtFirst(Mutex::new(Some(first.clone())), fake.clone()));
        let options = Options { retry_after: Duration::from_mins(15), ..options() };
        let client = Client::with_transport(options, folder.path(), transport).unwrap();
        client.run_began(report(1).run.as_ref().unwrap()).unwrap();
        client.flush(LONG);
        // A server that fails is not asked again at once, whatever a proxy does; one that takes an
        // event has its sessions, too.
        client.flush(LONG);
        let asked_again = first.is_err();
        assert_eq!(count(&fake.accepted()), (usize::from(asked_again), 0), "{first:?}");
        client.capture(&report(2)).unwrap();
        client.flush(LONG);
        assert_eq!(count(&fake.accepted()).0, 2, "{first:?}");
        assert!(client.outbox().read_state().discarded.is_empty(), "{first:?}");
    }
}

#[test]
fn sessions_wait_for_a_failing_server_as_long_as_events() {
    for status in [401, 403, 404, 500, 503] {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::new(move |_| Ok(Answer { status, retry_after: Some("3600".to_owned()), ..Answer::default() }));
        for launch in 0..3_u64 {
            let client = client(folder.path(), options(), &fake);
            client.run_began(report(1).run.as_ref().unwrap()).unwrap();
            client.flush(LONG);
            assert_eq!(fake.sent().len(), 1, "{status}: launch {launch}");
            let until = UNIX_EPOCH + Duration::from_secs(client.outbox().read_state().sessions_after);
            let wait = until.duration_since(SystemTime::now()).unwrap();
            assert!((Duration::from_mins(58)..Duration::from_mins(61)).contains(&wait), "{status}: {wait:?}");
        }
        let client = client(folder.path(), options(), &fake);
        client
            .outbox()
            .update(|state| {
                state.sessions_after = 1;
                state.rate_limits.clear();
            })
            .unwrap();
        client.flush(LONG);
        assert_eq!(fake.sent().len(), 2, "{status}: when it is over");
    }
}

#[test]
fn a_server_that_denies_access_is_asked_once_per_round() {
    let folder = tempfile::tempdir().unwrap();
    let options = || Options { retry_after: Duration::from_hours(1), ..options() };
    let offline = client(folder.path(), options(), &Fake::new(|_| Err(SendError::Offline("no such host".into()))));
    for event in 1..=9 {
        offline.capture(&report(event)).unwrap();
    }
    offline.flush(LONG);
    for entry in offline.outbox().queue().unwrap() {
        offline.outbox().put_off(&entry, 0, UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    }
    drop(offline);
    let fake = Fake::new(|_| status(403));
    let client = client(folder.path(), options(), &fake);
    client.flush(LONG);
    // Long enough for more, if they came as soon as they are due.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((fake.items("event").len(), client.outbox().queue().unwrap().len()), (1, 9));
}

#[test]
fn a_limit_on_attachments_does_not_remove_the_event() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log.txt");
    std::fs::write(&file, vec![b'x'; 100 << 10]).unwrap();
    let fake = Fake::new(|_| ok());
    let limits = OutboxLimits { bytes: 64 << 10, ..OutboxLimits::default() };
    let options = Options { attachments: vec![file], limits, ..options() };
    let client = client(&folder.path().join("outbox"), options, &fake);
    client.capture(&report(1)).unwrap();
    assert!(client.flush(LONG));
    let events = fake.items("event");
    assert_eq!((events.len(), &events[0]["contexts"]["coroner"]["attachments_left_out"][0]), (1, &"log.txt".into()));
}

#[test]
fn a_sessions_end_is_sent_even_if_its_event_is_lost() {
    // Rejected by the server, or removed to meet the limits.
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|envelope| if envelope.event_id().is_some() { status(400) } else { ok() });
    let client = client(folder.path(), options(), &fake);
    client.capture(&report(1)).unwrap();
    client.flush(LONG);
    client.flush(LONG);
    assert_eq!(count(&fake.accepted()), (1, 1), "refused");

    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| Err(SendError::Offline("no network".into())));
    let mut small = options();
    small.limits.number = 2;
    let client = self::client(folder.path(), small, &fake);
    for event in 1..=9 {
        client.capture(&report(event)).unwrap();
        client.flush(LONG);
    }
    *fake.script.lock().unwrap() = Box::new(|_| ok());
    client.flush(LONG);
    client.flush(LONG);
    assert_eq!(count(&fake.accepted()), (9, 9), "an outbox that was full");
}

#[test]
fn rate_limits_apply_to_attachments_and_sessions_in_an_envelope() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "attached").unwrap();
    let mut first = true;
    let fake = Fake::new(move |_| {
        let limits = std::mem::take(&mut first).then(|| "60:attachment;session:key".to_owned());
        Ok(Answer { status: 200, rate_limits: limits, ..Answer::default() })
    });
    let options = Options { attachments: vec![file], ..options() };
    let client = client(&folder.path().join("outbox"), options, &fake);
    for event in 1..=2 {
        client.capture(&report(event)).unwrap();
        client.flush(LONG);
    }
    let kinds = |envelope: &Envelope| envelope.items.iter().map(|item| item.kind().to_owned()).collect::<Vec<_>>();
    let sent = fake.sent();
    assert_eq!(kinds(&sent[0]), ["event", "attachment", "session"]);
    assert_eq!(kinds(&sent[1])[..1], ["event"]);
    assert!(
        sent[1..].iter().all(|envelope| !kinds(envelope).iter().any(|kind| kind == "attachment" || kind == "session"))
    );
    // The file is counted, the session's end waits.
    client.outbox().update(|state| state.rate_limits.clear()).unwrap();
    client.flush(LONG);
    assert_eq!(count(&fake.accepted()), (2, 2));
    let reports = fake.items("client_report");
    assert!(reports.iter().any(|report| report.to_string().contains("ratelimit_backoff")), "{reports:?}");
}

#[test]
fn an_installation_keeps_its_id_until_the_user_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let did = |options: Options, event: u8| {
        let fake = Fake::new(|_| ok());
        let client = client(folder.path(), options, &fake);
        let mut report = report(event);
        report.run.as_mut().unwrap().user = Some(coroner_report::model::Value::Map(vec![("id".into(), "4711".into())]));
        client.capture(&report).unwrap();
        client.flush(LONG);
        fake.items("session").first().map(|update| update["did"].clone())
    };
    let first = did(options(), 1).unwrap();
    assert_eq!(first.as_str().map(str::len), Some(32));
    assert_eq!(did(options(), 2), Some(first.clone()));
    assert_eq!(did(Options { installation_id: false, ..options() }, 3), Some("4711".into()), "the user's");
    let fake = Fake::new(|_| ok());
    let asked = client(folder.path(), options(), &fake);
    asked.set_consent(false).unwrap();
    asked.set_consent(true).unwrap();
    // Its thread is not to send what the next client is given.
    asked.flush(LONG);
    let second = did(options(), 4).unwrap();
    assert!(second.as_str().map(str::len) == Some(32) && second != first);
}

#[test]
fn offline_and_portal_failures_do_not_count_as_attempts() {
    let answers: [fn() -> Result<Answer, SendError>; 2] =
        [|| Err(SendError::Offline("no such host".into())), || status(302)];
    for answer in answers {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::new(move |_| answer());
        let client = client(folder.path(), options(), &fake);
        for event in 1..=2 {
            client.capture(&report(event)).unwrap();
        }
        for _ in 0..10 {
            client.flush(LONG);
        }
        assert_eq!(client.outbox().queue().unwrap().len(), 2);
        assert!(client.outbox().queue().unwrap().iter().all(|entry| entry.tries == 0));
        assert!(
            fake.items("event").iter().all(|event| event["event_id"] == "01".repeat(16)),
            "one attempt is enough for all"
        );
    }
}

#[test]
fn a_dropped_event_is_counted_and_its_session_still_ends() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| ok());
    let hook = |event: coroner_sentry::event::Event| (event.id() != "02".repeat(16)).then_some(event);
    let options = Options { before_send: Some(Arc::new(hook)), sample_rate: 0.5, ..options() };
    let client = client(folder.path(), options, &fake);
    let captured = [1, 2, 0xff].map(|event| client.capture(&report(event)).unwrap());
    assert_eq!(captured, [Captured::Kept, Captured::Dropped, Captured::Sampled]);
    assert!(client.flush(LONG));
    assert_eq!(fake.items("event").len(), 1);
    let crashed = fake.items("session").iter().filter(|update| update["status"] == "crashed").count();
    assert_eq!(crashed, 3);
    // In one client report or in two, as the sending thread came to it: each is counted once.
    let counted = |fake: &Fake| {
        let reports = fake.items("client_report");
        let discarded = reports.iter().flat_map(|report| report["discarded_events"].as_array().unwrap());
        let mut reasons: Vec<_> = discarded.map(|one| (one["reason"].to_string(), one["quantity"].clone())).collect();
        reasons.sort_by(|a, b| a.0.cmp(&b.0));
        reasons
    };
    let once = ["\"before_send\"", "\"sample_rate\""].map(|reason| (reason.to_owned(), Value::from(1)));
    assert_eq!(counted(&fake), once);
    assert!(client.flush(LONG));
    assert_eq!(counted(&fake), once);
}

#[test]
fn rejected_events_are_set_aside_and_limits_hold() {
    let folder = tempfile::tempdir().unwrap();
    let mut answers = [400, 429, 200, 200, 200].into_iter();
    let fake = Fake::new(move |envelope| {
        let has_event = envelope.items.iter().any(|item| item.kind() == "event");
        let status = if has_event { answers.next().unwrap() } else { 200 };
        let limits = (status == 429).then(|| "3:error".to_owned());
        Ok(Answer { status, rate_limits: limits, ..Answer::default() })
    });
    let client = client(folder.path(), options(), &fake);
    for event in 1..=3 {
        client.capture(&report(event)).unwrap();
    }
    assert!(!client.flush(LONG));
    assert_eq!((client.outbox().given_up().unwrap().len(), client.outbox().queue().unwrap().len()), (1, 2));
    assert_eq!(fake.items("event").len(), 2, "the third was not sent into the limit");
    // The thread goes on by itself when the limit is over.
    let began = std::time::Instant::now();
    while !client.outbox().queue().unwrap().is_empty() {
        assert!(began.elapsed() < LONG, "the limit was of three seconds");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(client.flush(LONG));
    let ids: Vec<String> =
        fake.items("event").iter().map(|event| event["event_id"].as_str().unwrap()[..2].into()).collect();
    assert_eq!(ids, ["01", "02", "02", "03"]);
}

#[test]
fn an_event_rejected_as_too_large_is_shrunk_step_by_step() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| status(413));
    let client = client(folder.path(), options(), &fake);
    let mut large = report(1);
    large.threads.extend((100..140).map(|tid| Thread { tid, frames: vec![Frame::default(); 30], ..Thread::default() }));
    client.capture(&large).unwrap();
    client.flush(LONG);
    let sizes: Vec<usize> = fake
        .sent()
        .iter()
        .flat_map(|envelope| &envelope.items)
        .filter(|item| item.kind() == "event")
        .map(|item| item.payload.len())
        .collect();
    assert!(sizes.len() > 1 && sizes.is_sorted_by(|a, b| a > b), "{sizes:?}");
    assert_eq!(client.outbox().given_up().unwrap().len(), 1);
    let kept = client.outbox().given_up().unwrap();
    assert_eq!(kept[0].event_id, "01".repeat(16), "set aside as it was");
}

#[test]
fn an_outbox_full_for_weeks_stays_within_its_limits() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| Err(SendError::Offline("no such host".into())));
    let mut options = options();
    options.limits.number = 5;
    let client = client(folder.path(), options, &fake);
    for event in 1..=40 {
        client.capture(&report(event)).unwrap();
        client.flush(LONG);
    }
    let queue = client.outbox().queue().unwrap();
    assert_eq!(queue.len(), 5);
    assert_eq!(queue[4].event_id, "28".repeat(16), "the newest are kept");
    let counted = serde_json::to_value(client.outbox().read_state().discarded).unwrap();
    assert_eq!(counted["cache_overflow"]["error"], 35, "{counted}");
}

#[test]
fn attachments_that_are_too_large_or_not_files_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| ok());
    let (large, small, pipe) = (folder.path().join("large"), folder.path().join("small"), folder.path().join("pipe"));
    // Far larger than the limit, and than what it takes on the disk.
    std::fs::File::create(&large).unwrap().set_len(1 << 33).unwrap();
    std::fs::write(&small, "kept").unwrap();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let mut options = options();
    options.attachments = vec![large, small, pipe, "/dev/zero".into(), folder.path().join("none")];
    let client = client(&folder.path().join("outbox"), options, &fake);
    client.capture(&report(1)).unwrap();
    assert!(client.flush(LONG));
    let envelopes = fake.sent();
    let attached: Vec<&[u8]> = envelopes
        .iter()
        .flat_map(|envelope| &envelope.items)
        .filter(|item| item.kind() == "attachment")
        .map(|item| item.payload.as_slice())
        .collect();
    assert_eq!(attached, [b"kept"]);
    assert_eq!(fake.items("event")[0]["contexts"]["coroner"]["attachments_left_out"], serde_json::json!(["large"]));
}

#[test]
fn a_gateway_error_counts_as_a_network_failure() {
    for (not_now, sessions) in [(408, 1), (500, 1), (502, 0), (503, 1), (504, 0), (524, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let mut answers = 0;
        let fake = Fake::new(move |_| {
            answers += 1;
            // With what a server under load says: not before an hour is over, so not at the next
            // launch.
            let retry_after = (answers <= 2).then(|| "3600".to_owned());
            Ok(Answer { status: if answers <= 2 { not_now } else { 200 }, retry_after, ..Answer::default() })
        });
        let options = Options { sessions: SessionMode::CrashesOnly, ..options() };
        let client = client(folder.path(), options, &fake);
        client.capture(&report(1)).unwrap();
        assert!(!client.flush(LONG));
        let queue = client.outbox().queue().unwrap();
        assert!(client.outbox().given_up().unwrap().is_empty(), "{not_now} is not a rejection");
        assert_eq!((queue.len(), queue[0].tries), (1, 1), "{not_now}");
        assert!(queue[0].wait(SystemTime::now()).unwrap() > Duration::from_mins(58), "{not_now}");
        for _ in 0..2 {
            for entry in client.outbox().queue().unwrap() {
                client.outbox().put_off(&entry, entry.tries, UNIX_EPOCH + Duration::from_secs(1)).unwrap();
            }
            client.outbox().update(|state| state.rate_limits.clear()).unwrap();
            client.flush(LONG);
        }
        let arrived = fake.accepted();
        let kinds =
            |kind: &str| arrived.iter().flat_map(|envelope| &envelope.items).filter(|item| item.kind() == kind).count();
        // Of what stands before the server nobody knows whether it came through: a session may not
        // be counted twice.
        assert_eq!((kinds("event"), kinds("session")), (1, sessions), "{not_now}");
    }
}

#[test]
fn an_event_on_which_the_server_always_fails_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let bad = "01".repeat(16);
    let fake = Fake::new(move |envelope| status(if envelope.event_id() == Some(&bad) { 500 } else { 200 }));
    let client = client(folder.path(), options(), &fake);
    client.capture(&report(1)).unwrap();
    client.capture(&report(2)).unwrap();
    for _ in 0..20 {
        client.flush(LONG);
        for entry in client.outbox().queue().unwrap() {
            client.outbox().put_off(&entry, entry.tries, UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        }
    }
    assert!(client.outbox().queue().unwrap().is_empty());
    assert_eq!(client.outbox().given_up().unwrap().len(), 1);
    let events =
        |id: u8| fake.items("event").iter().filter(|event| event["event_id"] == format!("{id:02x}").repeat(16)).count();
    assert_eq!((events(1), events(2)), (1 + options().tries as usize, 1), "it keeps no other from its way");
}

#[test]
fn a_login_page_with_status_200_does_not_accept_the_event() {
    for page in ["<!DOCTYPE html><title>Log in to the hotel's network</title>", "\u{feff} <HTML><body>", "<html/>"] {
        let folder = tempfile::tempdir().unwrap();
        let mut answers = 0;
        let fake = Fake::new(move |_| {
            answers += 1;
            let body = if answers <= 2 { page.to_owned() } else { "{\"id\":\"1\"}".to_owned() };
            Ok(Answer { status: 200, body, ..Answer::default() })
        });
        let client = client(folder.path(), options(), &fake);
        client.capture(&report(1)).unwrap();
        assert!(!client.flush(LONG), "{page}");
        let queue = client.outbox().queue().unwrap();
        assert_eq!((queue.len(), queue[0].tries), (1, 0), "{page}");
        assert!(!queue[0].session.is_empty(), "nor the session");
        client.outbox().put_off(&queue[0], 0, UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        client.flush(LONG);
        client.flush(LONG);
        assert!(client.outbox().queue().unwrap().is_empty());
    }
}

#[test]
fn an_event_arrives_at_a_server_that_accepts_no_attachments() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|envelope| {
        status(if envelope.items.iter().any(|item| item.kind() == "attachment") { 413 } else { 200 })
    });
    let files = (0..40).map(|number| folder.path().join(format!("{number}.log")));
    let attachments: Vec<_> = files.inspect(|path| std::fs::write(path, "a line").unwrap()).collect();
    let client = client(&folder.path().join("outbox"), Options { attachments, ..options() }, &fake);
    client.capture(&report(1)).unwrap();
    assert!(client.flush(LONG));
    assert!(client.outbox().given_up().unwrap().is_empty());
    let reports = fake.items("client_report");
    let discarded = reports.iter().flat_map(|report| report["discarded_events"].as_array().unwrap());
    let counted: u64 = discarded
        .filter(|one| one["category"] == "attachment")
        .map(|one| one["quantity"].as_u64().unwrap())
        .max()
        .unwrap();
    assert_eq!(counted, 40);
}

#[test]
fn an_event_recorded_as_sent_is_not_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| ok());
    let client = client(folder.path(), Options { sessions: SessionMode::Off, ..options() }, &fake);
    // A process was killed between the note and the removal.
    let waits = Options { require_consent: true, sessions: SessionMode::Off, ..options() };
    let killed = Client::with_transport(waits, folder.path(), Box::new(fake.clone())).unwrap();
    killed.capture(&report(1)).unwrap();
    killed.flush(LONG);
    client.outbox().update(|state| state.note_done(&"01".repeat(16))).unwrap();
    assert!(client.flush(LONG));
    assert!(client.outbox().queue().unwrap().is_empty());
    assert!(fake.sent().is_empty());
}

#[test]
fn a_wrong_clock_discards_nothing() {
    const DAY: u64 = 24 * 60 * 60;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    // When it was made: at a boot without a clock's battery, a year ago, in a year.
    for (made, tried, expected) in [
        (100, false, 1),
        (100, true, 1),
        (now - 365 * DAY, false, 1),
        (now - 31 * DAY, true, 1),
        (now + 365 * DAY, true, 1),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::new(|_| ok());
        let client = client(folder.path(), options(), &fake);
        let envelope = Envelope::from_event(&coroner_sentry::event::Event::from_report(
            &report(1),
            &coroner_sentry::event::EventOptions::default(),
        ));
        client.outbox().push(&envelope, None, UNIX_EPOCH + Duration::from_secs(made)).unwrap();
        if tried {
            let entry = client.outbox().queue().unwrap().remove(0);
            client.outbox().put_off(&entry, 1, UNIX_EPOCH + Duration::from_secs(made + 10)).unwrap();
        }
        assert!(client.flush(LONG));
        assert_eq!(fake.items("event").len(), expected, "made at {made}, tried: {tried}");
    }
}

#[test]
fn an_event_with_the_id_of_an_ended_session_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| ok());
    let client = client(folder.path(), options(), &fake);
    // Of a crash that left only its record in the run state: its event id is the run's, and so is
    // the session's. At first the event could not be stored on a full disk, and the run's end was
    // recorded.
    let report = report(1);
    client.run_ended(report.run.as_ref().unwrap(), Reports { all: 1, crashes: 1 }).unwrap();
    assert!(client.flush(LONG));
    assert_eq!(client.capture(&report).unwrap(), Captured::Kept);
    assert!(client.flush(LONG));
    assert_eq!((fake.items("event").len(), fake.items("session").len()), (1, 1));
    assert_eq!(client.capture(&report).unwrap(), Captured::Known);
}

#[test]
fn a_report_is_queued_while_a_session_is_being_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (answer, answers) = std::sync::mpsc::channel::<()>();
    let fake = Fake::new(move |_| {
        let _ = answers.recv_timeout(LONG);
        ok()
    });
    let client = client(folder.path(), options(), &fake);
    // The session of this run is on its way, and stays so.
    client.run_began(report(9).run.as_ref().unwrap()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let began = std::time::Instant::now();
    assert_eq!(client.capture(&report(1)).unwrap(), Captured::Kept);
    assert!(began.elapsed() < Duration::from_secs(10), "it waited for the server");
    assert_eq!(client.outbox().queue().unwrap().len(), 1);
    drop(answer);
    assert!(client.flush(LONG));
}

#[test]
fn crashed_runs_beside_another_client_do_not_add_users() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| ok());
    let client = client(folder.path(), Options { sessions: SessionMode::CrashesOnly, ..options() }, &fake);
    client.capture(&report(1)).unwrap();
    assert!(client.flush(LONG));
    let sessions = fake.items("session");
    assert_eq!((sessions.len(), &sessions[0]["did"]), (1, &Value::Null), "{sessions:?}");
}

/// A server over whose answer, or connection, the user refuses.
#[derive(Clone)]
struct Refused {
    client: Arc<Mutex<Option<Client>>>,
    /// Whether the envelope has left by then.
    has_left: bool,
    answer: Result<u16, SendError>,
    left: Arc<Mutex<usize>>,
}

impl Transport for Refused {
    fn send(&self, _: &[u8]) -> Result<Answer, SendError> {
        unreachable!("that it leaves is noted");
    }

    fn send_noting(&self, _: &[u8], leaves: &mut dyn FnMut() -> std::io::Result<()>) -> Result<Answer, SendError> {
        let mut leave = || {
            leaves().map_err(|error| SendError::Offline(error.to_string()))?;
            *self.left.lock().unwrap() += 1;
            Ok(())
        };
        if self.has_left {
            leave()?;
        }
        self.client.lock().unwrap().as_ref().unwrap().set_consent(false).unwrap();
        if !self.has_left {
            leave()?;
        }
        let status = self.answer.clone()?;
        Ok(Answer { status, ..Answer::default() })
    }
}

#[test]
fn after_a_refusal_nothing_is_sent_or_kept() {
    let lost = Err(SendError::Network("reset".into()));
    for (has_left, answer) in [200, 400, 413, 429, 500, 503, 504]
        .map(Ok)
        .into_iter()
        .chain([lost])
        .flat_map(|answer| [true, false].map(|has_left| (has_left, answer.clone())))
    {
        let case = format!("{has_left} {answer:?}");
        let folder = tempfile::tempdir().unwrap();
        let server = Refused { client: Arc::default(), has_left, answer, left: Arc::default() };
        let mut here = server.client.lock().unwrap();
        let client = Client::with_transport(options(), folder.path(), Box::new(server.clone())).unwrap();
        for event in 1..4 {
            assert_eq!(client.capture(&report(event)).unwrap(), Captured::Kept);
        }
        client.run_began(report(8).run.as_ref().unwrap()).unwrap();
        *here = Some(client.clone());
        drop(here);
        assert!(client.flush(LONG), "{case}: nothing is left");
        assert_eq!(client.capture(&report(9)).unwrap(), Captured::Refused, "{case}");
        assert!(client.flush(LONG), "{case}");
        assert_eq!(*server.left.lock().unwrap(), usize::from(has_left), "{case}");
        let state = client.outbox().read_state();
        assert!(state.begun.is_empty() && state.installation.is_none(), "{case}: {state:?}");
        let printed = serde_json::to_value(&state).unwrap();
        for kept in ["sessions", "discarded"] {
            assert!(!printed[kept].to_string().contains(':'), "{case}: {printed}");
        }
        assert_eq!(client.outbox().given_up().unwrap(), [], "{case}");
        *server.client.lock().unwrap() = None;
    }
}

/// Sets when the files of the queue were changed last.
fn set_modified(outbox: &Path, time: SystemTime) {
    for file in std::fs::read_dir(outbox.join("queue")).unwrap() {
        std::fs::File::open(file.unwrap().path()).unwrap().set_modified(time).unwrap();
    }
}

#[test]
fn only_a_steady_clock_expires_events() {
    const MONTH: Duration = Duration::from_hours(31 * 24);
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| Err(SendError::Offline("no network".into())));
    let launch = || {
        let client = client(folder.path(), options(), &fake);
        client.flush(LONG);
        client.outbox().queue().unwrap().len()
    };
    let first = client(folder.path(), options(), &fake);
    first.capture(&report(1)).unwrap();
    assert!(!first.flush(LONG));
    drop(first);
    // The clock of the next launches is two months ahead, is set right, and leaps again.
    let month = |months: u32| (0..31 * months).for_each(|_| age_by_a_day(folder.path()));
    month(2);
    assert_eq!((launch(), launch()), (1, 1));
    let now = SystemTime::now();
    set_modified(folder.path(), now + MONTH);
    assert_eq!(launch(), 1, "it was first said by a clock that was more wrong");
    // Another month goes by.
    month(1);
    set_modified(folder.path(), now - MONTH);
    assert_eq!(launch(), 0, "it is tried once more, and removed");
    assert!(!client(folder.path(), options(), &fake).outbox().read_state().discarded.is_empty(), "it is counted");
}

#[test]
fn a_corrected_clock_does_not_expire_events() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| Err(SendError::Offline("no network".into())));
    let client = client(folder.path(), options(), &fake);
    client.capture(&report(1)).unwrap();
    assert!(!client.flush(LONG));
    let entry = client.outbox().queue().unwrap().remove(0);
    let limits = OutboxLimits::default();
    let made = UNIX_EPOCH + Duration::from_millis(entry.made_ms);
    let days = |days: u64| made + Duration::from_hours(days * 24);
    for day in [70, 1, 3650, 2, 40, 30, 5000, 3] {
        assert_eq!(client.outbox().enforce(&limits, days(day)).unwrap(), 0, "day {day}");
    }
    for (day, removed) in [(40, 0), (60, 0), (71, 1)] {
        assert_eq!(client.outbox().enforce(&limits, days(day)).unwrap(), removed, "day {day}");
    }
}

#[test]
fn nothing_is_sent_before_the_time_that_an_unavailable_server_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| Ok(Answer { status: 503, retry_after: Some("60".into()), ..Answer::default() }));
    let client = client(folder.path(), options(), &fake);
    for event in 1..4 {
        client.capture(&report(event)).unwrap();
        assert!(!client.flush(LONG));
    }
    assert_eq!(fake.sent().len(), 1);
}

#[test]
fn a_limit_of_feedback_does_not_delay_events() {
    let folder = tempfile::tempdir().unwrap();
    let limit = Some("3600:feedback:organization".to_owned());
    let fake = Fake::new(move |_| Ok(Answer { status: 200, rate_limits: limit.clone(), ..Answer::default() }));
    let client = client(folder.path(), options(), &fake);
    client.capture(&report(1)).unwrap();
    assert!(client.flush(LONG));
    let feedback = coroner_sentry::Feedback { message: "it broke".into(), ..coroner_sentry::Feedback::default() };
    assert!(client.feedback(&feedback).unwrap());
    assert!(!client.flush(LONG));
    client.capture(&report(2)).unwrap();
    assert!(!client.flush(LONG), "the feedback waits");
    assert_eq!((fake.items("event").len(), fake.items("feedback").len()), (2, 0));
    assert!(waits(&client).1 > 3000);
}

/// Options with a file of 300 KiB as attachment.
fn with_large_attachment(folder: &Path) -> Options {
    let file = folder.join("large.log");
    std::fs::write(&file, vec![b'x'; 300 << 10]).unwrap();
    Options { attachments: vec![file], client_reports: false, ..options() }
}

/// Makes all queued entries due.
fn make_due(client: &Client) {
    for entry in client.outbox().queue().unwrap() {
        client.outbox().put_off(&entry, entry.tries, UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    }
}

fn kinds(envelopes: &[Envelope]) -> Vec<String> {
    let kinds = envelopes.iter().map(|envelope| envelope.items.iter().map(|item| item.kind()).collect::<Vec<_>>());
    kinds.map(|kinds| kinds.join(" ")).collect()
}

#[test]
fn a_large_attachment_follows_its_event() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = true;
    let fake = Fake::new(move |_| if std::mem::take(&mut first) { status(500) } else { ok() });
    let options = Options { sessions: SessionMode::Off, ..with_large_attachment(folder.path()) };
    let client = client(&folder.path().join("outbox"), options, &fake);
    client.capture(&report(1)).unwrap();
    assert!(!client.flush(LONG));
    make_due(&client);
    assert!(client.flush(LONG));
    assert_eq!(kinds(&fake.sent()), ["event", "event", "attachment"]);
    let sent = fake.sent();
    assert_eq!(sent[1].event_id(), sent[2].event_id());
    assert_eq!(sent[2].items[0].payload.len(), 300 << 10);
    // Captured again, nothing is sent again.
    assert_eq!(client.capture(&report(1)).unwrap(), Captured::Known);
    assert!(client.flush(LONG));
    assert_eq!(fake.sent().len(), 3);
}

#[test]
fn an_attachment_of_a_refused_event_is_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| status(400));
    let options = Options { sessions: SessionMode::Off, ..with_large_attachment(folder.path()) };
    let client = client(&folder.path().join("outbox"), options, &fake);
    client.capture(&report(1)).unwrap();
    client.flush(LONG);
    make_due(&client);
    assert!(client.flush(LONG));
    assert_eq!(kinds(&fake.sent()), ["event"]);
}

#[test]
fn an_attachment_is_left_out_after_two_interrupted_attempts() {
    for kind in ["lost connection", "killed"] {
        let folder = tempfile::tempdir().unwrap();
        let is_attachment = |envelope: &Envelope| envelope.items[0].kind() == "attachment";
        let fake = Fake::new(move |envelope| match is_attachment(envelope) {
            false => ok(),
            true if kind == "killed" => status(KILLED),
            true => Err(SendError::Network("reset".into())),
        });
        for launch in 0..4 {
            let options = Options { sessions: SessionMode::Off, ..with_large_attachment(folder.path()) };
            let client = client(&folder.path().join("outbox"), options, &fake);
            if launch == 0 {
                client.capture(&report(1)).unwrap();
            }
            make_due(&client);
            client.flush(LONG);
        }
        assert_eq!(kinds(&fake.sent()), ["event", "attachment", "attachment"], "{kind}");
        let outbox = coroner_sentry::outbox::Outbox::open(&folder.path().join("outbox")).unwrap();
        assert!(outbox.queue().unwrap().is_empty(), "{kind}");
        let discarded = serde_json::to_value(&outbox.read_state().discarded).unwrap();
        assert_eq!(discarded["send_error"]["attachment"], 1, "{kind}");
    }
}

#[test]
fn an_event_without_a_user_has_the_installations_id() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| ok());
    let mut ids = Vec::new();
    for (event, installation_id) in [(1, true), (2, true), (3, false)] {
        let client = client(folder.path(), Options { installation_id, ..options() }, &fake);
        let mut report = report(event);
        if event == 2 {
            let user = vec![("id".into(), "ada".into())];
            report.run.as_mut().unwrap().user = Some(coroner_report::model::Value::Map(user));
        }
        client.capture(&report).unwrap();
        assert!(client.flush(LONG));
        ids.push(fake.items("event").pop().unwrap()["user"]["id"].clone());
    }
    let sessions = fake.items("session");
    assert!(ids[0].is_string() && ids[0] == sessions[0]["did"], "{ids:?} {sessions:?}");
    assert_eq!((&ids[1], &ids[2]), (&"ada".into(), &Value::Null));
}

/// Tries all orders of five steps of an app that asks about each crash: crash, delivery to the
/// outbox, yes and no.
#[test]
fn what_was_declined_is_never_sent_and_what_was_agreed_to_is_not_lost() {
    const STEPS: [&str; 4] = ["crash", "launch", "yes", "no"];
    let mut orders = 0;
    for order in 0..STEPS.len().pow(5) {
        let steps: Vec<&str> = (0..5_u32).map(|place| STEPS[order / STEPS.len().pow(place) % STEPS.len()]).collect();
        // Those that begin with a crash.
        if steps[0] != "crash" || steps[4] == "crash" {
            continue;
        }
        orders += 1;
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::new(|_| ok());
        let options = || Options { require_consent: true, sessions: SessionMode::Off, ..options() };
        let client = client(folder.path(), options(), &fake);
        // Reports in the store; those declined; the last answer.
        let (mut waiting, mut made, mut declined, mut agreed) = (Vec::new(), Vec::new(), Vec::new(), None);
        for (number, step) in steps.iter().copied().chain(["launch"]).enumerate() {
            match step {
                "crash" => {
                    let report = report(number as u8 + 1);
                    made.push(report.event_id().to_string());
                    waiting.push(report);
                }
                "launch" => {
                    for report in waiting.drain(..) {
                        client.capture(&report).unwrap();
                    }
                }
                _ => {
                    client.set_consent(step == "yes").unwrap();
                    if step == "no" {
                        let sent: Vec<_> = fake.sent().iter().map(|sent| sent.event_id().unwrap().to_owned()).collect();
                        declined.extend(made.iter().filter(|id| !sent.contains(id)).cloned());
                    }
                    agreed = Some(step == "yes");
                }
            }
            client.flush(LONG);
        }
        let sent: Vec<_> = fake.sent().iter().map(|sent| sent.event_id().unwrap().to_owned()).collect();
        for id in &made {
            let is_sent = sent.contains(id);
            if declined.contains(id) {
                assert!(!is_sent, "{steps:?}: {id} was declined");
            } else if agreed == Some(true) {
                assert!(is_sent, "{steps:?}: {id} was agreed to");
            } else if !is_sent {
                let queue = client.outbox().queue().unwrap();
                assert!(queue.iter().any(|entry| entry.event_id == *id), "{steps:?}: {id} waits for an answer");
            }
        }
    }
    assert!(orders >= 100, "{orders}");
}

/// A default event contains only what the page on privacy lists, on each system.
#[test]
fn no_memory_is_sent_by_default() {
    use coroner_report::model::{Attachment, Bytes, StackMemory};

    for monitor in [Monitor::SIGNAL, Monitor::MACH, Monitor::SEH] {
        for minidump in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let dump = folder.path().join("minidump.dmp");
            std::fs::write(&dump, b"MDMP with hunter2 in it").unwrap();
            let fake = Fake::new(|_| ok());
            let options = Options { minidump, sessions: SessionMode::Off, client_reports: false, ..options() };
            let client = client(&folder.path().join("outbox"), options, &fake);
            let mut report = report(1);
            report.crash.as_mut().unwrap().monitor = monitor;
            let bytes = Bytes(b"hunter2 on the stack".to_vec());
            report.stack_memory = vec![StackMemory { tid: 7, bytes, ..StackMemory::default() }];
            // Only Windows writes one.
            if monitor == Monitor::SEH {
                report.run.as_mut().unwrap().attachments = vec![Attachment {
                    name: "minidump.dmp".to_owned(),
                    path: dump.to_str().unwrap().to_owned(),
                    content_type: Some(Attachment::MINIDUMP.to_owned()),
                }];
            }
            client.capture(&report).unwrap();
            assert!(client.flush(LONG));
            let sent = fake.sent();
            let bytes = sent[0].to_bytes();
            let has_secret = bytes.windows(7).any(|window| window == b"hunter2");
            let hex: String = b"hunter2".iter().map(|byte| format!("{byte:02x}")).collect();
            let has_hex = String::from_utf8_lossy(&bytes).contains(&hex);
            assert!(!has_hex, "{monitor} {minidump}");
            let expected: &[&str] = if minidump { &["event attachment"] } else { &["event"] };
            if minidump {
                // A report of no known machine makes no minidump.
                assert!(monitor != Monitor::SEH || (has_secret && kinds(&sent) == expected), "{monitor}");
            } else {
                assert!(!has_secret && kinds(&sent) == expected, "{monitor}");
            }
        }
    }
}

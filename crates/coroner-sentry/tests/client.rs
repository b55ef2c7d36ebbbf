//! What a client does with answers, and with none. The transport is one that says what a test wants it to.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_report::model::{
    Crash, Frame, Header, Id, Lifecycle, Report, RunFacts, Session, Signal, Thread, Timestamp,
};
use coroner_report::run_state::ExitKind;
use coroner_report::wire::Monitor;
use coroner_sentry::envelope::Envelope;
use coroner_sentry::transport::{Answer, SendError, Transport};
use coroner_sentry::{Captured, Client, Options};
use serde_json::Value;

type Script = dyn FnMut(&Envelope) -> Result<Answer, SendError> + Send;

/// Remembers what it was given.
#[derive(Clone)]
struct Fake {
    sent: Arc<Mutex<Vec<Envelope>>>,
    script: Arc<Mutex<Box<Script>>>,
}

impl Fake {
    fn new(script: impl FnMut(&Envelope) -> Result<Answer, SendError> + Send + 'static) -> Self {
        Self { sent: Arc::default(), script: Arc::new(Mutex::new(Box::new(script))) }
    }

    fn sent(&self) -> Vec<Envelope> {
        self.sent.lock().unwrap().clone()
    }

    fn items(&self, kind: &str) -> Vec<Value> {
        let sent = self.sent();
        let items = sent.iter().flat_map(|envelope| &envelope.items).filter(|item| item.kind() == kind);
        items.map(|item| serde_json::from_slice(&item.payload).unwrap()).collect()
    }
}

impl Transport for Fake {
    fn send(&self, envelope: &[u8]) -> Result<Answer, SendError> {
        let envelope = Envelope::parse(envelope).unwrap();
        let answer = (self.script.lock().unwrap())(&envelope);
        self.sent.lock().unwrap().push(envelope);
        answer
    }
}

fn ok() -> Result<Answer, SendError> {
    status(200)
}

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

/// How often the one envelope in the queue was tried, and how many seconds it has to wait.
fn waits(client: &Client) -> (u32, i64) {
    let queue = client.outbox().queue().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    (queue[0].tries, queue[0].not_before as i64 - now as i64)
}

#[test]
fn the_network_is_tried_six_times_with_growing_waits() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| Err(SendError::Network("refused".into())));
    let minutes = |tries: u32| 15 * 60 * (1_i64 << tries);
    {
        let options = Options { retry_after: Duration::from_mins(15), ..options() };
        let client = client(folder.path(), options, &fake);
        assert_eq!(client.capture(&report(1)).unwrap(), Captured::Kept);
        assert_eq!(client.capture(&report(1)).unwrap(), Captured::Known);
        assert!(!client.flush(LONG));
        let (tries, wait) = waits(&client);
        assert!(tries == 1 && (minutes(0) - 5..=minutes(0)).contains(&wait), "{tries} {wait}");
        // It is not due, and is not tried however often one asks.
        assert!(!client.flush(LONG));
        assert_eq!(fake.items("event").len(), 1);
        for tries in 1..=4 {
            let entry = client.outbox().queue().unwrap().remove(0);
            client.outbox().put_off(&entry, tries, UNIX_EPOCH).unwrap();
            assert!(!client.flush(LONG));
            let (after, wait) = waits(&client);
            assert!(after == tries + 1 && (minutes(tries) - 5..=minutes(tries)).contains(&wait), "{after} {wait}");
        }
        let entry = client.outbox().queue().unwrap().remove(0);
        client.outbox().put_off(&entry, 5, UNIX_EPOCH).unwrap();
        assert!(client.flush(LONG), "there is nothing left to send");
    }
    assert_eq!(fake.items("event").len(), 6);
    let again = client(folder.path(), options(), &Fake::new(|_| ok()));
    assert_eq!((again.outbox().given_up().unwrap().len(), again.outbox().queue().unwrap().len()), (1, 0));
    let counted = serde_json::to_value(again.outbox().read_state().discarded).unwrap();
    assert_eq!(counted["network_error"]["error"], 1, "{counted}");
}

#[test]
fn without_a_connection_or_behind_a_portal_no_tries_are_lost() {
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
        assert!(fake.items("event").iter().all(|event| event["event_id"] == "01".repeat(16)), "one try tells of all");
    }
}

#[test]
fn what_is_not_sent_is_counted_and_its_session_still_ends() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(|_| ok());
    let hook = |event: coroner_sentry::event::Event| (event.event_id != "02".repeat(16)).then_some(event);
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
fn refusals_set_aside_and_limits_hold() {
    let folder = tempfile::tempdir().unwrap();
    let mut answers = [403, 429, 200, 200, 200].into_iter();
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
fn too_large_becomes_smaller_until_nothing_is_left() {
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
fn attachments_that_are_too_large_or_no_files_stay_behind() {
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

//! From a crash to a server that implements Sentry's protocol: real apps that crash and are started
//! again, and a server that fails in various ways.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use coroner_tests::server::{Reply, Request, Server};
use serde_json::Value;

struct App {
    folder: tempfile::TempDir,
}

impl App {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn spawn(&self, dsn: &str, words: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sentry_app"));
        command.arg(self.store()).arg(dsn).args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Runs the app and returns its output.
    fn run(&self, dsn: &str, words: &[&str]) -> String {
        let output = self.spawn(dsn, words).wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("installed after"), "{output:?}");
        text
    }

    /// Runs the app until it hangs, and kills it as a user would.
    fn hang(&self, dsn: &str, words: &[&str]) {
        let mut child = self.spawn(dsn, &[words, &["hang"]].concat());
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap() == "hangs"), "it ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Records, as a launch would, that the kernel killed the run that has just ended to free
    /// memory.
    fn note_out_of_memory(&self) {
        let found =
            r#"{"reason":"out_of_memory","certainty":"certain","evidence":["the kernel's log: Killed process"]}"#;
        for run in std::fs::read_dir(self.store().join("runs")).unwrap() {
            std::fs::write(run.unwrap().path().join("termination.json"), found).unwrap();
        }
    }

    /// Runs the app until it crashes; nothing is delivered yet.
    fn crash(&self, dsn: &str) {
        self.run(dsn, &["fault=null-store", "no-symbols"]);
    }

    fn files(&self, folder: &str) -> usize {
        std::fs::read_dir(self.store().join("sentry").join(folder)).map_or(0, Iterator::count)
    }
}

/// A DSN of a server that does not exist.
fn dead_dsn() -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("http://public:secret@127.0.0.1:{port}/7")
}

fn kinds(request: &Request) -> Vec<String> {
    let envelope = coroner_sentry::envelope::Envelope::parse(&request.body).unwrap();
    envelope.items.iter().map(|item| item.kind().to_owned()).collect()
}

fn has_event(request: &Request) -> bool {
    kinds(request).iter().any(|kind| kind == "event")
}

#[test]
fn a_crash_is_an_event_at_the_next_launch() {
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let app = App::new();
    let file = app.folder.path().join("notes.txt");
    std::fs::write(&file, b"attached").unwrap();
    app.run(&server.dsn(), &["fault=null-store"]);
    let said = app.run(&server.dsn(), &["flush=60", &format!("attach={}", file.display())]);
    assert!(said.contains("flushed: true"), "{said}");

    let requests = server.requests();
    let request = requests.iter().find(|request| has_event(request)).expect("an event came");
    assert_eq!(request.path, "/api/7/envelope/");
    assert_eq!(request.headers["content-type"], "application/x-sentry-envelope");
    assert_eq!(request.headers["content-encoding"], "gzip");
    assert_eq!(
        request.headers["x-sentry-auth"],
        concat!(
            "Sentry sentry_version=7, sentry_client=coroner.rust/",
            env!("CARGO_PKG_VERSION"),
            ", sentry_key=public, sentry_secret=secret"
        )
    );
    assert_eq!(kinds(request), ["event", "attachment", "session"]);
    assert!(String::from_utf8_lossy(&request.body).lines().next().unwrap().contains("\"sent_at\""));

    let event = &server.items("event")[0];
    let exception = &event["exception"]["values"][0];
    assert_eq!((&exception["type"], &exception["mechanism"]["type"]), (&"SIGSEGV".into(), &"signalhandler".into()));
    let frames = exception["stacktrace"]["frames"].as_array().unwrap();
    // Inlined functions follow their caller.
    let names: Vec<&str> = frames.iter().rev().take(4).filter_map(|frame| frame["function"].as_str()).collect();
    assert!(names.iter().any(|name| name.contains("null_store")), "{names:?}");
    assert_eq!(frames.last().unwrap()["in_app"], true);
    assert_eq!((&event["release"], &event["dist"]), (&"sentry-app@1.2.3".into(), &"4".into()));
    assert_eq!((&event["environment"], &event["tags"]["weather"]), (&"test".into(), &"rain".into()));
    assert_eq!((&event["user"]["id"], &event["extra"]["note"]), (&"4711".into(), &"shown".into()));
    assert_eq!(event["contexts"]["document"]["of"]["kind"], "letter");
    for context in ["device", "os", "app", "runtime"] {
        assert_eq!(event["contexts"][context]["type"], context);
    }
    assert_eq!(event["breadcrumbs"]["values"][0]["message"], "opened the document");
    let crashed: Vec<&Value> =
        event["threads"]["values"].as_array().unwrap().iter().filter(|thread| thread["crashed"] == true).collect();
    assert_eq!((crashed.len(), &crashed[0]["id"]), (1, &exception["thread_id"]));
    assert!(crashed[0].get("stacktrace").is_none(), "it is in the exception");
    let text = event.to_string();
    assert!(!text.contains("PATH=") && !text.contains("fault=null-store"), "no environment, no command line");

    // The start of the first run's session was sent by its own launch or is sent with its end; the
    // second's is sent.
    let sessions = server.sessions();
    let crashed = sessions.iter().filter(|update| update["status"] == "crashed").count();
    let begun = sessions.iter().filter(|update| update["init"] == true).count();
    assert_eq!((crashed, begun), (1, 2), "{sessions:?}");
    assert_eq!((app.files("queue"), app.files("given-up")), (0, 0));
}

#[test]
fn an_outage_loses_nothing_and_does_not_delay_the_launch() {
    let app = App::new();
    let dead = dead_dsn();
    for _ in 0..3 {
        // Crash later than two seconds after the start, so that no launch waits for the delivery.
        app.run(&dead, &["sleep=2100", "fault=null-store", "no-symbols", "retry=1", "tries=50"]);
    }
    let said = app.run(&dead, &["flush=10", "retry=1", "tries=50", "no-symbols"]);
    assert!(said.contains("flushed: false"), "{said}");
    let ms: u64 = said.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(ms < 1000, "install took {ms} ms");
    assert_eq!(app.files("queue"), 3);

    let port = dead.rsplit_once(':').unwrap().1.trim_end_matches("/7").parse().unwrap();
    let server = Server::start_at(port, |_, _| Reply::ok()).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    let said = app.run(&dead, &["flush=20", "retry=1", "tries=50", "no-symbols"]);
    assert!(said.contains("flushed: true"), "{said}");
    assert_eq!((server.events().len(), server.items("event").len()), (3, 3));
}

#[test]
fn a_rate_limit_survives_restarts_and_loses_nothing() {
    let limits = vec![("X-Sentry-Rate-Limits", "3:error;attachment:key, 86400:transaction".to_owned())];
    let server = Server::start(
        move |_, request| {
            if has_event(request) { Reply::Status(429, limits.clone()) } else { Reply::ok() }
        },
    )
    .unwrap();
    let app = App::new();
    app.crash(&server.dsn());
    app.crash(&server.dsn());
    app.run(&server.dsn(), &["flush=5", "no-symbols"]);
    app.run(&server.dsn(), &["flush=5", "no-symbols"]);
    let asked = server.requests().iter().filter(|request| has_event(request)).count();
    // The launches deliver too, so the limit may have ended once in between; but there is not one
    // request for each launch.
    assert!((1..=2).contains(&asked), "{asked} events were sent into a limit");
    assert_eq!(app.files("queue"), 2);
    assert!(!server.sessions().is_empty(), "sessions are not limited");

    server.answer(|_, _| Reply::ok());
    std::thread::sleep(Duration::from_millis(3500));
    app.run(&server.dsn(), &["flush=5", "no-symbols"]);
    assert_eq!((server.events().len(), server.items("event").len()), (2, 2));
    assert!(server.items("client_report").is_empty(), "the server has counted what it limited");
}

#[test]
fn an_oversized_event_is_shrunk() {
    let server =
        Server::start(|_, request| if request.body.len() > 30_000 { Reply::Status(413, vec![]) } else { Reply::ok() });
    let server = server.unwrap();
    let app = App::new();
    app.crash(&server.dsn());
    let file = app.folder.path().join("large.bin");
    std::fs::write(&file, vec![7; 50_000]).unwrap();
    app.run(&server.dsn(), &["flush=60", &format!("attach={}", file.display())]);
    assert_eq!((server.events().len(), app.files("queue"), app.files("given-up")), (1, 0, 0));
    let event = &server.items("event")[0];
    assert!(!event["exception"]["values"][0]["stacktrace"]["frames"].as_array().unwrap().is_empty());
    let reports = server.items("client_report");
    assert!(reports.iter().any(|report| report.to_string().contains("\"category\":\"attachment\"")), "{reports:?}");
}

#[test]
fn an_event_is_set_aside_until_the_key_is_valid() {
    let server = Server::start(|_, request| {
        if request.headers["x-sentry-auth"].contains("public") { Reply::Status(403, vec![]) } else { Reply::ok() }
    })
    .unwrap();
    let app = App::new();
    app.crash(&server.dsn());
    app.run(&server.dsn(), &["flush=1", "no-symbols", "retry=1"]);
    assert_eq!((server.events().len(), app.files("queue"), app.files("given-up")), (0, 1, 0));
    std::thread::sleep(Duration::from_millis(1100));
    app.run(&server.dsn(), &["flush=10", "no-symbols", "tries=0"]);
    assert_eq!((server.events().len(), app.files("queue"), app.files("given-up")), (0, 0, 1));
    let asked = server.requests().iter().filter(|request| has_event(request)).count();
    app.run(&server.dsn(), &["flush=10", "no-symbols"]);
    assert_eq!(
        server.requests().iter().filter(|request| has_event(request)).count(),
        asked,
        "the event is not sent again"
    );

    let right = server.dsn().replace("public", "right");
    app.run(&right, &["flush=10", "no-symbols"]);
    assert_eq!((server.events().len(), app.files("given-up")), (1, 0));
    assert!(server.items("client_report")[0].to_string().contains("send_error"), "the rejected event is counted");
}

#[test]
fn queued_events_are_sent_at_once_when_the_key_becomes_valid() {
    let server = Server::start(|_, request| {
        if request.headers["x-sentry-auth"].contains("public") { Reply::Status(403, vec![]) } else { Reply::ok() }
    })
    .unwrap();
    let app = App::new();
    app.crash(&server.dsn());
    // The next attempt would be in 15 minutes.
    app.run(&server.dsn(), &["flush=1", "no-symbols"]);
    assert_eq!((server.events().len(), app.files("queue")), (0, 1));
    app.run(&server.dsn().replace("public", "right"), &["flush=10", "no-symbols"]);
    assert_eq!((server.events().len(), app.files("queue")), (1, 0));
}

#[test]
fn hanging_and_faulty_servers_are_tried_again() {
    for bad in [Reply::Hang, Reply::Garbage, Reply::Close] {
        let reply = bad.clone();
        let server = Server::start(move |_, _| reply.clone()).unwrap();
        let app = App::new();
        app.run(&server.dsn(), &["sleep=2100", "fault=null-store", "no-symbols", "timeout=500", "retry=1", "tries=50"]);
        let begin = Instant::now();
        let said = app.run(&server.dsn(), &["timeout=500", "retry=1", "no-symbols", "flush=1"]);
        assert!(said.contains("flushed: false") && begin.elapsed() < Duration::from_secs(8), "{bad:?}: {said}");
        server.answer(|_, _| Reply::ok());
        std::thread::sleep(Duration::from_millis(1100));
        let said = app.run(&server.dsn(), &["retry=1", "no-symbols", "flush=20"]);
        assert!(said.contains("flushed: true"), "{bad:?}: {said}");
        assert_eq!(server.items("event").len(), 1, "{bad:?}");
    }
}

#[test]
fn an_app_killed_at_any_moment_of_sending_delivers_once() {
    const CRASHES: usize = 12;
    let server = Server::start(|number, _| Reply::Late(Duration::from_millis(number as u64 * 7 % 40))).unwrap();
    let app = App::new();
    for number in 0..CRASHES {
        app.run(&server.dsn(), &["fault=null-store", "no-symbols", "attempts=1000"]);
        // Then start launches that are killed during the delivery.
        for part in 0..2 {
            let mut child = app.spawn(
                &server.dsn(),
                &["no-symbols", "flush=10", "sleep=1000", "retry=1", "tries=50", "attempts=1000"],
            );
            std::thread::sleep(Duration::from_millis((number * 13 + part * 37) as u64 % 90));
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
    let deadline = Instant::now() + Duration::from_secs(40);
    while app.run(&server.dsn(), &["no-symbols", "flush=20", "retry=1", "tries=50", "attempts=1000"]).contains("false")
    {
        assert!(Instant::now() < deadline, "{} are still in the queue", app.files("queue"));
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(!app.store().join("broken").exists(), "no run was set aside");
    // A server recognizes a duplicate event by its id, and has each event once.
    assert_eq!(server.events().len(), CRASHES);
    assert_eq!((app.files("queue"), app.files("given-up")), (0, 0));
    let mut begun: BTreeMap<String, usize> = BTreeMap::new();
    for update in server.sessions().iter().filter(|update| update["init"] == true) {
        *begun.entry(update["sid"].to_string()).or_default() += 1;
    }
    assert!(begun.values().all(|count| *count == 1), "{begun:?}");
    let crashed = server.sessions().iter().filter(|update| update["status"] == "crashed").count();
    assert_eq!(crashed, CRASHES);
}

#[test]
fn a_crash_at_the_start_is_delivered_before_the_next() {
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let app = App::new();
    app.crash(&server.dsn());
    // It crashes again right after install; the first report is delivered by then.
    app.crash(&server.dsn());
    assert_eq!(server.events().len(), 1);

    // A server that does not answer delays one launch, by at most five seconds.
    server.answer(|_, _| Reply::Hang);
    let installed = |said: &str| said.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap();
    let first = installed(&app.run(&server.dsn(), &["no-symbols"]));
    assert!((4000..9000).contains(&first), "{first} ms");
    let second = installed(&app.run(&server.dsn(), &["no-symbols"]));
    assert!(second < 3000, "{second} ms");
}

#[test]
fn nothing_leaves_without_consent() {
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let app = App::new();
    app.crash(&server.dsn());
    // Runs that could have sent events if consent had been given. The crash above was one.
    let before = server.requests().len();
    let said = app.run(&server.dsn(), &["require-consent", "flush=2", "no-symbols"]);
    assert!(said.contains("flushed: false"), "{said}");
    assert_eq!((server.requests().len(), app.files("queue")), (before, 1));
    app.run(&server.dsn(), &["require-consent", "consent=true", "flush=10", "no-symbols"]);
    assert_eq!((server.events().len(), app.files("queue")), (1, 0));

    app.crash(&server.dsn());
    let before = server.requests().len();
    app.run(&server.dsn(), &["require-consent", "consent=false", "flush=2", "no-symbols"]);
    app.run(&server.dsn(), &["require-consent", "flush=2", "no-symbols"]);
    assert_eq!((server.requests().len(), app.files("queue")), (before, 0));
    assert_eq!(server.events().len(), 1);
}

#[test]
fn handled_errors_are_not_sent_without_consent() {
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let app = App::new();
    // The process itself delivers it a second later.
    let words = ["require-consent", "handled", "no-symbols", "linger=4000"];
    app.run(&server.dsn(), &words);
    assert_eq!((server.requests().len(), app.files("queue")), (0, 1), "it waits for consent");
    app.run(&server.dsn(), &[&words[..], &["consent=false"]].concat());
    // The earlier one is gone. The app asks for each report: this one waits for the next answer.
    assert_eq!((server.requests().len(), app.files("queue")), (0, 1), "there is none");
    app.run(&server.dsn(), &[&words[..], &["consent=true"]].concat());
    assert_eq!((server.events().len(), app.files("queue")), (2, 0), "and then there is");
}

/// Computes release health from updates as a server does: a session is counted by `init`, as
/// crashed or abnormal by an update with that status, and as errored once by its id.
fn health(updates: &[Value]) -> (usize, usize, usize, usize) {
    let count = |what: &dyn Fn(&Value) -> bool| updates.iter().filter(|update| what(update)).count();
    let errored: std::collections::BTreeSet<String> = updates
        .iter()
        .filter(|update| update["errors"].as_u64().is_some_and(|errors| errors > 0) || update["status"] == "abnormal")
        .map(|update| update["sid"].to_string())
        .collect();
    let status = |name: &'static str| move |update: &Value| update["status"] == name;
    (count(&|update| update["init"] == true), count(&status("crashed")), count(&status("abnormal")), errored.len())
}

#[test]
fn release_health_is_exact_over_100_runs() {
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let app = App::new();
    let dsn = server.dsn();
    // Half of the runs end while the server is unreachable.
    let dead = dsn.replace(&server.port().to_string(), "9");
    for number in 0..100 {
        let ending: &[&str] = match number % 5 {
            0 => &["fault=null-store", "no-symbols"],
            1 => &["kill", "no-symbols"],
            2 if number % 2 == 0 => &["errors=2", "no-symbols"],
            2 => &["stall", "watch=100", "no-symbols"],
            3 => &["hang", "watch=100", "no-symbols"],
            _ => &["no-symbols", "flush=5"],
        };
        let dsn = if number / 10 % 2 == 0 { &dsn } else { &dead };
        let words = [ending, &["retry=1", "tries=50"]].concat();
        if ending[0] == "hang" {
            app.hang(dsn, &words);
        } else {
            app.run(dsn, &words);
        }
    }
    let deadline = Instant::now() + Duration::from_secs(100);
    let mut launches = 1;
    while app.run(&dsn, &["no-symbols", "flush=20", "retry=1", "tries=50"]).contains("false") {
        assert!(Instant::now() < deadline, "{} are still in the queue", app.files("queue"));
        std::thread::sleep(Duration::from_secs(1));
        launches += 1;
    }
    let (begun, crashed, abnormal, errored) = health(&server.sessions());
    // The runs that check the queue count as begun.
    assert_eq!(
        (begun, crashed, abnormal, errored),
        (100 + launches, 20, 40, 80),
        "crashed, killed, hung and with errors 20 each"
    );
    let mechanisms: BTreeMap<String, usize> = server.sessions().iter().fold(BTreeMap::new(), |mut counts, update| {
        if let Some(mechanism) = update["abnormal_mechanism"].as_str() {
            *counts.entry(mechanism.to_owned()).or_default() += 1;
        }
        counts
    });
    assert_eq!(
        mechanisms,
        BTreeMap::from([("anr_foreground".to_owned(), 20)]),
        "those that hung, and not those killed"
    );
    // Count by id: a launch that is killed while it sends leaves an event that is sent again.
    let events: BTreeMap<String, Value> =
        server.items("event").into_iter().map(|event| (event["event_id"].to_string(), event)).collect();
    let kinds = events.values().fold(BTreeMap::new(), |mut counts: BTreeMap<String, usize>, event| {
        let exception = &event["exception"]["values"][0];
        *counts.entry(format!("{} {}", exception["type"], event["level"]).replace('"', "")).or_default() += 1;
        counts
    });
    let expected = [("SIGSEGV fatal", 20), ("Fatal App Hang fatal", 20), ("App Hanging error", 10)];
    assert_eq!(kinds, expected.map(|(kind, count)| (kind.to_owned(), count)).into());
}

#[test]
fn a_fatal_hang_ends_its_session_with_its_event() {
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let app = App::new();
    // The termination by the system is not reported in addition.
    app.hang(&server.dsn(), &["watch=100", "watchdog"]);
    app.run(&server.dsn(), &["flush=60", "watchdog"]);
    let events = server.items("event");
    let [event] = events.as_slice() else { panic!("{} events", events.len()) };
    let exception = &event["exception"]["values"][0];
    assert_eq!((&exception["type"], &exception["mechanism"]["type"]), (&"Fatal App Hang".into(), &"AppHang".into()));
    assert_eq!((&exception["mechanism"]["handled"], &event["level"]), (&false.into(), &"fatal".into()));
    let value = exception["value"].as_str().unwrap();
    assert!(value.starts_with("the app was terminated while not responding, after at least 0."), "{value}");
    let frames = exception["stacktrace"]["frames"].as_array().unwrap();
    assert!(frames.iter().any(|frame| frame["function"].as_str().is_some_and(|name| name.contains("wait_until"))));
    let requests = server.requests();
    assert_eq!(kinds(requests.iter().find(|request| has_event(request)).unwrap()), ["event", "session"]);
    let sessions = server.sessions();
    let ends: Vec<&Value> = sessions.iter().filter(|update| update["status"] == "abnormal").collect();
    let [end] = ends.as_slice() else { panic!("{sessions:?}") };
    assert_eq!(end["abnormal_mechanism"], "anr_foreground");
    assert!(end["duration"].as_f64().is_some(), "the run was alive at the last check");
}

#[test]
fn a_handled_exception_does_not_mark_the_session_as_crashed() {
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let app = App::new();
    app.run(&server.dsn(), &["handled", "no-symbols"]);
    app.run(&server.dsn(), &["flush=60", "no-symbols"]);
    assert_eq!(server.items("event")[0]["level"], "error");
    let sessions = server.sessions();
    let ended: Vec<(&str, u64)> = sessions
        .iter()
        .filter(|update| update["status"] != "ok")
        .map(|update| (update["status"].as_str().unwrap(), update["errors"].as_u64().unwrap()))
        .collect();
    assert_eq!(ended, [("exited", 1)]);
}

#[test]
fn an_end_without_a_trace_is_an_event_if_the_app_enables_it() {
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let app = App::new();
    let words = ["no-symbols", "watchdog"];
    app.run(&server.dsn(), &[&words[..], &["kill"]].concat());
    // An update explains an end; nothing else explains these.
    app.run(&server.dsn(), &[&words[..], &["flush=10", "kill", "version=1.2.2"]].concat());
    app.run(&server.dsn(), &[&words[..], &["flush=10"]].concat());
    app.run(&server.dsn(), &[&words[..], &["flush=10"]].concat());
    assert_eq!(server.events().len(), 0, "each launch after a kill was of another version");
    app.hang(&server.dsn(), &words);
    // Linux reports that no process was killed to free memory, so it was somebody's SIGKILL. An
    // earlier launch's record says otherwise.
    if cfg!(target_os = "linux") {
        app.note_out_of_memory();
    }
    for _ in 0..2 {
        app.run(&server.dsn(), &[&words[..], &["flush=10"]].concat());
    }
    let events = server.items("event");
    let [event] = events.as_slice() else { panic!("{} events", events.len()) };
    if cfg!(target_os = "linux") {
        let exception = &event["exception"]["values"][0];
        assert_eq!(exception["type"], "OutOfMemory");
        let value = exception["value"].as_str().unwrap();
        assert!(value.contains("was killed because memory ran out: the kernel's log"), "{value}");
    }
    let exception = &event["exception"]["values"][0];
    assert_eq!(exception["mechanism"]["type"], "watchdog_termination");
    assert_eq!((&event["level"], &event["release"]), (&"fatal".into(), &"sentry-app@1.2.3".into()));
    assert_eq!(event["tags"]["weather"], "rain");
    let sessions = server.sessions();
    let abnormal = sessions.iter().filter(|update| update["status"] == "abnormal").count();
    assert_eq!(abnormal, 3, "{sessions:?}");
    // The session's end is sent with its event.
    let accepted = server.accepted();
    let with_event = accepted.iter().find(|envelope| envelope.items.iter().any(|item| item.kind() == "event"));
    assert!(with_event.unwrap().items.iter().any(|item| item.kind() == "session"));
}

#[test]
fn a_minidump_is_attached_if_the_app_enables_it() {
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let app = App::new();
    app.run(&server.dsn(), &["fault=null-store", "stack=4096", "no-symbols"]);
    app.run(&server.dsn(), &["minidump", "flush=20", "no-symbols"]);
    let accepted = server.accepted();
    let minidumps: Vec<_> =
        accepted.iter().flat_map(|envelope| &envelope.items).filter(|item| item.is_minidump()).collect();
    let [minidump] = minidumps.as_slice() else { panic!("{} minidumps", minidumps.len()) };
    assert!(minidump.payload.starts_with(b"MDMP"));
    let id = server.events().pop_first().unwrap();
    assert_eq!(minidump.header["filename"], format!("{id}.dmp"));

    // There is none for an end that the system did not cause.
    app.run(&server.dsn(), &["watchdog", "kill", "no-symbols"]);
    app.note_out_of_memory();
    app.run(&server.dsn(), &["watchdog", "minidump", "flush=20", "no-symbols"]);
    assert_eq!(server.events().len(), 2);
    let accepted = server.accepted();
    assert_eq!(accepted.iter().flat_map(|envelope| &envelope.items).filter(|item| item.is_minidump()).count(), 1);
}

#[test]
fn runs_are_aggregated_if_the_app_enables_it() {
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let app = App::new();
    for ending in ["kill", "errors=1", "exit=3", "fault=null-store"] {
        app.run(&server.dsn(), &[ending, "aggregate", "no-symbols"]);
    }
    app.run(&server.dsn(), &["aggregate", "no-symbols", "flush=10"]);
    assert!(server.items("sessions").iter().all(|item| item["attrs"]["release"] == "sentry-app@1.2.3"));
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for aggregate in server.items("sessions").iter().flat_map(|item| item["aggregates"].as_array().cloned().unwrap()) {
        for kind in ["exited", "errored", "crashed", "abnormal"] {
            *counts.entry(kind.to_owned()).or_default() += aggregate[kind].as_u64().unwrap_or(0);
        }
    }
    // A crash's session is sent with its event, not aggregated.
    let crashed = server.sessions().iter().filter(|update| update["status"] == "crashed").count();
    assert_eq!((counts["exited"], counts["errored"], counts["abnormal"], crashed), (1, 1, 1, 1), "{counts:?}");
}

//! `coroner send` and `coroner convert`, with an accepting or rejecting server.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use coroner_test_otlp_collector::Server as Collector;
use coroner_tests::server::{Reply, Server};

use crate::terminal;

struct Bench {
    folder: tempfile::TempDir,
}

#[derive(Debug)]
struct CommandOutput {
    code: Option<i32>,
    out: Vec<u8>,
    err: String,
}

impl CommandOutput {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

impl Bench {
    /// Creates a store with one report.
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        let demo = bench.run(None, &["demo"]);
        assert_eq!(demo.code, Some(0), "{demo:?}");
        bench
    }

    fn run(&self, dsn: Option<&str>, arguments: &[&str]) -> CommandOutput {
        let output = self.command(dsn, arguments).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        CommandOutput { code: output.status.code(), out: output.stdout, err }
    }

    fn command(&self, dsn: Option<&str>, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coroner"));
        command.args(arguments).env("CORONER_STORE", self.folder.path().join("store")).env_remove("SENTRY_DSN");
        command.current_dir(self.folder.path()).env("HOME", self.folder.path()).env_remove("XDG_CACHE_HOME");
        // Don't query a server for debug files.
        command.env_remove("DEBUGINFOD_URLS");
        if let Some(dsn) = dsn {
            command.env("SENTRY_DSN", dsn);
        }
        command
    }

    /// Runs it with a terminal as its standard error, whose output goes into `shown` immediately.
    fn run_on_terminal(&self, dsn: &str, arguments: &[&str], shown: &Mutex<String>) -> CommandOutput {
        let output = terminal::run(self.command(Some(dsn), arguments), shown);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        CommandOutput { code: output.status.code(), out: output.stdout, err }
    }
}

#[test]
fn a_stores_reports_are_sent_with_attachments() {
    let bench = Bench::new();
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    std::fs::write(bench.folder.path().join("notes.txt"), "attached").unwrap();
    let more = ["--attach", "notes.txt", "--minidump", "--release", "paint@2"];
    let result = bench.run(Some(&server.dsn()), &[&["send"][..], &more].concat());
    assert_eq!(result.code, Some(0), "{result:?}");
    let id = server.events().pop_first().expect("it came");
    assert_eq!(result.text(), format!("sent {id}\n"));
    let event = &server.items("event")[0];
    assert_eq!((&event["release"], &event["exception"]["values"][0]["type"]), (&"paint@2".into(), &"SIGSEGV".into()));
    let accepted = server.accepted();
    let items = &accepted[0].items;
    assert!(items.iter().any(|item| item.is_minidump() && item.payload.starts_with(b"MDMP")));
    assert!(items.iter().any(|item| item.payload == b"attached"));

    // An endless file can't be attached.
    let result = bench.run(Some(&server.dsn()), &["send", "--attach", "/dev/zero"]);
    assert!(result.code == Some(1) && result.err.contains("not a regular file"), "{result:?}");

    // One invalid report among others: the others are sent, and the result mentions it.
    std::fs::write(bench.folder.path().join("noise"), [0x9f; 500]).unwrap();
    let result = bench.run(None, &["send", "--dsn", &server.dsn(), "noise", &id[..6]]);
    assert_eq!(result.code, Some(1), "{result:?}");
    assert!(result.err.contains("can't send 1 of 2 reports") && result.text().contains(&id), "{result:?}");
}

#[test]
fn a_stores_reports_are_sent_to_a_collector() {
    let bench = Bench::new();
    let server = Collector::start(Vec::new());
    let list: serde_json::Value = serde_json::from_slice(&bench.run(None, &["list", "--format", "json"]).out).unwrap();
    let id = list[0]["event_id"].as_str().unwrap();
    let mut command = bench.command(None, &["send", "--otlp", &server.url, "--environment", "desk"]);
    let output = command.env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=of%20mine").output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(0), format!("sent {id}\n").into_bytes()));
    let request = &server.requests()[0];
    assert!(request.head.starts_with("POST /v1/logs ") && request.head.contains("of mine"), "{}", request.head);
    let (record, attributes) = (request.record(), request.attributes());
    assert_eq!((&record.event_name[..], &attributes["log.record.uid"]), ("app.crash", &id.into()));
    assert_eq!(attributes["exception.type"], "SIGSEGV");
    assert_eq!(request.resource()["deployment.environment.name"], "desk");

    // Options only for Sentry are rejected, and an invalid answer is reported.
    let result = bench.run(None, &["send", "--otlp", &server.url, "--minidump"]);
    assert!(result.code == Some(2) && result.err.contains("--minidump"), "{result:?}");
    let gone = bench.run(None, &["send", "--otlp", "http://127.0.0.1:9"]);
    assert!(gone.code == Some(1) && gone.err.contains("can't reach the server"), "{gone:?}");
    let wrong = bench.run(None, &["send", "--otlp", "no address"]);
    assert!(wrong.code == Some(1) && wrong.err.contains("HOST:4318"), "{wrong:?}");
}

#[test]
fn send_progress_is_shown_only_on_a_terminal() {
    let bench = Bench::new();
    bench.run(None, &["demo", "abort"]);
    let shown = Arc::new(Mutex::new(String::new()));
    let seen = Arc::clone(&shown);
    // There is output before the first report has been sent.
    let server = Server::start(move |_, _| {
        let until = Instant::now() + Duration::from_secs(20);
        while !seen.lock().unwrap().contains("0/2") {
            if Instant::now() > until {
                return Reply::Status(500, vec![]);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Reply::ok()
    });
    let server = server.unwrap();
    let result = bench.run_on_terminal(&server.dsn(), &["send"], &shown);
    assert_eq!((result.code, result.text().lines().count()), (Some(0), 2), "{result:?}");
    assert!(result.err.contains("sending reports"), "{result:?}");
    // The progress display is removed: the last line is empty.
    assert!(result.err.ends_with("\r\u{1b}[2K") || result.err.trim_end().ends_with("\u{1b}[2K"), "{:?}", result.err);
    let result = bench.run(Some(&server.dsn()), &["send"]);
    assert_eq!((result.code, result.err.as_str()), (Some(0), ""));
    // A failure's message is not overwritten.
    server.answer(|_, _| Reply::Status(403, vec![]));
    let result = bench.run_on_terminal(&server.dsn(), &["send"], &Mutex::default());
    assert!(result.code == Some(1) && result.err.contains("check that the DSN's key"), "{result:?}");
}

#[test]
fn send_errors_give_advice_and_hide_the_key() {
    let bench = Bench::new();
    let server = Server::start(|_, _| Reply::Status(403, vec![])).unwrap();
    let gone = server.dsn().replace(&server.port().to_string(), "9");
    for (dsn, code, what) in [
        (Some(server.dsn()), 1, "check that the DSN's key"),
        (Some(gone), 1, "can't reach the server"),
        (Some("http://public:secret@/none".to_owned()), 1, "expected https://KEY@HOST/PROJECT"),
        (None, 2, "--dsn"),
    ] {
        let result = bench.run(dsn.as_deref(), &["send"]);
        assert!(result.code == Some(code) && result.err.contains(what), "{result:?}");
        assert!(!result.err.contains("secret") && result.out.is_empty(), "{result:?}");
    }
    server.answer(|_, _| Reply::Status(429, vec![("Retry-After", "77".to_owned())]));
    let result = bench.run(Some(&server.dsn()), &["send"]);
    assert!(result.code == Some(1) && result.err.contains("try again in 77 s"), "{result:?}");
    server.answer(|_, _| Reply::Status(413, Vec::new()));
    let result = bench.run(Some(&server.dsn()), &["send"]);
    assert!(result.code == Some(1) && result.err.contains("the event is too large"), "{result:?}");
    let result = bench.run(Some(&server.dsn()), &["send", "--minidump"]);
    assert!(result.code == Some(1) && result.err.contains("without `--attach` and `--minidump`"), "{result:?}");
    // The help doesn't show the key in the environment.
    let help = bench.run(Some(&server.dsn()), &["send", "--help"]);
    assert!(help.code == Some(0) && !help.text().contains("public"), "{help:?}");
}

#[test]
fn an_unreachable_server_is_tried_once() {
    let bench = Bench::new();
    bench.run(None, &["demo", "abort"]);
    let result = bench.run(Some("http://public@127.0.0.1:9/1"), &["send"]);
    assert_eq!(result.code, Some(1), "{result:?}");
    assert_eq!(result.err.matches("can't reach the server").count(), 1, "{result:?}");
    assert!(result.err.contains("can't send 2 of 2 reports"), "{result:?}");
}

#[test]
fn convert_creates_an_event_an_envelope_and_a_minidump() {
    let bench = Bench::new();
    let list: serde_json::Value = serde_json::from_slice(&bench.run(None, &["list", "--format", "json"]).out).unwrap();
    let id = list[0]["event_id"].as_str().unwrap();
    let event = bench.run(None, &["convert", id, "--to", "sentry"]);
    let event: serde_json::Value = serde_json::from_slice(&event.out).unwrap();
    assert_eq!((&event["event_id"], &event["platform"]), (&id.into(), &"native".into()));
    let envelope = bench.run(None, &["convert", id, "--to", "sentry-envelope"]);
    let envelope = coroner_tests::server::Envelope::parse(&envelope.out).unwrap();
    assert_eq!((envelope.event_id(), envelope.items.len()), (Some(id), 1));
    let minidump = bench.run(None, &["convert", id, "--to", "minidump"]);
    assert!(minidump.code == Some(0) && minidump.out.starts_with(b"MDMP"), "{:?}", minidump.err);
    let written = bench.run(None, &["convert", id, "--to", "minidump", "-o", "crash.dmp"]);
    assert!(written.code == Some(0) && std::fs::read(bench.folder.path().join("crash.dmp")).unwrap() == minidump.out);
}

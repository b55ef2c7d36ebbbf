//! Apps with only server sinks.
//!
//! `coroner` finds no reports in their stores, and lists pending and rejected events.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use coroner_tests::server::{Reply, Server};
use serde_json::Value;

/// The app's store, its action, and the server; set only in the app's process.
const APP_STORE: &str = "CORONER_TEST_APP_STORE";
const APP_ACT: &str = "CORONER_TEST_APP_ACT";
const APP_DSN: &str = "CORONER_TEST_APP_DSN";

#[test]
fn app() {
    let Some(store) = std::env::var_os(APP_STORE).map(PathBuf::from) else { return };
    let (act, dsn) = (std::env::var(APP_ACT).unwrap(), std::env::var(APP_DSN).unwrap());
    let config = coroner::Config::new("com.example.outboxes").store_dir(&store);
    // Nothing listens on that port.
    let config = config.sink(coroner::OtlpSink::new("http://127.0.0.1:1"));
    let config = config.sink(coroner::SentrySink::new(&dsn).unwrap());
    let config = if act == "keep" { config.sink(coroner::FolderSink::new(store.join("reports"))) } else { config };
    let coroner = coroner::install(config).unwrap();
    if act == "crash" {
        std::process::abort();
    }
    // Not everything is sent.
    assert!(!coroner.flush(Duration::from_secs(60)));
    for _ in 0..600 {
        if !files(&store.join("sentry/given-up")).is_empty() && !files(&store.join("otlp/queue")).is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("the server did not refuse the event");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.')).collect()
}

fn run_app(store: &Path, act: &str, dsn: &str) -> Output {
    let mut app = Command::new(std::env::current_exe().unwrap());
    app.args(["--exact", "outboxes::app", "--test-threads=1"])
        .env(APP_STORE, store)
        .env(APP_ACT, act)
        .env(APP_DSN, dsn);
    app.output().unwrap()
}

#[derive(Debug)]
struct CommandOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

fn coroner(store: &Path, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coroner"));
    command.env_remove("DEBUGINFOD_URLS").env_remove("SENTRY_DSN").env("HOME", store).env("CORONER_STORE", store);
    let output = command.args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CommandOutput { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

/// An app that crashed, and whose next launch sent its report to a rejecting and a missing server.
fn refused(next: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let server = Server::start(|_, _| Reply::Status(400, Vec::new())).unwrap();
    assert!(!run_app(&store, "crash", &server.dsn()).status.success());
    let launched = run_app(&store, next, &server.dsn());
    assert!(launched.status.success(), "{launched:?}");
    (folder, store)
}

#[test]
fn an_empty_store_lists_waiting_and_rejected_events() {
    let (_folder, store) = refused("launch");
    let (waits, given_up) = (store.join("otlp/queue"), store.join("sentry/given-up"));
    let waits = format!("1 event waiting to be sent to a server, in `{}`", waits.display());
    let given_up = format!("1 event rejected by the server, in `{}`", given_up.display());
    for (arguments, code) in
        [(&["list"][..], 0), (&["group"], 0), (&["show"], 1), (&["send", "--dsn", "http://key@127.0.0.1:1/7"], 0)]
    {
        let result = coroner(&store, arguments);
        assert_eq!(result.code, Some(code), "{arguments:?} {result:?}");
        assert!(result.err.contains("no reports in"), "{arguments:?} {result:?}");
        assert!(result.err.contains(&waits) && result.err.contains(&given_up), "{arguments:?} {result:?}");
    }
    let doctor: Value = serde_json::from_str(&coroner(&store, &["doctor", "--format", "json"]).out).unwrap();
    let of_server: Vec<(&str, &str, &str)> = (doctor.as_array().unwrap().iter())
        .filter(|finding| finding["subject"] == "server")
        .map(|finding| {
            let text = |key: &str| finding[key].as_str().unwrap();
            (text("grade"), text("found"), text("consequence"))
        })
        .collect();
    let [(refused, found, advice), (waiting, of_queue, _)] = of_server[..] else { panic!("{of_server:?}") };
    assert!(refused == "limited" && found.contains("rejected 1 event") && advice.contains("DSN"), "{of_server:?}");
    assert!(waiting == "note" && of_queue.contains("1 event waiting"), "{of_server:?}");

    // A message itself, and the event by its id.
    let message = files(&store.join("sentry/given-up")).remove(0);
    let message = message.to_str().unwrap();
    let result = coroner(&store, &["show", message]);
    assert_eq!(result.code, Some(1), "{result:?}");
    assert!(
        result.err.contains("is an event for a server, not a report") && result.err.contains("FolderSink"),
        "{result:?}"
    );
    let id = message.rsplit('/').next().unwrap().split('-').nth(3).unwrap();
    let result = coroner(&store, &["show", &id[..8]]);
    assert!(result.code == Some(1) && result.err.contains("an event queued for a server"), "{result:?}");
}

#[test]
fn an_events_stored_report_is_named() {
    let (_folder, store) = refused("keep");
    for folder in ["sentry/given-up", "otlp/queue"] {
        let message = files(&store.join(folder)).remove(0);
        let result = coroner(&store, &["show", message.to_str().unwrap()]);
        assert_eq!(result.code, Some(1), "{result:?}");
        let report = result.err.split("its report is `").nth(1).and_then(|rest| rest.split('`').next());
        let report = report.unwrap_or_else(|| panic!("{result:?}"));
        let shown = coroner(&store, &["show", report]);
        assert!(shown.code == Some(0) && shown.out.contains("SIGABRT"), "{shown:?}");
    }
}

#[test]
fn an_unreadable_outbox_is_named_and_only_files_are_events() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let (queue, given_up) = (store.join("sentry/queue"), store.join("otlp/given-up"));
    std::fs::create_dir_all(&given_up).unwrap();
    std::fs::create_dir_all(queue.parent().unwrap()).unwrap();
    // Nobody can read a link to itself, not even root.
    std::os::unix::fs::symlink(&queue, &queue).unwrap();
    std::fs::create_dir(given_up.join("1-0-0-0123456789abcdef0123456789abcdef-.otlp")).unwrap();
    let result = coroner(&store, &["list"]);
    assert_eq!(result.code, Some(0), "{result:?}");
    let unread = format!("can't read `{}`: ", queue.display());
    assert!(result.err.contains(&unread) && !result.err.contains("1 event"), "{result:?}");
}

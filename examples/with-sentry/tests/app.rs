//! The example does what its comment says.
#![cfg(target_os = "linux")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use coroner_tests::server::{Reply, Server};
use serde_json::{Value, json};

struct App {
    server: Server,
    home: tempfile::TempDir,
}

impl App {
    fn new() -> Self {
        Self { server: Server::start(|_, _| Reply::ok()).unwrap(), home: tempfile::tempdir().unwrap() }
    }

    fn run(&self, words: &[&str]) -> Output {
        self.run_with(words, &[])
    }

    fn run_with(&self, words: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_with-sentry"));
        command.args(words).env("HOME", self.home.path()).env_remove("XDG_STATE_HOME");
        command.env_remove("SENTRY_RELEASE").env_remove("SENTRY_ENVIRONMENT");
        command.env("SENTRY_DSN", self.server.dsn()).env("RUST_BACKTRACE", "0");
        command.envs(variables.iter().copied()).output().unwrap()
    }

    /// The one event that there is, once the next launch has delivered it.
    fn event(&self) -> Value {
        let again = self.run(&[]);
        assert!(String::from_utf8_lossy(&again.stdout).contains("delivered: true"), "{again:?}");
        let mut events = self.server.items("event");
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// Sessions that a server counts, and those of them that crashed.
    fn sessions(&self) -> (usize, usize) {
        let sessions = self.server.sessions();
        let number = |what: &dyn Fn(&Value) -> bool| sessions.iter().filter(|update| what(update)).count();
        (number(&|update| update["init"] == true), number(&|update| update["status"] == "crashed"))
    }
}

#[test]
fn the_apps_own_client_sends_the_crash_with_its_scope() {
    let app = App::new();
    let crashed = app.run(&["crash"]);
    assert_eq!(crashed.status.signal(), Some(11), "{crashed:?}");
    let event = app.event();
    assert_eq!(event["exception"]["values"][0]["type"], "SIGSEGV");
    assert_eq!((&event["release"], &event["tags"]["channel"]), (&"with-sentry@1.0.0".into(), &"beta".into()));
    assert_eq!(event["user"], json!({"id": "4711", "ip_address": "192.0.2.7", "data": {"plan": "free"}}));
    let breadcrumb = &event["breadcrumbs"]["values"][0];
    assert_eq!((&breadcrumb["message"], &breadcrumb["data"]["pages"]), (&"opened the document".into(), &3.into()));
    assert_eq!(event["transaction"], "editor");
    assert_eq!(event["debug_meta"]["images"][0]["type"], "elf", "which the client's own types don't have");
    let contexts: Vec<&String> = event["contexts"].as_object().unwrap().keys().collect();
    assert!(!contexts.iter().any(|name| name.starts_with("app.")), "{contexts:?}");
    // Its own run, which crashed, and that of the launch that delivered.
    assert_eq!(app.sessions(), (2, 1), "{:?}", app.server.sessions());
}

#[test]
fn attachments_and_feedback_are_sent_by_the_apps_client() {
    let app = App::new();
    app.run(&["attach", "crash"]);
    app.run(&["feedback"]);
    let event = app.event();
    let accepted = app.server.accepted();
    let items = accepted.iter().flat_map(|envelope| &envelope.items);
    let attachments: Vec<_> = items.filter(|item| item.kind() == "attachment").collect();
    assert_eq!(attachments.len(), 1, "{attachments:?}");
    assert_eq!(attachments[0].header["filename"], "Cargo.toml");
    assert_eq!(attachments[0].payload, std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap());
    let printed = &app.server.items("feedback")[0];
    let context = &printed["contexts"]["feedback"];
    assert_eq!(context["message"], "I was only saving the document");
    assert_eq!(context["associated_event_id"], event["event_id"]);
    assert_eq!(printed["release"], "with-sentry@1.0.0");
}

#[test]
fn a_logged_out_user_is_not_in_the_event() {
    let app = App::new();
    app.run(&["logout", "crash"]);
    let event = app.event();
    assert!(event.get("user").is_none() && event["tags"].get("channel").is_none(), "{event}");
    assert_eq!(event["transaction"], "editor", "which is still there");
}

#[test]
fn a_crash_is_linked_to_the_trace_of_the_clients_scope() {
    let app = App::new();
    let crashed = app.run(&["trace", "crash"]);
    let printed = String::from_utf8_lossy(&crashed.stdout).into_owned();
    let trace = printed.strip_prefix("trace ").expect("it says which").trim_end();
    let event = app.event();
    assert_eq!((trace.len(), &event["contexts"]["trace"]["trace_id"]), (32, &trace.into()), "{event}");
}

#[test]
fn a_panic_is_one_event_and_its_run_one_session() {
    let app = App::new();
    let panicked = app.run(&["panic"]);
    assert_eq!(panicked.status.code(), Some(101), "{panicked:?}");
    let event = app.event();
    let exception = &event["exception"]["values"][0];
    assert_eq!((&exception["value"], &exception["mechanism"]["handled"]), (&"the app panics".into(), &false.into()));
    assert_eq!(event["sdk"]["name"], "coroner.rust", "which has all threads");
    assert_eq!(app.sessions(), (2, 1), "{:?}", app.server.sessions());
}

#[test]
fn a_crash_before_an_update_has_the_crashed_release() {
    let app = App::new();
    app.run_with(&["crash"], &[("SENTRY_RELEASE", "app@1"), ("SENTRY_ENVIRONMENT", "beta")]);
    let updated = app.run_with(&[], &[("SENTRY_RELEASE", "app@2"), ("SENTRY_ENVIRONMENT", "production")]);
    assert!(String::from_utf8_lossy(&updated.stdout).contains("delivered: true"), "{updated:?}");
    let events = app.server.items("event");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!((&events[0]["release"], &events[0]["environment"]), (&"app@1".into(), &"beta".into()));
    let sessions = app.server.sessions();
    let crashed = sessions.iter().find(|update| update["status"] == "crashed").expect("a session that crashed");
    assert_eq!(crashed["attrs"], json!({"release": "app@1", "environment": "beta"}));
}

#[test]
fn release_and_environment_come_from_the_clients_options() {
    let app = App::new();
    app.run_with(&["options", "crash"], &[]);
    let event = app.event();
    assert_eq!((&event["release"], &event["environment"]), (&"with-sentry@1.0.0".into(), &"canary".into()));
}

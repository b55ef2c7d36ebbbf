//! The example does what its comment says.
#![cfg(target_os = "linux")]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use coroner_tests::server::{Reply, Server};

#[test]
fn the_apps_own_client_sends_the_crash_with_its_scope() {
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let home = tempfile::tempdir().unwrap();
    let app = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_with-sentry"));
        command.args(arguments).env("HOME", home.path()).env_remove("XDG_STATE_HOME").env("SENTRY_DSN", server.dsn());
        command.output().unwrap()
    };
    let crashed = app(&["crash"]);
    assert_eq!(crashed.status.signal(), Some(11), "{crashed:?}");
    let again = app(&[]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("delivered: true"), "{again:?}");

    let events = server.items("event");
    let [event] = events.as_slice() else { panic!("{} events: {again:?}", events.len()) };
    assert_eq!(event["exception"]["values"][0]["type"], "SIGSEGV");
    assert_eq!((&event["release"], &event["tags"]["channel"]), (&"with-sentry@1.0.0".into(), &"beta".into()));
    assert_eq!(event["user"]["id"], "4711");
    assert_eq!(event["breadcrumbs"]["values"][0]["message"], "opened the document");
    assert_eq!(event["debug_meta"]["images"][0]["type"], "elf", "which the client's own types don't have");
}

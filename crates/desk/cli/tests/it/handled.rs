//! Handled exceptions and non-fatal panics: `coroner` finds the reports before delivery.

use std::path::{Path, PathBuf};
use std::process::Command;

use coroner_tests::server::{Reply, Server};
use serde_json::Value;

/// The app's store in this test; set only in the app's process.
const APP_STORE: &str = "CORONER_TEST_APP_STORE";

#[test]
fn app() {
    let Some(store) = std::env::var_os(APP_STORE) else { return };
    let config = coroner::Config::new("com.example.handled")
        .store_dir(store)
        .delivery(coroner::Delivery::new().at_install(false));
    let _coroner = coroner::install(config).unwrap();
    assert!(coroner::report_error(&std::io::Error::other("the fridge is empty")));
    // As in C++: `typeid(error).name()`.
    let (language, kind, message) = (coroner::Language::CPP, "N4shop9DoorErrorE", "the door is shut");
    assert!(coroner::report_exception(&coroner::HandledException::new(language, kind, message)));
    drop(std::panic::catch_unwind(|| panic!("caught, and so a breadcrumb")));
    std::thread::spawn(|| panic!("out of bread")).join().unwrap_err();
}

/// Runs the app; returns the store and its only run.
fn run_app(folder: &Path) -> (PathBuf, PathBuf) {
    let store = folder.join("store");
    let mut app = Command::new(std::env::current_exe().unwrap());
    let ended = app.args(["--exact", "handled::app", "--test-threads=1"]).env(APP_STORE, &store).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let runs: Vec<PathBuf> = std::fs::read_dir(store.join("runs")).unwrap().map(|run| run.unwrap().path()).collect();
    let [run] = &runs[..] else { panic!("{runs:?}") };
    (store, run.clone())
}

fn coroner(store: &Path, arguments: &[&str]) -> String {
    both(store, arguments).0
}

/// Returns standard output and standard error.
fn both(store: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coroner"));
    // Don't query a server.
    command.env_remove("DEBUGINFOD_URLS");
    let output = command.args(arguments).arg("--store").arg(store).env("HOME", store).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn handled_errors_are_listed_shown_converted_and_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (store, run) = run_app(folder.path());
    let list = json(&coroner(&store, &["list", "--format", "json"]));
    let mut found: Vec<(&str, &str)> = (list.as_array().unwrap().iter())
        .map(|report| (report["what"].as_str().unwrap(), report["event_id"].as_str().unwrap()))
        .collect();
    // `std::io::error::Error`; in `core` since Rust 1.98.
    let io_error = format!("{}: the fridge is empty", std::any::type_name::<std::io::Error>());
    let wanted = ["panic that ended its thread: out of bread", "shop::DoorError: the door is shut", &io_error];
    found.sort_unstable_by_key(|(what, _)| wanted.iter().position(|wanted| wanted == what));
    assert!(found.iter().map(|(what, _)| *what).eq(wanted), "{list}");

    // By the run, which gives its first report, and by an event id. Types are shown as in the
    // source. (Few calls: each looks up names in a program with all debug information.)
    let (event, result) = both(&store, &["convert", "--to", "sentry", run.to_str().unwrap()]);
    let event = json(&event);
    let others: Vec<&str> = found.iter().map(|(_, id)| *id).filter(|id| result.contains(id)).collect();
    assert_eq!(others, [found[0].1, found[1].1], "{result}");
    assert_eq!(
        (&event["exception"]["values"][0]["value"], &event["level"]),
        (&"the fridge is empty".into(), &"error".into())
    );
    let shown = json(&coroner(&store, &["show", found[1].1, "--format", "json"]));
    assert_eq!(shown["exceptions"][0]["type_name"], "shop::DoorError");
    assert_eq!(shown["exceptions"][0]["raw_type_name"], "N4shop9DoorErrorE");
    assert_eq!(shown["crash"]["exception_type"], "shop::DoorError");
    // The headline begins with the type as it is written.
    assert!(coroner(&store, &["show", found[2].1]).starts_with(&io_error));

    let server = Server::start(|_, _| Reply::ok()).unwrap();
    coroner(&store, &["send", "--dsn", &server.dsn()]);
    let mut sent: Vec<String> = Vec::new();
    for event in server.items("event") {
        let exceptions = event["exception"]["values"].as_array().unwrap();
        let field = |exception: &Value, key: &str| exception[key].as_str().unwrap_or_default().to_owned();
        sent.extend(exceptions.iter().map(|one| format!("{}: {}", field(one, "type"), field(one, "value"))));
    }
    sent.sort_unstable_by_key(|sent| wanted.iter().position(|wanted| wanted == sent));
    assert!(sent.iter().eq(wanted), "{sent:?}");
}

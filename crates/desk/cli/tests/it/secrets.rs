//! Secrets, and data changed by an app's hook, in `coroner show` and `coroner list`.
//!
//! They show no more than what was delivered, unless requested.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The app's store in this test; set only in the app's process.
const APP_STORE: &str = "CORONER_TEST_SECRETS_STORE";
/// Set if the app delivers its reports.
const DELIVERS: &str = "CORONER_TEST_SECRETS_DELIVERS";
const SECRET: &str = "hunter2";
/// Not recognizable as a secret; the app's hook removes it.
const CARD: &str = "visa of ada";

#[test]
fn app() {
    let Some(store) = std::env::var_os(APP_STORE) else { return };
    let delivers = std::env::var_os(DELIVERS).is_some();
    let delivery = coroner::Delivery::new().symbolicate(false).at_install(delivers).before_deliver(|mut report| {
        report.run.as_mut().unwrap().tags.remove("card");
        Some(report)
    });
    let config = coroner::Config::new("com.example.secrets").store_dir(store).delivery(delivery);
    let coroner = coroner::install(config).unwrap();
    coroner::set_tag("password", SECRET).unwrap();
    coroner::set_tag("card", CARD).unwrap();
    assert!(coroner::report_error(&std::io::Error::other(format!("no such user: password={SECRET}"))));
    assert!(!delivers || coroner.flush(Duration::from_mins(5)));
}

/// Runs the app with this store.
fn run_app(store: &Path, delivers: bool) {
    let mut app = Command::new(std::env::current_exe().unwrap());
    app.args(["--exact", "secrets::app", "--test-threads=1"]).env(APP_STORE, store);
    if delivers {
        app.env(DELIVERS, "1");
    }
    let ended = app.output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
}

fn coroner(store: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coroner"));
    command.env_remove("DEBUGINFOD_URLS").args(arguments).arg("--store").arg(store).env("HOME", store);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_pending_run_is_shown_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    run_app(&store, false);
    let run = files(&store.join("runs")).remove(0);
    for arguments in [&["show", run.to_str().unwrap()][..], &["list"]] {
        let result = coroner(&store, arguments);
        assert!(result.contains("no such user: password=[Filtered]") && !result.contains(SECRET), "{result}");
        let result = coroner(&store, &[arguments, &["--unscrubbed"]].concat());
        assert!(result.contains("no such user: password=hunter2"), "{result}");
    }
    // The stack has names as in `show`, from the program's symbol table.
    let list = coroner(&store, &["list"]);
    assert!(list.contains(" in it::secrets::app"), "{list}");
}

#[test]
fn show_prints_what_was_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    run_app(&store, true);
    let reports = files(&store.join("reports"));
    let of = |extension: &str| {
        let path = reports.iter().find(|path| path.extension().is_some_and(|other| other == extension)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (json, raw) = (of("json"), of("coroner"));
    let id = json.rsplit_once('-').unwrap().1.trim_end_matches(".json").to_owned();
    for (what, card) in [(&json, false), (&id, false), (&raw, true)] {
        let result = coroner(&store, &["show", what, "--format", "json"]);
        assert!(result.contains("[Filtered]") && !result.contains(SECRET), "{what}: {result}");
        assert_eq!(result.contains(CARD), card, "{what}: the hook's change is of the JSON: {result}");
    }
    for what in [&id, &raw] {
        let result = coroner(&store, &["show", what, "--format", "json", "--unscrubbed"]);
        assert!(result.contains(SECRET) && result.contains(CARD), "{what}: {result}");
    }
    assert!(!coroner(&store, &["list"]).contains(SECRET));
}

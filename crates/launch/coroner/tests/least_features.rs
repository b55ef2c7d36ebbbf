//! A crash and the next launch, with whatever features this was built: `cargo test -p coroner
//! --no-default-features --test least_features` is the smallest Coroner, whose folder has the
//! report as the crash left it.
#![cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use coroner::{Config, Report};

/// A child's act, and its store's path.
const WHAT: &str = "LEAST_FEATURES_WHAT";
const STORE: &str = "LEAST_FEATURES_STORE";

/// Is run in a process of its own by the test below.
#[test]
fn child() {
    let (Ok(what), Ok(store)) = (std::env::var(WHAT), std::env::var(STORE)) else { return };
    let coroner = coroner::install(Config::new("least").store_dir(store)).expect("Coroner installs");
    coroner::set_tag("kept", "yes").expect("the tag is taken");
    if what == "crash" {
        // SAFETY: none; it crashes.
        unsafe { std::ptr::null_mut::<u32>().write_volatile(1) };
    }
    assert!(coroner.flush(Duration::from_mins(1)), "a report is left in the store");
}

fn launch(what: &str, store: &Path) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().expect("this program has a path"));
    child.args(["--exact", "child"]).env(WHAT, what).env(STORE, store);
    child.output().expect("the child starts").status
}

#[test]
fn the_next_launch_leaves_the_report_in_the_folder() {
    let store = tempfile::tempdir().expect("a directory");
    assert!(!launch("crash", store.path()).success(), "it did not crash");
    assert!(launch("deliver", store.path()).success(), "the launch after the crash failed");
    let entries = std::fs::read_dir(store.path().join("reports")).expect("the folder of reports");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let extensions: Vec<_> = files.iter().filter_map(|path| path.extension()?.to_str()).collect();
    let expected: &[&str] = if cfg!(feature = "json") { &["coroner", "json"] } else { &["coroner"] };
    assert_eq!(extensions, expected);
    let report = Report::read(&std::fs::read(&files[0]).expect("the report")).expect("a report");
    assert!(report.complete, "{:?}", report.problems);
    let crash = report.crash.as_ref().expect("what happened");
    assert_eq!(crash.signal.as_ref().expect("a signal").number, 11);
    let crashed = report.threads.iter().find(|thread| thread.crashed).expect("the crashed thread");
    assert!(crashed.frames.len() > 3, "{:?}", crashed.frames);
    assert_eq!(report.run.as_ref().expect("the run state").tags["kept"], "yes");
}

//! The example does what its comment says.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

#[test]
fn the_next_launch_reports_the_crash() {
    let home = tempfile::tempdir().unwrap();
    let app = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rust-app"));
        command.args(arguments).env("HOME", home.path()).env_remove("XDG_STATE_HOME").output().unwrap()
    };
    let first = app(&[]);
    assert!(first.status.success(), "{first:?}");

    let crashed = app(&["crash"]);
    // SIGSEGV, which has this number everywhere.
    assert_eq!(crashed.status.signal(), Some(11), "{crashed:?}");

    let again = app(&[]);
    let printed = String::from_utf8(again.stdout).unwrap();
    assert!(
        printed.contains("the last run crashed") && printed.contains("sorry: the last run crashed, report"),
        "{printed}"
    );
    let store = if cfg!(target_os = "macos") {
        "Library/Application Support/com.example.paint/Coroner"
    } else {
        ".local/state/com.example.paint/coroner"
    };
    let reports = std::fs::read_dir(home.path().join(store).join("reports")).unwrap();
    let json =
        reports.map(|entry| entry.unwrap().path()).find(|path| path.extension().is_some_and(|end| end == "json"));
    let report = std::fs::read_to_string(json.expect("a report")).unwrap();
    // Rust's older mangling has `rust_app::Picture::fill`.
    let has_function = report.contains("rust_app::Picture::fill") || report.contains("<rust_app::Picture>::fill");
    assert!(has_function && report.contains("fills the picture"), "{report}");
}

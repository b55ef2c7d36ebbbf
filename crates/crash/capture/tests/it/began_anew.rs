//! The run time of an app counts from the time at which it continues. The app is this test's own
//! program, started again.
#![cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]

use std::ffi::CString;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use coroner_capture::InstallOptions;
use coroner_report::model::Report;

const STORE: &str = "CORONER_TEST_STORE";
/// Wait of the app at its start: longer than a busy machine takes from there to the crash.
const WAIT: Duration = Duration::from_secs(1);

/// The process that crashes; a plain pass when it is not started as one.
#[test]
fn wait_and_crash() {
    let Some(store) = std::env::var_os(STORE) else { return };
    coroner_capture::install(&CString::new(store.as_bytes()).unwrap(), &InstallOptions::DEFAULT).unwrap();
    std::thread::sleep(WAIT);
    coroner_capture::begin_anew();
    // SAFETY: none; the crash is what is wanted.
    unsafe { black_box(std::ptr::null_mut::<u32>()).write_volatile(1) };
}

#[test]
fn a_wait_at_the_start_does_not_count_as_run_time() {
    let store = tempfile::tempdir().unwrap();
    let started = SystemTime::now();
    // Under the emulator that runs this test, if there is one.
    let runner = std::env::var("CORONER_TEST_RUNNER").unwrap_or_default();
    let mut words: Vec<_> = runner.split_whitespace().map(Into::into).collect();
    words.push(std::env::current_exe().unwrap().into_os_string());
    let mut app = Command::new(&words[0]);
    app.args(&words[1..]).args(["--exact", "began_anew::wait_and_crash"]).env(STORE, store.path()).output().unwrap();
    let run = std::fs::read_dir(store.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let crash = Report::read_file(run.join("report")).unwrap().crash.unwrap();
    assert!(Duration::from_nanos(crash.since_install_ns) < WAIT, "{}", crash.since_install_ns);
    // By which later launches know when it began.
    let began = run.join("lock").metadata().unwrap().modified().unwrap();
    assert!(began.duration_since(started).unwrap() >= WAIT, "{began:?}");
}

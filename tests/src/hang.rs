//! The watchdog's records of a running process, read by the process itself or by the test that
//! started it.

use std::path::Path;
use std::time::{Duration, Instant};

use coroner_report::model::{Report, RunFacts};
use coroner_report::wire::Monitor;

/// Returns the state of the run in that directory.
pub fn facts(run: &Path) -> Option<RunFacts> {
    RunFacts::read(&std::fs::read(run.join("state")).ok()?).ok()
}

/// Returns the complete hang reports in that directory, in order.
pub fn reports(run: &Path) -> Vec<Report> {
    let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
    let bytes = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("report"));
    let read = bytes.filter_map(|entry| Report::read(&std::fs::read(entry.path()).ok()?).ok());
    let is_hang = |report: &Report| report.crash.as_ref().is_some_and(|crash| crash.monitor == Monitor::HANG);
    let mut reports: Vec<Report> = read.filter(|report| report.end.is_some() && is_hang(report)).collect();
    reports.sort_by_key(|report| report.crash.as_ref().map(|crash| crash.time));
    reports
}

/// Waits until `holds` returns `true`, however long that takes (at most a minute).
///
/// # Panics
/// `holds` is still `false` after a minute.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_mins(1);
    while !holds() {
        assert!(Instant::now() < until, "timed out after a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! What the watchdog has written down of a run that goes on: read by the run itself, or by who has started it.

use std::path::Path;
use std::time::{Duration, Instant};

use coroner_report::model::{Report, RunFacts};
use coroner_report::wire::Monitor;

/// The state of the run in that directory.
pub fn facts(run: &Path) -> Option<RunFacts> {
    RunFacts::read(&std::fs::read(run.join("state")).ok()?).ok()
}

/// The reports of hangs in that directory that are written to their ends, in their order.
pub fn reports(run: &Path) -> Vec<Report> {
    let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
    let bytes = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("report"));
    let read = bytes.filter_map(|entry| Report::read(&std::fs::read(entry.path()).ok()?).ok());
    let is_hang = |report: &Report| report.crash.as_ref().is_some_and(|crash| crash.monitor == Monitor::HANG);
    let mut reports: Vec<Report> = read.filter(|report| report.end.is_some() && is_hang(report)).collect();
    reports.sort_by_key(|report| report.crash.as_ref().map(|crash| crash.time));
    reports
}

/// Waits until `holds`. That it does in the end is what is asked, and not how long it takes.
///
/// # Panics
/// After a minute.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_mins(1);
    while !holds() {
        assert!(Instant::now() < until, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

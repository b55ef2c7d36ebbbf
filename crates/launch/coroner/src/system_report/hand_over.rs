//! Assigns the system's records to the runs that they belong to.
//!
//! Systems provide the same history at each launch, so processed records are recognized by their
//! identity ([`Known`]). A record that arrives after the run's own report has been delivered and
//! removed is ignored: the store records which processes had a report ([`note_reported`]).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_report::model::{Id, RunFacts, Timestamp};
use coroner_report::run_state::ProcessIdentity;
use serde::{Deserialize, Serialize};

use super::{FILE, SystemEnd, SystemReport};
use crate::store::directory::Directory;
use crate::store::{Claim, STATE, Store};

/// In the store: the records seen so far, a [`Known`] per source.
const SEEN: &str = "system_reports.json";
/// Maximum number of identities that are kept per source.
///
/// Android's history has 16 per package, MetricKit's some for each day of a week.
const IDENTITIES_KEPT: usize = 1024;
/// In the store: the last processes whose death had a report of Coroner's own, with the time of
/// their install.
const REPORTED: &str = "reported_processes.json";
/// Maximum number of such processes.
const REPORTED_KEPT: usize = 32;
/// Maximum time by which the system's time of a death may precede the install of its run, because
/// of different clocks.
const SLACK: Duration = Duration::from_secs(2);
/// The records of one source that were seen so far.
///
/// A single time up to which all records were processed is not sufficient: a wrong clock may date a
/// death in the future, and the system may provide one of two records with the same time later.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Known {
    /// Everything before this time, in nanoseconds since 1970, was seen; its identities are not
    /// kept.
    until: u64,
    /// Times and identities of what was seen from that time on.
    later: Vec<(u64, Id)>,
}

impl Known {
    pub(super) fn has(&self, report: &SystemReport) -> bool {
        let identity = report.identity();
        Timestamp::from(report.time).0 < self.until || self.later.iter().any(|(_, known)| *known == identity)
    }

    fn add(&mut self, report: &SystemReport) {
        self.later.push((Timestamp::from(report.time).0, report.identity()));
        if self.later.len() > IDENTITIES_KEPT {
            self.later.sort_by_key(|(time, _)| *time);
            self.until = self.later.remove(0).0.saturating_add(1);
        }
    }
}

/// Reads what was seen so far, by source.
pub(super) fn known(store: &Directory) -> BTreeMap<String, Known> {
    let noted = store.read(OsStr::new(SEEN), 1 << 20).ok();
    noted.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default()
}

/// Assigns the system's records to their runs in the store, and creates runs for those without one.
///
/// `own` is this process's run.
pub(crate) fn hand_over(store: &Store, own: Id, mut reports: Vec<SystemReport>) -> io::Result<()> {
    let root = store.root()?;
    let mut seen = known(&root);
    reports.retain(|report| seen.get(&report.source).is_none_or(|known| !known.has(report)));
    if reports.is_empty() {
        return Ok(());
    }
    reports.sort_by_key(|report| report.time);
    let process = ProcessIdentity::of_this_process();
    // Process ids of ended runs, with the time of their install.
    let mut ended = Vec::new();
    for listed in store.unprocessed(Some(own))?.runs {
        if let Ok(Claim::Taken(run)) = store.claim(listed.id, &process)
            && let Ok(facts) = run.raw().map(|raw| RunFacts::read(&raw.state))
            && let Ok(facts) = facts
        {
            let pid = facts.process.map(|process| process.pid).or(facts.app.pid);
            let installed = facts.app.installed.map_or(run.began, |time| UNIX_EPOCH + Duration::from_nanos(time.0));
            ended.push((pid, installed, listed.id));
        }
    }
    let reported = reported(&root);
    let mut hand_over_one = |report: &SystemReport| {
        let until = report.time + SLACK;
        let of_it = ended.iter().filter(|(pid, installed, id)| match report.run_id {
            _ if report.end == SystemEnd::Survived => false,
            Some(run) => run == *id,
            None => *pid == Some(report.pid) && *installed <= until,
        });
        let found = of_it.max_by_key(|(_, installed, _)| *installed).map(|(_, _, id)| *id);
        let bytes = report.to_bytes();
        if let Some(id) = found {
            // A later process with the same id has a run of its own.
            ended.retain(|(_, _, other)| *other != id);
            if let Claim::Taken(run) = store.claim(id, &process)? {
                run.directory.write_atomically(OsStr::new(FILE), &bytes)?;
            }
        } else if report.is_a_report() && (report.end == SystemEnd::Survived || !is_of(&reported, report, until)) {
            make_run(store, report, &bytes)?;
        }
        Ok(())
    };
    // If one fails, the next launch tries it again, without those that succeeded.
    let mut handed = Ok(());
    for report in reports {
        match hand_over_one(&report) {
            Ok(()) => seen.entry(report.source.clone()).or_default().add(&report),
            Err(error) => handed = Err(error),
        }
    }
    root.write_atomically(OsStr::new(SEEN), &serde_json::to_vec(&seen)?)?;
    handed
}

/// A process whose death had a report.
#[derive(Serialize, Deserialize)]
struct ReportedProcess {
    pid: u32,
    /// Time of Coroner's install in it, in nanoseconds since 1970.
    installed: u64,
    #[serde(default)]
    run: Option<Id>,
}

fn reported(store: &Directory) -> Vec<ReportedProcess> {
    let noted = store.read(OsStr::new(REPORTED), 1 << 16).ok();
    noted.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default()
}

fn is_of(reported: &[ReportedProcess], report: &SystemReport, until: SystemTime) -> bool {
    let until = Timestamp::from(until).0;
    reported.iter().any(|process| match report.run_id {
        Some(_) => process.run == report.run_id,
        None => process.pid == report.pid && process.installed <= until,
    })
}

/// Records that a delivered report described the death of a run's process, so that a later record
/// of the system about it isn't counted as another death.
pub(crate) fn note_reported(store: &Store, run: Id, facts: &RunFacts) -> io::Result<()> {
    let Some(pid) = facts.process.map(|process| process.pid).or(facts.app.pid) else { return Ok(()) };
    let root = store.root()?;
    let mut reported = reported(&root);
    let installed = facts.app.installed.map_or(0, |time| time.0);
    reported.push(ReportedProcess { pid, installed, run: Some(run) });
    let excess = reported.len().saturating_sub(REPORTED_KEPT);
    reported.drain(..excess);
    root.write_atomically(OsStr::new(REPORTED), &serde_json::to_vec(&reported)?)
}

/// Creates an ended run for a process that had not installed Coroner.
fn make_run(store: &Store, report: &SystemReport, bytes: &[u8]) -> io::Result<()> {
    let id = report.run();
    let run = store.create_ended(id, report.time)?;
    run.write_atomically(OsStr::new(FILE), bytes)?;
    // Its report is created when it is read.
    run.write_atomically(OsStr::new(STATE), b"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_earlier_builds_are_read() {
        let seen = r#"{"a":{"until":5,"later":[[6,"01010101010101010101010101010101"]]},"b":{}}"#;
        let seen: BTreeMap<String, Known> = serde_json::from_str(seen).unwrap();
        assert_eq!((seen["a"].until, &seen["a"].later[..]), (5, &[(6, Id([1; 16]))][..]));
        let reported = r#"[{"pid":1,"installed":2,"run":"01010101010101010101010101010101"},{"pid":3,"installed":4}]"#;
        let reported: Vec<ReportedProcess> = serde_json::from_str(reported).unwrap();
        assert_eq!((reported[0].run, reported[1].run), (Some(Id([1; 16])), None));
    }
}

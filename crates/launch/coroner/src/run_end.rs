//! Determines how a run ended, from its run state and, if that is not sufficient, its reports.
//!
//! | run state | report of a crash | outcome |
//! |---|---|---|
//! | a crash record, and no other end since | any or none | crashed |
//! | no crash | there is one: it was cut off by the end of the process | crashed |
//! | a clean exit, SIGTERM, another signal, uninstalled | any or none: the process continued after it | as recorded |
//! | an ongoing hang | none | hung |
//! | nothing | none | what the machine recorded ([`termination`](crate::termination)), otherwise unknown |
//!
//! A crash writes its crash record first. A crash whose report is empty, missing or torn at its
//! start is therefore known, too, and its report is created from the run state ([`RawRun`]).

use std::time::{Duration, SystemTime};

use coroner_report::model::{CrashFlag, CrashRecord, Id, Report, RunFacts};
use coroner_report::run_state::ExitKind;
use coroner_report::signature::Signature;
use coroner_report::wire::Monitor;

use crate::bundle::is_written;
use crate::last_run::{LastRun, PastCrash, SIGNALS_TAKEN};
use crate::outcome::Outcome;
use crate::own_report::own_report as report;
use crate::store::RawRun;
use crate::system_report::{SystemEnd, SystemReport};
use crate::termination;

/// Whether the run was not a launch of the app.
///
/// Such a run belongs to a crashed child created by fork, or was created for the system's record of
/// an event that the process survived.
pub(crate) fn is_not_a_launch(raw: &RawRun) -> bool {
    if SystemReport::read(&raw.system).is_some_and(|system| system.end == SystemEnd::Survived) {
        return true;
    }
    // The report of a child without its own run is in the spare report of its parent's run.
    report(raw, 0).is_ok_and(|report| report.crash.is_some_and(|crash| crash.has(CrashFlag::ForkChild)))
}

/// Whether the report is a fatal crash's, as far as it is known, and not a hang's or a non-fatal
/// one.
///
/// `report` is `None` if it can't be read.
fn is_crash_report(reports: &[Vec<u8>], index: usize, report: Option<&Report>) -> bool {
    match report.and_then(|report| report.crash.as_ref()) {
        // A child's crash report at an index other than 0 does not belong to the run's process.
        Some(crash) if index > 0 && crash.has(CrashFlag::ForkChild) => false,
        Some(crash) => !crash.has(CrashFlag::NotFatal) && crash.monitor != Monitor::HANG,
        // The report was cut off before its kind. The first index is for a crash, and the following
        // ones for further crashes. Non-fatal reports have separate file numbers.
        None => index == 0 || reports.first().is_some_and(|first| is_written(first)),
    }
}

/// Whether the report at `index` belongs to the crash in the record: both contain the same time.
pub(crate) fn belongs_to_record(reports: &[Vec<u8>], index: usize, report: &Report, record: &CrashRecord) -> bool {
    let Some(crash) = &report.crash else { return is_crash_report(reports, index, Some(report)) };
    let is_same = crash.tid == record.tid && crash.time == record.time;
    is_same || crash.concurrent_crashes.iter().any(|concurrent| concurrent.tid == record.tid)
}

/// Whether the report is that of a hang during which the process was killed.
fn is_fatal_hang(report: &Report) -> bool {
    let crash = report.crash.as_ref();
    crash.is_some_and(|crash| crash.monitor == Monitor::HANG && !crash.has(CrashFlag::NotFatal))
}

/// Returns the index of the report for the death that the system recorded, if there is one.
pub(crate) fn report_of_death(raw: &RawRun) -> Option<usize> {
    if raw.made_of_system.is_some() {
        return raw.made_of_system;
    }
    let written = (0..raw.reports.len()).filter(|index| is_written(&raw.reports[*index]));
    let reports: Vec<_> = written.filter_map(|index| Some((index, report(raw, index).ok()?))).collect();
    let facts = RunFacts::read(&raw.state).ok();
    let record = facts.as_ref().and_then(RunFacts::fatal_crash);
    let of_record = |(index, report): &&(usize, Report)| {
        record.is_some_and(|record| belongs_to_record(&raw.reports, *index, report, record))
    };
    let is_crash_report = |(index, report): &&(usize, Report)| is_crash_report(&raw.reports, *index, Some(report));
    let found = reports.iter().find(of_record).or_else(|| reports.iter().find(is_crash_report));
    found.or_else(|| reports.iter().rfind(|(_, report)| is_fatal_hang(report))).map(|(index, _)| *index)
}

/// Returns the number of reports of crashes that could have ended the run.
pub(crate) fn crashes(raw: &RawRun) -> usize {
    let written = (0..raw.reports.len()).filter(|index| is_written(&raw.reports[*index]));
    let is_hang = |index: usize| {
        raw.made_of_system == Some(index)
            && SystemReport::read(&raw.system)
                .is_some_and(|system| matches!(system.end, SystemEnd::Hung | SystemEnd::Survived))
    };
    let crashes = written.filter(|index| !is_hang(*index));
    crashes.filter(|index| is_crash_report(&raw.reports, *index, report(raw, *index).ok().as_ref())).count()
}

/// Returns the threads that crashed at the run's end.
pub(crate) fn crash_threads(raw: &RawRun) -> Vec<u64> {
    let last = outcome(Id::default(), SystemTime::UNIX_EPOCH, raw);
    if !last.crashed() {
        return Vec::new();
    }
    let record = RunFacts::read(&raw.state).ok().and_then(|facts| Some(facts.fatal_crash()?.tid));
    let reports = (0..raw.reports.len()).filter_map(|index| report(raw, index).ok());
    let crashes =
        reports.filter(|report| Some(report.header.event_id) == last.event_id).filter_map(|report| report.crash);
    record.into_iter().chain(crashes.map(|crash| crash.tid)).collect()
}

/// Returns the record of a crash, with the data of its report if there is one.
fn past_crash(report: Option<Report>) -> PastCrash {
    let crash = report.as_ref().and_then(|report| report.crash.as_ref());
    let ran_for_ms = crash.map(|crash| crash.since_install_ns / 1_000_000);
    let signature = report.filter(|report| !report.threads.is_empty()).map(|mut report| {
        report.attribute_frames();
        Signature::from_report(&report).id()
    });
    PastCrash { ran_for_ms, signature }
}

/// Determines how a run ended from its files.
pub(crate) fn outcome(run: Id, began: SystemTime, raw: &RawRun) -> LastRun {
    let facts = RunFacts::read(&raw.state).ok();
    let lifecycle = facts.as_ref().map(|facts| &facts.lifecycle);
    let record = facts.as_ref().and_then(RunFacts::fatal_crash);
    let written = (0..raw.reports.len()).filter(|index| is_written(&raw.reports[*index]));
    let reports: Vec<_> = written.map(|index| (index, report(raw, index).ok())).collect();
    // A report of a non-fatal crash (a handled exception) does not affect the run's outcome.
    let made_of_system = SystemReport::read(&raw.system).filter(|_| raw.made_of_system.is_some());
    let is_of_system = |index: usize| raw.made_of_system == Some(index);
    let mut of_crash = reports.iter().filter(|(index, report)| match &made_of_system {
        Some(system) if is_of_system(*index) => system.end == SystemEnd::Crashed,
        _ => is_crash_report(&raw.reports, *index, report.as_ref()),
    });
    let first = of_crash.clone().next();
    let exit = lifecycle.map(|lifecycle| lifecycle.exit);
    // The record of a crash that the process survived is marked as such. A report without a record
    // was cut off by the process's end.
    let noted = lifecycle.is_some_and(|lifecycle| lifecycle.crashed_by.is_some());
    let crashed = exit == Some(ExitKind::CRASHED) || (first.is_some() && !noted);
    let outcome = match exit {
        _ if crashed => Outcome::Crashed,
        Some(ExitKind::CLEAN) => Outcome::CleanExit,
        Some(ExitKind::SIGTERM) => Outcome::Terminated,
        Some(ExitKind::SIGNAL) => Outcome::EndedBySignal,
        Some(ExitKind::UNINSTALLED) => Outcome::Uninstalled,
        _ if lifecycle.is_some_and(|lifecycle| lifecycle.hang_since.is_some()) => Outcome::Hung,
        _ => Outcome::Unknown,
    };
    let outcome = match &raw.termination {
        Some(found) if outcome == Outcome::Unknown => termination::outcome(found).unwrap_or(outcome),
        _ => outcome,
    };
    let outcome = SystemReport::read(&raw.system).map_or(outcome, |system| system.end.complete(outcome));
    let of_record = |(index, report): &&(usize, Option<Report>)| {
        let report = report.as_ref();
        record.zip(report).is_some_and(|(record, report)| belongs_to_record(&raw.reports, *index, report, record))
    };
    let report_index = match outcome {
        Outcome::Crashed => of_crash.find(of_record).or(first).map(|(index, _)| *index),
        Outcome::Hung => {
            let mut hangs = reports.iter().filter_map(|(index, report)| Some((*index, report.as_ref()?)));
            hangs.find(|(index, report)| is_fatal_hang(report) || is_of_system(*index)).map(|(index, _)| index)
        }
        _ => None,
    };
    let report = report_index.and_then(|report_index| reports.into_iter().find(|(index, _)| *index == report_index)?.1);
    LastRun {
        outcome,
        run: Some(run),
        event_id: report.as_ref().map(|report| report.header.event_id).filter(|id| !id.is_nil()),
        began: Some(began),
        ran_for: report
            .as_ref()
            .and_then(|report| report.crash.as_ref())
            .map(|crash| Duration::from_nanos(crash.since_install_ns)),
        crashes: match outcome {
            Outcome::Crashed => vec![past_crash(report)],
            _ => Vec::new(),
        },
        termination: match outcome {
            Outcome::Crashed | Outcome::Uninstalled => None,
            Outcome::Terminated | Outcome::EndedBySignal => facts.as_ref().and_then(termination::from_signal),
            _ => raw.termination.clone(),
        },
        signal: lifecycle.and_then(|lifecycle| lifecycle.exit_signal),
        signals_taken: facts.as_ref().and_then(|facts| facts.tags.get(SIGNALS_TAKEN).cloned()),
    }
}

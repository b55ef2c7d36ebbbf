//! Reads a report as its process left it, and merges the run state into it.

use std::fmt;

use coroner_report::model::{Attachment, CrashFlag, Report, RunFacts};
use coroner_report::reader::ReadError;
use coroner_report::wire::Monitor;

use crate::bundle::is_written;
use crate::store::{MINIDUMP, RawRun};

/// A file that is not a valid report, with its index.
#[derive(Debug)]
pub struct InvalidReport {
    /// The index among the run's reports; 0 is the first.
    pub index: usize,
    /// The reader's error.
    pub error: ReadError,
}

impl fmt::Display for InvalidReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => write!(out, "`report`: {}", self.error),
            index => write!(out, "`report-{}`: {}", index + 1, self.error),
        }
    }
}

impl std::error::Error for InvalidReport {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Returns the report `index` of a run as the process left it, with the run state merged into it.
pub(crate) fn own_report(raw: &RawRun, index: usize) -> Result<Report, InvalidReport> {
    let bytes = raw.reports.get(index).map_or(&[][..], Vec::as_slice);
    let mut report = Report::read(bytes).map_err(|error| InvalidReport { index, error })?;
    match report.run.take() {
        // The state of the moment: the process went on after the report.
        Some(mut run) => {
            let left_out = RunFacts::read(&raw.state).map(|facts| facts.lifecycle.reports_left_out);
            run.lifecycle.reports_left_out = left_out.unwrap_or(run.lifecycle.reports_left_out);
            report.stitch(run);
        }
        None => stitch(&mut report, &raw.state),
    }
    let survived = report.crash.as_ref().is_none_or(|crash| crash.has(CrashFlag::NotFatal) || crash.hang.is_some());
    if let (Some(run), Some(path)) = (&mut report.run, &raw.minidump)
        && report.crash.as_ref().is_some_and(|crash| crash.monitor == Monitor::SEH)
    {
        run.attachments.push(Attachment {
            name: MINIDUMP.to_owned(),
            path: path.to_string_lossy().into_owned(),
            content_type: Some(Attachment::MINIDUMP.to_owned()),
        });
    }
    if let Some(run) = report.run.as_mut().filter(|_| survived) {
        // This is the cause of the process's end, but the report is about something else.
        run.termination.clone_from(&raw.termination);
    }
    identify(&mut report, raw, index);
    Ok(report)
}

/// Sets missing run and event ids of a report.
///
/// Sinks distinguish reports by the event id, so it is the run's id with the report's index in the
/// last byte.
fn identify(report: &mut Report, raw: &RawRun, index: usize) {
    let header = &mut report.header;
    let run = raw.run.unwrap_or(header.run_id);
    if header.run_id.is_nil() {
        header.run_id = run;
    }
    if header.event_id.is_nil() || (header.event_id == run && index > 0) {
        header.event_id = run;
        header.event_id.0[15] ^= index as u8;
    }
}

/// Merges the run state into the report.
///
/// If it can't be read, the report is kept, and the failure becomes one of its problems.
fn stitch(report: &mut Report, state: &[u8]) {
    if !is_written(state) {
        return;
    }
    match RunFacts::read(state) {
        Ok(facts) => report.stitch(facts),
        Err(error) => report.problems.push(coroner_report::model::Problem {
            section: None,
            offset: 0,
            what: format!("can't read the run state: {error}"),
        }),
    }
}

//! A report as its process left it, with the run state stitched in.

use std::fmt;

use coroner_report::model::{Attachment, CrashFlag, Report, RunFacts};
use coroner_report::reader::ReadError;
use coroner_report::wire::Monitor;

use crate::bundle::is_written;
use crate::store::{MINIDUMP, RawRun};

/// A file that is no report, and where.
#[derive(Debug)]
pub struct InvalidReport {
    /// Which of the run's reports, 0 being the first.
    pub index: usize,
    /// What is wrong with it.
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

/// The report `index` of a run as the process left it, with the run state stitched in.
pub(crate) fn own_report(raw: &RawRun, index: usize) -> Result<Report, InvalidReport> {
    let bytes = raw.reports.get(index).map_or(&[][..], Vec::as_slice);
    let mut report = Report::read(bytes).map_err(|error| InvalidReport { index, error })?;
    stitch(&mut report, &raw.state);
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
        // It says why the process ended, of which this report is not.
        run.termination.clone_from(&raw.termination);
    }
    identify(&mut report, raw, index);
    Ok(report)
}

/// Gives a report that does not say which it is the run's id, by which sinks distinguish reports; behind the first report with
/// its place in the last byte.
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

/// Puts the run state into the report. One that can't be read is no reason to lose the report: it is a problem of it.
fn stitch(report: &mut Report, state: &[u8]) {
    if !is_written(state) {
        return;
    }
    match RunFacts::read(state) {
        Ok(facts) => report.stitch(facts),
        Err(error) => report.problems.push(coroner_report::model::Problem {
            section: None,
            offset: 0,
            what: format!("the run state can't be read: {error}"),
        }),
    }
}

//! From the files of a run that has ended to its outcome and its reports.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use coroner_report::model::{CrashFlag, Id, Report, RunFacts};
use coroner_report::reader::ReadError;
use coroner_report::run_state::ExitKind;
use coroner_report::wire::Monitor;
use coroner_symbols::{Options, Symbolizer, demangle_exception_types};

use crate::bundle::is_written;
use crate::last_run::{LastRun, Outcome};
use crate::store::RawRun;

/// Where symbols are looked for, beside the images themselves.
///
/// The default looks on this machine as a debugger would: at the images' own paths, beside them, and in `/usr/lib/debug`.
#[derive(Debug, Clone, Default)]
pub struct SymbolSearch {
    /// Folders and files with debug information: ELF debug files, dSYM bundles, breakpad `.sym` files, unstripped programs.
    /// What has an image's build id is used.
    pub paths: Vec<PathBuf>,
    /// A file that remembers what the folders hold, so that the next search opens only what changed. `None`: nothing is
    /// remembered.
    pub index_cache: Option<PathBuf>,
}

impl SymbolSearch {
    /// Names the frames of `report`: function, file and line.
    pub fn symbolicate(&self, report: &mut Report) {
        let options =
            Options { search: self.paths.clone(), index_cache: self.index_cache.clone(), ..Options::default() };
        let _ = Symbolizer::new(options).symbolicate_report(report);
    }
}

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

impl RawRun {
    /// The run's reports, with the run state stitched in. Names of functions are those that the crash itself found (see
    /// [`SymbolSearch::symbolicate`] for more), types of C++ exceptions are demangled.
    ///
    /// # Errors
    /// One of the files is no report. Files that were reserved and never written are not looked at.
    pub fn parse(&self) -> Result<Vec<Report>, InvalidReport> {
        let written = (0..self.reports.len()).filter(|index| is_written(&self.reports[*index]));
        written.map(|index| report(self, index)).collect()
    }
}

/// The report `index` of a run, with the run state stitched in.
pub(crate) fn report(raw: &RawRun, index: usize) -> Result<Report, InvalidReport> {
    let bytes = raw.reports.get(index).map_or(&[][..], Vec::as_slice);
    let mut report = Report::read(bytes).map_err(|error| InvalidReport { index, error })?;
    stitch(&mut report, &raw.state);
    demangle_exception_types(&mut report);
    Ok(report)
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

/// Whether the run is that of a crashed child made by fork, which is not a launch of the app.
pub(crate) fn is_of_child(raw: &RawRun) -> bool {
    let mut reports = (0..raw.reports.len()).filter_map(|index| report(raw, index).ok());
    reports.any(|report| report.crash.is_some_and(|crash| crash.flags.contains(&CrashFlag::ForkChild)))
}

/// Whether the report is of a crash that ended the process, and not of what it survived or of a hang.
fn is_of_crash(raw: &RawRun, index: usize, report: Option<&Report>) -> bool {
    match report.and_then(|report| report.crash.as_ref()) {
        Some(crash) => !crash.has(CrashFlag::NotFatal) && crash.monitor != Monitor::HANG,
        // Cut before it says what it is of. The first place is for a crash, and those behind for more of them once that is taken;
        // what a run survives has places of its own.
        None => index == 0 || raw.reports.first().is_some_and(|first| is_written(first)),
    }
}

/// Whether the report is of a hang in which the process was ended.
fn is_fatal_hang(report: &Report) -> bool {
    let crash = report.crash.as_ref();
    crash.is_some_and(|crash| crash.monitor == Monitor::HANG && !crash.has(CrashFlag::NotFatal))
}

/// How many reports of crashes a run has left that could have ended it.
pub(crate) fn crashes(raw: &RawRun) -> usize {
    let written = (0..raw.reports.len()).filter(|index| is_written(&raw.reports[*index]));
    written.filter(|index| is_of_crash(raw, *index, report(raw, *index).ok().as_ref())).count()
}

/// How a run ended, by its files.
pub(crate) fn outcome(run: Id, began: SystemTime, raw: &RawRun) -> LastRun {
    let facts = RunFacts::read(&raw.state).ok();
    let lifecycle = facts.as_ref().map(|facts| &facts.lifecycle);
    let crashed_by = lifecycle.and_then(|lifecycle| lifecycle.crashed_by);
    let written = (0..raw.reports.len()).filter(|index| is_written(&raw.reports[*index]));
    let reports: Vec<_> = written.map(|index| (index, report(raw, index).ok())).collect();
    // A report that the run survived (a handled exception) says nothing of its end.
    let first = reports.iter().find(|(index, report)| is_of_crash(raw, *index, report.as_ref()));
    let hang = lifecycle.and_then(|lifecycle| lifecycle.hang_since);
    let mut last = LastRun { run: Some(run), began: Some(began), ..LastRun::FIRST_LAUNCH };
    // A report that is whole is noted in the run state, and taken back if the process goes on after it (an earlier handler
    // repaired the fault). A report without that note was cut short by the end of the process.
    let exit = lifecycle.map(|lifecycle| lifecycle.exit);
    let crashed = exit == Some(ExitKind::CRASHED) || (first.is_some() && crashed_by.is_none());
    last.outcome = match exit {
        _ if crashed => Outcome::Crashed,
        Some(ExitKind::CLEAN) => Outcome::CleanExit,
        Some(ExitKind::SIGTERM) => Outcome::Terminated,
        Some(ExitKind::UNINSTALLED) => Outcome::Uninstalled,
        _ if hang.is_some() => Outcome::Hung,
        _ => Outcome::Unknown,
    };
    let told = match last.outcome {
        Outcome::Crashed => first.and_then(|(_, report)| report.as_ref()),
        Outcome::Hung => reports.iter().filter_map(|(_, report)| report.as_ref()).find(|report| is_fatal_hang(report)),
        _ => None,
    };
    if let Some(report) = told {
        last.event_id = Some(report.header.event_id).filter(|id| !id.is_nil());
        last.ran_for = report.crash.as_ref().map(|crash| Duration::from_nanos(crash.since_install_ns));
    }
    last
}

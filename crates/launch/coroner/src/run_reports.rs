//! Reads an ended run's reports.
//!
//! The reports are read from the run's files, completed by the crash record and the system's
//! record, and parsed.

use std::io;
use std::path::Path;

use coroner_report::model::{Id, Report, RunFacts};
use coroner_report::reader::ReadError;

use crate::bundle::is_written;
use crate::own_report::{InvalidReport, own_report};
use crate::run_end::{belongs_to_record, report_of_death};
use crate::store::directory::Directory;
use crate::store::{RawRun, StoreError, run_of};
use crate::system_report::{self, SystemReport};

/// A crash is recorded in the run state before the report is written.
///
/// If the crash's report is empty, missing or torn in its first section, a report created from the
/// run state replaces it.
impl RawRun {
    /// Reads the files in a run's directory. The run may be live, ended or broken.
    ///
    /// # Errors
    /// [`StoreError`] if the directory or one of its files can't be read, is a symbolic link, or is
    /// too large.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        let run = Directory::open(path).map_err(StoreError::at("open the run", path))?;
        let id = path.file_name().and_then(run_of);
        Self::read_in(&run, id).map_err(StoreError::at("read the run", path))
    }

    /// Reads the files in a run's directory; `id` is the run's, if known.
    pub(crate) fn read_in(run: &Directory, id: Option<Id>) -> io::Result<Self> {
        let mut raw = Self::read_files(run, id)?;
        raw.add_report_of_record();
        raw.add_report_of_system();
        Ok(raw)
    }

    /// Returns the system's record of the death that the report `index` describes.
    pub(crate) fn system_report_for(&self, index: usize) -> Option<SystemReport> {
        let system = SystemReport::read(&self.system)?;
        (report_of_death(self) == Some(index)).then_some(system)
    }

    /// Returns the file with the system's record if the report `index` describes that death,
    /// otherwise an empty slice.
    pub(crate) fn system_file(&self, index: usize) -> &[u8] {
        if self.system_report_for(index).is_some() { &self.system } else { &[] }
    }

    /// Appends a report created from the system's record, if the run left no report of its death.
    fn add_report_of_system(&mut self) {
        let Some(system) = SystemReport::read(&self.system).filter(SystemReport::is_a_report) else { return };
        if report_of_death(self).is_some() {
            return;
        }
        let Some(report) = system.bare_report(self.run.unwrap_or_default()) else { return };
        let place = self.reports.iter().position(|first| !is_written(first)).filter(|place| *place == 0);
        match place {
            Some(place) => self.reports[place] = report,
            None => self.reports.push(report),
        }
        self.made_of_system = Some(place.unwrap_or(self.reports.len() - 1));
    }

    /// Replaces the first report with one created from the crash record, if that crash has no
    /// report.
    fn add_report_of_record(&mut self) {
        let Ok(facts) = RunFacts::read(&self.state) else { return };
        let Some(record) = facts.fatal_crash() else { return };
        let read: Vec<_> = self.reports.iter().map(|report| Report::read(report)).collect();
        let is_there = read.iter().enumerate().any(|(index, report)| match report {
            Ok(report) => belongs_to_record(&self.reports, index, report, record),
            // Keep it: a later version may be able to read the kind.
            Err(ReadError::Newer { .. }) => true,
            Err(_) => false,
        });
        if is_there {
            return;
        }
        let Some(report) = facts.report_of_record(self.run.unwrap_or(facts.run_id)) else { return };
        let is_first_whole = read.first().is_some_and(Result::is_ok);
        match self.reports.first_mut() {
            Some(first) if !is_first_whole => *first = report,
            _ => self.reports.push(report),
        }
    }

    /// Parses the run's reports, and merges the run state into them.
    ///
    /// Function names are those that the crash itself found (see `SymbolSearch::symbolicate` for
    /// more). C++ exception types are demangled.
    ///
    /// # Errors
    /// [`InvalidReport`] if one of the files is not a valid report. Reserved files that were never
    /// written are skipped.
    pub fn parse(&self) -> Result<Vec<Report>, InvalidReport> {
        let written = (0..self.reports.len()).filter(|index| is_written(&self.reports[*index]));
        written.map(|index| report(self, index)).collect()
    }
}

/// Returns the report `index` of a run, with the run state and the system's record of that death
/// merged into it.
pub(crate) fn report(raw: &RawRun, index: usize) -> Result<Report, InvalidReport> {
    let mut report = own_report(raw, index)?;
    if let Some(system) = raw.system_report_for(index) {
        system_report::complete(&mut report, &system);
    }
    system_report::complete_report(&mut report);
    Ok(report)
}

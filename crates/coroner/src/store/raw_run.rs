//! The files of one run.
//!
//! A crash is recorded in the run state before anything of the report is written. Where the report of such a crash is empty,
//! missing or torn before its first whole section, one is made from the run state and stands in its place.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use coroner_report::model::{Id, Report, RunFacts};
use coroner_report::reader::ReadError;

use super::directory::Directory;
use super::{REPORT, STATE, StoreError, run_of};
use crate::outcome::is_of_record;

/// What the names of reports after the first begin with.
const LATER_REPORT: &str = "report-";
/// The report of a crash that could open no file: of a process without descriptors, of a child that may not write to the store.
const SPARE_REPORT: &str = "report-spare";
/// Most reports of one run that are processed: eight crashes, sixteen handled exceptions and sixteen hangs.
const MAX_REPORTS: usize = 40;
/// Longest report read, in bytes: many times what capture can reserve.
const MAX_REPORT_BYTES: u64 = 256 << 20;
/// Longest run state read, in bytes.
const MAX_STATE_BYTES: u64 = 64 << 20;

/// The place of a report among those of its run, by its file's name; `None` for other files.
fn number_of(name: &OsStr) -> Option<u32> {
    match name.to_str()? {
        REPORT => Some(1),
        SPARE_REPORT => Some(u32::MAX),
        name => name.strip_prefix(LATER_REPORT).and_then(|number| number.parse().ok()),
    }
}

/// Whether a file of that name is a report.
pub(super) fn is_report(name: &OsStr) -> bool {
    number_of(name).is_some()
}

/// The files of one run, as they are on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRun {
    /// The run, which the name of its directory says; `None` if that is no run's.
    pub run: Option<Id>,
    /// The report files, first crash first. There is more than one where a process went on after a crash and had another.
    /// A file is all zeros where the run did not crash, and has zeros after the report where it was reserved larger than
    /// what was written. A crash that left no report and is known from the run state has a report that was made from it: a
    /// header, to which the run state adds the rest.
    pub reports: Vec<Vec<u8>>,
    /// The run state file; empty where there is none.
    pub state: Vec<u8>,
}

impl RawRun {
    /// Reads the files in the directory of one run, living, ended or broken.
    ///
    /// # Errors
    /// The directory or one of its files can't be read, is a symbolic link, or is too large to be what it should be.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        let run = Directory::open(path).map_err(StoreError::at("open the run", path))?;
        let id = path.file_name().and_then(run_of);
        Self::read_in(&run, id).map_err(StoreError::at("read the run", path))
    }

    /// Reads the files in a run's directory; `id` is the run's, where that is known.
    pub(super) fn read_in(run: &Directory, id: Option<Id>) -> io::Result<Self> {
        let file = |name: &OsStr, limit| match run.read(name, limit) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(io::Error::new(error.kind(), format!("`{}` {error}", name.display()))),
            read => read,
        };
        let mut numbered: Vec<(u32, OsString)> = Vec::new();
        for name in run.names()? {
            numbered.extend(number_of(&name).map(|number| (number, name)));
        }
        numbered.sort();
        let reports = numbered.iter().take(MAX_REPORTS).map(|(_, name)| file(name, MAX_REPORT_BYTES));
        let mut raw = Self {
            run: id,
            reports: reports.collect::<io::Result<_>>()?,
            state: file(STATE.as_ref(), MAX_STATE_BYTES)?,
        };
        raw.add_report_of_record();
        Ok(raw)
    }

    /// Puts a report made from the crash record in the place of the first report, if no report is of that crash.
    fn add_report_of_record(&mut self) {
        let Ok(facts) = RunFacts::read(&self.state) else { return };
        let Some(record) = facts.fatal_crash() else { return };
        let read: Vec<_> = self.reports.iter().map(|report| Report::read(report)).collect();
        let is_there = read.iter().enumerate().any(|(index, report)| match report {
            Ok(report) => is_of_record(&self.reports, index, report, record),
            // What it is of, a later version can say.
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
}

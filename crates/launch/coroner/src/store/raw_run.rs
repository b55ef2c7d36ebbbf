//! The files of one run.
//!
//! A crash is recorded in the run state before anything of the report is written. Where the report of such a crash is empty,
//! missing or torn before its first whole section, one is made from the run state and stands in its place.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use coroner_report::model::{Id, Report, RunFacts, Termination};
use coroner_report::reader::ReadError;
use coroner_report::wire::FILE_PREFIX;

use super::directory::Directory;
use super::{MINIDUMP, MINIDUMP_END, REPORT, STATE, StoreError, run_of};
use crate::bundle::is_written;
use crate::outcome::{is_of_record, of_death};
use crate::system_report::{self, SystemReport};
use crate::termination;

/// What the names of reports after the first begin with.
const LATER_REPORT: &str = "report-";
/// Bytes at the end of the first report's file that are a report by themselves: of a crash that could open no file, as in a process
/// without descriptors, or a child that may not write to the store.
const SPARE_REPORT: usize = 128 << 10;
/// Most reports of one run that are processed: eight crashes, sixteen handled exceptions and sixteen hangs.
const MAX_REPORTS: usize = 40;
/// Longest report read, in bytes: many times what capture can reserve.
const MAX_REPORT_BYTES: u64 = 256 << 20;
/// Longest run state read, in bytes.
const MAX_STATE_BYTES: u64 = 64 << 20;

/// Longest account of an end without a word, bytes.
const MAX_TERMINATION: u64 = 64 << 10;

/// Whether the system came to the end of the run's minidump before the process ended.
fn has_whole_minidump(run: &Directory) -> bool {
    let Ok(mut file) = run.file(MINIDUMP.as_ref(), false) else { return false };
    let mut end = MINIDUMP_END.map(|byte| !byte);
    let at_end = file.seek(SeekFrom::End(-(end.len() as i64)));
    at_end.and_then(|_| file.read_exact(&mut end)).is_ok() && end == MINIDUMP_END
}

/// The place of a report among those of its run, by its file's name; `None` for other files.
fn number_of(name: &OsStr) -> Option<u32> {
    match name.to_str()? {
        REPORT => Some(1),
        name => name.strip_prefix(LATER_REPORT).and_then(|number| number.parse().ok()),
    }
}

/// The reports in a run's directory, by their numbers.
pub(super) fn numbered(run: &Directory) -> io::Result<Vec<(u32, OsString)>> {
    let names = run.names()?.into_iter();
    let mut numbered: Vec<_> = names.filter_map(|name| Some((number_of(&name)?, name))).collect();
    numbered.sort_by_key(|(number, _)| *number);
    Ok(numbered)
}

/// Whether a file of that name is a report.
pub(super) fn is_report(name: &OsStr) -> bool {
    number_of(name).is_some()
}

#[cfg(test)]
thread_local! {
    /// How many runs this thread has read.
    pub(crate) static READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
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
    /// What the system said of the run's end, at a later launch; empty where it said nothing.
    pub system: Vec<u8>,
    /// Why it ended without a word, as the first launch that looked at it found out.
    pub termination: Option<Termination>,
    /// Which of the reports was made of what the system said, and has nothing but a header.
    pub(crate) made_of_system: Option<usize>,
    /// Where the minidump of its crash is, if the system made one.
    pub(crate) minidump: Option<PathBuf>,
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

    /// Reads one report.
    pub(crate) fn read_report(run: &Directory, name: &OsStr) -> io::Result<Vec<u8>> {
        run.read(name, MAX_REPORT_BYTES)
    }

    /// Reads the files in a run's directory; `id` is the run's, where that is known.
    pub(super) fn read_in(run: &Directory, id: Option<Id>) -> io::Result<Self> {
        #[cfg(test)]
        READ.with(|read| read.set(read.get() + 1));
        let file = |name: &OsStr, limit| match run.read(name, limit) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(io::Error::new(error.kind(), format!("`{}` {error}", name.display()))),
            read => read,
        };
        let numbered = numbered(run)?;
        let reports = numbered.iter().take(MAX_REPORTS).map(|(_, name)| file(name, MAX_REPORT_BYTES));
        let mut reports = reports.collect::<io::Result<Vec<_>>>()?;
        if let Some(first) = reports.first_mut()
            && let Some(at) = first.len().checked_sub(SPARE_REPORT)
        {
            let spare = &first[at..];
            // Whoever took it may have ended before it wrote anything.
            let is_taken_only = spare.iter().take(SPARE_REPORT - 4).all(|byte| *byte == 0);
            let spare = spare.starts_with(&FILE_PREFIX).then(|| spare.to_vec());
            if is_taken_only || spare.is_some() {
                first.truncate(at);
            }
            reports.extend(spare);
        }
        let mut raw = Self {
            run: id,
            reports,
            state: file(STATE.as_ref(), MAX_STATE_BYTES)?,
            system: file(system_report::FILE.as_ref(), MAX_STATE_BYTES)?,
            termination: termination::read(&file(termination::FILE.as_ref(), MAX_TERMINATION)?),
            made_of_system: None,
            minidump: has_whole_minidump(run).then(|| run.path().join(MINIDUMP)),
        };
        raw.add_report_of_record();
        raw.add_report_of_system();
        Ok(raw)
    }

    /// What the system said of the death that the report `index` is of.
    pub(crate) fn system_of(&self, index: usize) -> Option<SystemReport> {
        let system = SystemReport::read(&self.system)?;
        (of_death(self) == Some(index)).then_some(system)
    }

    /// The file with what the system said, if the report `index` is of that death; else nothing.
    pub(crate) fn system_file(&self, index: usize) -> &[u8] {
        if self.system_of(index).is_some() { &self.system } else { &[] }
    }

    /// Puts a report for what the system said behind the others, if the run left none of its death.
    fn add_report_of_system(&mut self) {
        let Some(system) = SystemReport::read(&self.system).filter(SystemReport::is_a_report) else { return };
        if of_death(self).is_some() {
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

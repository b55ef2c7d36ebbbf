//! One run's files.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use coroner_report::model::{Id, Termination};
use coroner_report::wire::FILE_PREFIX;

use super::directory::Directory;
use super::layout::{MINIDUMP, MINIDUMP_END, REPORT, STATE};
use crate::system_report;
use crate::termination;

/// Prefix of the names of reports after the first.
const LATER_REPORT: &str = "report-";
/// Length in bytes of the spare report at the end of the first report's file.
///
/// It is the report of a crash that can't open a file: in a process without free descriptors, or in
/// a child that can't write to the store.
const SPARE_REPORT: usize = 128 << 10;
/// Maximum number of a run's reports that are processed: eight crashes, sixteen handled exceptions
/// and sixteen hangs.
const MAX_REPORTS: usize = 40;
/// Maximum length of a report in bytes, many times what capture can reserve.
const MAX_REPORT_BYTES: u64 = 256 << 20;
/// Maximum length of a run state in bytes.
const MAX_STATE_BYTES: u64 = 64 << 20;

/// Maximum length in bytes of the file with the cause of an unexplained end.
const MAX_TERMINATION: u64 = 64 << 10;

/// Whether the system finished writing the run's minidump before the process ended.
fn has_whole_minidump(run: &Directory) -> bool {
    let Ok(mut file) = run.file(MINIDUMP.as_ref(), false) else { return false };
    let mut end = MINIDUMP_END.map(|byte| !byte);
    let at_end = file.seek(SeekFrom::End(-(end.len() as i64)));
    at_end.and_then(|_| file.read_exact(&mut end)).is_ok() && end == MINIDUMP_END
}

/// Returns the number of a report in its run, by its file name; `None` for other files.
fn report_number(name: &OsStr) -> Option<u32> {
    match name.to_str()? {
        REPORT => Some(1),
        name => name.strip_prefix(LATER_REPORT).and_then(|number| number.parse().ok()),
    }
}

/// Returns the reports in a run's directory with their numbers, sorted.
pub(super) fn numbered(run: &Directory) -> io::Result<Vec<(u32, OsString)>> {
    let names = run.names()?.into_iter();
    let mut numbered: Vec<_> = names.filter_map(|name| Some((report_number(&name)?, name))).collect();
    numbered.sort_by_key(|(number, _)| *number);
    Ok(numbered)
}

/// Whether a file of that name is a report.
pub(super) fn is_report(name: &OsStr) -> bool {
    report_number(name).is_some()
}

#[cfg(test)]
thread_local! {
    /// Number of runs that this thread has read.
    pub(crate) static READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// One run's files in their original form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRun {
    /// The run's id from the name of its directory; `None` if that is not a run's name.
    pub run: Option<Id>,
    /// The report files, first crash first.
    ///
    /// There are several if the process survived a crash and crashed again. A file contains only
    /// zeros if the run did not crash, and zeros after the report if more was reserved than
    /// written. For a crash that left no report but a crash record in the run state, this contains
    /// a report with only a header, to which the run state adds the rest.
    pub reports: Vec<Vec<u8>>,
    /// The run state file; empty if there is none.
    pub state: Vec<u8>,
    /// The system's record of the run's end, from a later launch; empty if there is none.
    pub system: Vec<u8>,
    /// The cause of an unexplained end, as determined by the first launch that processed the run.
    pub termination: Option<Termination>,
    /// Index of the report that was created from the system's record and contains only a header.
    pub(crate) made_of_system: Option<usize>,
    /// Path of the minidump of the run's crash, if the system wrote one.
    pub(crate) minidump: Option<PathBuf>,
}

impl RawRun {
    /// Reads one report.
    pub(crate) fn read_report(run: &Directory, name: &OsStr) -> io::Result<Vec<u8>> {
        run.read(name, MAX_REPORT_BYTES)
    }

    /// Reads the files in a run's directory as they are; `id` is the run's, if known.
    pub(crate) fn read_files(run: &Directory, id: Option<Id>) -> io::Result<Self> {
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
            // The process that claimed the spare report may have ended before it wrote anything.
            let is_taken_only = spare.iter().take(SPARE_REPORT - 4).all(|byte| *byte == 0);
            let spare = spare.starts_with(&FILE_PREFIX).then(|| spare.to_vec());
            if is_taken_only || spare.is_some() {
                first.truncate(at);
            }
            reports.extend(spare);
        }
        Ok(Self {
            run: id,
            reports,
            state: file(STATE.as_ref(), MAX_STATE_BYTES)?,
            system: file(system_report::FILE.as_ref(), MAX_STATE_BYTES)?,
            termination: termination::read(&file(termination::FILE.as_ref(), MAX_TERMINATION)?),
            made_of_system: None,
            minidump: has_whole_minidump(run).then(|| run.path().join(MINIDUMP)),
        })
    }
}

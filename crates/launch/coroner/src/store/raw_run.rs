//! The files of one run.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use coroner_report::model::{Id, Termination};
use coroner_report::wire::FILE_PREFIX;

use super::directory::Directory;
use super::layout::{MINIDUMP, MINIDUMP_END, REPORT, STATE};
use crate::system_report;
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
    /// Reads one report.
    pub(crate) fn read_report(run: &Directory, name: &OsStr) -> io::Result<Vec<u8>> {
        run.read(name, MAX_REPORT_BYTES)
    }

    /// Reads the files in a run's directory as they are; `id` is the run's, where that is known.
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
            // Whoever took it may have ended before it wrote anything.
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

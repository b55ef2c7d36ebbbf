//! The file that a session writes its report to: the reserved one, another one of the same run, the spare one, or that of a run which a
//! child makes for its crash.

use core::ffi::CStr;

use coroner_process::descriptor::OwnedDescriptor;
use coroner_process::files::{self, close};
use coroner_process::path::Path;
use coroner_process::syscall::{Errno, Result};
use coroner_report::run_state::{Limits, RunState};

use super::report_file::{ReportFile, ReportWriter, write_all};
use super::run_files::{RunError, RunFiles, RunSizes, RunStep, at, copy_state, open, open_run, state_of};

/// The run of a process, and where and how further files are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The run.
    pub(crate) run: &'a RunFiles,
    /// Its store's path.
    pub(crate) store: &'a CStr,
    /// Bytes of disk for each report.
    pub(crate) reserve: u32,
    /// Those of the run state.
    pub(crate) limits: Limits,
}

/// The file that a session writes to, and what is to be done with it at the end.
#[derive(Debug)]
pub(crate) struct OpenedReport {
    /// The file.
    pub(crate) file: ReportFile,
    /// The run whose report it is.
    pub(crate) run_id: [u8; 16],
    /// Bytes of an earlier report in it, which are to be zeroed.
    pub(crate) stale: usize,
    kind: OpenedKind,
}

#[derive(Debug)]
enum OpenedKind {
    /// Mapped for the process's life.
    Reserved,
    /// Opened for this session.
    ForSession(OwnedDescriptor),
    /// A child's own run, which it made for this session.
    ChildRun(RunFiles),
}

impl OpenedReport {
    /// The run's reserved report.
    pub(crate) fn first(run: &RunFiles) -> Self {
        OpenedReport { file: run.report, run_id: run.id, stale: 0, kind: OpenedKind::Reserved }
    }

    /// The same, in which there is a report already.
    pub(crate) fn first_again(run: &RunFiles) -> Self {
        OpenedReport { stale: usize::MAX, ..Self::first(run) }
    }

    /// The run's report of that number, opened by its path; the spare one if that can't be done.
    ///
    /// # Errors
    /// Why it can't be opened, where the spare one is taken, too.
    pub(crate) fn further(place: &Place<'_>, number: u32) -> Result<Self> {
        Self::open_further(place, number).or_else(|errno| Self::spare(place.run).ok_or(errno))
    }

    fn spare(run: &RunFiles) -> Option<Self> {
        Some(OpenedReport { file: run.take_spare()?, ..Self::first(run) })
    }

    fn open_further(place: &Place<'_>, number: u32) -> Result<Self> {
        if !place.run.is_on_disk() {
            return Err(Errno(libc::ENOENT));
        }
        let directory = open_run(place.store, &place.run.id).map_err(|error| error.errno)?;
        let path = Path::new().push(b"report-").push_decimal(number);
        // The last place is used again.
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
        let descriptor = open(&directory, path.as_c_str(), flags, 0o600)?;
        let owned = OwnedDescriptor::here(descriptor).inspect_err(|_| close(descriptor))?;
        let file = ReportFile::map(descriptor, place.reserve).inspect_err(|_| owned.close())?;
        Ok(OpenedReport { file, kind: OpenedKind::ForSession(owned), ..Self::first(place.run) })
    }

    /// A run of this process's own, which is a child of the one that installed; else the spare report of that one's run.
    ///
    /// # Errors
    /// `EACCES` if neither can be had.
    pub(crate) fn of_child(parent: &Place<'_>) -> Result<Self> {
        let sizes = RunSizes::of(parent.reserve, parent.run.state_size, false);
        if parent.run.is_on_disk()
            && let Ok(run) = RunFiles::create_of_child(parent.store, sizes)
        {
            copy_state(parent.run, &run, &parent.limits);
            let opened = Self::first(&run);
            return Ok(OpenedReport { kind: OpenedKind::ChildRun(run), ..opened });
        }
        Self::spare(parent.run).ok_or(Errno(libc::EACCES))
    }

    /// Whether it is the run's reserved report, whose file is gone. (The spare one of a child's is of a run that lives.)
    fn is_removed(&self, run: &RunFiles) -> bool {
        self.file == run.report && run.is_removed()
    }

    /// The state of the run that a child made for its crash.
    #[cfg_attr(target_vendor = "apple", allow(dead_code, reason = "forked children have no runs of their own there"))]
    pub(crate) fn child_state(&self, limits: &Limits) -> Option<RunState<'static>> {
        match &self.kind {
            OpenedKind::ChildRun(run) => state_of(run, limits),
            _ => None,
        }
    }

    /// The report is written: what was opened for it is closed, cut to its length; what is in memory goes to the disk.
    pub(crate) fn finish(&mut self, report: &ReportWriter, place: &Place<'_>) {
        match &self.kind {
            OpenedKind::Reserved if !self.file.is_file || self.is_removed(place.run) => {
                // There may be room by now; if not, the report is lost with the process, as install said. Files that somebody removed are
                // made anew.
                let _ = persist(place, report);
            }
            OpenedKind::Reserved => {}
            OpenedKind::ForSession(descriptor) => {
                self.file.unmap();
                if let Some(number) = descriptor.verified() {
                    let _ = files::truncate(number, report.committed() as u64);
                    close(number);
                }
            }
            OpenedKind::ChildRun(run) => run.close(),
        }
    }
}

/// Brings a run that is in memory to the disk: report and state.
fn persist(place: &Place<'_>, report: &ReportWriter) -> core::result::Result<(), RunError> {
    let run = place.run;
    let directory = open_run(place.store, &run.id)?;
    // Who removes the files may have come no further than the lock: the others are those that are mapped, and must not be cut.
    let flags = libc::O_RDWR | libc::O_CREAT;
    // Each with its own code: a call through a pointer is what the crash path must not make.
    let lock = open(&directory, c"lock", flags, 0o600).map_err(at(RunStep::Lock))?;
    close(lock);
    let file = open(&directory, c"report", flags, 0o600).map_err(at(RunStep::Report))?;
    let written = report.file().persist(file, report.committed());
    close(file);
    written.map_err(at(RunStep::Report))?;
    let state = core::ptr::slice_from_raw_parts(run.state_address as *const u8, run.state_size);
    let file = open(&directory, c"state", flags, 0o600).map_err(at(RunStep::State))?;
    let written = write_all(file, state);
    close(file);
    written.map_err(at(RunStep::State))
}

//! The file that a session writes its report to: the reserved one, a further one of the same run,
//! the spare one, or that of a run which a child creates for its crash.

use core::ffi::CStr;

use coroner_process::descriptor::OwnedDescriptor;
use coroner_process::files;
use coroner_process::path::Path;
use coroner_process::syscall::{Errno, Result};
#[cfg(not(target_vendor = "apple"))]
use coroner_report::child_slots::Sizes;
use coroner_report::run_state::{Limits, RunState};

#[cfg(not(target_vendor = "apple"))]
use super::child_reports::{ChildReports, ChildSlot};
use super::report_file::{ReportFile, ReportWriter, write_all};
use super::run_files::{RunError, RunFiles, RunSizes, RunStep, at, copy_state, open, open_run, state_of};

/// A process's run, with the parameters for creating further files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The run.
    pub(crate) run: &'a RunFiles,
    /// Path of the run's store.
    pub(crate) store: &'a CStr,
    /// Bytes of disk space for each report.
    pub(crate) reserve: u32,
    /// Limits of the run state.
    pub(crate) limits: Limits,
    /// Reports reserved for children.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) children: &'a ChildReports,
}

impl Place<'_> {
    /// Whether the store's path still leads to the store, in a child that may have another root.
    fn leads_to_store(&self) -> bool {
        #[cfg(not(target_vendor = "apple"))]
        return self.run.is_removed() || self.children.is_same_store(self.store);
        #[cfg(target_vendor = "apple")]
        true
    }

    /// Returns the sizes of the reports reserved for children.
    #[cfg(not(target_vendor = "apple"))]
    fn child_sizes(&self) -> Sizes {
        Sizes::new(self.reserve as usize, self.run.state_size)
    }
}

/// The file that a session writes to, and how to finish it.
#[derive(Debug)]
pub(crate) struct OpenedReport {
    /// The file.
    pub(crate) file: ReportFile,
    /// ID of the run that the report belongs to.
    pub(crate) run_id: [u8; 16],
    /// Number of bytes of an earlier report in the file, which must be zeroed.
    pub(crate) stale: usize,
    kind: OpenedKind,
}

#[derive(Debug)]
enum OpenedKind {
    /// Mapped for the process's life.
    Reserved,
    /// Opened for this session.
    ForSession(OwnedDescriptor),
    /// A child's own run, created for this session.
    ChildRun(RunFiles),
    /// A slot that is reserved for children.
    #[cfg(not(target_vendor = "apple"))]
    ChildSlot(ChildSlot),
    /// Closed.
    Finished,
}

impl OpenedReport {
    /// Returns the run's reserved report.
    pub(crate) fn first(run: &RunFiles) -> Self {
        OpenedReport { file: run.report, run_id: run.id, stale: 0, kind: OpenedKind::Reserved }
    }

    /// Returns the run's reserved report, which already contains a report.
    pub(crate) fn first_again(run: &RunFiles) -> Self {
        OpenedReport { stale: usize::MAX, ..Self::first(run) }
    }

    /// Opens the run's report with that number by its path; the spare one if that isn't possible.
    ///
    /// # Errors
    /// The reason why the file can't be opened, if the spare one is also taken.
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
        // The last file is reused.
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
        let opened = open(&directory, path.as_c_str(), flags, 0o600)?;
        let file = ReportFile::map(&opened, place.reserve)?;
        let owned = OwnedDescriptor::here(opened).inspect_err(|_| {
            // SAFETY: mapped above, and nobody uses it.
            unsafe { file.unmap() }
        })?;
        Ok(OpenedReport { file, kind: OpenedKind::ForSession(owned), ..Self::first(place.run) })
    }

    /// Creates a run for this process, which is a child of the one that installed; otherwise claims
    /// a report that is reserved for children, or takes the spare report of the parent's run.
    ///
    /// # Errors
    /// `EACCES` if none is available.
    pub(crate) fn of_child(parent: &Place<'_>) -> Result<Self> {
        let sizes = RunSizes::of(parent.reserve, parent.run.state_size, false);
        if parent.run.is_on_disk()
            && parent.leads_to_store()
            && let Ok(run) = RunFiles::create_of_child(parent.store, sizes)
        {
            copy_state(parent.run, &run, &parent.limits);
            let opened = Self::first(&run);
            return Ok(OpenedReport { kind: OpenedKind::ChildRun(run), ..opened });
        }
        #[cfg(not(target_vendor = "apple"))]
        if let Some(slot) = parent.children.claim(&parent.child_sizes(), parent.run.state_size) {
            copy_state(parent.run, &slot.run, &parent.limits);
            let opened = Self::first(&slot.run);
            return Ok(OpenedReport { kind: OpenedKind::ChildSlot(slot), ..opened });
        }
        let spare = Self::spare(parent.run);
        #[cfg(not(target_vendor = "apple"))]
        if spare.is_none() {
            parent.children.count_left_out();
        }
        spare.ok_or(Errno(libc::EACCES))
    }

    /// Whether this is the run's reserved report, whose file was removed. (A child's spare report
    /// belongs to a run that is alive.)
    fn is_removed(&self, run: &RunFiles) -> bool {
        self.file == run.report && run.is_removed()
    }

    /// Returns the state of the run that a child created for its crash.
    #[cfg_attr(target_vendor = "apple", allow(dead_code, reason = "forked children have no runs of their own there"))]
    pub(crate) fn child_state(&self, limits: &Limits) -> Option<RunState<'static>> {
        match &self.kind {
            OpenedKind::ChildRun(run) => state_of(run, limits),
            #[cfg(not(target_vendor = "apple"))]
            OpenedKind::ChildSlot(slot) => state_of(&slot.run, limits),
            _ => None,
        }
    }

    /// Completes the report: closes what was opened for it, truncated to its length; writes what is
    /// in memory to disk.
    pub(crate) fn finish(&mut self, report: &ReportWriter, place: &Place<'_>) {
        match core::mem::replace(&mut self.kind, OpenedKind::Finished) {
            OpenedKind::Reserved if !self.file.is_file || self.is_removed(place.run) => {
                // There may be room by now; if not, the report is lost with the process, as
                // reported at install. Removed files are created again.
                let _ = persist(place, report);
            }
            OpenedKind::Reserved => place.run.restore_state(place.store),
            OpenedKind::Finished => {}
            OpenedKind::ForSession(descriptor) => {
                // SAFETY: mapped for this session, whose last use of the report this is.
                unsafe { self.file.unmap() };
                if let Some(file) = descriptor.verified() {
                    let _ = files::truncate(file, report.committed() as u64);
                }
                descriptor.close();
                place.run.restore_state(place.store);
            }
            OpenedKind::ChildRun(run) => {
                run.close();
                #[cfg(not(target_vendor = "apple"))]
                place.children.note_finished();
            }
            #[cfg(not(target_vendor = "apple"))]
            OpenedKind::ChildSlot(slot) => {
                slot.finish();
                place.children.note_finished();
            }
        }
    }
}

/// Writes a run that is in memory to disk: report and state.
fn persist(place: &Place<'_>, report: &ReportWriter) -> core::result::Result<(), RunError> {
    let run = place.run;
    let directory = open_run(place.store, &run.id)?;
    // Whoever is removing the files may only have removed the lock so far: the others are the
    // mapped ones, and must not be truncated.
    let flags = libc::O_RDWR | libc::O_CREAT;
    // Each step has its own code: the crash path must not call through a pointer.
    open(&directory, c"lock", flags, 0o600).map_err(at(RunStep::Lock))?;
    let file = open(&directory, c"report", flags, 0o600).map_err(at(RunStep::Report))?;
    report.file().persist(&file, report.committed()).map_err(at(RunStep::Report))?;
    let file = open(&directory, c"state", flags, 0o600).map_err(at(RunStep::State))?;
    write_all(&file, run.state_bytes()).map_err(at(RunStep::State))
}

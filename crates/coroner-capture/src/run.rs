//! The run: one directory in the store for one process's life, made at install with everything that a crash will need.
//!
//! ```text
//! <store>/                       0700
//!   runs/<run id, 32 hex digits>/  0700, one per process
//!     lock                         empty; a POSIX write lock (fcntl F_SETLK) held for the process's life
//!     report                       the report, see coroner-report: reserved at install and mapped, zero until a crash
//!     report-spare                 a small one, reserved and mapped as well: for a crash that can open no file
//!     report-2 …                   later crashes of a process that goes on after the first (made when they happen)
//!     state                        the run state, mapped, written while the app runs
//!   clean/                         the directory of a run that ended by itself and left no report, for the next one to use
//! ```
//!
//! After install one descriptor is open, the lock's. It is a POSIX lock since that belongs to the process: a child made by fork
//! does not keep its dead parent's run locked (as it would with flock or an open-file-description lock). It is dropped when the
//! process closes any descriptor of that file; an app that closes all descriptors does. So who claims a run also looks whether
//! the process that the state names lives (`coroner::store`).
//!
//! All of it is system calls without allocation, since a child made by fork or vfork makes its run when it crashes.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

use coroner_process::descriptor::OwnedDescriptor;
use coroner_process::files::{self, close, status};
use coroner_process::path::Path;
use coroner_process::syscall::{Errno, Result};
use coroner_process::threads::{process_id, wall_now};
#[cfg(not(target_vendor = "apple"))]
use coroner_report::run_state::ExitKind;
use coroner_report::run_state::{Limits, ProcessIdentity, RunState, Scalar, words_of_mapping};

use crate::installed::Installed;
use crate::report_file::{ReportFile, ReportWriter, write_all};

/// Bytes of disk of the spare report.
const SPARE: u32 = 128 << 10;
/// What is asked for if the disk has not as much as the options want.
const LEAST_RESERVE: u32 = 64 << 10;

/// In the store, the directory of a run that ended by itself.
const CLEAN: &CStr = c"clean";

/// A run that ended by itself and whose files this one uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanRun {
    /// Its id.
    pub id: [u8; 16],
    /// When its session began, nanoseconds since the Unix epoch; 0 if it had none.
    pub began: u64,
}

/// The files of a run, mapped.
#[derive(Debug)]
pub(crate) struct RunFiles {
    /// The run's id, random.
    pub id: [u8; 16],
    /// The locked file, open for the process's life; `None` where the run is in memory alone.
    lock: Option<OwnedDescriptor>,
    /// The reserved report.
    pub report: ReportFile,
    /// The reserved report of crashes that can open no file, and who has it.
    spare: Option<Spare>,
    pub state_address: usize,
    pub state_size: usize,
}

/// A small report that needs no file to be opened. Its mapping is shared with children made by fork.
#[derive(Debug)]
struct Spare {
    file: ReportFile,
}

impl Spare {
    /// The word by which a process takes it: the last of the mapping, which no report reaches.
    fn taken(&self) -> Option<&AtomicU32> {
        self.file.last_word()
    }

    /// Takes it for a report. `None` if another crash has it.
    fn take(&self) -> Option<ReportFile> {
        let free = self.taken()?.compare_exchange(0, process_id() as u32, Ordering::AcqRel, Ordering::Relaxed);
        free.is_ok().then_some(self.file.without_last_word())
    }
}

/// The step of making a run that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStep {
    /// Making or opening the store's directory.
    Store,
    /// Making or opening `runs` in it.
    Runs,
    /// Making the run's directory.
    Directory,
    /// Making or taking the lock.
    Lock,
    /// Making the report file and reserving its bytes.
    Report,
    /// Making the state file.
    State,
}

/// A failed step of making a run, with the kernel's reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunError {
    /// The step.
    pub step: RunStep,
    /// The kernel's error number.
    pub errno: Errno,
}

impl RunError {
    /// Whether the reason may be gone by the time of a crash: no room, no free descriptor, a disk that is read-only for now.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self.errno.0, libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE | libc::EROFS)
    }
}

/// For `map_err`: the step's error.
fn at(step: RunStep) -> impl Fn(Errno) -> RunError {
    move |errno| RunError { step, errno }
}

/// A directory that is open for a moment.
struct Directory(i32);

impl Drop for Directory {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// Opens a file below a directory, never through a symbolic link.
fn open(directory: &Directory, path: &CStr, flags: i32, mode: u32) -> Result<i32> {
    files::open(directory.0, path, flags | libc::O_NOFOLLOW, mode)
}

/// Opens a directory below another, which is made if it is not there.
fn open_directory(within: i32, path: &CStr, flags: i32) -> Result<Directory> {
    let flags = flags | libc::O_RDONLY | libc::O_DIRECTORY;
    match files::open(within, path, flags, 0) {
        Err(Errno(libc::ENOENT)) => {}
        other => return other.map(Directory),
    }
    match files::make_directory(within, path) {
        Ok(()) | Err(Errno(libc::EEXIST)) => files::open(within, path, flags, 0).map(Directory),
        Err(errno) => Err(errno),
    }
}

/// The store's `runs` directory.
fn open_runs(store: &CStr) -> core::result::Result<Directory, RunError> {
    // The store itself may be reached through a link that the app chose; nothing below it may.
    let store = open_directory(libc::AT_FDCWD, store, 0).map_err(at(RunStep::Store))?;
    open_directory(store.0, c"runs", libc::O_NOFOLLOW).map_err(at(RunStep::Runs))
}

fn open_run(store: &CStr, id: &[u8; 16]) -> core::result::Result<Directory, RunError> {
    let runs = open_runs(store)?;
    open_directory(runs.0, Path::new().push_hex(id).as_c_str(), libc::O_NOFOLLOW).map_err(at(RunStep::Directory))
}

/// 16 random bytes, as a version 4 UUID (RFC 9562, section 5.4), so that an id is also a valid event id.
pub(crate) fn random_id() -> [u8; 16] {
    let mut id = [0_u8; 16];
    if !files::random(&mut id) {
        // A kernel whose pool is not ready (early boot), or without the call: the address of a local, the clock and the
        // process id are spread by a multiplicative hash. Uniqueness in one store is what matters.
        let mut seed = coroner_process::threads::monotonic_now()
            ^ (coroner_process::threads::this_thread() as u64) << 32
            ^ id.as_ptr() as u64;
        for byte in &mut id {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            *byte = (seed >> 56) as u8;
        }
    }
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// What a run is to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunSizes {
    /// Bytes of the report.
    pub reserve: u32,
    /// Bytes of the state.
    pub state: usize,
    /// Whether there is a spare report.
    pub spare: bool,
}

const NEW: i32 = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;

impl RunFiles {
    /// Makes a run in a store.
    ///
    /// # Errors
    /// The step that failed; nothing is left then, neither open nor on the disk.
    pub(crate) fn create(store: &CStr, sizes: RunSizes) -> core::result::Result<RunFiles, RunError> {
        let id = random_id();
        let directory = open_run(store, &id)?;
        Self::fill(id, &directory, sizes).inspect_err(|_| remove(store, &id, &directory))
    }

    /// Makes a run of the files of one that ended by itself (not async-signal-safe): they are reserved already. `None` if there is
    /// none, or its process has not ended yet. One that crashed on its way out is put back among the runs.
    pub(crate) fn reuse(store: &CStr, sizes: RunSizes, limits: &Limits) -> Option<(RunFiles, CleanRun)> {
        let store = files::open(libc::AT_FDCWD, store, libc::O_RDONLY | libc::O_DIRECTORY, 0).map(Directory).ok()?;
        let lock = OwnedDescriptor::adopt(open(&store, c"clean/lock", libc::O_RDWR, 0).ok()?).ok()?;
        let reused = Self::reuse_locked(&store, lock, sizes, limits);
        if reused.is_none() {
            lock.close();
        }
        reused
    }

    fn reuse_locked(
        store: &Directory,
        lock: OwnedDescriptor,
        sizes: RunSizes,
        limits: &Limits,
    ) -> Option<(RunFiles, CleanRun)> {
        let lock_number = lock.opened_at();
        files::take_lock(lock_number).ok()?;
        let state = Directory(open(store, c"clean/state", libc::O_RDWR, 0).ok()?);
        if status(state.0).ok()?.st_size as usize != sizes.state {
            return None;
        }
        let state_address = files::map_file(state.0, sizes.state).ok()?;
        let id = random_id();
        let mut run = RunFiles {
            id,
            lock: Some(lock),
            report: ReportFile::NONE,
            spare: None,
            state_address,
            state_size: sizes.state,
        };
        let unmap = |run: &RunFiles| {
            run.unmap_reports();
            // SAFETY: mapped above, and nobody has it.
            unsafe { files::unmap(state_address, sizes.state) };
        };
        let before = state_of(&run, limits)?;
        let clean = CleanRun { id: before.run_id(), began: before.scalar(Scalar::SESSION_STARTED) };
        let is_clean = before.has_limits(limits) && before.ended_clean();
        if is_clean && let Some(report) = unused_report(store, c"clean/report", sizes.reserve) {
            run.report = report;
            let spare = unused_report(store, c"clean/report-spare", SPARE).map(|file| Spare { file });
            run.spare = spare.filter(|spare| spare.taken().is_some_and(|taken| taken.load(Ordering::Acquire) == 0));
        }
        let path = |id: &[u8; 16]| Path::new().push(b"runs/").push_hex(id);
        if run.report.is_none() || run.spare.is_none() {
            unmap(&run);
            // Its thread or a destructor crashed after it was put here, or another version of the app has other sizes.
            let _ = files::rename(store.0, CLEAN, path(&clean.id).as_c_str());
            return None;
        }
        if files::make_zero(state.0, sizes.state as u32).is_err()
            || files::rename(store.0, CLEAN, path(&id).as_c_str()).is_err()
        {
            unmap(&run);
            return None;
        }
        // Somebody may have used the directory since its lock was opened, and put another one in its place.
        let moved = path(&id).push(b"/lock");
        if !files::status_of(store.0, moved.as_c_str()).is_ok_and(|status| lock.is(&status)) {
            let _ = files::rename(store.0, path(&id).as_c_str(), CLEAN);
            unmap(&run);
            return None;
        }
        files::set_times(lock_number, wall_now());
        Some((run, clean))
    }

    /// A run in memory, which [`OpenedReport::finish`] brings to the disk if it can by then.
    pub(crate) fn in_memory(sizes: RunSizes) -> Result<RunFiles> {
        let report = ReportFile::in_memory(sizes.reserve)?;
        let state_address = files::map(sizes.state)?;
        let id = random_id();
        Ok(RunFiles { id, lock: None, report, spare: None, state_address, state_size: sizes.state })
    }

    fn fill(id: [u8; 16], directory: &Directory, sizes: RunSizes) -> core::result::Result<RunFiles, RunError> {
        let lock = open(directory, c"lock", NEW, 0o600).map_err(at(RunStep::Lock))?;
        // Of two runs that began within one tick of the kernel's clock, whose time a file gets by itself, nobody could say which
        // was the last.
        files::set_times(lock, wall_now());
        // Moved first: a POSIX lock is dropped when any descriptor of the file is closed.
        let lock = OwnedDescriptor::adopt(lock).map_err(at(RunStep::Lock))?;
        let made = files::take_lock(lock.opened_at()).map_err(at(RunStep::Lock));
        let made = made.and_then(|()| {
            let report = new_report(directory, c"report", sizes.reserve).map_err(at(RunStep::Report))?;
            let state = map_new(directory, c"state", sizes.state).inspect_err(|_| report.unmap());
            let state_address = state.map_err(at(RunStep::State))?;
            // A run without one has a little less in a rare case.
            let spare = sizes.spare.then(|| new_report(directory, c"report-spare", SPARE).ok()).flatten();
            let spare = spare.map(|file| Spare { file });
            Ok(RunFiles { id, lock: Some(lock), report, spare, state_address, state_size: sizes.state })
        });
        made.inspect_err(|_| lock.close())
    }

    /// Changes when the run began (not async-signal-safe).
    pub(crate) fn set_began(&self, since_epoch_ns: u64) {
        if let Some(lock) = self.lock.as_ref().and_then(OwnedDescriptor::verified) {
            files::set_times(lock, since_epoch_ns);
        }
    }

    /// Whether a later launch can find it.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.lock.is_some()
    }

    /// Drops the lock and unmaps the reports; the state stays mapped.
    pub(crate) fn close(&self) {
        if let Some(lock) = self.lock {
            lock.close();
        }
        self.unmap_reports();
    }

    fn unmap_reports(&self) {
        self.report.unmap();
        if let Some(spare) = &self.spare {
            spare.file.unmap();
        }
    }

    /// The state gets the content of its parent's and takes its place in memory, where the app's scopes are; what else the child has of
    /// its parent's run is given back. False if it can't be mapped there.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn replace_parent(&mut self, parent: &RunFiles, limits: &Limits, process: &ProcessIdentity) -> bool {
        copy_state(parent, self, limits);
        let begun = state_of(self, limits).is_some_and(|state| state.begin_again(limits, self.id, process).is_ok());
        // SAFETY: both are mappings of run states of one size; the parent's is this process's private copy.
        if !begun || unsafe { files::move_mapping(self.state_address, parent.state_address, self.state_size) }.is_err()
        {
            return false;
        }
        self.state_address = parent.state_address;
        parent.close();
        true
    }

    /// Whether no report was begun in its files: of crashes that need no file to be opened, whoever had them.
    pub(crate) fn is_unused(&self) -> bool {
        let is_free = |spare: &Spare| spare.taken().is_some_and(|taken| taken.load(Ordering::Acquire) == 0);
        self.is_on_disk() && self.report.is_unused() && self.spare.as_ref().is_some_and(is_free)
    }

    /// Notes a clean end in the state of the run, which is another process's that has ended, unless that says how it ended.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn note_end(&self, store: &CStr, limits: &Limits) {
        let Ok(store) = files::open(libc::AT_FDCWD, store, libc::O_RDONLY | libc::O_DIRECTORY, 0).map(Directory) else {
            return;
        };
        let path = Path::new().push(b"runs/").push_hex(&self.id).push(b"/state");
        let Ok(state) = open(&store, path.as_c_str(), libc::O_RDWR, 0).map(Directory) else { return };
        if status(state.0).is_ok_and(|status| status.st_size as usize == self.state_size)
            && let Ok(state_address) = files::map_file(state.0, self.state_size)
        {
            let run = RunFiles { report: ReportFile::NONE, spare: None, lock: None, state_address, ..*self };
            if let Some(state) = state_of(&run, limits).filter(RunState::is_open) {
                state.set_scalar(Scalar::EXIT_TIME, wall_now());
                state.set_scalar(Scalar::EXIT, ExitKind::CLEAN.0.into());
            }
            // SAFETY: mapped above, and nobody has it.
            unsafe { files::unmap(state_address, self.state_size) };
        }
    }

    /// Closes and removes the run, as if it had never been made: its install failed.
    pub(crate) fn discard(&self, store: &CStr) {
        if self.is_on_disk()
            && let Ok(directory) = open_run(store, &self.id)
        {
            remove(store, &self.id, &directory);
        }
        self.close();
    }
}

/// A new report file, with its bytes reserved: less where the disk has no more, and none at all is an error.
fn new_report(directory: &Directory, name: &CStr, reserve: u32) -> Result<ReportFile> {
    let file = open(directory, name, NEW, 0o600)?;
    let mapped = ReportFile::map(file, reserve).or_else(|_| ReportFile::map(file, reserve.min(LEAST_RESERVE)));
    close(file);
    mapped.inspect_err(|_| files::unlink(directory.0, name, 0))
}

/// The report file of an earlier run, mapped, if nothing was written to it and it has the bytes that are wanted.
fn unused_report(store: &Directory, path: &CStr, reserve: u32) -> Option<ReportFile> {
    let file = Directory(open(store, path, libc::O_RDWR, 0).ok()?);
    if status(file.0).ok()?.st_size != i64::from(reserve) {
        return None;
    }
    let report = ReportFile::map_reserved(file.0, reserve).ok()?;
    if !report.is_unused() {
        report.unmap();
        return None;
    }
    Some(report)
}

/// A new file of so many bytes, all zero, mapped.
fn map_new(directory: &Directory, name: &CStr, bytes: usize) -> Result<usize> {
    let file = open(directory, name, NEW, 0o600)?;
    let mapped = files::reserve(file, bytes as u32).and_then(|()| files::map_file(file, bytes));
    close(file);
    mapped
}

/// Removes a run that was made in part. A later launch leaves a run without a state alone for a minute, and then removes it:
/// so the state goes first, and nobody takes what is left for a run that ended.
fn remove(store: &CStr, id: &[u8; 16], directory: &Directory) {
    for name in [c"state", c"report", c"report-spare", c"lock"] {
        files::unlink(directory.0, name, 0);
    }
    if let Ok(runs) = open_runs(store) {
        files::unlink(runs.0, Path::new().push_hex(id).as_c_str(), libc::AT_REMOVEDIR);
    }
}

/// The file that a session writes to, and what is to be done with it at the end.
#[derive(Debug)]
pub(crate) struct OpenedReport {
    pub file: ReportFile,
    pub run_id: [u8; 16],
    /// Bytes of an earlier report in it, which are to be zeroed.
    pub stale: usize,
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
    pub(crate) fn further(installed: &Installed, number: u32) -> Result<Self> {
        let run = &installed.run.files;
        let opened = Self::open_further(installed, number);
        opened.or_else(|errno| match run.spare.as_ref().and_then(Spare::take) {
            Some(file) => Ok(OpenedReport { file, run_id: run.id, stale: 0, kind: OpenedKind::Reserved }),
            None => Err(errno),
        })
    }

    fn open_further(installed: &Installed, number: u32) -> Result<Self> {
        let run = &installed.run.files;
        if !run.is_on_disk() {
            return Err(Errno(libc::ENOENT));
        }
        let directory = open_run(installed.store(), &run.id).map_err(|error| error.errno)?;
        let path = Path::new().push(b"report-").push_decimal(number);
        // The last place is used again.
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
        let descriptor = open(&directory, path.as_c_str(), flags, 0o600)?;
        let owned = OwnedDescriptor::here(descriptor).inspect_err(|_| close(descriptor))?;
        let file = ReportFile::map(descriptor, installed.options.reserve).inspect_err(|_| owned.close())?;
        Ok(OpenedReport { file, run_id: run.id, stale: 0, kind: OpenedKind::ForSession(owned) })
    }

    /// A run of this process's own, which is a child of the one that installed; else the spare report of that one's run.
    pub(crate) fn of_child(installed: &Installed) -> Result<Self> {
        let parent = &installed.run.files;
        let sizes = RunSizes { reserve: installed.options.reserve, state: parent.state_size, spare: false };
        if parent.is_on_disk()
            && let Ok(run) = RunFiles::create(installed.store(), sizes)
        {
            copy_state(parent, &run, &installed.options.state.allowed());
            return Ok(OpenedReport { file: run.report, run_id: run.id, stale: 0, kind: OpenedKind::ChildRun(run) });
        }
        let file = parent.spare.as_ref().and_then(Spare::take).ok_or(Errno(libc::EACCES))?;
        Ok(OpenedReport { file, run_id: parent.id, stale: 0, kind: OpenedKind::Reserved })
    }

    /// The state of the run that a child made for its crash.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn child_state(&self, limits: &Limits) -> Option<RunState<'static>> {
        match &self.kind {
            OpenedKind::ChildRun(run) => state_of(run, limits),
            _ => None,
        }
    }

    /// The report is written: what was opened for it is closed, cut to its length; what is in memory goes to the disk.
    pub(crate) fn finish(&mut self, report: &ReportWriter, installed: &Installed) {
        match &self.kind {
            OpenedKind::Reserved if !self.file.is_file => {
                // There may be room by now; if not, the report is lost with the process, as install said.
                let _ = persist(installed, report);
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

/// The state of a run, as far as it is mapped.
pub(crate) fn state_of(run: &RunFiles, limits: &Limits) -> Option<RunState<'static>> {
    // SAFETY: mapped for that size, zero or a run state of these limits, and never unmapped; only the run state's words use it.
    let words = unsafe { words_of_mapping(run.state_address as *mut u8, run.state_size) };
    words.map(|words| RunState::reopen(words, limits))
}

/// Copies a run's state into another run's, which is of this process.
fn copy_state(from: &RunFiles, to: &RunFiles, limits: &Limits) {
    // SAFETY: both are mappings of that size, page-aligned, the second of this run alone.
    unsafe { files::copy_words(from.state_address, to.state_address, from.state_size.min(to.state_size)) };
    if let Some(state) = state_of(to, limits) {
        // The parent lives on; this run must not look as if it did. Its lock says whether the child lives.
        state.set_identity(&ProcessIdentity::default());
    }
}

/// Brings a run that is in memory to the disk: report and state.
fn persist(installed: &Installed, report: &ReportWriter) -> core::result::Result<(), RunError> {
    let run = &installed.run.files;
    let directory = open_run(installed.store(), &run.id)?;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
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

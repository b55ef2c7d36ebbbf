//! Creates a run's files, and releases them.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};

use coroner_process::descriptor::OwnedDescriptor;
use coroner_process::directory_owner;
use coroner_process::file_mirror::FileMirror;
use coroner_process::files::{self, Descriptor, File, status};
use coroner_process::path::{LongPath, Path};
use coroner_process::syscall::{Errno, Result};
use coroner_process::threads::{clocks, process_id, wall_now};
#[cfg(not(target_vendor = "apple"))]
use coroner_report::run_state::ExitKind;
#[cfg(not(target_vendor = "apple"))]
use coroner_report::run_state::FIXED_BYTES;
use coroner_report::run_state::{Limits, ProcessIdentity, RunState, Scalar, words_of_mapping};

use super::clean_run::{CleanRun, KEPT_VITALS};
use super::report_file::{ReportFile, write_all};

/// Bytes of disk space for the spare report, which lies at the end of the main report's file.
const SPARE: u32 = 128 << 10;
/// Bytes requested if the disk has less than the options require.
const LEAST_RESERVE: u32 = 64 << 10;

/// Name of the store's directory for a run that exited cleanly.
const CLEAN: &[u8] = b"clean";

/// Number of bytes of the run state that are touched at install: its fixed part and the facts.
const STATE_TOUCHED: usize = 12 << 10;

/// A run's files, mapped.
#[derive(Debug)]
pub(crate) struct RunFiles {
    /// The run's ID, random.
    pub(crate) id: [u8; 16],
    /// The locked file, open for the process's life; `None` if the run is only in memory.
    lock: Option<OwnedDescriptor>,
    /// Named pipe that marks the run as owned if the store forbids locks: see [`take`].
    pipe: Option<OwnedDescriptor>,
    /// The reserved report.
    pub(crate) report: ReportFile,
    /// Reserved report for crashes that can open no file; [`ReportFile::NONE`] for none. Its last
    /// word, which no report reaches, records who uses it: its mapping is shared with children made
    /// by fork.
    spare: ReportFile,
    /// Address of the state: in memory after [`keep_state`](Self::keep_state), before that of the
    /// file's mapping.
    state_address: usize,
    /// Size of the state in bytes.
    pub(crate) state_size: usize,
    /// Address at which the state's file is mapped, for [`mirror`](Self::mirror); 0 if it isn't.
    state_file: usize,
    /// Copies the state's changes to the file.
    pub(crate) mirror: Option<&'static FileMirror>,
}

/// The step that failed when creating a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStep {
    /// Creating or opening the store's directory.
    Store,
    /// Creating or opening `runs` in the store's directory.
    Runs,
    /// Creating the run's directory.
    Directory,
    /// Creating or taking the lock.
    Lock,
    /// Creating the report file and reserving its bytes.
    Report,
    /// Creating the state file.
    State,
}

/// A failed step of creating a run, with the kernel's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunError {
    /// The step that failed.
    pub step: RunStep,
    /// The kernel's error number.
    pub errno: Errno,
}

impl core::fmt::Display for RunStep {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            RunStep::Store => "can't open the store",
            RunStep::Runs => "can't open `runs` in the store",
            RunStep::Directory => "can't create the run's directory",
            RunStep::Lock => "can't lock the run (the store must be on a file system with record locks)",
            RunStep::Report => "can't reserve space for a report",
            RunStep::State => "can't create the run state",
        })
    }
}

impl core::fmt::Display for RunError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} (errno {})", self.step, self.errno.0)
    }
}

impl core::error::Error for RunError {}

impl RunError {
    /// Returns `true` if the cause may be gone by the time of a crash: no room, no free descriptor,
    /// a disk that is read-only for now.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self.errno.0, libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE | libc::EROFS)
    }
}

/// Returns a function that adds the step to an error, for `map_err`.
pub(crate) fn at(step: RunStep) -> impl Fn(Errno) -> RunError {
    move |errno| RunError { step, errno }
}

/// Opens a file in a directory, never through a symbolic link.
pub(crate) fn open(directory: &Descriptor, path: &CStr, flags: i32, mode: u32) -> Result<File> {
    files::open(directory, path, flags | libc::O_NOFOLLOW, mode)
}

/// Opens a directory in another one, and creates it if it doesn't exist.
fn open_directory(within: &Descriptor, path: &CStr, flags: i32) -> Result<File> {
    let flags = flags | libc::O_RDONLY | libc::O_DIRECTORY;
    match files::open(within, path, flags, 0) {
        Err(Errno(libc::ENOENT)) => {}
        other => return other,
    }
    match files::make_directory(within, path) {
        Ok(()) | Err(Errno(libc::EEXIST)) => files::open(within, path, flags, 0),
        Err(errno) => Err(errno),
    }
}

/// Opens the store's `runs` directory.
fn open_runs(store: &CStr) -> core::result::Result<File, RunError> {
    // The store itself may be reached through a link that the app chose; nothing below it may.
    let opened = open_directory(Descriptor::WORKING_DIRECTORY, store, 0).or_else(|errno| {
        // The app's directory, which contained the store, was removed.
        let path = store.to_bytes();
        let parent = path.iter().rposition(|byte| *byte == b'/').and_then(|end| path.get(..end));
        if errno != Errno(libc::ENOENT) || parent.is_none_or(<[u8]>::is_empty) {
            return Err(errno);
        }
        files::make_directory(
            Descriptor::WORKING_DIRECTORY,
            LongPath::new().push(parent.unwrap_or_default()).as_c_str(),
        )?;
        open_directory(Descriptor::WORKING_DIRECTORY, store, 0)
    });
    let store = opened.map_err(at(RunStep::Store))?;
    open_directory(&store, c"runs", libc::O_NOFOLLOW).map_err(at(RunStep::Runs))
}

pub(crate) fn open_run(store: &CStr, id: &[u8; 16]) -> core::result::Result<File, RunError> {
    let runs = open_runs(store)?;
    open_directory(&runs, Path::new().push_hex(id).as_c_str(), libc::O_NOFOLLOW).map_err(at(RunStep::Directory))
}

/// Returns 16 random bytes, as a version 4 UUID (RFC 9562, section 5.4), so that an ID is also a
/// valid event ID.
pub(crate) fn random_id() -> [u8; 16] {
    let mut id = [0_u8; 16];
    if !files::random(&mut id) {
        // A kernel whose pool is not ready (early boot), or without the call: the address of a
        // local, the clock and the thread ID are spread by a multiplicative hash. Uniqueness in one
        // store is what matters.
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

/// Sizes of a run's files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunSizes {
    /// Size of the report in bytes.
    reserve: u32,
    /// Size of the state in bytes.
    state: usize,
    /// Size of the spare report in bytes, 0 for none.
    spare: u32,
}

impl RunSizes {
    /// Returns the sizes for a process's run, or for one that a child creates when it crashes.
    pub(crate) fn of(reserve: u32, state: usize, spare: bool) -> RunSizes {
        /// Largest page size in bytes: the spare report is unmapped separately.
        const PAGE: u32 = 1 << 16;
        RunSizes { reserve: reserve.next_multiple_of(PAGE), state, spare: if spare { SPARE } else { 0 } }
    }
}

pub(super) const NEW: i32 = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;

impl RunFiles {
    /// Creates a run in a store.
    ///
    /// # Errors
    /// The step that failed; nothing is left then, neither open nor on disk.
    pub(crate) fn create(store: &CStr, sizes: RunSizes) -> core::result::Result<RunFiles, RunError> {
        Self::create_with(store, sizes, |id, lock| take(id, store, lock))
    }

    /// Same as [`create`](Self::create), for a process that crashes (async-signal-safe): a child
    /// made by fork. Apps on iOS have no such children, so the run is always owned by its file's
    /// lock.
    ///
    /// # Errors
    /// See `create`.
    pub(crate) fn create_of_child(store: &CStr, sizes: RunSizes) -> core::result::Result<RunFiles, RunError> {
        Self::create_with(store, sizes, |_, lock| files::take_lock(lock.opened_at()).map(|()| None))
    }

    fn create_with(
        store: &CStr,
        sizes: RunSizes,
        take: impl FnOnce(&[u8; 16], OwnedDescriptor) -> Result<Option<OwnedDescriptor>>,
    ) -> core::result::Result<RunFiles, RunError> {
        let id = random_id();
        let directory = open_run(store, &id)?;
        Self::fill(id, &directory, sizes, take).inspect_err(|_| remove(store, &id, &directory))
    }

    /// Same as [`create`](Self::create); if there is no room or no descriptor, tries again after
    /// calling `free`.
    ///
    /// # Errors
    /// See `create`.
    pub(crate) fn create_or_free(
        store: &CStr,
        sizes: RunSizes,
        free: impl FnOnce(),
    ) -> core::result::Result<RunFiles, RunError> {
        Self::create(store, sizes).or_else(|error| {
            if !error.may_pass() {
                return Err(error);
            }
            free();
            Self::create(store, sizes)
        })
    }

    /// Creates a run from the files of one that exited cleanly (not async-signal-safe): they are
    /// already reserved. Returns `None` if there is none, or its process has not ended yet. A run
    /// that crashed while exiting is moved back among the runs.
    pub(crate) fn reuse(store: &CStr, sizes: RunSizes, limits: &Limits) -> Option<(RunFiles, CleanRun)> {
        if directory_owner::forbids_locks(store.to_bytes()) {
            return None;
        }
        let reused = open_clean(store).and_then(|clean| {
            let lock = OwnedDescriptor::adopt(open_own(&clean, c"lock")?)?;
            let reused = Self::reuse_locked(store, &clean, lock, sizes, limits);
            if reused.is_none() {
                lock.close();
                for name in [c"state", c"report"] {
                    open_own(&clean, name)?;
                }
            }
            Ok(reused)
        });
        if let Err(Errno(libc::EPERM | libc::EACCES | libc::ELOOP | libc::ENOTDIR | libc::EISDIR)) = reused {
            set_clean_aside(store);
        }
        reused.ok().flatten()
    }

    fn reuse_locked(
        store: &CStr,
        directory: &Descriptor,
        lock: OwnedDescriptor,
        sizes: RunSizes,
        limits: &Limits,
    ) -> Option<(RunFiles, CleanRun)> {
        files::take_lock(lock.opened_at()).ok()?;
        let whole = sizes.reserve + sizes.spare;
        let state_file = open_clean_whole(directory, c"state", sizes.state as u32)?;
        let report_file = open_clean_whole(directory, c"report", whole);
        // Read by the kernel and not through a mapping: a page that the disk can't provide would
        // end the app.
        let mut head = StateHead::read(&state_file)?;
        let before = RunState::reopen(&head.0, limits);
        let names_lock = before.scalar(Scalar::LOCK_FILE) == lock.inode();
        let mut clean = CleanRun {
            id: before.run_id(),
            began: before.scalar(Scalar::SESSION_STARTED),
            is_noted: before.scalar(Scalar::CLEAN_EXIT_NOTED) == 1,
            app: before.scalar(Scalar::APP),
            machine: before.scalar(Scalar::MACHINE),
            facts: [0; 512],
            machine_facts: before.scalar(Scalar::MACHINE_FACTS) as usize,
            vitals: KEPT_VITALS.map(|scalar| before.scalar(scalar)),
        };
        let run_path = |id: &[u8; 16]| in_store(store, &[b"runs/", Path::new().push_hex(id).as_c_str().to_bytes()]);
        let clean_path = in_store(store, &[CLEAN]);
        let is_unused = report_file.as_ref().is_some_and(|file| has_no_report(file, whole) && sizes.spare > 0);
        if !before.has_limits(limits) || !before.ended_clean() || !is_unused {
            // Its thread or a destructor crashed after it was moved here, or another version of the
            // app uses other sizes.
            let _ = files::rename(Descriptor::WORKING_DIRECTORY, clean_path.as_c_str(), run_path(&clean.id).as_c_str());
            return None;
        }
        if !before.facts_start(&mut clean.facts) {
            clean.machine = 0;
        }
        let used = before.used_bytes().filter(|used| *used <= STATE_TOUCHED);
        let is_zero = match used {
            Some(used) => head.write_zeros(&state_file, used),
            None => files::make_zero(&state_file, sizes.state as u32).is_ok(),
        };
        if !is_zero {
            return None;
        }
        let whole = whole as usize;
        let report_file = report_file?;
        let report_address = files::map_shared(&report_file, whole).ok()?;
        let (report, spare) = ReportFile::mapped(report_address, whole).split(sizes.spare);
        let Ok(state_address) = files::map_shared(&state_file, sizes.state) else {
            // SAFETY: mapped above, and nobody uses them.
            unsafe {
                report.unmap();
                spare.unmap();
            }
            return None;
        };
        let run = RunFiles {
            id: random_id(),
            lock: Some(lock),
            pipe: None,
            report,
            spare,
            state_address,
            state_size: sizes.state,
            state_file: 0,
            mirror: None,
        };
        // The kernel usually puts one mapping directly below the other.
        if spare.ends_at(state_address) {
            files::read_nothing_ahead(state_address - whole, whole + sizes.state);
        } else {
            files::read_nothing_ahead(state_address, sizes.state);
            files::read_nothing_ahead(report_address, whole);
        }
        let unmap = || {
            // SAFETY: mapped above, and nobody uses them.
            unsafe {
                run.unmap_reports();
                files::unmap(state_address, sizes.state);
            }
        };
        // A failing disk must not end the app at the first store.
        let is_there = files::populate(state_address, STATE_TOUCHED.min(sizes.state)) != Err(Errno(libc::EFAULT));
        let path = run_path(&run.id);
        if !is_there || files::rename(Descriptor::WORKING_DIRECTORY, clean_path.as_c_str(), path.as_c_str()).is_err() {
            unmap();
            return None;
        }
        // Another process may have used the directory since its lock was opened, and put another
        // one in its place: not if its state names this lock, since nobody takes the directory of a
        // lock that is held.
        let moved = path.push(b"/lock");
        if !names_lock
            && !files::status_of(Descriptor::WORKING_DIRECTORY, moved.as_c_str()).is_ok_and(|status| lock.is(&status))
        {
            let _ = files::rename(Descriptor::WORKING_DIRECTORY, path.as_c_str(), clean_path.as_c_str());
            unmap();
            return None;
        }
        files::set_times(lock.opened_at(), clocks()[1]);
        Some((run, clean))
    }

    /// Creates a run in memory, which [`OpenedReport::finish`](super::OpenedReport::finish) writes
    /// to disk if it can by then.
    ///
    /// # Errors
    /// The error of mmap, if there is no memory.
    pub(crate) fn in_memory(sizes: RunSizes) -> Result<RunFiles> {
        let report = ReportFile::in_memory(sizes.reserve)?;
        let id = random_id();
        Ok(RunFiles {
            id,
            lock: None,
            pipe: None,
            report,
            spare: ReportFile::NONE,
            state_address: 0,
            state_size: sizes.state,
            state_file: 0,
            mirror: None,
        })
    }

    /// Moves the state from its file into memory, which no change of the file can take away. The
    /// state must still be all zeros.
    ///
    /// # Errors
    /// The error of mmap, if there is no memory.
    pub(crate) fn keep_state(&mut self) -> Result<()> {
        let (size, touched) = (self.state_size, STATE_TOUCHED.min(self.state_size));
        let memory = files::map_but(size + size_of::<FileMirror>(), touched..size)?;
        self.state_file = core::mem::replace(&mut self.state_address, memory);
        // SAFETY: a fresh mapping that is never unmapped, page-aligned, with a multiple of eight
        // bytes before this value, for which zeros are valid.
        self.mirror = Some(unsafe { &*((memory + size) as *const FileMirror) });
        Ok(())
    }

    /// Returns the words of the state.
    pub(crate) fn state_words(&self) -> Option<&'static [AtomicU64]> {
        // SAFETY: mapped for that size, zero or a run state of these limits, and never unmapped;
        // only the run state's words use it.
        unsafe { words_of_mapping(self.state_address as *mut u8, self.state_size) }
    }

    /// Writes the whole state to its file again if somebody has cut it (async-signal-safe).
    pub(crate) fn restore_state(&self, store: &CStr) {
        let Some(mirror) = self.mirror.filter(|mirror| mirror.is_cut() && self.is_on_disk()) else { return };
        if let Ok(directory) = open_run(store, &self.id)
            && let Ok(file) = open(&directory, c"state", libc::O_RDWR | libc::O_CREAT, 0o600)
        {
            // Mapped again first, so that a change in the meantime is copied, too. Reserving checks
            // the limit of file sizes.
            // SAFETY: the file's mapping, to which the state is only copied.
            let mapped = files::reserve(&file, self.state_size as u32)
                .and_then(|()| unsafe { files::map_file_at(self.state_file, &file, self.state_size) });
            if mapped.is_ok() {
                // SAFETY: mapped just now.
                unsafe { mirror.open(self.state_file) };
                let _ = write_all(&file, self.state_bytes());
            }
        }
    }

    /// Returns the state's bytes.
    pub(super) fn state_bytes(&self) -> *const [u8] {
        core::ptr::slice_from_raw_parts(self.state_address as *const u8, self.state_size)
    }

    /// Returns the run of a child, which is mapped at these places for the process's life.
    #[cfg(not(target_vendor = "apple"))]
    pub(super) fn mapped(id: [u8; 16], report: ReportFile, state_address: usize, state_size: usize) -> RunFiles {
        RunFiles {
            id,
            lock: None,
            pipe: None,
            report,
            spare: ReportFile::NONE,
            state_address,
            state_size,
            state_file: 0,
            mirror: None,
        }
    }

    fn fill(
        id: [u8; 16],
        directory: &Descriptor,
        sizes: RunSizes,
        take: impl FnOnce(&[u8; 16], OwnedDescriptor) -> Result<Option<OwnedDescriptor>>,
    ) -> core::result::Result<RunFiles, RunError> {
        let lock = open(directory, c"lock", NEW, 0o600).map_err(at(RunStep::Lock))?;
        // Sets an exact time: a file gets its time by itself from the kernel's clock tick, so the
        // order of two runs that began within one tick could not be determined.
        files::set_times(&lock, wall_now());
        // Moved first: a POSIX lock is dropped when any descriptor of the file is closed.
        let lock = OwnedDescriptor::adopt(lock).map_err(at(RunStep::Lock))?;
        let pipe = take(&id, lock).map_err(at(RunStep::Lock));
        let made = pipe.and_then(|pipe| {
            let give_back = || pipe.iter().for_each(|pipe| pipe.close());
            let reports = new_report(directory, c"report", sizes).inspect_err(|_| give_back());
            let (report, spare) = reports.map_err(at(RunStep::Report))?;
            let state = map_new(directory, c"state", sizes.state).inspect_err(|_| {
                // SAFETY: mapped above, and nobody uses them.
                unsafe {
                    report.unmap();
                    spare.unmap();
                }
                give_back();
            });
            let state_address = state.map_err(at(RunStep::State))?;
            let (lock, state_size) = (Some(lock), sizes.state);
            Ok(RunFiles { id, lock, pipe, report, spare, state_address, state_size, state_file: 0, mirror: None })
        });
        made.inspect_err(|_| lock.close())
    }

    /// Sets the time at which the run began (not async-signal-safe).
    pub(crate) fn set_began(&self, since_epoch_ns: u64) {
        if let Some(lock) = self.lock.as_ref().and_then(OwnedDescriptor::verified) {
            files::set_times(lock, since_epoch_ns);
        }
    }

    /// Puts an inaccessible page below the state, unless something is mapped there.
    pub(crate) fn guard_state(&self) {
        files::guard_below(self.state_address);
    }

    /// Makes the first pages of the state's file resident.
    ///
    /// # Errors
    /// `EFAULT` if the disk can't provide them.
    pub(crate) fn populate_state(&self) -> Result<()> {
        files::populate(self.state_address, STATE_TOUCHED.min(self.state_size))
    }

    /// Records in the run's state which file is its lock.
    pub(crate) fn name_lock(&self, state: &RunState<'_>) {
        state.set_scalar(Scalar::LOCK_FILE, self.lock.map_or(0, |lock| lock.inode()));
    }

    /// Returns the addresses at which the state's file is mapped.
    pub(crate) fn state_mapping(&self) -> core::ops::Range<usize> {
        let size = if self.state_file == 0 { 0 } else { self.state_size };
        self.state_file..self.state_file + size
    }

    /// Returns `true` if a later launch can find the run.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.lock.is_some()
    }

    /// Returns `true` if the run's files were removed while the process lives: the lock file has no
    /// name any more. Returns `false` if the app has closed the lock. (Checking the path would be
    /// less reliable: the process may have a different root by now.)
    pub(crate) fn is_removed(&self) -> bool {
        let lock = self.lock.as_ref().and_then(OwnedDescriptor::verified);
        lock.is_some_and(|lock| status(lock).is_ok_and(|status| status.st_nlink == 0))
    }

    /// Drops the lock and unmaps the reports; the state stays mapped.
    pub(crate) fn close(self) {
        for descriptor in [self.lock, self.pipe].into_iter().flatten() {
            descriptor.close();
        }
        // SAFETY: these files owned them.
        unsafe { self.unmap_reports() };
    }

    /// Takes the spare report. Returns `None` if there is none, or another crash uses it.
    pub(crate) fn take_spare(&self) -> Option<ReportFile> {
        let taken = self.spare.last_word()?;
        let free = taken.compare_exchange(0, process_id() as u32, Ordering::AcqRel, Ordering::Relaxed);
        free.is_ok().then_some(self.spare.without_last_word())
    }

    /// Unmaps the reports.
    ///
    /// # Safety
    /// Nobody may use them any more.
    unsafe fn unmap_reports(&self) {
        // SAFETY: by the contract.
        unsafe {
            self.report.unmap();
            self.spare.unmap();
        }
    }

    /// Takes over the state of the parent, which is this process's private copy, as that of this
    /// run.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn take_state(&mut self, parent: &RunFiles, limits: &Limits, process: &ProcessIdentity) -> bool {
        let state = state_of(parent, limits);
        let begun = state.is_some_and(|state| {
            self.name_lock(&state);
            state.begin_again(limits, self.id, process).is_ok()
        });
        if begun {
            self.state_file = core::mem::replace(&mut self.state_address, parent.state_address);
            self.mirror = parent.mirror;
        }
        begun
    }

    /// Returns `true` if no report was begun in the run's files by a crash that needs to open no
    /// file, in any process.
    pub(crate) fn is_unused(&self) -> bool {
        self.is_on_disk() && self.report.is_unused() && self.spare.is_unused()
    }

    /// Closes and removes the run, as if it had never been created, after a failed install.
    pub(crate) fn discard(self, store: &CStr) {
        if self.is_on_disk()
            && let Ok(directory) = open_run(store, &self.id)
        {
            remove(store, &self.id, &directory);
        }
        self.close();
    }
}

/// Notes a clean end in the state of a run of another process that has ended, unless the state
/// already records how it ended.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn note_end(store: &CStr, id: &[u8; 16], limits: &Limits) {
    let path = in_store(store, &[b"runs/", Path::new().push_hex(id).as_c_str().to_bytes(), b"/state"]);
    let flags = libc::O_RDWR | libc::O_NOFOLLOW;
    let Ok(state) = files::open(Descriptor::WORKING_DIRECTORY, path.as_c_str(), flags, 0) else { return };
    let is_whole = status(&state).is_ok_and(|status| status.st_size as usize == limits.size());
    let Some(mut head) = is_whole.then(|| StateHead::read(&state)).flatten() else { return };
    let run = RunState::reopen(&head.0, limits);
    if run.is_open() {
        run.set_scalar(Scalar::EXIT_TIME, wall_now());
        run.set_scalar(Scalar::EXIT, ExitKind::CLEAN.0.into());
        // Its process has ended: nobody else writes to it.
        let _ = write_all(&state, &raw const head.as_bytes()[..FIXED_BYTES as usize]);
    }
}

/// Takes ownership of a run for this process: by its file's lock, or, if the store forbids locks,
/// by a named pipe, which is returned.
fn take(id: &[u8; 16], store: &CStr, lock: OwnedDescriptor) -> Result<Option<OwnedDescriptor>> {
    if !directory_owner::forbids_locks(store.to_bytes()) {
        return files::take_lock(lock.opened_at()).map(|()| None);
    }
    let directory = in_store(store, &[b"runs/", Path::new().push_hex(id).as_c_str().to_bytes()]);
    directory_owner::begin(directory.as_c_str()).and_then(OwnedDescriptor::adopt).map(Some)
}

/// Creates a new report file and its spare report, with their bytes reserved: only a small main
/// report if the disk has no more room. No room at all is an error.
fn new_report(directory: &Descriptor, name: &CStr, sizes: RunSizes) -> Result<(ReportFile, ReportFile)> {
    let file = open(directory, name, NEW, 0o600)?;
    let mapped = ReportFile::map(&file, sizes.reserve + sizes.spare).map(|whole| whole.split(sizes.spare));
    let mapped = mapped
        .or_else(|_| ReportFile::map(&file, sizes.reserve.min(LEAST_RESERVE)).map(|report| (report, ReportFile::NONE)));
    mapped.inspect_err(|_| files::unlink(directory, name, 0))
}

/// Returns a path in the store.
pub(super) fn in_store(store: &CStr, parts: &[&[u8]]) -> LongPath {
    parts.iter().fold(LongPath::new().push(store.to_bytes()).push(b"/"), |path, part| path.push(part))
}

/// Opens the directory of the run that exited cleanly, if it is only this user's: others could read
/// a crash that is written to its files.
fn open_clean(store: &CStr) -> Result<File> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let path = in_store(store, &[CLEAN]);
    let clean = files::open(Descriptor::WORKING_DIRECTORY, path.as_c_str(), flags, 0)?;
    files::check_directory(&clean).map(|()| clean)
}

/// Renames the directory of the run that exited cleanly, so that the next delivery removes it. For
/// another user's directory, the kernel may permit only a new name in the same directory.
fn set_clean_aside(store: &CStr) {
    let clean = in_store(store, &[CLEAN]);
    let name = Path::new().push_hex(&random_id());
    let [removed, aside] = [&b"runs/.removed-"[..], b"clean.untrusted-"]
        .map(|prefix| in_store(store, &[prefix, name.as_c_str().to_bytes()]));
    let _ = files::rename(Descriptor::WORKING_DIRECTORY, clean.as_c_str(), removed.as_c_str())
        .or_else(|_| files::rename(Descriptor::WORKING_DIRECTORY, clean.as_c_str(), aside.as_c_str()));
}

/// Opens a file of the run that exited cleanly, if it is only this user's.
fn open_own(clean: &Descriptor, name: &CStr) -> Result<File> {
    let file = open(clean, name, libc::O_RDWR | libc::O_NONBLOCK, 0)?;
    files::check_file(&file).map(|()| file)
}

/// Opens a file of the run that exited cleanly, if it has that size in bytes, all of which the file
/// system has room for.
fn open_clean_whole(clean: &Descriptor, name: &CStr, bytes: u32) -> Option<File> {
    let file = open_own(clean, name).ok()?;
    let status = status(&file).ok()?;
    let is_sparse = (status.st_blocks as u64).saturating_mul(512) < u64::from(bytes);
    let is_whole = status.st_size as u64 == u64::from(bytes) && (!is_sparse || files::reserve(&file, bytes).is_ok());
    is_whole.then_some(file)
}

/// The first bytes of a run state, copied from its file.
struct StateHead([AtomicU64; STATE_TOUCHED / 8]);

impl StateHead {
    /// Reads them; what is beyond the file's end is zeros. Returns `None` if the disk can't provide
    /// them.
    fn read(file: &Descriptor) -> Option<StateHead> {
        let mut head = StateHead([const { AtomicU64::new(0) }; STATE_TOUCHED / 8]);
        read_all(file, head.as_bytes(), 0)?;
        Some(head)
    }

    fn as_bytes(&mut self) -> &mut [u8] {
        // SAFETY: borrowed mutably, so the words are nobody else's; a word is eight plain bytes.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), STATE_TOUCHED) }
    }

    /// Zeros the first `length` bytes of the file, and returns whether the file system did.
    fn write_zeros(&mut self, file: &Descriptor, length: usize) -> bool {
        let bytes = self.as_bytes();
        bytes.fill(0);
        write_all(file, &raw const bytes[..length]).is_ok()
    }
}

/// Reads bytes at an offset; those beyond the file's end are left as they are. Returns `None` if
/// the disk can't provide them.
fn read_all(file: &Descriptor, into: &mut [u8], offset: u64) -> Option<()> {
    let mut at = 0;
    while let Some(rest) = into.get_mut(at..).filter(|rest| !rest.is_empty()) {
        match files::read_at(file, rest, offset + at as u64) {
            Ok(0) => break,
            Ok(count) => at += count,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(())
}

/// Returns `true` if neither the report nor the spare one in a file of that size was begun.
fn has_no_report(file: &Descriptor, whole: u32) -> bool {
    let is_zero = |offset: u32| {
        let mut word = [1; 4];
        read_all(file, &mut word, offset.into()).is_some() && word == [0; 4]
    };
    is_zero(0) && is_zero(whole - 4)
}

/// Creates a new file of that size in bytes, all zero, and maps it.
fn map_new(directory: &Descriptor, name: &CStr, bytes: usize) -> Result<usize> {
    let file = open(directory, name, NEW, 0o600)?;
    files::reserve(&file, bytes as u32).and_then(|()| files::map_file(&file, bytes))
}

/// Removes a partially created run. A later launch leaves a run without a state alone for a minute,
/// and then removes it: so the state goes first, and nobody takes what is left for a run that
/// ended.
fn remove(store: &CStr, id: &[u8; 16], directory: &Descriptor) {
    for name in [c"state", c"report", c"held-0", c"lock"] {
        files::unlink(directory, name, 0);
    }
    if let Ok(runs) = open_runs(store) {
        files::unlink(&runs, Path::new().push_hex(id).as_c_str(), libc::AT_REMOVEDIR);
    }
}

/// Returns a run's state if it is mapped.
pub(crate) fn state_of(run: &RunFiles, limits: &Limits) -> Option<RunState<'static>> {
    run.state_words().map(|words| RunState::reopen(words, limits))
}

/// Copies a run's state into another run of this process.
pub(super) fn copy_state(from: &RunFiles, to: &RunFiles, limits: &Limits) {
    // SAFETY: both are mappings of that size, page-aligned, the second used only by this run.
    unsafe { files::copy_words(from.state_address, to.state_address, from.state_size.min(to.state_size)) };
    if let Some(state) = state_of(to, limits) {
        // The parent lives on; this run must not look as if it did. Its lock shows whether the
        // child lives.
        state.set_identity(&ProcessIdentity::default());
    }
}

//! Installing and uninstalling. Not async-signal-safe.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use coroner_process::files;
use coroner_process::stack::page_size;
use coroner_process::syscall::Errno;
use coroner_process::threads::{
    self, TaskList, Tid, clocks, monotonic_now, note_process_id, process_id, this_thread, wall_now,
};
use coroner_report::run_state::{ExitKind, ProcessIdentity, RunState, Scalar, words_of_mapping};
use coroner_walk::ImageList;

#[cfg(feature = "fault-injection")]
use crate::fault_injection::map;
use crate::install_error::InstallError;
use crate::installed::{self, CurrentRun, Installed, STORE_PATH};
use crate::limits::report_size;
use crate::os;
use crate::os::platform_state::PlatformState;
use crate::report_lock::{Claim, REPORT_LOCK, ReportOwner, WaitEnd};
use crate::run::{CleanRun, RunFiles, RunSizes, STATE_TOUCHED};
use crate::session;
use crate::workspace::Workspace;
use crate::{InstallLimits, InstallOptions};
use crate::{ignored_signals, monitor};

/// The run that [`install`] began.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Its id; in hexadecimal, the name of its directory in `<store>/runs`.
    pub id: [u8; 16],
    /// The process that it is of.
    pub pid: i32,
    /// Its state, to be written outside a signal handler.
    pub state: RunState<'static>,
    /// What this process does not get.
    pub limits: InstallLimits,
    /// The run whose files it uses, which ended by itself.
    pub previous: Option<CleanRun>,
    /// The path of the program's file; empty if the system does not say.
    pub program: &'static [u8],
    /// As [`ProcessIdentity::pid_namespace`].
    pub pid_namespace: u64,
}

/// Whether an install is on or under way.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Begins a run in `store` and takes the signals. The store's directory is made, with mode 0700, if it is not there; its parent must
/// be. A path that is not absolute is right as long as the app stays in its working directory.
///
/// Takes well under a millisecond; starts no thread on Linux.
///
/// # Errors
/// See [`InstallError`].
pub fn install(store: &CStr, options: &InstallOptions) -> Result<Run, InstallError> {
    if INSTALLED.swap(true, Ordering::AcqRel) {
        return Err(InstallError::AlreadyInstalled);
    }
    make(store, options).inspect_err(|_| INSTALLED.store(false, Ordering::Release))
}

fn make(store: &CStr, options: &InstallOptions) -> Result<Run, InstallError> {
    let ([installed_at, _], pid) = (clocks(), note_process_id());
    if store.to_bytes_with_nul().len() > STORE_PATH {
        return Err(InstallError::PathTooLong);
    }
    os::install::undisturbed(|| {
        // A report of an install that has ended may still be on its way.
        let (tasks, tid) = threads::list_first(pid);
        let Some(mut owner) = own_lock(pid, tid, options.deadline_ms) else {
            tasks.close();
            return (Err(InstallError::AlreadyInstalled), false);
        };
        let made = make_owned(store, options, installed_at, (pid, tasks), &mut owner).and_then(|(installed, run)| {
            installed.publish();
            os::install::begin(installed, options).map(|()| run).inspect_err(|_| {
                installed.withdraw();
                give_back(installed, &mut owner);
                installed.run.files.discard(store);
            })
        });
        let made = made.inspect_err(|_| tasks.close());
        // What is loaded by now is learned now, when guarded loads are recovered; a crash looks into what came later only.
        if made.is_ok()
            && let Some(images) = Workspace::of(&mut owner).and_then(|workspace| workspace.images.as_mut())
        {
            images.refresh_at_install();
            images.touch();
        }
        session::release(owner);
        let made_files = !made.as_ref().is_ok_and(|run| run.previous.is_some());
        (made, made_files)
    })
}

/// The memory for a place of an install, which a test may refuse.
#[cfg(not(feature = "fault-injection"))]
fn map<T>(_place: u32, map: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    map()
}

/// Makes everything that a crash will need.
fn make_owned(
    store: &CStr,
    options: &InstallOptions,
    installed_at: u64,
    (pid, tasks): (i32, TaskList),
    owner: &mut ReportOwner,
) -> Result<(&'static Installed, Run), InstallError> {
    let limits = options.state.allowed();
    let sizes = RunSizes::of(report_size(options), limits.size(), true);
    let (files, previous) = match RunFiles::reuse(store, sizes, &limits) {
        Some((files, clean)) => (Ok(files), Some(clean)),
        // The last free descriptors are worth more for the run than for the list of threads, which a crash can open.
        None => (RunFiles::create_or_free(store, sizes, || tasks.close()), None),
    };
    // Without room on the disk, or a descriptor, the report is kept in memory until there is some.
    let files = match files {
        Err(error) if error.may_pass() => RunFiles::in_memory(sizes).map_err(InstallError::Memory)?,
        // A disk that fails must not end the app by the first store.
        Ok(run)
            if previous.is_none()
                && files::populate(run.state_address, STATE_TOUCHED.min(run.state_size))
                    == Err(Errno(libc::EFAULT)) =>
        {
            run.discard(store);
            RunFiles::in_memory(sizes).map_err(InstallError::Memory)?
        }
        made => made.map_err(InstallError::Run)?,
    };
    files.report.touch();
    // What else a crash needs lies above a guard of its own, and the report mostly right above that.
    files.guard_state();
    let id = files.id;
    // SAFETY: a fresh mapping of that size, which is never unmapped, and of which only the run state's words are used.
    let words = unsafe { words_of_mapping(files.state_address as *mut u8, files.state_size) };
    let identity = ProcessIdentity::in_this_boot(pid);
    let state = words.and_then(|words| RunState::create(words, &limits, id, &identity).ok());
    let Some(state) = state else {
        files.discard(store);
        return Err(InstallError::StateTooSmall);
    };
    files.name_lock(&state);
    let page = page_size();
    let platform = match PlatformState::new(options, page, tasks) {
        Ok(platform) => platform,
        Err(error) => {
            files.discard(store);
            return Err(error);
        }
    };
    let at = match map(1, || ImageList::map(pid))
        .and_then(|images| Workspace::prepare(owner, images, options.symbol_names))
        .and_then(|()| map(2, || files::map(size_of::<Installed>())))
    {
        Ok(at) => at as *mut Installed,
        Err(errno) => {
            give_back_images(owner);
            platform.close();
            files.discard(store);
            return Err(InstallError::Memory(errno));
        }
    };
    // SAFETY: a fresh mapping of that size, zeroed and page-aligned, which is never unmapped; these bytes are written here alone.
    let program = unsafe { os::install::program_path(owner, &mut (*at).program) };
    let current = CurrentRun {
        files,
        pid,
        #[cfg(not(target_vendor = "apple"))]
        identity,
        installed_at: AtomicU64::new(installed_at),
        process_start: identity.started_at().unwrap_or_else(wall_now),
        page_size: page as u32,
        program,
        state,
    };
    os::install::prepare();
    monitor::exception::begin_run();
    monitor::hang::begin_run();
    // SAFETY: a fresh mapping of that size, zeroed and page-aligned, which is never unmapped.
    let installed = unsafe { Installed::place(at, *options, store, current, platform) };
    let mut limits = os::install::limits(&installed.platform);
    limits.in_memory = !installed.run.files.is_on_disk();
    Ok((installed, Run { id, pid, state, limits, previous, program, pid_namespace: identity.pid_namespace }))
}

/// Owns the report lock, waiting for a report that is being written.
fn own_lock(pid: i32, tid: Tid, deadline_ms: u32) -> Option<ReportOwner> {
    let limit = u64::from(deadline_ms.saturating_add(2000)) * 1_000_000;
    let mut until = None;
    loop {
        let releases = REPORT_LOCK.releases();
        match REPORT_LOCK.claim(pid, tid, true) {
            Claim::Mine(owner) => return Some(owner),
            Claim::Nested => return None,
            // Of another process in this memory, too.
            _ => {
                let until = *until.get_or_insert_with(|| monotonic_now().saturating_add(limit));
                if REPORT_LOCK.wait(releases, until) == WaitEnd::TimeOver {
                    return None;
                }
            }
        }
    }
}

fn give_back_images(owner: &mut ReportOwner) {
    if let Some(images) = Workspace::of(owner).and_then(|workspace| workspace.images.take()) {
        images.unmap();
    }
}

/// Gives back what an install made but the run's files and what handlers may still look at.
fn give_back(installed: &Installed, owner: &mut ReportOwner) {
    give_back_images(owner);
    // SAFETY: the install is withdrawn, and this thread owns the lock: who still holds the value looks whether it is the current
    // one before it uses any of this, and reads the bytes that stay at most.
    unsafe { core::ptr::read(&raw const installed.platform) }.close();
}

/// Gives the signals back, ends the run's lock and closes its files. The run's state stays mapped.
///
/// Waits for a report that is being written: a crash that came first keeps all that it needs. False if nothing was installed.
pub fn uninstall() -> bool {
    let Some(installed) = installed::get() else { return false };
    os::install::undisturbed(|| {
        let own = || own_lock(process_id(), this_thread(), installed.options.deadline_ms);
        // Darwin's threads own it, and end first. `Some(None)`: a report that does not end keeps what it uses.
        let first = cfg!(not(target_vendor = "apple")).then(own);
        let run = &installed.run.files;
        if !matches!(first, Some(None)) {
            // While the handler is there, by which a store to a cut file does not end the app.
            installed.run.state.set_scalar(Scalar::EXIT_TIME, wall_now());
            installed.run.state.set_scalar(Scalar::EXIT, ExitKind::UNINSTALLED.0.into());
            // The app may keep its scope and go on to write to it.
            if run.is_on_disk() {
                // SAFETY: ours. Of a store that another thread makes meanwhile, nothing is left: it is too late for it anyway.
                unsafe { files::make_private(run.state_address, run.state_size) };
            }
        }
        os::install::end(installed);
        installed.withdraw();
        if let Some(mut owner) = first.unwrap_or_else(own) {
            give_back(installed, &mut owner);
            run.close();
            session::release(owner);
        }
        INSTALLED.store(false, Ordering::Release);
        (true, false)
    })
}

/// Gives this process, a child made by fork that goes on as an app of its own, a run of its own: what the app said of itself stays.
/// `None` if it is no child, or has one. Until then a child's crash is reported under a run that it makes when it crashes.
///
/// # Errors
/// See [`InstallError`]. The process stays a child without a run.
#[cfg(not(target_vendor = "apple"))]
pub fn after_fork() -> Result<Option<Run>, InstallError> {
    let pid = process_id();
    let Some(parent) = installed::get().filter(|installed| installed.run.pid != pid) else { return Ok(None) };
    os::install::undisturbed(|| {
        let Some(owner) = own_lock(pid, this_thread(), parent.options.deadline_ms) else {
            return (Err(InstallError::AlreadyInstalled), false);
        };
        let made = make_child(parent, pid);
        session::release(owner);
        (made.map(Some), true)
    })
}

#[cfg(not(target_vendor = "apple"))]
fn make_child(parent: &'static Installed, pid: i32) -> Result<Run, InstallError> {
    let limits = parent.options.state.allowed();
    let before = &parent.run.files;
    let sizes = RunSizes::of(report_size(&parent.options), before.state_size, true);
    let at = files::map(size_of::<Installed>()).map_err(InstallError::Memory)? as *mut Installed;
    let mut run = RunFiles::create(parent.store(), sizes).map_err(InstallError::Run)?;
    let identity = ProcessIdentity::in_this_boot(pid);
    if !run.replace_parent(before, &limits, &identity) {
        run.discard(parent.store());
        return Err(InstallError::StateTooSmall);
    }
    let (id, state) = (run.id, parent.run.state);
    monitor::exception::begin_run();
    let current = CurrentRun {
        files: run,
        pid,
        identity,
        installed_at: AtomicU64::new(monotonic_now()),
        process_start: identity.started_at().unwrap_or_else(wall_now),
        page_size: parent.run.page_size,
        program: parent.run.program,
        state,
    };
    // SAFETY: the parent's value is nobody's in this process from now on; descriptors in it are looked at before each use.
    let platform = unsafe { core::ptr::read(&raw const parent.platform) };
    // SAFETY: a fresh mapping of that size, zeroed and page-aligned, which is never unmapped.
    let installed = unsafe { Installed::place(at, parent.options, parent.store(), current, platform) };
    installed.publish();
    os::parent_exit::begin_own(parent);
    coroner_walk::stop_thread::set_stopper(Some(&installed.platform.stopper));
    let (limits, program) = (os::install::limits(&installed.platform), parent.run.program);
    Ok(Run { id, pid, state, limits, previous: None, program, pid_namespace: identity.pid_namespace })
}

/// Whether this process's run has left no report so far, of any kind, so that the next one can use its files.
pub fn is_unused() -> bool {
    installed::get().is_some_and(|installed| {
        let begun = installed.reports.load(Ordering::Acquire) + installed.non_fatal_reports.load(Ordering::Acquire);
        begun == 0 && installed.run.files.is_unused()
    })
}

/// Says that the app goes on only now, after a wait at its start: how long it ran counts from here on, in reports and by the time of
/// the run's lock.
pub fn begin_anew() {
    if let Some(installed) = installed::get().filter(|installed| installed.run.pid == process_id()) {
        installed.run.installed_at.store(monotonic_now(), Ordering::Relaxed);
        installed.run.files.set_began(wall_now());
    }
}

/// Leaves the next `signal` of the calling thread to the handlers that were there before Coroner: a managed runtime that is
/// about to raise it on purpose. False where 64 threads have done so already, or nothing is installed.
pub fn ignore_next_signal(signal: i32) -> bool {
    installed::get().is_some() && ignored_signals::ignore_next(this_thread(), signal)
}

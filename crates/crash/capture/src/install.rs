//! Installing and uninstalling. Not async-signal-safe.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use coroner_process::files;
use coroner_process::process_mark::{self, ProcessMark};
use coroner_process::stack::page_size;
use coroner_process::syscall::Errno;
use coroner_process::threads::{
    self, TaskList, Tid, clocks, monotonic_now, note_process_id, process_id, this_thread, wall_now,
};
use coroner_report::run_state::{ExitKind, FIXED_BYTES, Kind, ProcessIdentity, RunState, Scalar};
use coroner_walk::ImageList;

#[cfg(feature = "fault-injection")]
use crate::fault_injection::map;
use crate::install_error::InstallError;
use crate::installed::{self, CurrentRun, Held, Installed, STORE_PATH};
use crate::limits::report_size;
use crate::os;
use crate::os::platform_state::PlatformState;
use crate::report_lock::{Claim, REPORT_LOCK, ReportOwner, WaitEnd};
use crate::run::{CleanRun, RunFiles, RunSizes};
use crate::session;
use crate::workspace::Workspace;
use crate::{InstallLimits, InstallOptions};
use crate::{ignored_signals, monitor};

/// The run that [`install`] started.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The run's ID; in hexadecimal, the name of the run's directory in `<store>/runs`.
    pub id: [u8; 16],
    /// ID of the process that started the run.
    pub pid: i32,
    /// The run's state; write to it only outside signal handlers.
    pub state: RunState<'static>,
    /// Limitations of the install in this process.
    pub limits: InstallLimits,
    /// The run that exited cleanly and whose files this run reuses.
    pub previous: Option<CleanRun>,
    /// Path of the executable; empty if the system doesn't provide it.
    pub program: &'static [u8],
    /// See [`ProcessIdentity::pid_namespace`].
    pub pid_namespace: u64,
}

/// Whether Coroner is installed or an install is in progress.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Starts a run in `store` and installs the signal handlers. If the store's directory doesn't
/// exist, it is created with mode 0700; its parent must exist. A relative path works as long as the
/// app doesn't change its working directory.
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
    process_mark::prepare();
    if store.to_bytes_with_nul().len() > STORE_PATH {
        return Err(InstallError::PathTooLong);
    }
    os::install::undisturbed(|| {
        // A report of an install that has ended may still be in progress.
        let (tasks, tid) = threads::list_first(pid);
        let Some(mut owner) = own_lock(pid, tid, options.deadline_ms) else {
            tasks.close();
            return (Err(InstallError::AlreadyInstalled), false);
        };
        let made = make_owned(store, options, installed_at, (pid, tasks), &mut owner).and_then(|(installed, run)| {
            installed.publish();
            let begun = os::install::begin(installed, options, tasks);
            if begun.is_ok() {
                installed.open_mirror(FIXED_BYTES as usize);
            }
            begun.map(|()| run).inspect_err(|_| {
                installed.withdraw();
                if let Some(files) = release(installed, &mut owner) {
                    files.discard(store);
                }
            })
        });
        // Images loaded so far are read now, while guarded loads are recovered; a crash reads only
        // later ones.
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

/// Maps the memory at one place of an install; a test may make it fail.
#[cfg(not(feature = "fault-injection"))]
fn map<T>(_place: u32, map: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    map()
}

/// Creates everything that a crash will need. `tasks` is closed if that fails.
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
        // The last free descriptors are worth more for the run than for the thread list, which a
        // crash can open.
        None => (RunFiles::create_or_free(store, sizes, || tasks.close()), None),
    };
    // Without room on the disk, or a descriptor, the report is kept in memory until there is some.
    let files = match files {
        Err(error) if error.may_pass() => RunFiles::in_memory(sizes).map_err(InstallError::Memory),
        // A failing disk must not end the app at the first store.
        Ok(run) if previous.is_none() && run.populate_state() == Err(Errno(libc::EFAULT)) => {
            run.discard(store);
            RunFiles::in_memory(sizes).map_err(InstallError::Memory)
        }
        made => made.map_err(InstallError::Run),
    };
    let mut files = files.inspect_err(|_| tasks.close())?;
    if let Err(errno) = files.keep_state() {
        tasks.close();
        files.discard(store);
        return Err(InstallError::Memory(errno));
    }
    files.report.touch();
    // Whatever else a crash needs lies above its own guard page, and the report usually directly
    // above that.
    files.guard_state();
    let id = files.id;
    let identity = ProcessIdentity::in_this_boot(pid);
    let state = files.state_words().and_then(|words| RunState::create(words, &limits, id, &identity).ok());
    let Some(state) = state else {
        tasks.close();
        files.discard(store);
        return Err(InstallError::StateTooSmall);
    };
    files.name_lock(&state);
    let state = files.mirror.map_or(state, |mirror| state.mirrored(mirror));
    let page = page_size();
    let (platform, resources) = match PlatformState::new(options, page, tasks) {
        Ok(made) => made,
        Err(error) => {
            tasks.close();
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
            release_images(owner);
            platform.withdraw();
            resources.release();
            files.discard(store);
            return Err(InstallError::Memory(errno));
        }
    };
    // SAFETY: a fresh mapping of that size, zeroed and page-aligned, which is never unmapped; these
    // bytes are written only here.
    let program = unsafe { os::install::program_path(owner, &mut (*at).program) };
    let current = CurrentRun {
        #[cfg(not(target_vendor = "apple"))]
        id,
        is_on_disk: files.is_on_disk(),
        state_mapping: files.state_mapping(),
        mirror: files.mirror,
        pid,
        process: ProcessMark::for_caller(pid),
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
    let installed = unsafe { Installed::place(at, *options, store, current, platform, Held { files, resources }) };
    let mut limits = os::install::limits(&installed.platform);
    limits.in_memory = !installed.run.is_on_disk;
    Ok((installed, Run { id, pid, state, limits, previous, program, pid_namespace: identity.pid_namespace }))
}

/// Acquires the report lock, waiting for a report that is being written.
fn own_lock(pid: i32, tid: Tid, deadline_ms: u32) -> Option<ReportOwner> {
    let limit = u64::from(deadline_ms.saturating_add(2000)) * 1_000_000;
    let mut until = None;
    loop {
        let releases = REPORT_LOCK.releases();
        match REPORT_LOCK.claim(pid, tid, true) {
            Claim::Mine(owner) => return Some(owner),
            Claim::Nested => return None,
            // Also the lock of another process that shares this memory.
            _ => {
                let until = *until.get_or_insert_with(|| monotonic_now().saturating_add(limit));
                if REPORT_LOCK.wait(releases, until) == WaitEnd::TimeOver {
                    return None;
                }
            }
        }
    }
}

fn release_images(owner: &mut ReportOwner) {
    if let Some(images) = Workspace::of(owner).and_then(|workspace| workspace.images.take()) {
        images.unmap();
    }
}

/// Releases what an install created, except the run's files, which it returns, and what handlers
/// may still read.
fn release(installed: &Installed, owner: &mut ReportOwner) -> Option<RunFiles> {
    release_images(owner);
    installed.platform.withdraw();
    let Held { files, resources } = installed.take_held(owner)?;
    resources.release();
    Some(files)
}

/// Restores the signals' earlier handlers, releases the run's lock and closes its files. The run's
/// state stays mapped.
///
/// Waits for a report that is being written: a crash that came first keeps everything that it
/// needs. Returns `false` if nothing was installed.
pub fn uninstall() -> bool {
    let Some(installed) = installed::get() else { return false };
    restore_state();
    os::install::undisturbed(|| {
        let own = || own_lock(process_id(), this_thread(), installed.options.deadline_ms);
        // On Darwin, Coroner's threads own the lock, and end first. `Some(None)`: a report that
        // does not end keeps what it uses.
        let first = cfg!(not(target_vendor = "apple")).then(own);
        let run = &installed.run;
        if !matches!(first, Some(None)) {
            // While the handler is still in place, which keeps a store to a truncated file from
            // ending the app.
            run.state.set_scalar(Scalar::EXIT_TIME, wall_now());
            run.state.set_scalar(Scalar::EXIT, ExitKind::UNINSTALLED.0.into());
            // The app may keep its scope and continue to write to it.
            if let Some(mirror) = run.mirror {
                mirror.close();
            }
        }
        os::install::end(installed);
        installed.withdraw();
        #[cfg(not(target_vendor = "apple"))]
        installed.children.wake();
        if let Some(mut owner) = first.unwrap_or_else(own) {
            if let Some(files) = release(installed, &mut owner) {
                files.close();
            }
            session::release(owner);
        }
        let mapping = &run.state_mapping;
        // SAFETY: the file's mapping, which a thread may still be copying a change to.
        unsafe { files::replace(mapping.start, mapping.len()) };
        INSTALLED.store(false, Ordering::Release);
        (true, false)
    })
}

/// Starts a new run for this process, a child made by fork that continues as an app. What the app
/// recorded about itself is kept. Returns `None` if this process isn't such a child or already has
/// its own run. Until this call, a child's crash is reported under a run that the crash creates.
///
/// # Errors
/// See [`InstallError`]. The process remains a child without a run.
#[cfg(not(target_vendor = "apple"))]
pub fn after_fork() -> Result<Option<Run>, InstallError> {
    let pid = process_id();
    let Some(parent) = installed::get().filter(|installed| !installed.is_own_process(pid)) else { return Ok(None) };
    os::install::undisturbed(|| {
        let Some(mut owner) = own_lock(pid, this_thread(), parent.options.deadline_ms) else {
            return (Err(InstallError::AlreadyInstalled), false);
        };
        let made = make_child(parent, pid, &mut owner);
        session::release(owner);
        (made.map(Some), true)
    })
}

#[cfg(not(target_vendor = "apple"))]
fn make_child(parent: &'static Installed, pid: i32, owner: &mut ReportOwner) -> Result<Run, InstallError> {
    let limits = parent.options.state.allowed();
    let sizes = RunSizes::of(report_size(&parent.options), limits.size(), true);
    let at = files::map(size_of::<Installed>()).map_err(InstallError::Memory)? as *mut Installed;
    let mut files = RunFiles::create(parent.store(), sizes).map_err(InstallError::Run)?;
    let identity = ProcessIdentity::in_this_boot(pid);
    let held = parent.take_held(owner);
    let Some(held) = held.filter(|held| files.take_state(&held.files, &limits, &identity)) else {
        files.discard(parent.store());
        return Err(InstallError::StateTooSmall);
    };
    held.files.close();
    let (id, state) = (files.id, parent.run.state);
    monitor::exception::begin_run();
    let current = CurrentRun {
        id,
        is_on_disk: true,
        state_mapping: files.state_mapping(),
        mirror: files.mirror,
        pid,
        process: ProcessMark::for_caller(pid),
        identity,
        installed_at: AtomicU64::new(monotonic_now()),
        process_start: identity.started_at().unwrap_or_else(wall_now),
        page_size: parent.run.page_size,
        program: parent.run.program,
        state,
    };
    // SAFETY: nobody else uses the parent's value in this process from now on; descriptors in it
    // are checked before each use.
    let platform = unsafe { core::ptr::read(&raw const parent.platform) };
    // SAFETY: a fresh mapping of that size, zeroed and page-aligned, which is never unmapped.
    let installed = unsafe {
        Installed::place(
            at,
            parent.options,
            parent.store(),
            current,
            platform,
            Held { files, resources: held.resources },
        )
    };
    installed.publish();
    installed.open_mirror(limits.size());
    let mapping = &parent.run.state_mapping;
    // SAFETY: the mapping of the parent's file, to which this process copies nothing any more.
    unsafe { files::replace(mapping.start, mapping.len()) };
    os::parent_exit::begin_own(parent);
    coroner_walk::stop_thread::set_stopper(Some(&installed.platform.stopper));
    let (limits, program) = (os::install::limits(&installed.platform), parent.run.program);
    Ok(Run { id, pid, state, limits, previous: None, program, pid_namespace: identity.pid_namespace })
}

/// Returns `true` if this process's run has left no report of any kind so far, so that the next run
/// can reuse its files.
pub fn is_unused() -> bool {
    restore_state();
    let Some(installed) = installed::get() else { return false };
    let begun = installed.reports.load(Ordering::Acquire) + installed.non_fatal_reports.load(Ordering::Acquire);
    if begun != 0 {
        return false;
    }
    // Whoever owns the lock is writing a report.
    let Claim::Mine(owner) = REPORT_LOCK.claim(process_id(), this_thread(), true) else { return false };
    let (owner, is_unused) = match installed.claim(owner) {
        Ok(mut claimed) => {
            let is_unused = claimed.parts().0.files.is_unused();
            (claimed.into_owner(), is_unused)
        }
        Err(owner) => (owner, false),
    };
    session::release(owner);
    #[cfg(not(target_vendor = "apple"))]
    let is_unused = is_unused && installed.retire_child_reports();
    is_unused
}

/// Tag of a run whose state's file was cut.
const STATE_CUT: &str = "coroner.state_file";

/// Writes the run state's file again if somebody has cut it, and notes that in a tag; otherwise
/// does nothing. If a report is being written, that does it, without the tag.
pub fn restore_state() {
    let pid = process_id();
    let Some(installed) = installed::get().filter(|installed| installed.is_own_process(pid)) else { return };
    if !installed.run.state.is_file_cut() {
        return;
    }
    let Claim::Mine(owner) = REPORT_LOCK.claim(pid, this_thread(), true) else { return };
    let owner = match installed.claim(owner) {
        Ok(mut claimed) => {
            let _ = installed.run.state.set_text(Kind::TAG, STATE_CUT, "cut by another program, and written again");
            claimed.parts().0.files.restore_state(installed.store());
            claimed.into_owner()
        }
        Err(owner) => owner,
    };
    session::release(owner);
}

/// Restarts the run's clock, for an app that waited at its start: from now on, reports and the
/// start time in the run's lock count the running time from this call.
pub fn begin_anew() {
    let pid = process_id();
    let Some(installed) = installed::get().filter(|installed| installed.is_own_process(pid)) else { return };
    installed.run.installed_at.store(monotonic_now(), Ordering::Relaxed);
    if let Some(owner) = own_lock(pid, this_thread(), installed.options.deadline_ms) {
        let owner = match installed.claim(owner) {
            Ok(mut claimed) => {
                claimed.parts().0.files.set_began(wall_now());
                claimed.into_owner()
            }
            Err(owner) => owner,
        };
        session::release(owner);
    }
}

/// Leaves the next `signal` of the calling thread to the handlers from before Coroner, for a
/// managed runtime that is about to raise it on purpose. Returns `false` if 64 threads have already
/// done so, or nothing is installed.
pub fn ignore_next_signal(signal: i32) -> bool {
    installed::get().is_some() && ignored_signals::ignore_next(this_thread(), signal)
}

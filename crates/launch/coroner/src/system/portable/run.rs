//! This process's run: its directory in the store, the lock, the mapped state.
//!
//! The layout on disk is the same as that of `coroner_capture`'s run.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use coroner_capture::{Budget, CleanRun, InstallLimits, InstallOptions};
use coroner_report::model::Id;
use coroner_report::run_state::{ExitKind, ProcessIdentity, RunState, Scalar, words_of_mapping};
use memmap2::MmapMut;

use super::process::threads::process_id;
use crate::clock::now_ns;
use crate::locked::locked;
use crate::store::directory::{Directory, try_lock};
use crate::store::{LOCK, RUNS, STATE, name_of};

/// The reason that a run could not begin.
#[derive(Debug)]
pub(crate) enum Reason {
    AlreadyInstalled,
    /// A step failed.
    Failed {
        step: &'static str,
        error: io::Error,
    },
}

/// Converts an error in `map_err`.
fn at(step: &'static str) -> impl FnOnce(io::Error) -> Reason {
    move |error| Reason::Failed { step, error }
}

/// The run that an install began.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: [u8; 16],
    pub(crate) pid: i32,
    pub(crate) state: RunState<'static>,
    pub(crate) limits: InstallLimits,
    /// Always `None`: a run's files are not reused.
    pub(crate) previous: Option<CleanRun>,
    /// Not queried on this system; see `facts`.
    pub(crate) pid_namespace: u64,
}

/// The installed run.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) id: [u8; 16],
    pub(super) pid: i32,
    pub(super) directory: PathBuf,
    pub(super) state: RunState<'static>,
    pub(super) options: InstallOptions,
    pub(super) process_name: String,
    /// Nanoseconds since the Unix epoch.
    pub(super) process_start: u64,
    installed: Instant,
    /// Added to `installed`, because the app started only after a wait in install.
    waited_ns: AtomicU64,
    /// Numbers of fatal and of non-fatal reports.
    pub(super) reports: AtomicU32,
    pub(super) non_fatal: AtomicU32,
    /// Number of non-fatal reports that wait for delivery, and the budget for more.
    pub(super) waiting: AtomicU32,
    pub(super) budget: Budget,
    /// The id of the thread whose report ends the process, plus one; 0 for none.
    pub(super) dying: AtomicU64,
    /// Whether a reported panic or error ends the process.
    pub(super) is_reported: AtomicBool,
    /// Held until the process ends or Coroner is uninstalled.
    lock: Mutex<Option<File>>,
}

impl Current {
    /// Returns the time since install.
    pub(super) fn age(&self) -> Duration {
        self.installed.elapsed().saturating_sub(Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed)))
    }
}

/// The installed run. Runs are leaked, because threads may be writing reports when a run ends.
static CURRENT: AtomicPtr<Current> = AtomicPtr::new(std::ptr::null_mut());

/// Returns this process's run.
///
/// `None` in a child created by fork, which doesn't own the run.
pub(super) fn current() -> Option<&'static Current> {
    // SAFETY: null, or from `Box::leak` in `install`, and never freed.
    let current = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
    current.filter(|current| current.pid == process_id())
}

/// Whether this is a child, created by fork, of a process that installed Coroner.
pub(super) fn is_child() -> bool {
    // SAFETY: as in `current`.
    let current = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
    current.is_some_and(|current| current.pid != process_id())
}

/// Returns 16 random bytes, as a version 4 UUID (RFC 9562, section 5.4).
pub(super) fn random_id() -> [u8; 16] {
    // A hash map's keys are random, and differ between maps.
    let word = |salt: u8| RandomState::new().hash_one((salt, std::process::id(), now_ns())).to_le_bytes();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&word(0));
    id[8..].copy_from_slice(&word(1));
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

pub(super) fn install(store: &Path, options: &InstallOptions) -> Result<&'static Current, Reason> {
    // SAFETY: as in `current`.
    if !CURRENT.load(Ordering::Acquire).is_null() {
        return Err(Reason::AlreadyInstalled);
    }
    ProcessIdentity::begin(now_ns());
    let id = random_id();
    let name = name_of(Id(id));
    let runs = Directory::open(store).and_then(|store| store.subdirectory(RUNS.as_ref()));
    let runs = runs.map_err(at("can't open `runs` in the store"))?;
    let directory = runs.create_subdirectory(&name).map_err(at("can't create the run's directory"))?;
    let created = create(&directory, id, options).inspect_err(|_| {
        let _ = runs.remove_tree(&name);
    });
    let (lock, state) = created?;
    let program = std::env::current_exe().unwrap_or_default();
    let current = Current {
        id,
        pid: process_id(),
        directory: directory.path().to_owned(),
        state,
        options: *options,
        process_name: program.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        process_start: process_start(),
        installed: Instant::now(),
        waited_ns: AtomicU64::new(0),
        reports: AtomicU32::new(0),
        non_fatal: AtomicU32::new(0),
        waiting: AtomicU32::new(0),
        budget: Budget::new(),
        dying: AtomicU64::new(0),
        is_reported: AtomicBool::new(false),
        lock: Mutex::new(Some(lock)),
    };
    current.budget.begin();
    let current = Box::leak(Box::new(current));
    CURRENT.store(current, Ordering::Release);
    // SAFETY: from `Box::leak` above, and never freed.
    Ok(unsafe { &*CURRENT.load(Ordering::Acquire) })
}

/// Creates and takes the lock, and creates the state, which stays mapped forever.
fn create(directory: &Directory, id: [u8; 16], options: &InstallOptions) -> Result<(File, RunState<'static>), Reason> {
    let lock = directory.new_file(LOCK.as_ref()).map_err(at("can't create the run's lock"))?;
    // Without this, the order of two runs that began in the same tick of the file system's clock
    // would be unknown.
    let _ = lock.set_modified(SystemTime::now());
    let is_locked =
        try_lock(&lock).and_then(|is_ours| if is_ours { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) });
    is_locked.map_err(at("can't lock the run"))?;
    let limits = options.state.allowed();
    // Write zeros instead of extending the file: on a full disk, a store to a hole kills the
    // process.
    let map = || -> io::Result<MmapMut> {
        directory.write_quickly(STATE.as_ref(), &vec![0; limits.size()])?;
        let file = directory.file(STATE.as_ref(), true)?;
        // SAFETY: this is a new file in a directory that only this user can access, and nothing
        // truncates it; its words are atomics.
        unsafe { MmapMut::map_mut(&file) }
    };
    let mapping = Box::leak(Box::new(map().map_err(at("can't map the run state"))?));
    // SAFETY: mapped with this size forever, and accessed only through these words.
    let words = unsafe { words_of_mapping(mapping.as_mut_ptr(), mapping.len()) };
    let identity = ProcessIdentity::of_this_process();
    let state = words.and_then(|words| RunState::create(words, &limits, id, &identity).ok());
    let state = state.ok_or_else(|| at("can't create the run state")(io::ErrorKind::InvalidInput.into()))?;
    Ok((lock, state))
}

/// Returns the approximate start time of the process.
fn process_start() -> u64 {
    #[cfg(windows)]
    if let Some(start) = crate::facts::process_start() {
        return start;
    }
    now_ns()
}

/// Ends this run. Its state stays mapped.
pub(super) fn uninstall() {
    let Some(current) = current() else { return };
    current.state.set_scalar(Scalar::EXIT_TIME, now_ns());
    current.state.set_scalar(Scalar::EXIT, ExitKind::UNINSTALLED.0.into());
    CURRENT.store(std::ptr::null_mut(), Ordering::Release);
    locked(&current.lock).take();
}

/// Records that the app starts only now, after a wait in install.
pub(super) fn begin_anew() {
    let Some(current) = current() else { return };
    current.waited_ns.store(current.installed.elapsed().as_nanos() as u64, Ordering::Relaxed);
    let lock = locked(&current.lock);
    if let Some(lock) = &*lock {
        let _ = lock.set_modified(SystemTime::now());
    }
}

//! Installing and uninstalling: normal life.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use coroner_machine::syscall::Errno;
use coroner_machine::threads::{monotonic_now, process_id, this_thread};
use coroner_report::run_state::{ExitKind, RunState, Scalar, words_of_mapping};

use crate::facts::ProcessName;
#[cfg(feature = "fault-injection")]
use crate::fault_injection::map;
use crate::global::{self, CurrentRun, Global, Settings};
use crate::os::images::Loaded;
use crate::os::install::Want;
use crate::os::machinery::Machinery;
use crate::os::{self, clock, files, threads};
use crate::pipeline::rehearsal::rehearse;
use crate::pipeline::scratch::Scratch;
use crate::pipeline::seconds::Seconds;
use crate::run::{self, RunError};
use crate::setup::Setup;
use crate::{ignore, monitor};

/// Why Coroner could not be installed. Nothing is changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallError {
    /// It is installed already.
    AlreadyInstalled,
    /// The run could not be made in the store.
    Run(RunError),
    /// There was no memory.
    Memory(Errno),
    /// The run state did not fit in the bytes that the setup gives it.
    StateTooSmall,
    /// `/proc` can't be read, without which threads can't be listed.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Proc(Errno),
    /// No real-time signal could be had to stop threads with.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Rendezvous(coroner_machine::rendezvous::PrepareError),
    /// The kernel refused a port, or the task's exception ports (a `kern_return_t` of <mach/kern_return.h>).
    #[cfg(target_vendor = "apple")]
    Mach(i32),
    /// Coroner's own threads could not be started.
    #[cfg(target_vendor = "apple")]
    Thread(Errno),
    /// A signal could not be taken.
    Signal {
        /// Its number.
        signal: i32,
        /// The kernel's reason.
        errno: Errno,
    },
}

/// The run that [`install`] began.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Its id; in hexadecimal, the name of its directory in `<store>/runs`.
    pub id: [u8; 16],
    /// Its state, to be written in normal life.
    pub state: RunState<'static>,
}

/// Whether an install is on or under way.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// What the first install made and a later one uses again; see [`global::get`] for why it is never unmapped.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// Begins a run and takes the signals.
///
/// Takes well under a millisecond; starts no thread.
///
/// # Errors
/// See [`InstallError`].
pub fn install(setup: &Setup<'_>) -> Result<Run, InstallError> {
    if INSTALLED.swap(true, Ordering::AcqRel) {
        return Err(InstallError::AlreadyInstalled);
    }
    make(setup).inspect_err(|_| INSTALLED.store(false, Ordering::Release))
}

fn make(setup: &Setup<'_>) -> Result<Run, InstallError> {
    let installed_at = monotonic_now();
    let runs = run::open_runs(setup.store).map_err(InstallError::Run)?;
    let limits = setup.state.allowed();
    let state_size = limits.size() as u32;
    // A file size limit raises SIGXFSZ, of which the app would die: it is to go on without Coroner.
    let files = os::install::without_size_signal(|| run::Run::create(runs, setup.reserve, state_size));
    let files = files.inspect_err(|_| run::close(runs)).map_err(InstallError::Run)?;
    let abandon = |error: InstallError| {
        files.discard();
        run::close(runs);
        error
    };
    let address = files::map_file(files.state, state_size as usize, 0, true);
    let address = address.map_err(|errno| abandon(InstallError::Memory(errno)))?;
    // SAFETY: a fresh mapping of that size, which is never unmapped, and of which only the run state's words are used.
    let words = unsafe { words_of_mapping(address as *mut u8, state_size as usize) };
    let state = words.and_then(|words| RunState::create(words, &limits, files.id).ok());
    let state = state.ok_or_else(|| abandon(InstallError::StateTooSmall))?;
    let settings = Settings {
        signals: setup.signals,
        chain_first: setup.chain_first,
        #[cfg(any(target_os = "linux", target_os = "android"))]
        fork: setup.fork,
        alternate_stacks: setup.alternate_stacks,
        all_threads: setup.all_threads,
        stack_memory: setup.stack_memory,
        symbol_names: setup.symbol_names,
        deadline_ms: setup.deadline_ms,
        reserve: setup.reserve,
        state_size,
    };
    let page = threads::page_size();
    let current = CurrentRun {
        files,
        pid: process_id(),
        installed_at,
        process_start: os::facts::process_start(),
        page_size: page as u32,
        name: ProcessName::of_this(),
        state,
        state_address: address,
    };
    let want = Want::of(setup);
    let global = place(settings, &current, &want, page).map_err(abandon)?;
    os::install::prepare();
    monitor::exception::begin_run();
    global::publish(global);
    if let Err(error) = os::install::begin(global, &want) {
        global::withdraw();
        // SAFETY: taken out of use, and nothing watches.
        unsafe { take_apart(global) };
        return Err(abandon(error));
    }
    Ok(Run { id: files.id, state })
}

/// The memory for a place of an install, which a test may refuse.
#[cfg(not(feature = "fault-injection"))]
fn map<T>(_place: u32, map: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    map()
}

/// Makes what outlives the run, or takes what an earlier install made.
fn place(settings: Settings, current: &CurrentRun, want: &Want, page: usize) -> Result<&'static Global, InstallError> {
    let machinery = Machinery::new(&settings, want, page)?;
    let mut images = match map(1, Loaded::map) {
        Ok(images) => images,
        Err(errno) => {
            machinery.close();
            return Err(InstallError::Memory(errno));
        }
    };
    // What is loaded by now is learned now; a crash looks into what came later only.
    images.take_at_install();
    images.touch();
    let made = map(2, || match MADE.load(Ordering::Acquire) {
        0 => files::map(size_of::<Global>()),
        made => Ok(made),
    });
    let made = match made {
        Ok(made) => made,
        Err(errno) => {
            images.unmap();
            machinery.close();
            return Err(InstallError::Memory(errno));
        }
    };
    MADE.store(made, Ordering::Release);
    let at = made as *mut Global;
    // SAFETY: a mapping of that size, page-aligned, that no handler knows of now: it is either fresh, or was withdrawn by
    // `uninstall`, which waits for handlers. The scratch is left as it is: zero, or as a report left it, both valid.
    unsafe {
        (&raw mut (*at).setup).write(settings);
        (&raw mut (*at).run).write(*current);
        (&raw mut (*at).reports).write(AtomicU32::new(0));
        (&raw mut (*at).survived).write(AtomicU32::new(0));
        (&raw mut (*at).seconds).write(Seconds::new());
        (&raw mut (*at).os).write(machinery);
        let scratch = (&raw mut (*at).scratch).cast::<UnsafeCell<Scratch>>();
        Scratch::prepare((*scratch).get(), images);
        rehearse(&mut *(*scratch).get());
        Ok(&*at)
    }
}

/// Gives back what [`place`] made but the mapping.
///
/// # Safety
/// Nobody uses it any more; what is read out here is not used again before `place` writes it anew.
unsafe fn take_apart(global: &Global) {
    // SAFETY: by the contract.
    unsafe {
        core::ptr::read(&raw const global.os).close();
        core::ptr::read(&raw const (*global.scratch.get()).images).unmap();
    }
}

/// Gives the signals back, ends the run's lock and closes its files. The run's state stays mapped.
///
/// Waits for a report that is being written. False if nothing was installed.
pub fn uninstall() -> bool {
    let Some(global) = global::get() else { return false };
    os::install::end(global);
    global::withdraw();
    global.run.state.set_scalar(Scalar::EXIT_TIME, clock::wall());
    global.run.state.set_scalar(Scalar::EXIT, ExitKind::UNINSTALLED.0.into());
    global.run.files.close();
    run::close(global.run.files.runs);
    // SAFETY: taken out of use, and `end` has waited for who used it.
    unsafe { take_apart(global) };
    INSTALLED.store(false, Ordering::Release);
    true
}

/// Leaves the next `signal` of the calling thread to the handlers that were there before Coroner: a managed runtime that is
/// about to raise it on purpose. False where 64 threads have done so already, or nothing is installed.
pub fn ignore_next_signal(signal: i32) -> bool {
    global::get().is_some() && ignore::ignore_next(this_thread(), signal)
}

/// Gives the calling thread an alternate signal stack, so that its stack overflow can be reported. Needed only for threads
/// that did not get one by themselves, see [`interposes_thread_creation`].
///
/// # Errors
/// What the kernel answered: no memory, or the thread is running on its alternate stack.
pub fn attach_current_thread() -> Result<(), Errno> {
    threads::prepare();
    threads::attach()
}

/// Whether threads that are made from now on get an alternate stack by themselves.
pub fn interposes_thread_creation() -> bool {
    threads::interposes()
}

//! What crash time needs, made and touched at install: one mapping, one pointer to it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use coroner_report::run_state::{ExitKind, RunState, Scalar};
use coroner_report::wire::Monitor;

use crate::facts::ProcessName;
use crate::os::clock;
use crate::os::machinery::Machinery;
use crate::pipeline::scratch::Scratch;
use crate::pipeline::seconds::Seconds;
use crate::setup::{AlternateStacks, SignalSet};

/// What the setup says that matters after install.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub signals: SignalSet,
    pub chain_first: bool,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fork: crate::setup::ForkPolicy,
    pub alternate_stacks: AlternateStacks,
    pub all_threads: bool,
    pub stack_memory: u32,
    pub symbol_names: bool,
    pub deadline_ms: u32,
    pub reserve: u32,
    /// Used where a process can have children that die of crashes.
    #[cfg_attr(all(target_vendor = "apple", not(target_os = "macos")), allow(dead_code))]
    pub state_size: u32,
}

/// The run of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CurrentRun {
    pub files: crate::run::Run,
    /// The process that made it; a child of fork or vfork has another id.
    pub pid: i32,
    /// By the monotonic clock.
    pub installed_at: u64,
    /// Nanoseconds since the epoch.
    pub process_start: u64,
    pub page_size: u32,
    pub name: ProcessName,
    /// The mapped state, `settings.state_size` bytes.
    pub state: RunState<'static>,
    #[cfg_attr(all(target_vendor = "apple", not(target_os = "macos")), allow(dead_code))]
    pub state_address: usize,
}

/// Everything at crash time.
pub(crate) struct Global {
    pub setup: Settings,
    pub run: CurrentRun,
    /// Reports that this run has written.
    pub reports: AtomicU32,
    /// Of exceptions that it survived.
    pub survived: AtomicU32,
    pub seconds: Seconds,
    /// What this system needs besides.
    pub os: Machinery,
    /// The writer of the report alone touches it.
    pub scratch: UnsafeCell<Scratch>,
}

// SAFETY: all fields are plain data, atomics or mappings, but `scratch` and what `Machinery` says of itself, which only the
// writer of the report touches.
unsafe impl Sync for Global {}

impl Global {
    /// SIGTERM came: the end that follows is a clean one, unless a report says otherwise.
    pub(crate) fn note_sigterm(&self, pid: i32) {
        if pid == self.run.pid {
            self.run.state.set_scalar(Scalar::EXIT_TIME, clock::wall());
            self.run.state.set_scalar(Scalar::EXIT, ExitKind::SIGTERM.0.into());
        }
    }

    /// A report of this run is written.
    pub(crate) fn note_crash(&self, monitor: Monitor) {
        let state = &self.run.state;
        state.set_scalar(Scalar::CRASH_TIME, clock::wall());
        state.set_scalar(Scalar::CRASHED_BY, monitor.0.into());
        state.set_scalar(Scalar::EXIT_TIME, clock::wall());
        state.set_scalar(Scalar::EXIT, ExitKind::CRASHED.0.into());
    }

    /// The process goes on after its report.
    pub(crate) fn note_survived(&self, pid: i32) {
        if pid != self.run.pid {
            return;
        }
        self.run.state.set_scalar(Scalar::EXIT, ExitKind::RUNNING.0.into());
    }
}

static GLOBAL: AtomicPtr<Global> = AtomicPtr::new(core::ptr::null_mut());

/// What install made, or nothing before it and after an uninstall.
pub(crate) fn get() -> Option<&'static Global> {
    let global = GLOBAL.load(Ordering::Acquire);
    // SAFETY: what is published here is never unmapped: a handler may still hold it.
    unsafe { global.as_ref() }
}

/// Publishes what install made.
pub(crate) fn publish(global: &'static Global) {
    GLOBAL.store(core::ptr::from_ref(global).cast_mut(), Ordering::Release);
}

/// Takes it out of use. It stays mapped.
pub(crate) fn withdraw() {
    GLOBAL.store(core::ptr::null_mut(), Ordering::Release);
}

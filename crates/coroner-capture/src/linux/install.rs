//! What install and uninstall do on Linux besides what they do everywhere: normal life.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64};

use coroner_machine::rendezvous::{Config, Rendezvous};
use coroner_machine::stack::Stack;
use coroner_machine::threads::{TaskDirectory, process_id, this_thread};
use coroner_machine::tracer::Tracer;

use super::action::{bit, block_exactly, block_too, take_pending};
use super::latch::{Claim, Latch};
use super::machinery::Machinery;
use super::threads;
use crate::forwarding::Forwarding;
use crate::global::{Global, Settings};
use crate::install::InstallError;
use crate::setup::{AlternateStacks, Setup, SignalSet};
use crate::{monitor, throw};

/// Where a report is written: the unwinder and the sections need a few KiB; the rest is for handlers of the app that are
/// called on it.
const STACK: usize = 128 << 10;
/// As much of it as a report uses: one of a build without optimisation used 24 KiB.
const STACK_TOUCHED: usize = 32 << 10;
/// Where the crash path's own faults are handled.
const FAULT_STACK: usize = 32 << 10;
/// Threads that the tracing helper reads in one report.
const TRACED: usize = 64;

/// What of a setup matters to this system's install.
pub(crate) struct Want {
    signals: SignalSet,
    watch_sigterm: bool,
    rendezvous_signal: Option<i32>,
    cpp_exceptions: bool,
}

impl Want {
    pub(crate) fn of(setup: &Setup<'_>) -> Want {
        let Setup { signals, watch_sigterm, rendezvous_signal, cpp_exceptions, .. } = *setup;
        Want { signals, watch_sigterm, rendezvous_signal, cpp_exceptions }
    }
}

impl Machinery {
    /// Makes everything that a crash needs.
    ///
    /// # Errors
    /// What could not be had.
    pub(crate) fn new(settings: &Settings, want: &Want, page: usize) -> Result<Machinery, InstallError> {
        let tasks = TaskDirectory::open().map_err(InstallError::Proc)?;
        // Nobody is held for longer than a report and the handlers after it may take.
        let hold = u64::from(settings.deadline_ms).saturating_add(10_000).saturating_mul(1_000_000);
        let config = Config { signal: want.rendezvous_signal, hold, ..Config::default() };
        let rendezvous = Rendezvous::prepare(config).map_err(InstallError::Rendezvous)?;
        Ok(Machinery {
            latch: Latch::new(),
            forwarding: Forwarding::new(),
            rendezvous,
            tasks,
            tracer: Tracer::prepare(TRACED, page).map_err(InstallError::Memory)?,
            writing: AtomicBool::new(false),
            holding: AtomicBool::new(false),
            patience: AtomicU64::new(0),
            held: UnsafeCell::new(None),
            stack: Stack::map_touching(STACK, page, STACK_TOUCHED).map_err(InstallError::Memory)?,
            fault_stack: Stack::map(FAULT_STACK, page).map_err(InstallError::Memory)?,
        })
    }

    /// Gives everything back.
    pub(crate) fn close(self) {
        self.rendezvous.withdraw();
        self.tasks.close();
        self.tracer.unmap();
        self.stack.unmap();
        self.fault_stack.unmap();
    }
}

/// What is done once in a process, whatever the setup.
pub(crate) fn prepare() {
    threads::prepare();
    crate::fork::prepare();
}

/// Runs what may write beyond a limit of the process's file sizes, without the signal that the kernel sends then.
pub(crate) fn without_size_signal<R>(run: impl FnOnce() -> R) -> R {
    let before = block_too(bit(libc::SIGXFSZ));
    let result = run();
    if before & bit(libc::SIGXFSZ) == 0 {
        take_pending(libc::SIGXFSZ);
        block_exactly(before);
    }
    result
}

/// Begins to watch: stacks for signals, the signals, then C++ exceptions.
///
/// # Errors
/// The signal that the system did not give.
pub(crate) fn begin(global: &'static Global, want: &Want) -> Result<(), InstallError> {
    let stacks = global.setup.alternate_stacks;
    if stacks != AlternateStacks::Leave {
        // A thread that can't get one (it runs on one) keeps what it has.
        let _ = threads::attach();
    }
    if stacks == AlternateStacks::Everywhere {
        threads::sweep(&global.os.rendezvous, &global.os.tasks);
    }
    monitor::signal::install(want.signals, want.watch_sigterm, global.os.rendezvous.signal())
        .map_err(|(signal, errno)| InstallError::Signal { signal, errno })?;
    if want.cpp_exceptions {
        throw::install();
        monitor::cpp_exception::install();
    }
    Ok(())
}

/// Ends the watch and waits for a report that is being written.
pub(crate) fn end(global: &Global) {
    monitor::cpp_exception::uninstall();
    throw::uninstall();
    monitor::signal::uninstall();
    let latch = &global.os.latch;
    // A crash that is being written keeps the latch.
    let mut releases = latch.releases();
    while latch.claim(process_id(), this_thread(), false) != Claim::Mine {
        if !latch.wait(releases, global.setup.deadline_ms.saturating_add(2000)) {
            break;
        }
        releases = latch.releases();
    }
}

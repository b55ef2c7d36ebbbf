//! Linux-specific parts of install and uninstall. Not async-signal-safe.

use coroner_process::abort_message::AbortMessage;
use coroner_process::memory_tags::MemoryTags;
use coroner_process::signals::{bit, block_exactly, take_pending};
use coroner_process::stack::Stack;
use coroner_process::stop_the_world::{Config, PrepareError, ThreadStopper};
use coroner_process::threads::TaskList;
use coroner_process::tracer::Tracer;
use coroner_process::{alternate_stack, files, thread_stacks};
use coroner_walk::ImageList;

use super::platform_state::{PlatformState, Resources};
use crate::InstallLimits;
use crate::install_error::InstallError;
use crate::installed::Installed;
use crate::monitor;
use crate::report_lock::ReportOwner;
use crate::running_handlers::RunningHandlers;
use crate::taken_signals;
use crate::workspace::Workspace;
use crate::{AlternateStacks, InstallOptions};

/// Size in bytes of the stack on which a report is written: the unwinder and the sections need a
/// few KiB; the rest is for the app's handlers that are called on it.
const STACK: usize = 128 << 10;
/// Number of bytes of it that a report uses: an unoptimized build used 24 KiB.
const STACK_TOUCHED: usize = 32 << 10;
/// Size in bytes of the stack on which the crash path's own faults are handled.
const FAULT_STACK: usize = 32 << 10;
/// Bytes of all mappings that an install makes, except that of images: one system call for all.
const MAPPED_AHEAD: usize = 2608 << 10;
/// Maximum number of threads in a report besides the crashed one, each of which may have to be
/// traced.
const THREADS: usize = 4096;

impl PlatformState {
    /// Creates everything that a crash needs.
    pub(crate) fn new(
        options: &InstallOptions,
        page: usize,
        tasks: TaskList,
    ) -> Result<(PlatformState, Resources), InstallError> {
        // Miri's mappings can't be unmapped in parts.
        if cfg!(not(miri)) {
            files::map_ahead(MAPPED_AHEAD, ImageList::bytes());
        }
        let stack = Stack::map(STACK, page, STACK_TOUCHED).map_err(InstallError::Memory)?;
        let mut limits = InstallLimits { no_thread_list: !tasks.is_kept(), ..InstallLimits::default() };
        // No thread is held for longer than a report and the handlers after it may take.
        let hold = u64::from(options.deadline_ms).saturating_add(10_000).saturating_mul(1_000_000);
        let config = Config { signal: options.stop_signal, hold, threads: THREADS };
        let stopper = ThreadStopper::prepare(config).or_else(|error| match error {
            PrepareError::NoSignalFree => {
                limits.no_stop_signal = true;
                ThreadStopper::without_signal(config)
            }
            other => Err(other),
        });
        let stopper = stopper.map_err(InstallError::StopSignal)?;
        let resources = Resources {
            tasks,
            tracer: Tracer::prepare(THREADS, page).map_err(InstallError::Memory)?,
            stack,
            fault_stack: Stack::map(FAULT_STACK, page, FAULT_STACK).map_err(InstallError::Memory)?,
        };
        let platform = PlatformState {
            running_handlers: RunningHandlers::new(),
            limits,
            abort_message: AbortMessage::find(),
            stopper,
            memory_tags: MemoryTags::of_this_machine(),
        };
        Ok((platform, resources))
    }

    /// Ends the use of what stays for the process's life.
    pub(crate) fn withdraw(&self) {
        self.stopper.withdraw();
    }
}

/// Returns the path of the executable from the image list.
pub(crate) fn program_path<'p>(owner: &mut ReportOwner, into: &'p mut [u8]) -> &'p [u8] {
    let images = Workspace::of(owner).and_then(|workspace| workspace.images.as_ref());
    let path = images.map_or(&[][..], |images| images.table.program_path());
    let length = path.len().min(into.len());
    into[..length].copy_from_slice(&path[..length]);
    &into[..length]
}

/// Returns what was missing at install.
pub(crate) fn limits(platform: &PlatformState) -> InstallLimits {
    platform.limits
}

/// Performs the steps that are done once per process, whatever the options.
pub(crate) fn prepare() {
    alternate_stack::prepare();
    crate::fork::prepare();
}

/// Runs an install with all signals blocked except faults: a signal sent in the meantime would be
/// handled by a thread that owns the report lock, and wait. A limit of the process's file sizes
/// raises SIGXFSZ, which would kill the app: it must continue without Coroner. That can only happen
/// if files were created, which `run` returns.
pub(crate) fn undisturbed<R>(run: impl FnOnce() -> (R, bool)) -> R {
    let faults = bit(libc::SIGSEGV) | bit(libc::SIGBUS) | bit(libc::SIGILL) | bit(libc::SIGFPE) | bit(libc::SIGTRAP);
    let before = block_exactly(!faults);
    let (result, made_files) = run();
    if made_files && before & bit(libc::SIGXFSZ) == 0 {
        take_pending(libc::SIGXFSZ);
    }
    block_exactly(before);
    result
}

/// Starts capture: first stacks for signals, then the signals.
///
/// # Errors
/// The signal that the system did not let Coroner take.
pub(crate) fn begin(
    installed: &'static Installed,
    options: &InstallOptions,
    tasks: TaskList,
) -> Result<(), InstallError> {
    let platform = &installed.platform;
    if options.alternate_stacks != AlternateStacks::Leave {
        // A thread that can't get one (it runs on one) keeps what it has.
        let _ = alternate_stack::attach();
    }
    if options.alternate_stacks == AlternateStacks::Everywhere {
        thread_stacks::attach_new_threads(true);
        thread_stacks::attach_threads(&platform.stopper, &tasks);
    }
    // Whether another handler is called first is decided in the handler.
    coroner_walk::loaded_image::prepare();
    taken_signals::hold(platform.stopper.signal());
    monitor::signal::install(options.signals, options.endings)
        .inspect_err(|_| thread_stacks::attach_new_threads(false))
        .map_err(|(signal, errno)| InstallError::Signal { signal, errno })?;
    let recovers = taken_signals::recovers_loads();
    // SAFETY: Coroner's handler, which recovers guarded loads first.
    unsafe { coroner_walk::fault_handler::set_owner(recovers) };
    if let Some(mirror) = installed.run.mirror {
        // SAFETY: the handler replaces lost pages of the current install's mapping first.
        unsafe { mirror.set_handler(recovers.unwrap_or(0)) };
    }
    coroner_walk::stop_thread::set_stopper(Some(&platform.stopper));
    Ok(())
}

/// Ends capture.
pub(crate) fn end(_installed: &Installed) {
    coroner_walk::stop_thread::set_stopper(None);
    // SAFETY: no owner.
    unsafe { coroner_walk::fault_handler::set_owner(None) };
    thread_stacks::attach_new_threads(false);
    taken_signals::uninstall();
}

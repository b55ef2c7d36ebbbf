//! Darwin-specific parts of install and uninstall. Not async-signal-safe.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use coroner_process::alternate_stack;
use coroner_process::exception_messages::{self, Own};
use coroner_process::exception_ports::{destroy_port, make_port, set_of_thread};
use coroner_process::identity::is_traced;
use coroner_process::syscall::Errno;
use coroner_process::threads::{TaskList, ThreadList, Tid, facts, set_exception_receivers};
use mach2::kern_return::KERN_SUCCESS;
use mach2::port::mach_port_t;

use super::platform_state::{PlatformState, Resources};
use super::suspended_threads::SuspendedThreads;
use crate::InstallLimits;
use crate::install_error::InstallError;
use crate::installed::Installed;
use crate::monitor;
use crate::report_lock::ReportOwner;
use crate::taken_signals;
use crate::{AlternateStacks, InstallOptions};
use coroner_process::exception_set::ExceptionSet;
use coroner_process::signals::{bit, block_exactly};

/// Stack size in bytes of each of Coroner's threads: the unwinder and the sections need a few KiB,
/// the largest locals are messages.
const STACK: usize = 256 << 10;

/// Returns the offset of a queue's label in libdispatch: `dqo_label` of `dispatch_queue_offsets`
/// (libdispatch, queue_private.h), which libdispatch exports for debuggers. Returns 0 if there is
/// no such symbol.
fn label_offset() -> u32 {
    #[repr(C)]
    struct Offsets {
        version: u16,
        label: u16,
        label_size: u16,
    }
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dispatch_queue_offsets".as_ptr()) };
    // SAFETY: libdispatch's constant has these fields first, in all versions.
    let offsets = unsafe { found.cast::<Offsets>().as_ref() };
    offsets
        .filter(|offsets| usize::from(offsets.label_size) == size_of::<usize>())
        .map_or(0, |found| found.label.into())
}

impl PlatformState {
    /// Creates everything that a crash needs.
    pub(crate) fn new(
        options: &InstallOptions,
        _page: usize,
        _tasks: TaskList,
    ) -> Result<(PlatformState, Resources), InstallError> {
        let threads = SuspendedThreads::map().map_err(InstallError::Memory)?;
        let ports = make_port().and_then(|primary| {
            make_port().map(|secondary| (primary, secondary)).inspect_err(|_| destroy_port(primary))
        });
        // SAFETY: nobody uses it yet.
        let ports = ports.inspect_err(|_| unsafe { SuspendedThreads::unmap(threads) }).map_err(InstallError::Mach)?;
        // The kernel lists the oldest thread first, which is the one that `main` runs on.
        let main = ThreadList::take().ok().and_then(|list| facts(*list.ports().first()?)).map_or(0, |facts| facts.tid);
        // A debugger takes the exceptions first, and would be called for each guarded load that
        // fails.
        let exceptions = if is_traced() { ExceptionSet::EMPTY } else { options.exceptions };
        let resources = Resources { threads, ports: [ports.0, ports.1] };
        Ok((PlatformState::with(ports, exceptions, main, label_offset()), resources))
    }

    /// Ends the use of what stays for the process's life.
    pub(crate) fn withdraw(&self) {
        self.ports.forget();
    }
}

/// Returns the path of the executable.
pub(crate) fn program_path<'p>(_owner: &mut ReportOwner, into: &'p mut [u8]) -> &'p [u8] {
    coroner_process::identity::program_path(into)
}

/// Returns what was missing at install: nothing can be missing on Darwin.
pub(crate) fn limits(_platform: &PlatformState) -> InstallLimits {
    InstallLimits::default()
}

/// Performs the steps that are done once per process, whatever the options.
pub(crate) fn prepare() {
    coroner_process::pointers::prepare();
    alternate_stack::prepare();
    #[cfg(target_os = "macos")]
    crate::fork::prepare();
}

/// Runs `run`, which may write beyond a limit of the process's file sizes, without the signal that
/// the kernel sends then.
pub(crate) fn undisturbed<R>(run: impl FnOnce() -> (R, bool)) -> R {
    let size = bit(libc::SIGXFSZ);
    let before = block_exactly(u32::MAX);
    block_exactly(before | size);
    let (result, _) = run();
    let (mut pending, mut taken) = (0, 0);
    // SAFETY: writes one set; then takes one signal that is pending, without waiting.
    unsafe {
        libc::sigpending(&raw mut pending);
        if before & size == 0 && pending & size != 0 {
            libc::sigwait(&raw const size, &raw mut taken);
        }
    }
    block_exactly(before);
    result
}

/// Starts one of Coroner's threads; returns its port.
fn start(installed: &'static Installed, which: usize) -> Result<mach_port_t, Errno> {
    let run = if which == 0 { monitor::mach::primary } else { monitor::mach::secondary };
    // SAFETY: all zero is fit to be initialised; the attributes are local; the thread gets a value
    // that lives as long as the process.
    unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK);
        let mut thread: libc::pthread_t = 0;
        let argument = core::ptr::from_ref(installed).cast_mut().cast::<c_void>();
        // The new thread inherits the mask: no signal is delivered to it, not even before its first
        // instruction.
        let before = block_exactly(u32::MAX);
        let answer = libc::pthread_create(&raw mut thread, &raw const attributes, run, argument);
        block_exactly(before);
        libc::pthread_attr_destroy(&raw mut attributes);
        if answer != 0 {
            return Err(Errno(answer));
        }
        if let Some(place) = installed.platform.pthreads.get(which) {
            place.store(thread as usize, Ordering::Release);
        }
        Ok(libc::pthread_mach_thread_np(thread))
    }
}

fn thread_id(thread: mach_port_t) -> Tid {
    facts(thread).map_or(0, |facts| facts.tid)
}

/// Starts capture: Coroner's threads, the exception ports, then the signals.
///
/// # Errors
/// The resource that the system did not provide; nothing is captured then.
pub(crate) fn begin(
    installed: &'static Installed,
    options: &InstallOptions,
    _tasks: TaskList,
) -> Result<(), InstallError> {
    let platform = &installed.platform;
    let secondary = start(installed, 1).map_err(InstallError::Thread)?;
    let failed = |error| {
        end(installed);
        error
    };
    let primary = start(installed, 0).map_err(|errno| failed(InstallError::Thread(errno)))?;
    platform.primary_thread.store(primary, Ordering::Release);
    platform.primary_tid.store(thread_id(primary), Ordering::Release);
    set_exception_receivers([thread_id(primary), thread_id(secondary)]);
    // Under a debugger, too: Coroner itself handles faults on the primary thread.
    match set_of_thread(primary, ExceptionSet::CRASHES.bits(), platform.secondary_port) {
        KERN_SUCCESS => {}
        answer => return Err(failed(InstallError::Mach(answer))),
    }
    platform.ports.take(platform.primary_port).map_err(|answer| failed(InstallError::Mach(answer)))?;
    let takes_faults = platform.exceptions.contains(ExceptionSet::BAD_ACCESS);
    // SAFETY: the port of Coroner's thread, which recovers guarded loads first.
    unsafe { coroner_walk::fault_handler::set_owner(takes_faults.then_some(platform.primary_port)) };
    if options.alternate_stacks != AlternateStacks::Leave {
        // A thread that can't get one (it runs on one) keeps what it has.
        let _ = alternate_stack::attach();
    }
    // Whether an exception's earlier holder is called first is decided while the thread waits.
    coroner_walk::loaded_image::prepare();
    monitor::signal::install(options.signals, options.endings)
        .map_err(|(signal, errno)| failed(InstallError::Signal { signal, errno }))?;
    Ok(())
}

/// Ends capture and waits for a report that is being written.
pub(crate) fn end(installed: &Installed) {
    let platform = &installed.platform;
    taken_signals::uninstall();
    // SAFETY: no owner.
    unsafe { coroner_walk::fault_handler::set_owner(None) };
    platform.ports.give_back(platform.primary_port);
    platform.take_again.store(false, Ordering::Release);
    // The primary thread first: while it writes it needs the other.
    for (index, port) in [platform.primary_port, platform.secondary_port].into_iter().enumerate() {
        let Some(thread) =
            platform.pthreads.get(index).map(|place| place.swap(0, Ordering::AcqRel)).filter(|it| *it != 0)
        else {
            continue;
        };
        exception_messages::tell(port, Own::Stop);
        // SAFETY: a thread of ours that nobody else joins.
        unsafe { libc::pthread_join(thread as libc::pthread_t, core::ptr::null_mut()) };
    }
    platform.primary_thread.store(0, Ordering::Release);
    set_exception_receivers([0; 2]);
}

//! What install and uninstall do on Darwin besides what they do everywhere: normal life, but for [`give_back`].

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use coroner_machine::syscall::Errno;
use coroner_machine::threads::{ThreadList, facts};
use mach2::kern_return::{KERN_SUCCESS, kern_return_t};
use mach2::mach_port::{mach_port_allocate, mach_port_insert_right, mach_port_mod_refs, mach_port_set_attributes};
use mach2::port::mach_port_t;
use mach2::traps::mach_task_self;

use super::action::{bit, block_exactly};
use super::machinery::Machinery;
use super::messages::{self, Own};
use super::others::Table;
use super::{ports, process, threads};
use crate::global::{self, Global, Settings};
use crate::install::InstallError;
use crate::setup::{AlternateStacks, ExceptionSet, Setup, SignalSet};
use crate::{monitor, throw};

/// The stack of each of Coroner's threads: the unwinder and the sections need a few KiB, the largest locals are messages.
const STACK: usize = 256 << 10;

/// What of a setup matters to this system's install.
pub(crate) struct Want {
    signals: SignalSet,
    exceptions: ExceptionSet,
    watch_sigterm: bool,
    cpp_exceptions: bool,
    objc_exceptions: bool,
    appkit_exceptions: bool,
}

impl Want {
    pub(crate) fn of(setup: &Setup<'_>) -> Want {
        let Setup { signals, exceptions, watch_sigterm, cpp_exceptions, objc_exceptions, appkit_exceptions, .. } =
            *setup;
        // A debugger takes the exceptions first, and would be told of each guarded load that fails.
        let exceptions = if process::is_traced() { ExceptionSet::EMPTY } else { exceptions };
        Want { signals, exceptions, watch_sigterm, cpp_exceptions, objc_exceptions, appkit_exceptions }
    }
}

/// A port with a receive and a send right, whose queue is as long as may be.
fn make_port() -> Result<mach_port_t, kern_return_t> {
    /// `MACH_PORT_RIGHT_RECEIVE`, `MACH_MSG_TYPE_MAKE_SEND`, `MACH_PORT_LIMITS_INFO`, `MACH_PORT_QLIMIT_MAX`.
    const RECEIVE: u32 = 1;
    const MAKE_SEND: u32 = 20;
    const LIMITS: i32 = 1;
    const LONGEST: i32 = 1024;
    let mut port = 0;
    let mut limit = LONGEST;
    // SAFETY: a new port of ours; the kernel writes its name and reads one word.
    unsafe {
        let task = mach_task_self();
        match mach_port_allocate(task, RECEIVE, &raw mut port) {
            KERN_SUCCESS => {}
            answer => return Err(answer),
        }
        match mach_port_insert_right(task, port, port, MAKE_SEND) {
            KERN_SUCCESS => {}
            answer => {
                destroy_port(port);
                return Err(answer);
            }
        }
        // A shorter queue only makes senders wait.
        mach_port_set_attributes(task, port, LIMITS, &raw mut limit, 1);
    }
    Ok(port)
}

/// Gives receive and send right back.
fn destroy_port(port: mach_port_t) {
    /// `MACH_PORT_RIGHT_SEND` and `MACH_PORT_RIGHT_RECEIVE`.
    const SEND: u32 = 0;
    const RECEIVE: u32 = 1;
    // SAFETY: our own rights. The send right first: it is a dead name once the port is gone, which is no send right any more.
    unsafe {
        mach_port_mod_refs(mach_task_self(), port, SEND, -1);
        mach_port_mod_refs(mach_task_self(), port, RECEIVE, -1);
    }
}

/// Where libdispatch keeps the label in a queue: `dqo_label` of `dispatch_queue_offsets` (libdispatch, queue_private.h), which
/// it exports for debuggers. 0 where there is no such symbol.
fn label_offset() -> u32 {
    #[repr(C)]
    struct Offsets {
        version: u16,
        label: u16,
        label_size: u16,
    }
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dispatch_queue_offsets".as_ptr()) };
    // SAFETY: libdispatch's constant has these fields first, of all versions.
    let offsets = unsafe { found.cast::<Offsets>().as_ref() };
    offsets
        .filter(|offsets| usize::from(offsets.label_size) == size_of::<usize>())
        .map_or(0, |found| found.label.into())
}

impl Machinery {
    /// Makes everything that a crash needs.
    ///
    /// # Errors
    /// What could not be had.
    pub(crate) fn new(_settings: &Settings, want: &Want, _page: usize) -> Result<Machinery, InstallError> {
        let threads = Table::map().map_err(InstallError::Memory)?;
        let ports = make_port().and_then(|primary| {
            make_port().map(|secondary| (primary, secondary)).inspect_err(|_| destroy_port(primary))
        });
        // SAFETY: nobody uses it yet.
        let ports = ports.inspect_err(|_| unsafe { Table::unmap(threads) }).map_err(InstallError::Mach)?;
        // The kernel lists the oldest thread first, which is the one that `main` runs on.
        let main = ThreadList::take().ok().and_then(|list| facts(*list.ports().first()?)).map_or(0, |facts| facts.tid);
        Ok(Machinery::with(ports, want.exceptions.bits(), main, label_offset(), threads))
    }

    /// Gives everything back.
    pub(crate) fn close(self) {
        self.ports.forget();
        destroy_port(self.primary_port);
        destroy_port(self.secondary_port);
        // SAFETY: the primary thread has ended.
        unsafe { Table::unmap(self.threads) };
    }
}

/// What is done once in a process, whatever the setup.
pub(crate) fn prepare() {
    coroner_machine::pointers::prepare();
    threads::prepare();
    #[cfg(target_os = "macos")]
    crate::fork::prepare();
}

/// Runs what may write beyond a limit of the process's file sizes, without the signal that the kernel sends then.
pub(crate) fn without_size_signal<R>(run: impl FnOnce() -> R) -> R {
    let size = bit(libc::SIGXFSZ);
    let before = block_exactly(u32::MAX);
    block_exactly(before | size);
    let result = run();
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

/// Starts one of Coroner's threads; its port.
fn start(global: &'static Global, which: usize) -> Result<mach_port_t, Errno> {
    let run = if which == 0 { monitor::mach::primary } else { monitor::mach::secondary };
    // SAFETY: all zero is fit to be initialised; the attributes are local; the thread gets what lives as long as the process.
    unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK);
        let mut thread: libc::pthread_t = 0;
        let argument = core::ptr::from_ref(global).cast_mut().cast::<c_void>();
        // The new thread inherits the mask: no signal comes to it, not even before its first instruction.
        let before = block_exactly(u32::MAX);
        let answer = libc::pthread_create(&raw mut thread, &raw const attributes, run, argument);
        block_exactly(before);
        libc::pthread_attr_destroy(&raw mut attributes);
        if answer != 0 {
            return Err(Errno(answer));
        }
        if let Some(place) = global.os.pthreads.get(which) {
            place.store(thread as usize, Ordering::Release);
        }
        Ok(libc::pthread_mach_thread_np(thread))
    }
}

/// Begins to watch: Coroner's threads, the exception ports, then the signals.
///
/// # Errors
/// What the system did not give; nothing is watched then.
pub(crate) fn begin(global: &'static Global, want: &Want) -> Result<(), InstallError> {
    let os = &global.os;
    let secondary = start(global, 1).map_err(InstallError::Thread)?;
    os.secondary_thread.store(secondary, Ordering::Release);
    let failed = |error| {
        end(global);
        error
    };
    let primary = start(global, 0).map_err(|errno| failed(InstallError::Thread(errno)))?;
    os.primary_thread.store(primary, Ordering::Release);
    os.primary_tid.store(facts(primary).map_or(0, |facts| facts.tid), Ordering::Release);
    // Under a debugger, too: what goes wrong on the primary thread is Coroner's own affair.
    match ports::set_of_thread(primary, ExceptionSet::CRASHES.bits(), os.secondary_port) {
        KERN_SUCCESS => {}
        answer => return Err(failed(InstallError::Mach(answer))),
    }
    os.ports.take(os.primary_port).map_err(|answer| failed(InstallError::Mach(answer)))?;
    os.takes_exceptions.store(want.exceptions != ExceptionSet::EMPTY, Ordering::Release);
    if global.setup.alternate_stacks != AlternateStacks::Leave {
        // A thread that can't get one (it runs on one) keeps what it has.
        let _ = threads::attach();
    }
    monitor::signal::install(want.signals, want.watch_sigterm)
        .map_err(|(signal, errno)| failed(InstallError::Signal { signal, errno }))?;
    if want.cpp_exceptions {
        throw::install();
        monitor::cpp_exception::install();
    }
    if want.objc_exceptions {
        monitor::objc_exception::install(want.appkit_exceptions);
    }
    Ok(())
}

/// Ends the watch and waits for a report that is being written.
pub(crate) fn end(global: &Global) {
    let os = &global.os;
    monitor::objc_exception::uninstall();
    monitor::cpp_exception::uninstall();
    throw::uninstall();
    monitor::signal::uninstall();
    os.ports.give_back(os.primary_port);
    os.takes_exceptions.store(false, Ordering::Release);
    os.take_again.store(false, Ordering::Release);
    // The primary thread first: while it writes it needs the other.
    for (index, port) in [os.primary_port, os.secondary_port].into_iter().enumerate() {
        let Some(thread) = os.pthreads.get(index).map(|place| place.swap(0, Ordering::AcqRel)).filter(|it| *it != 0)
        else {
            continue;
        };
        messages::tell(port, Own::Stop);
        // SAFETY: a thread of ours that nobody else joins.
        unsafe { libc::pthread_join(thread as libc::pthread_t, core::ptr::null_mut()) };
    }
    os.primary_thread.store(0, Ordering::Release);
    os.secondary_thread.store(0, Ordering::Release);
}

/// Gives signals and exception ports back to who had them before (crash path, on any thread): after a report the process dies
/// by rules that were there before.
pub(crate) fn give_back() {
    monitor::signal::give_back();
    if let Some(global) = global::get() {
        global.os.ports.give_back(global.os.primary_port);
    }
}

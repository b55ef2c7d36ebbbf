//! Darwin-specific state for crash time: two ports, two threads, and what they share.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use coroner_process::threads::{Tid, monotonic_now};
use mach2::port::mach_port_t;

use super::handed_over_crashes::HandedOver;
use super::suspended_threads::SuspendedThreads;
use crate::concurrent_crashes::CAPACITY;
use crate::crash_context::Reported;
use crate::running_handlers::RunningHandlers;
use coroner_process::exception_messages::{Reply, Request};
use coroner_process::exception_ports::{Ports, destroy_port};
use coroner_process::exception_set::ExceptionSet;

/// An exception or a handed over crash that waits for its answer while a report is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    /// An exception that is in the report.
    Exception(Request),
    /// An exception that its thread wants to be left to other handlers.
    Ignored(Request),
    /// A handed over crash that is in the report.
    HandedOver { place: u32, reply: Reply },
}

/// Time after passing a crash on, in nanoseconds, during which a signal of its thread is still the
/// same death: a handler that Coroner does not see may run in between and abort.
const SAME_DEATH_NS: u64 = 5_000_000_000;

/// Maximum number of exceptions passed on: as many as one report can be about, and some more.
const PASSED_ON: usize = 32;

/// Values that identify an exception if its thread returns with the same one: its program counter,
/// stack pointer and codes.
pub(crate) type Fault = [u64; 4];

/// An exception that was passed on as a signal.
struct PassedOn {
    /// ID of the exception's thread, 0 for none.
    tid: AtomicU64,
    /// When it was passed on, in nanoseconds of the monotonic clock.
    at: AtomicU64,
    /// [`Reported::as_word`].
    reported: AtomicU64,
    fault: [AtomicU64; 4],
    /// Number of times that the exception returned.
    returns: AtomicU32,
    /// Whether Coroner's handler has received the exception's signal.
    is_taken: AtomicBool,
}

impl PassedOn {
    #[allow(clippy::declare_interior_mutable_const, reason = "each use of it is an entry of its own")]
    const NONE: PassedOn = PassedOn {
        tid: AtomicU64::new(0),
        at: AtomicU64::new(0),
        reported: AtomicU64::new(0),
        fault: [const { AtomicU64::new(0) }; 4],
        returns: AtomicU32::new(0),
        is_taken: AtomicBool::new(false),
    };

    fn is_of(&self, tid: Tid) -> bool {
        self.tid.load(Ordering::Acquire) == tid
    }

    fn is_recent(&self) -> bool {
        monotonic_now().saturating_sub(self.at.load(Ordering::Relaxed)) < SAME_DEATH_NS
    }

    fn has(&self, fault: &Fault) -> bool {
        self.fault.iter().zip(fault).all(|(held, word)| held.load(Ordering::Relaxed) == *word)
    }
}

/// Darwin-specific state of an install. See the module.
pub(crate) struct PlatformState {
    pub primary_port: mach_port_t,
    pub secondary_port: mach_port_t,
    /// Port of the primary thread, 0 before it runs. Coroner's threads are in no report.
    pub primary_thread: AtomicU32,
    /// ID of the primary thread, 0 before it runs.
    pub primary_tid: AtomicU64,
    /// Coroner's threads as `pthread_t`s, for joining them.
    pub pthreads: [AtomicUsize; 2],
    /// ID of the process's first thread.
    pub main_thread: Tid,
    /// The exceptions that are taken.
    pub exceptions: ExceptionSet,
    /// Earlier holders of the exception ports.
    pub ports: Ports,
    /// Whether the exception ports were given back so that the kernel can call an earlier holder,
    /// and must be taken again.
    pub take_again: AtomicBool,
    pub handed_over: HandedOver,
    pub running_handlers: RunningHandlers,
    /// Whether the primary thread must end: it was asked to while it was busy.
    pub stopping: AtomicBool,
    /// When the section that the primary thread writes must end, in nanoseconds of the monotonic
    /// clock; 0 while no report is written.
    pub deadline: AtomicU64,
    /// Port of the thread that the report is about.
    pub crashed: AtomicU32,
    /// Other crashes that came while the report is written. Only the primary thread accesses this.
    pub waiting: UnsafeCell<[Option<Waiting>; CAPACITY]>,
    /// The exception that the report is about, for the secondary thread if the primary can't
    /// finish.
    pub request: UnsafeCell<Option<Request>>,
    /// Threads whose exceptions were left to their signals.
    passed_on: [PassedOn; PASSED_ON],
    passed_on_next: AtomicUsize,
    /// Offset of a queue's label in libdispatch; 0 if unknown.
    pub label_offset: u32,
}

impl PlatformState {
    pub(crate) fn with(
        (primary_port, secondary_port): (mach_port_t, mach_port_t),
        exceptions: ExceptionSet,
        main_thread: Tid,
        label_offset: u32,
    ) -> PlatformState {
        PlatformState {
            primary_port,
            secondary_port,
            primary_thread: AtomicU32::new(0),
            primary_tid: AtomicU64::new(0),
            pthreads: [const { AtomicUsize::new(0) }; 2],
            main_thread,
            exceptions,
            ports: Ports::new(exceptions.bits()),
            take_again: AtomicBool::new(false),
            handed_over: HandedOver::new(),
            running_handlers: RunningHandlers::new(),
            stopping: AtomicBool::new(false),
            deadline: AtomicU64::new(0),
            crashed: AtomicU32::new(0),
            waiting: UnsafeCell::new([const { None }; CAPACITY]),
            request: UnsafeCell::new(None),
            passed_on: [const { PassedOn::NONE }; PASSED_ON],
            passed_on_next: AtomicUsize::new(0),
            label_offset,
        }
    }

    /// Notes that an exception of thread `tid` is passed on as a signal: that signal is the same
    /// death, for which `reported` is the outcome.
    pub(crate) fn pass_on(&self, tid: Tid, fault: &Fault, reported: Reported) {
        let next = self.passed_on_next.fetch_add(1, Ordering::Relaxed) % PASSED_ON;
        let place = self.passed_on.iter().find(|held| held.is_of(tid));
        if let Some(place) = place.or_else(|| self.passed_on.get(next)) {
            if !(place.is_of(tid) && place.has(fault)) {
                place.returns.store(0, Ordering::Relaxed);
                place.at.store(monotonic_now(), Ordering::Relaxed);
            }
            for (held, word) in place.fault.iter().zip(fault) {
                held.store(*word, Ordering::Relaxed);
            }
            place.is_taken.store(false, Ordering::Relaxed);
            place.reported.store(reported.as_word(), Ordering::Relaxed);
            place.tid.store(tid, Ordering::Release);
        }
    }

    /// Returns the outcome of an exception that was passed on as a signal and with which its thread
    /// is back, and how many times it has returned: no handler has received the signal, or one that
    /// Coroner does not see has left the thread where it was.
    pub(crate) fn is_back(&self, tid: Tid, fault: &Fault) -> Option<(Reported, u32)> {
        let place = self.passed_on.iter().find(|held| held.is_of(tid) && held.has(fault) && held.is_recent())?;
        if place.is_taken.load(Ordering::Acquire) {
            return None;
        }
        let returns = place.returns.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        Some((Reported::of_word(place.reported.load(Ordering::Relaxed)), returns))
    }

    /// Notes that a signal of thread `tid` has reached Coroner's handler. Returns the outcome of
    /// the exception that became the signal; `None` if the signal did not come from an exception.
    pub(crate) fn passed_on(&self, tid: Tid) -> Option<Reported> {
        let place = self.passed_on.iter().find(|held| held.is_of(tid))?;
        place.is_taken.store(true, Ordering::Release);
        place.is_recent().then(|| Reported::of_word(place.reported.load(Ordering::Relaxed)))
    }

    /// Notes that thread `tid` did not die.
    pub(crate) fn goes_on(&self, tid: Tid) {
        for held in &self.passed_on {
            let _ = held.tid.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Part of an install that uninstall releases, see [`Claimed`](crate::installed::Claimed).
#[derive(Debug)]
pub(crate) struct Resources {
    /// The other threads while they are suspended.
    pub threads: *mut SuspendedThreads,
    pub ports: [mach_port_t; 2],
}

impl Resources {
    /// Releases everything (not async-signal-safe). Coroner's threads have ended.
    pub(crate) fn release(self) {
        self.ports.into_iter().for_each(destroy_port);
        // SAFETY: mapped at install; the report lock's owner, which releases it, was its only user.
        unsafe { SuspendedThreads::unmap(self.threads) };
    }
}

//! What crash time needs on Darwin besides what all systems have: two ports, two threads, and what they share.

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
use coroner_process::exception_ports::Ports;
use coroner_process::exception_set::ExceptionSet;

/// An exception or a handed crash that waits for its answer while a report is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    /// The report has it.
    Exception(Request),
    /// Its thread wants it to be left to others.
    Ignored(Request),
    /// The report has it.
    HandedOver { place: u32, reply: Reply },
}

/// How long after a crash was passed on a signal of its thread is still the same death: a handler that Coroner does not see
/// may run in between and abort.
const SAME_DEATH_NS: u64 = 5_000_000_000;

/// As many as one report can be about, and some.
const PASSED_ON: usize = 32;

/// What an exception is known by, should its thread come back with the same one: its program counter, stack pointer and codes.
pub(crate) type Fault = [u64; 4];

/// An exception that goes on as a signal.
struct PassedOn {
    /// Its thread, 0 for none.
    tid: AtomicU64,
    /// When, by the monotonic clock.
    at: AtomicU64,
    /// [`Reported::as_word`].
    reported: AtomicU64,
    fault: [AtomicU64; 4],
    /// How often it came back.
    returns: AtomicU32,
    /// Coroner's handler has had its signal.
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

/// See the module.
pub(crate) struct PlatformState {
    pub primary_port: mach_port_t,
    pub secondary_port: mach_port_t,
    /// Coroner's own threads' ports, 0 before they run. They are in no report.
    pub primary_thread: AtomicU32,
    /// The primary thread's id, 0 before it runs.
    pub primary_tid: AtomicU64,
    /// As `pthread_t`s, for the end.
    pub pthreads: [AtomicUsize; 2],
    /// The process's first thread.
    pub main_thread: Tid,
    /// The exceptions that are taken.
    pub exceptions: ExceptionSet,
    /// Who held the exception ports before.
    pub ports: Ports,
    /// The exception ports were given back for the kernel to ask an earlier holder, and are to be taken again.
    pub take_again: AtomicBool,
    pub handed_over: HandedOver,
    pub running_handlers: RunningHandlers,
    /// The primary thread is to end: it was asked to while it was busy.
    pub stopping: AtomicBool,
    /// When the section that it writes is to be ended, by the monotonic clock; 0 while no report is written.
    pub deadline: AtomicU64,
    /// The port of the thread that the report is about.
    pub crashed: AtomicU32,
    /// Other crashes that came while the report is written. The primary thread alone touches it.
    pub waiting: UnsafeCell<[Option<Waiting>; CAPACITY]>,
    /// The exception that the report is about, for the secondary thread, should the primary not come to its end.
    pub request: UnsafeCell<Option<Request>>,
    /// Threads whose exceptions were left to their signals.
    passed_on: [PassedOn; PASSED_ON],
    passed_on_next: AtomicUsize,
    /// The other threads while they are suspended. The report lock's owner alone touches it.
    pub threads: *mut SuspendedThreads,
    /// Where libdispatch keeps a queue's label: offset, 0 where that is not known.
    pub label_offset: u32,
}

impl PlatformState {
    pub(crate) fn with(
        (primary_port, secondary_port): (mach_port_t, mach_port_t),
        exceptions: ExceptionSet,
        main_thread: Tid,
        label_offset: u32,
        threads: *mut SuspendedThreads,
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
            threads,
            label_offset,
        }
    }

    /// An exception of that thread goes on as a signal: that is the same death, of which this became.
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

    /// What became of an exception that was passed on as a signal, and with which its thread is back, and the how manieth time
    /// that is: no handler has had the signal, or one that Coroner does not see has left the thread where it was.
    pub(crate) fn is_back(&self, tid: Tid, fault: &Fault) -> Option<(Reported, u32)> {
        let place = self.passed_on.iter().find(|held| held.is_of(tid) && held.has(fault) && held.is_recent())?;
        if place.is_taken.load(Ordering::Acquire) {
            return None;
        }
        let returns = place.returns.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        Some((Reported::of_word(place.reported.load(Ordering::Relaxed)), returns))
    }

    /// A signal of that thread has come to Coroner's handler: what became of the exception that it is the rest of; `None` if it is of
    /// its own.
    pub(crate) fn passed_on(&self, tid: Tid) -> Option<Reported> {
        let place = self.passed_on.iter().find(|held| held.is_of(tid))?;
        place.is_taken.store(true, Ordering::Release);
        place.is_recent().then(|| Reported::of_word(place.reported.load(Ordering::Relaxed)))
    }

    /// The death of that thread was not one.
    pub(crate) fn goes_on(&self, tid: Tid) {
        for held in &self.passed_on {
            let _ = held.tid.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

//! What crash time needs on Darwin besides what all systems have: two ports, two threads, and what they share.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use coroner_machine::threads::{Tid, monotonic_now};
use mach2::port::mach_port_t;

use super::handed::Handed;
use super::messages::{Reply, Request};
use super::others::{Others, Table};
use super::ports::Ports;
use crate::forwarding::Forwarding;
use crate::pipeline::seconds;

/// An exception or a handed crash that waits for its answer while a report is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    Exception(Request),
    Handed { place: u32, reply: Reply },
}

/// How long after a crash was passed on a signal of its thread is still the same death: a handler that Coroner does not see
/// may run in between and abort.
const SAME_DEATH_NS: u64 = 5_000_000_000;

/// As many as one report can be about, and some.
const PASSED_ON: usize = 32;

/// See the module.
pub(crate) struct Machinery {
    pub primary_port: mach_port_t,
    pub secondary_port: mach_port_t,
    /// Coroner's own threads' ports, 0 before they run. They are never suspended and in no report.
    pub primary_thread: AtomicU32,
    pub secondary_thread: AtomicU32,
    /// The primary thread's id, 0 before it runs.
    pub primary_tid: AtomicU64,
    /// As `pthread_t`s, for the end.
    pub pthreads: [AtomicUsize; 2],
    /// The process's first thread.
    pub main_thread: Tid,
    /// Who held the exception ports before.
    pub ports: Ports,
    /// Whether the task's exceptions are Coroner's (not under a debugger, for one).
    pub takes_exceptions: AtomicBool,
    /// The exception ports were given back for the kernel to ask an earlier holder, and are to be taken again.
    pub take_again: AtomicBool,
    pub handed: Handed,
    pub forwarding: Forwarding,
    /// The primary thread is writing a report.
    pub writing: AtomicBool,
    /// The primary thread is to end: told while it was busy.
    pub stopping: AtomicBool,
    /// When its section is to be ended, by the monotonic clock.
    pub deadline: AtomicU64,
    /// The port of the thread that the report is about.
    pub crashed: AtomicU32,
    /// Other crashes that came while the report is written. The primary thread alone touches it.
    pub waiting: UnsafeCell<[Option<Waiting>; seconds::PLACES]>,
    /// The exception that the report is about, for the secondary thread, should the primary not come to its end.
    pub request: UnsafeCell<Option<Request>>,
    /// Threads whose exceptions were left to their signals, and when.
    passed_on: [(AtomicU64, AtomicU64); PASSED_ON],
    passed_on_next: AtomicUsize,
    /// The other threads while they are held after a report. The primary thread alone touches it.
    pub held: UnsafeCell<Option<Others>>,
    /// The other threads while they are suspended. The primary thread alone touches it.
    pub threads: *mut Table,
    /// Where libdispatch keeps a queue's label: offset, 0 where that is not known.
    pub label_offset: u32,
}

impl Machinery {
    pub(crate) fn with(
        (primary_port, secondary_port): (mach_port_t, mach_port_t),
        mask: u32,
        main_thread: Tid,
        label_offset: u32,
        threads: *mut Table,
    ) -> Machinery {
        Machinery {
            primary_port,
            secondary_port,
            primary_thread: AtomicU32::new(0),
            secondary_thread: AtomicU32::new(0),
            primary_tid: AtomicU64::new(0),
            pthreads: [const { AtomicUsize::new(0) }; 2],
            main_thread,
            ports: Ports::new(mask),
            takes_exceptions: AtomicBool::new(false),
            take_again: AtomicBool::new(false),
            handed: Handed::new(),
            forwarding: Forwarding::new(),
            writing: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            deadline: AtomicU64::new(0),
            crashed: AtomicU32::new(0),
            waiting: UnsafeCell::new([const { None }; seconds::PLACES]),
            request: UnsafeCell::new(None),
            passed_on: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; PASSED_ON],
            passed_on_next: AtomicUsize::new(0),
            held: UnsafeCell::new(None),
            threads,
            label_offset,
        }
    }

    /// Whether that port is one of Coroner's own threads.
    pub(crate) fn is_own(&self, thread: mach_port_t) -> bool {
        [&self.primary_thread, &self.secondary_thread].iter().any(|own| own.load(Ordering::Acquire) == thread)
    }

    /// An exception of that thread goes on as a signal: that is the same death.
    pub(crate) fn pass_on(&self, tid: Tid) {
        let next = self.passed_on_next.fetch_add(1, Ordering::Relaxed) % PASSED_ON;
        let place = self.passed_on.iter().find(|(held, _)| held.load(Ordering::Relaxed) == tid);
        if let Some((thread, at)) = place.or_else(|| self.passed_on.get(next)) {
            at.store(monotonic_now(), Ordering::Relaxed);
            thread.store(tid, Ordering::Release);
        }
    }

    /// Whether a signal of that thread is the rest of a death that is told already.
    pub(crate) fn is_passed_on(&self, tid: Tid) -> bool {
        let place = self.passed_on.iter().find(|(thread, _)| thread.load(Ordering::Acquire) == tid);
        place.is_some_and(|(_, at)| monotonic_now().saturating_sub(at.load(Ordering::Relaxed)) < SAME_DEATH_NS)
    }

    /// The death of that thread was not one.
    pub(crate) fn goes_on(&self, tid: Tid) {
        for (thread, _) in &self.passed_on {
            let _ = thread.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

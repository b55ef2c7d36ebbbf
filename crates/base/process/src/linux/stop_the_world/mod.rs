//! Stops all threads of the process at once, and captures their registers.
//!
//! Each thread is sent one real-time signal whose value identifies a slot in a table created
//! outside a signal handler. Its handler puts the address of its `ucontext` into the slot, counts
//! itself, and waits on a shared futex word; the asker sleeps until the last thread has answered.
//! So a thousand threads cost a thousand signals and two wake-ups, not a thousand stop round trips.
//! Threads that don't answer (they block the signal, or wait in the kernel) are read by the
//! [tracing helper](crate::tracer), or are [`NotCaptured`] with a reason.
//!
//! A stop on the thread that crashed:
//!
//! ```text
//! let mut stop = stopper.begin(&tasks, &own_threads)?;     // signals to all, no waiting
//! …write what needs no other thread…
//! stop.wait(grace, limit);                                     // all answered, or no more progress
//! stop.trace(&tracer, deadline);                               // the silent ones, if any
//! for thread in stop.threads() { … walk its stack, it stands still … }
//! stop.leave_stopped() or stop.release()
//! ```
//!
//! A system call interrupted by a signal continues afterwards if the kernel can restart it
//! (SA_RESTART); calls that it never restarts (`epoll_wait`, `poll`, `nanosleep`, … see signal(7))
//! return `EINTR` to the app after a release. So threads that are to continue are traced instead
//! ([`ThreadStopper::begin_silently`], [`StoppedThreads::trace_all`]): a stop by ptrace ends no
//! call.

mod adaptive_spin;
pub mod futex;
mod interrupted_thread;
mod not_captured;
pub(crate) mod queued_signal;
mod signal_safety;
mod stopped_threads;
mod thread_slot;

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

pub use interrupted_thread::{Interrupted, OnlyTracer};
pub use not_captured::NotCaptured;
pub use queued_signal::{action, is_alive};
pub use stopped_threads::{Capture, Progress, StoppedThreads, Thread};
pub use thread_slot::ParkedCrashingThread;

use self::queued_signal::{QueuedSignal, take_free};
use self::thread_slot::{SHARED, Shared, Slot};
use super::context::Context;
use super::signals::SignalAction;
use super::syscall::Errno;
use super::threads::this_thread;
use crate::files::{map_untouched, touch, unmap};

/// Configuration of the stopper.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The real-time signal to use; by default one that nothing in the process handles.
    pub signal: Option<i32>,
    /// Maximum number of threads in one stop (64 bytes each); further threads are counted.
    pub threads: usize,
    /// Nanoseconds after which a stopped thread continues by itself, because the asker hangs.
    ///
    /// (If the asker has exited, it does within a twentieth of a second.)
    pub hold: u64,
}

impl Default for Config {
    fn default() -> Self {
        // Miri checks each slot whenever a reference to the table is created.
        let threads = if cfg!(miri) { 16 } else { 4096 };
        Config { signal: None, threads, hold: 60_000_000_000 }
    }
}

/// Why the stopper could not be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrepareError {
    /// The requested signal is not a real-time signal (34 to 64).
    NotRealTime(i32),
    /// The requested signal already has a handler.
    SignalTaken(i32),
    /// Every real-time signal from 44 to 62 already has a handler.
    NoSignalFree,
    /// The kernel refused memory or the handler.
    System(Errno),
}

impl core::fmt::Display for PrepareError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            PrepareError::NotRealTime(signal) => write!(f, "signal {signal} is not a real-time signal"),
            PrepareError::SignalTaken(signal) => write!(f, "signal {signal} already has a handler"),
            PrepareError::NoSignalFree => f.write_str("every real-time signal already has a handler"),
            PrepareError::System(errno) => write!(f, "the system refused memory or a handler (errno {})", errno.0),
        }
    }
}

impl core::error::Error for PrepareError {}

/// The prepared stopper of this process: the table exists and the signal's handler is in place.
#[derive(Debug)]
pub struct ThreadStopper {
    shared: &'static Shared,
    hold: u64,
    signal: i32,
    before: SignalAction,
}

impl ThreadStopper {
    /// Creates and touches the table and installs the signal's handler (not async-signal-safe).
    ///
    /// # Errors
    /// See [`PrepareError`]. Nothing is changed then.
    pub fn prepare(config: Config) -> Result<ThreadStopper, PrepareError> {
        let asked = config.signal.map(|signal| match SignalAction::of(signal) {
            _ if !(34..=64).contains(&signal) => Err(PrepareError::NotRealTime(signal)),
            Ok(before) if before.is_function() => Err(PrepareError::SignalTaken(signal)),
            before => Ok((signal, before.map_err(PrepareError::System)?)),
        });
        let asked = asked.transpose()?;
        let shared = table(&config)?;
        let (signal, before) = match asked {
            Some((signal, before)) => {
                // SAFETY: the handler makes raw system calls and touches only atomics of the table.
                // Async-signal-safe throughout.
                unsafe { handler().set(signal) }.map_err(PrepareError::System)?;
                (signal, before)
            }
            None => {
                // SAFETY: as above.
                let taken = unsafe { take_free(&handler()) }.map_err(PrepareError::System)?;
                (taken.ok_or(PrepareError::NoSignalFree)?, SignalAction::DEFAULT)
            }
        };
        Ok(ThreadStopper { shared, hold: config.hold, signal, before })
    }

    /// Creates a stopper without a signal, for a process that has none to spare.
    ///
    /// Threads are [traced](StoppedThreads::trace) or not captured ([`NotCaptured::SignalDenied`]).
    /// Not async-signal-safe.
    ///
    /// # Errors
    /// [`PrepareError::System`] if the kernel refuses memory.
    pub fn without_signal(config: Config) -> Result<ThreadStopper, PrepareError> {
        Ok(ThreadStopper { shared: table(&config)?, hold: config.hold, signal: 0, before: SignalAction::DEFAULT })
    }

    /// Returns the signal in use, 0 for none.
    pub fn signal(&self) -> i32 {
        self.signal
    }

    /// Returns the maximum number of threads in a stop, set by the first `prepare` in this process.
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Restores the signal's previous disposition (not async-signal-safe). The table stays.
    pub fn withdraw(&self) {
        if self.signal != 0 && self.is_in_place() == Ok(true) {
            self.discard_late_signals();
            // SAFETY: it was in place before. Async-signal-safe: one system call.
            let _ = unsafe { self.before.set(self.signal) };
        }
    }

    /// Offers the calling thread, which has crashed during another crash's report, to that report.
    ///
    /// The report gets the registers of `context`, and not those of the handler in which the thread
    /// waits. The thread counts as stopped until the result is dropped; may be called before the
    /// other thread's stop begins.
    ///
    /// The caller's duties: all signals but faults are blocked, so that the thread is not stopped a
    /// second time; and it waits until the report is finished, or its owner is gone, before it
    /// drops the result. `None` if 32 threads are already parked.
    pub fn park_crashing_thread<'a>(&'a self, context: &'a Context) -> Option<ParkedCrashingThread<'a>> {
        ParkedCrashingThread::park(self.shared, this_thread(), core::ptr::from_ref(context) as usize)
    }

    /// Releases threads that were left stopped ([`StoppedThreads::leave_stopped_for`]).
    ///
    /// The caller must own the report lock.
    pub fn resume_all(&self) {
        self.shared.stopped.store(0, SeqCst);
        futex::wake(&self.shared.stopped, futex::Reach::Private, i32::MAX);
        self.shared.busy.store(0, SeqCst);
    }

    /// Makes a stopped thread send the asker the ticks of its [deadline](crate::deadline). Needs no
    /// timer.
    pub fn watch_asker(&self) {
        self.shared.is_watched.store(1, SeqCst);
    }

    /// Ensures that the signal's handler is ours.
    ///
    /// An app may have reset all its handlers, and the signal's default action would kill the
    /// process.
    fn ensure_handler(&self) -> Result<(), Errno> {
        if self.signal == 0 || self.is_in_place()? {
            return Ok(());
        }
        // SAFETY: as in `prepare`.
        unsafe { handler().set(self.signal) }
    }

    /// Whether the signal's handler is ours.
    ///
    /// Compares only the function, because the kernel may change flags and mask.
    fn is_in_place(&self) -> Result<bool, Errno> {
        Ok(SignalAction::of(self.signal)?.handler == handler().handler)
    }

    /// Discards signals that are still pending for threads that block them.
    ///
    /// Ignoring a signal flushes it everywhere (POSIX.1-2017, 2.4.3). The signals would be harmless
    /// to this process, but exec passes pending signals on.
    fn discard_late_signals(&self) {
        if self.signal == 0 {
            return;
        }
        // SAFETY: no handler runs for an ignored signal. Async-signal-safe: two system calls.
        let _ = unsafe { SignalAction::IGNORE.set(self.signal) };
        // SAFETY: as in `prepare`.
        let _ = unsafe { handler().set(self.signal) };
    }

    fn send(&self, pid: i32, tid: i32, request: thread_slot::Request) -> Result<(), Errno> {
        if self.signal == 0 {
            // The kernel would treat it as a query whether the thread is alive.
            return Err(Errno(libc::EPERM));
        }
        QueuedSignal::send(pid, tid, self.signal, request.to_value())
    }
}

/// Returns the table of this process.
fn table(config: &Config) -> Result<&'static Shared, PrepareError> {
    Shared::get().map_or_else(|| map_table(config.threads).map_err(PrepareError::System), Ok)
}

fn handler() -> SignalAction {
    action(thread_slot::entry())
}

/// Number of slots touched when the table is created: more than most processes have threads.
///
/// A page of the others costs a fault at crash time, which can fail only if the kernel is killing
/// the process anyway because memory ran out.
const TOUCHED: usize = 256;

/// Maps the table with room for `threads`, and touches its beginning; it is never unmapped.
fn map_table(threads: usize) -> Result<&'static Shared, Errno> {
    let threads = threads.clamp(1, 1 << 20);
    let head = size_of::<Shared>().next_multiple_of(align_of::<Slot>());
    let size = head + threads * size_of::<Slot>();
    let mapping = map_untouched(size)?;
    // SAFETY: a part of that mapping, which is fresh.
    unsafe { touch(mapping, size.min(head + TOUCHED * size_of::<Slot>())) };
    let table = mapping as *mut Shared;
    // SAFETY: the mapping is zeroed, big and aligned enough; zeroes are a valid `Shared`; nobody
    // else knows it yet.
    let shared = unsafe {
        (*table).capacity = threads;
        &*table
    };
    shared.slots.store((mapping + head) as *mut Slot, Relaxed);
    if SHARED.compare_exchange(core::ptr::null_mut(), table, SeqCst, SeqCst).is_err() {
        // Another thread was faster: its table is used.
        // SAFETY: ours alone, and nothing points to it any more.
        unsafe { unmap(mapping, size) };
        return Shared::get().ok_or(Errno::AGAIN);
    }
    Ok(shared)
}

//! All threads of the process handing over their registers at once, and staying still until they are let go.
//!
//! Each thread is sent one real-time signal whose value names a slot of a table made outside a signal handler. Its handler puts
//! the address of its `ucontext` into the slot, counts itself, and waits on a futex word that all share; the asker sleeps
//! until the last has answered. So a thousand threads cost a thousand signals and two wake-ups, not a thousand stop
//! trips. Threads that do not answer (they block the signal, or wait in the kernel) are read by the
//! [tracing helper](crate::tracer), or are [`NotCaptured`] with a reason.
//!
//! Life of a stop, on the thread that crashed:
//!
//! ```text
//! let mut stop = stopper.begin(&tasks, &own_threads)?;     // signals to all, no waiting
//! …write what needs no other thread…
//! stop.wait(grace, deadline);                                  // all answered, or no more progress
//! stop.trace(&tracer, deadline);                               // the silent ones, if any
//! for thread in stop.threads() { … walk its stack, it stands still … }
//! stop.leave_stopped() or stop.release()
//! ```
//!
//! A system call that a signal interrupts goes on afterwards where the kernel can restart it (SA_RESTART); those that it
//! never restarts (`epoll_wait`, `poll`, `nanosleep`, … see signal(7)) answer `EINTR` to the app after a release. So threads that are to go on
//! are traced instead ([`ThreadStopper::begin_silently`], [`StoppedThreads::trace_all`]): a stop by ptrace ends no call.

mod adaptive_spin;
pub mod futex;
mod interrupted_thread;
mod not_captured;
pub(crate) mod queued_signal;
mod stopped_threads;
mod thread_slot;

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

pub use interrupted_thread::Interrupted;
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

/// How to prepare the stopper.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The real-time signal to use; by default one that nothing in the process handles.
    pub signal: Option<i32>,
    /// The most threads that one stop holds (64 bytes each); those beyond are counted.
    pub threads: usize,
    /// Nanoseconds after which a stopped thread goes on by itself, because the asker hangs. (If the asker has ended, it does within
    /// a twentieth of a second.)
    pub hold: u64,
}

impl Default for Config {
    fn default() -> Self {
        // Miri looks at each slot whenever a reference to the table is made.
        let threads = if cfg!(miri) { 16 } else { 4096 };
        Config { signal: None, threads, hold: 60_000_000_000 }
    }
}

/// Why the stopper could not be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrepareError {
    /// The signal asked for is not a real-time signal (34 to 64).
    NotRealTime(i32),
    /// The signal asked for has a handler already.
    SignalTaken(i32),
    /// Every real-time signal from 44 to 62 has a handler already.
    NoSignalFree,
    /// The kernel refused memory or the handler.
    System(Errno),
}

impl core::fmt::Display for PrepareError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            PrepareError::NotRealTime(signal) => write!(f, "signal {signal} is no real-time signal"),
            PrepareError::SignalTaken(signal) => write!(f, "signal {signal} has a handler already"),
            PrepareError::NoSignalFree => f.write_str("every real-time signal has a handler already"),
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
    /// Makes and touches the table and installs the signal's handler (not async-signal-safe).
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
                // SAFETY: the handler makes raw system calls and touches atomics of the table only. Async-signal-safe throughout.
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

    /// A stopper without a signal, for a process that has none to spare: threads are [traced](StoppedThreads::trace) or not captured
    /// ([`NotCaptured::SignalDenied`]) (not async-signal-safe).
    ///
    /// # Errors
    /// The kernel refused memory.
    pub fn without_signal(config: Config) -> Result<ThreadStopper, PrepareError> {
        Ok(ThreadStopper { shared: table(&config)?, hold: config.hold, signal: 0, before: SignalAction::DEFAULT })
    }

    /// The signal in use, 0 for none.
    pub fn signal(&self) -> i32 {
        self.signal
    }

    /// The most threads that a stop holds: that of the first `prepare` in this process.
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Puts back what was installed for the signal before (not async-signal-safe). The table stays.
    pub fn withdraw(self) {
        if self.signal != 0 && self.is_in_place() == Ok(true) {
            self.discard_late_signals();
            // SAFETY: it was in place before. Async-signal-safe: one system call.
            let _ = unsafe { self.before.set(self.signal) };
        }
    }

    /// Offers the calling thread, which has crashed while another one's crash is being reported, to that report: with the
    /// registers of `context`, and not those of the handler that it waits in. It counts as stopped until the result is dropped;
    /// may be called before the other thread's stop begins.
    ///
    /// The caller's duties: all signals but faults are blocked, so that the thread is not stopped a second time; and it waits
    /// until the report is over, or its owner is gone, before it drops the result. `None` if 32 threads are parked so already.
    pub fn park_crashing_thread<'a>(&'a self, context: &'a Context) -> Option<ParkedCrashingThread<'a>> {
        ParkedCrashingThread::park(self.shared, this_thread(), core::ptr::from_ref(context) as usize)
    }

    /// Lets threads go that were left stopped ([`StoppedThreads::leave_stopped_for`]). The caller owns the report lock.
    pub fn resume_all(&self) {
        self.shared.stopped.store(0, SeqCst);
        futex::wake(&self.shared.stopped, futex::Reach::Private, i32::MAX);
        self.shared.busy.store(0, SeqCst);
    }

    /// Has a stopped thread send the asker of the stop that is on the signal of its [deadline](crate::deadline) at that time
    /// (`CLOCK_MONOTONIC` nanoseconds), and every second after: without a timer.
    pub fn watch_asker(&self, at: u64) {
        self.shared.watch_at.store(at, SeqCst);
    }

    /// Makes sure that the signal does what we expect: an app may have reset all its handlers, and the default action
    /// of the signal would end the process.
    fn ensure_handler(&self) -> Result<(), Errno> {
        if self.signal == 0 || self.is_in_place()? {
            return Ok(());
        }
        // SAFETY: as in `prepare`.
        unsafe { handler().set(self.signal) }
    }

    /// Whether the signal's handler is ours. (The kernel may change flags and mask: only the function says so.)
    fn is_in_place(&self) -> Result<bool, Errno> {
        Ok(SignalAction::of(self.signal)?.handler == handler().handler)
    }

    /// Drops signals that are still pending for threads that block them: ignoring a signal flushes it everywhere
    /// (POSIX.1-2017, 2.4.3). They would be harmless to this process, but exec hands pending signals on.
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
            // The kernel would take it for a question whether the thread lives.
            return Err(Errno(libc::EPERM));
        }
        QueuedSignal::send(pid, tid, self.signal, request.to_value())
    }
}

/// The table of this process.
fn table(config: &Config) -> Result<&'static Shared, PrepareError> {
    Shared::get().map_or_else(|| map_table(config.threads).map_err(PrepareError::System), Ok)
}

fn handler() -> SignalAction {
    action(thread_slot::entry())
}

/// Slots that are touched when the table is made: more threads than most processes ever have. A page of those beyond
/// costs a fault at crash time, which can fail only where the kernel kills the process for want of memory anyway.
const TOUCHED: usize = 256;

/// Maps the table with room for `threads`, and touches its beginning; never unmapped.
fn map_table(threads: usize) -> Result<&'static Shared, Errno> {
    let threads = threads.clamp(1, 1 << 20);
    let head = size_of::<Shared>().next_multiple_of(align_of::<Slot>());
    let size = head + threads * size_of::<Slot>();
    let mapping = map_untouched(size)?;
    // SAFETY: a part of that mapping, which is fresh.
    unsafe { touch(mapping, size.min(head + TOUCHED * size_of::<Slot>())) };
    let table = mapping as *mut Shared;
    // SAFETY: the mapping is zeroed, big and aligned enough; zeroes are a valid `Shared`; nobody else knows it yet.
    let shared = unsafe {
        (*table).capacity = threads;
        &*table
    };
    shared.slots.store((mapping + head) as *mut Slot, Relaxed);
    if SHARED.compare_exchange(core::ptr::null_mut(), table, SeqCst, SeqCst).is_err() {
        // Another thread was quicker: its table is the one.
        // SAFETY: ours alone, and nothing points to it any more.
        unsafe { unmap(mapping, size) };
        return Shared::get().ok_or(Errno::AGAIN);
    }
    Ok(shared)
}

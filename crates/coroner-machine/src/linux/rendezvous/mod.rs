//! All threads of the process handing over their registers at once, and staying still until they are let go.
//!
//! Each thread is sent one real-time signal whose value names a slot of a table made in normal life. Its handler puts
//! the address of its `ucontext` into the slot, counts itself, and waits on a futex word that all share; the asker sleeps
//! until the last has answered. So a thousand threads cost a thousand signals and two wake-ups, not a thousand round
//! trips. Threads that do not answer (they block the signal, or wait in the kernel) are read by the
//! [tracing helper](crate::tracer), or are [`NotCaptured`] with a reason.
//!
//! Life of a round, on the thread that crashed:
//!
//! ```text
//! let mut round = rendezvous.begin(&tasks, &own_threads)?;     // signals to all, no waiting
//! …write what needs no other thread…
//! round.wait(grace, deadline);                                  // all answered, or no more progress
//! round.trace(&tracer, deadline);                               // the silent ones, if any
//! for thread in round.threads() { … walk its stack, it stands still … }
//! round.leave_parked() or round.release()
//! ```
//!
//! A system call that a signal interrupts goes on afterwards where the kernel can restart it (SA_RESTART); those that it
//! never restarts (`epoll_wait`, `poll`, `nanosleep`, … see signal(7)) answer `EINTR` to the app after a release.

pub(crate) mod futex;
mod look;
mod not_captured;
pub(crate) mod queued_signal;
mod round;
mod single;
mod slot;

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

pub use not_captured::NotCaptured;
pub use round::{Capture, Progress, Round, Thread};
pub use single::Interrupted;

use self::queued_signal::{Action, QueuedSignal, block_all, find_free, set_mask};
use self::slot::{Phase, SHARED, Shared, Slot, word};
use super::context::Context;
use super::syscall::{Errno, syscall};
use super::threads::this_thread;
use super::touch::touch;

/// How to prepare the rendezvous.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The real-time signal to use; by default one that nothing in the process handles.
    pub signal: Option<i32>,
    /// The most threads that one round holds (64 bytes each); those beyond are counted.
    pub threads: usize,
    /// Nanoseconds after which a parked thread goes on by itself, because the asker's thread has ended, or hangs.
    pub hold: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { signal: None, threads: 4096, hold: 60_000_000_000 }
    }
}

/// Why the rendezvous could not be prepared.
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

/// The prepared rendezvous of this process: the table exists and the signal's handler is in place.
#[derive(Debug)]
pub struct Rendezvous {
    shared: &'static Shared,
    hold: u64,
    signal: i32,
    before: Action,
}

impl Rendezvous {
    /// Makes and touches the table and installs the signal's handler (normal life).
    ///
    /// # Errors
    /// See [`PrepareError`]. Nothing is changed then.
    pub fn prepare(config: Config) -> Result<Rendezvous, PrepareError> {
        let signal = match config.signal {
            Some(signal) if !(34..=64).contains(&signal) => return Err(PrepareError::NotRealTime(signal)),
            Some(signal) => signal,
            None => find_free().ok_or(PrepareError::NoSignalFree)?,
        };
        let before = Action::current(signal).map_err(PrepareError::System)?;
        if before.handler > Action::IGNORE.handler {
            return Err(PrepareError::SignalTaken(signal));
        }
        let shared = match Shared::get() {
            Some(shared) => shared,
            None => map_table(config.threads).map_err(PrepareError::System)?,
        };
        // SAFETY: the handler makes raw system calls and touches atomics of the table only. Async-signal-safe throughout.
        unsafe { handler().install(signal) }.map_err(PrepareError::System)?;
        Ok(Rendezvous { shared, hold: config.hold, signal, before })
    }

    /// The signal in use.
    pub fn signal(&self) -> i32 {
        self.signal
    }

    /// The most threads that a round holds: that of the first `prepare` in this process.
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Puts back what was installed for the signal before (normal life). The table stays.
    pub fn withdraw(self) {
        if self.is_in_place() == Ok(true) {
            self.discard_late_signals();
            // SAFETY: it was in place before. Async-signal-safe: one system call.
            let _ = unsafe { self.before.install(self.signal) };
        }
    }

    /// Holds the calling thread, which has crashed while another one's crash is being reported, until that one lets it
    /// go, or it is `deadline` (`CLOCK_MONOTONIC` nanoseconds); the report then has the registers of `context`, and not
    /// those of the handler that it waits in. May be called before the other's round begins. Call it with the
    /// rendezvous' signal blocked (by the crash handler's mask), so that the thread is not interrupted on its way here.
    ///
    /// False, at once, if 32 threads are held so already: the caller then waits in its own way.
    #[must_use]
    pub fn hand_in(&self, context: &Context, deadline: u64) -> bool {
        let mask = block_all();
        let held = slot::hand_in(self.shared, this_thread(), core::ptr::from_ref(context) as usize, deadline);
        set_mask(mask);
        held
    }

    /// Makes sure that the signal does what we expect: an app may have reset all its handlers, and the default action
    /// of the signal would end the process.
    fn ensure_handler(&self) -> Result<(), Errno> {
        if self.is_in_place()? {
            return Ok(());
        }
        // SAFETY: as in `prepare`.
        unsafe { handler().install(self.signal) }
    }

    /// Whether the signal's handler is ours. (The kernel may change flags and mask: only the function tells.)
    fn is_in_place(&self) -> Result<bool, Errno> {
        Ok(Action::current(self.signal)?.handler == handler().handler)
    }

    /// Drops signals that are still pending for threads that block them: ignoring a signal flushes it everywhere
    /// (POSIX.1-2017, 2.4.3). They would be harmless to this process, but exec hands pending signals on.
    fn discard_late_signals(&self) {
        // SAFETY: no handler runs for an ignored signal. Async-signal-safe: two system calls.
        let _ = unsafe { Action::IGNORE.install(self.signal) };
        // SAFETY: as in `prepare`.
        let _ = unsafe { handler().install(self.signal) };
    }

    fn send(&self, pid: i32, tid: i32, request: slot::Request) -> Result<(), Errno> {
        QueuedSignal::send(pid, tid, self.signal, request.to_value())
    }
}

fn handler() -> Action {
    Action::new(slot::on_signal as *const () as usize)
}

/// Slots that are touched when the table is made: more threads than most processes ever have. A page of more than these
/// costs a fault at crash time, which can fail only where the kernel kills the process for want of memory anyway.
const TOUCHED: usize = 1024;

/// Maps the table with room for `threads`, and touches its beginning; never unmapped.
fn map_table(threads: usize) -> Result<&'static Shared, Errno> {
    let threads = threads.clamp(1, 1 << 20);
    let head = size_of::<Shared>().next_multiple_of(align_of::<Slot>());
    let size = head + threads * size_of::<Slot>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let mapping = unsafe { syscall!(libc::SYS_mmap, 0, size, protection, flags, -1_isize, 0) }?;
    // SAFETY: a part of that mapping, which is fresh.
    unsafe { touch(mapping, size.min(head + TOUCHED * size_of::<Slot>()), 4096) };
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
        let _ = unsafe { syscall!(libc::SYS_munmap, mapping, size) };
        return Shared::get().ok_or(Errno::AGAIN);
    }
    Ok(shared)
}

/// Lets a thread that handed itself in go on.
fn release_handed_in(slot: &Slot) {
    if slot.state.swap(word(1, Phase::Idle), SeqCst) == word(1, Phase::Answered) {
        futex::wake(&slot.state, futex::Reach::Private, 1);
    }
}

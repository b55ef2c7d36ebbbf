//! The background thread that delivers reports, and the threads that wait for it.
//!
//! The thread exists only while there is work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::background_thread;
use crate::locked::locked;

/// The work of the thread.
pub(crate) trait Work: Send + Sync {
    /// Delivers the reports of ended runs. Returns how many have to stay for later.
    fn deliver_ended(&self) -> usize;

    /// Delivers this process's non-fatal reports so far.
    fn deliver_own(&self) -> Left;

    /// Waits until what was delivered has arrived, at most for `timeout`. Returns whether it has.
    fn flush(&self, timeout: Duration) -> bool;
}

/// Result of delivering the process's own reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Number of reports that wait for a sink or for the end of their hang.
    pub(crate) pending: usize,
    /// Time until the next attempt.
    pub(crate) again: Option<Duration>,
}

impl Left {
    /// Counts a report that has to wait for `time`.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.pending += 1;
        self.again = Some(self.again.map_or(time, |again| again.min(time)));
    }
}

/// Number of the app's threads that wait for the delivery thread.
#[derive(Debug, Default, Clone)]
pub(crate) struct Waiters(Arc<AtomicUsize>);

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Counts the calling thread until the return value is dropped.
    fn enter(&self) -> impl Drop {
        struct Waiter(Arc<AtomicUsize>);
        impl Drop for Waiter {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::AcqRel);
            }
        }
        self.0.fetch_add(1, Ordering::AcqRel);
        Waiter(Arc::clone(&self.0))
    }
}

/// The scheduler of a [`Work`].
pub(crate) struct DeliveryThread {
    work: Arc<dyn Work>,
    waiters: Waiters,
    /// Whether the thread checks the process's own reports again by itself.
    repeats: bool,
    state: Mutex<State>,
    /// Woken when `state` changes.
    changed: Condvar,
}

/// The progress of delivery.
#[derive(Debug, Default)]
struct State {
    running: bool,
    /// Number of requests.
    asked: u64,
    /// Number of requests at the start of the last finished round.
    served: u64,
    /// Whether a round for all runs was requested, and not only for this process's own.
    all: bool,
    /// When the next round is due.
    due: Option<Instant>,
    /// Number of reports of this process's own run that wait.
    own_pending: usize,
    /// Number of reports that are still in the store after the last round, because a sink wants
    /// them later.
    pending: usize,
}

impl DeliveryThread {
    /// Creates the scheduler without starting the thread.
    ///
    /// `waiters` counts the threads that wait for it.
    pub(crate) fn new(work: Arc<dyn Work>, waiters: Waiters, repeats: bool) -> Self {
        Self { work, waiters, repeats, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Whether the thread checks the process's own reports again by itself.
    #[cfg(all(supported, not(target_vendor = "apple")))]
    pub(crate) fn repeats(&self) -> bool {
        self.repeats
    }

    /// Starts a round in the background, unless one is in progress.
    pub(crate) fn start(self: &Arc<Self>) {
        self.ask(true, Duration::ZERO);
    }

    /// Requests a round within that time; returns the value of [`State::served`] at its end.
    ///
    /// `None` if the thread can't be started: the reports then wait for the next launch.
    pub(crate) fn ask(self: &Arc<Self>, all: bool, within: Duration) -> Option<u64> {
        let due = Instant::now() + within;
        let mut state = locked(&self.state);
        state.asked += 1;
        state.all |= all;
        state.due = Some(state.due.map_or(due, |other| other.min(due)));
        if !state.running {
            let thread = Arc::clone(self);
            match background_thread::spawn("coroner-delivery", move || thread.run()) {
                Ok(_) => state.running = true,
                Err(error) => {
                    log::warn!("coroner: can't start the delivery thread: {error}");
                    return None;
                }
            }
        }
        let asked = state.asked;
        drop(state);
        self.changed.notify_all();
        Some(asked)
    }

    /// Runs the background thread, which ends when no report of this process's own run waits.
    fn run(&self) {
        let mut state = locked(&self.state);
        while let Some(due) = state.due {
            let wait = due.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            state.due = None;
            let (asked, all) = (state.asked, std::mem::take(&mut state.all));
            drop(state);
            let done = all.then(|| catch_unwind(AssertUnwindSafe(|| self.work.deliver_ended())));
            let own = catch_unwind(AssertUnwindSafe(|| self.work.deliver_own()));
            state = locked(&self.state);
            state.served = asked;
            match done {
                Some(Ok(pending)) => state.pending = pending,
                // After a panic in Coroner no run is lost, and waiting threads must not wait
                // forever.
                Some(Err(_)) => state.pending = state.pending.max(1),
                None => {}
            }
            let own = own.unwrap_or(Left { pending: 1, again: None });
            state.own_pending = own.pending;
            let again = own.again.filter(|_| self.repeats).and_then(|again| Instant::now().checked_add(again));
            state.due = [state.due, again].into_iter().flatten().min();
            self.changed.notify_all();
        }
        state.running = false;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits, at most for `limit`, until the thread has finished what was requested.
    ///
    /// Doesn't wait for work that sinks continue on their own threads.
    pub(crate) fn wait(&self, limit: Duration) {
        let _waiter = self.waiters.enter();
        let state = locked(&self.state);
        let asked = state.asked;
        let is_busy = |state: &mut State| state.running && state.served < asked;
        drop(self.changed.wait_timeout_while(state, limit, is_busy));
    }

    /// Runs a round and waits for its end and for the sinks, at most for `timeout`.
    ///
    /// Returns whether nothing is left to deliver.
    pub(crate) fn flush(self: &Arc<Self>, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let asked = self.ask(true, Duration::ZERO);
        let waiter = self.waiters.enter();
        let mut state = locked(&self.state);
        while asked.is_some_and(|asked| state.served < asked) {
            let (guard, waited) = self.changed.wait_timeout(state, left()).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if waited.timed_out() && asked.is_some_and(|asked| state.served < asked) {
                return false;
            }
        }
        drop(waiter);
        let delivered = asked.is_some() && state.pending == 0 && state.own_pending == 0;
        drop(state);
        self.work.flush(left()) && delivered
    }
}

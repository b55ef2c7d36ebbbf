//! The background thread that delivers: when it runs, and who waits for it. It exists only while there is something to do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::background_thread;
use crate::locked::locked;

/// What the thread does.
pub(crate) trait Work: Send + Sync {
    /// Delivers the reports of runs that have ended. Returns how many have to stay for another time.
    fn deliver_ended(&self) -> usize;

    /// Delivers what this process has survived so far.
    fn deliver_own(&self) -> Left;

    /// Waits until what was delivered is where it should be, at most `timeout`. Returns whether it is.
    fn flush(&self, timeout: Duration) -> bool;
}

/// What was done with the process's own reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Reports that wait for a sink, or for the end of their hang.
    pub(crate) pending: usize,
    /// When to look again.
    pub(crate) again: Option<Duration>,
}

impl Left {
    /// Counts a report that waits for this time.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.pending += 1;
        self.again = Some(self.again.map_or(time, |again| again.min(time)));
    }
}

/// How many threads of the app wait for the delivery thread.
#[derive(Debug, Default, Clone)]
pub(crate) struct Waiters(Arc<AtomicUsize>);

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Counts the calling thread until what this returns is dropped.
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
    /// Whether it looks again at the process's own reports by itself.
    repeats: bool,
    state: Mutex<State>,
    /// Woken when `state` changes.
    changed: Condvar,
}

/// How far delivery has come.
#[derive(Debug, Default)]
struct State {
    running: bool,
    /// How often something was asked for.
    asked: u64,
    /// How much of that the last round that came to its end had seen.
    served: u64,
    /// A look at all runs was asked for, and not only at this process's own.
    all: bool,
    /// When the next round is due.
    due: Option<Instant>,
    /// Reports of this process's own run that wait.
    own_pending: usize,
    /// Reports that are still in the store after the last round, because a sink wants to be asked again.
    pending: usize,
}

impl DeliveryThread {
    /// The thread is not started. `waiters` counts those that wait for it.
    pub(crate) fn new(work: Arc<dyn Work>, waiters: Waiters, repeats: bool) -> Self {
        Self { work, waiters, repeats, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Whether it looks again at the process's own reports by itself.
    #[cfg(all(supported, not(target_vendor = "apple")))]
    pub(crate) fn repeats(&self) -> bool {
        self.repeats
    }

    /// Starts a round in the background, unless one is going on.
    pub(crate) fn start(self: &Arc<Self>) {
        self.ask(true, Duration::ZERO);
    }

    /// Asks for a round in that time, and returns which [`State::served`] shows that it is over; `None` where no thread can be started: the
    /// reports wait for the next launch.
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
                    log::warn!("coroner: no delivery thread: {error}");
                    return None;
                }
            }
        }
        let asked = state.asked;
        drop(state);
        self.changed.notify_all();
        Some(asked)
    }

    /// The background thread: it ends when nothing of this process's own run waits.
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
                // A panic of Coroner's own: no run was lost, and whoever waits must not wait for ever.
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

    /// Waits until the thread has done what it was asked for, at most `limit`. Not for what sinks continue with by themselves.
    pub(crate) fn wait(&self, limit: Duration) {
        let _waiter = self.waiters.enter();
        let state = locked(&self.state);
        let asked = state.asked;
        let is_busy = |state: &mut State| state.running && state.served < asked;
        drop(self.changed.wait_timeout_while(state, limit, is_busy));
    }

    /// Makes a round, waits for its end and for the sinks, at most `timeout`. Returns whether nothing is left to deliver.
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

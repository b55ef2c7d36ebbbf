//! The thread that sends: it is there while something waits.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::locked::locked;

/// The sending thread sleeps no longer than this: clocks are set, networks come back.
const MAX_SLEEP: Duration = Duration::from_hours(1);

/// What a round of sending leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// How much waits.
    pub left: usize,
    /// When it is worth to try again.
    pub again: Option<Duration>,
}

/// A thread that sends in rounds, and sleeps until the next is due. It ends when nothing waits, and begins when it is woken.
pub struct SendingThread {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    round: Box<dyn Fn() -> Round + Send + Sync>,
    work: Mutex<Work>,
    changed: Condvar,
}

/// What the thread is at.
#[derive(Debug, Default)]
struct Work {
    running: bool,
    /// How often something was asked for.
    asked: u64,
    /// How much of that had been asked for when the last round began.
    begun: u64,
    /// How much of it the last round that came to its end had seen.
    served: u64,
    /// What the last of them left.
    last: Round,
}

impl SendingThread {
    /// A thread with that name, which is not begun yet. A round sends what is due.
    pub fn new(name: &'static str, round: impl Fn() -> Round + Send + Sync + 'static) -> Self {
        let shared = Shared { name, round: Box::new(round), work: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Starts sending in the background, if it isn't going on.
    pub fn wake(&self) {
        self.ask();
    }

    /// Asks for a round, and says which [`Work::served`] tells that one that began after this call is over.
    fn ask(&self) -> u64 {
        let mut work = locked(&self.shared.work);
        work.asked += 1;
        let asked = work.asked;
        if !work.running {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name(shared.name.into());
            match thread.spawn(move || shared.run()) {
                Ok(_) => work.running = true,
                Err(error) => log::warn!("coroner: no thread to send from: {error}"),
            }
        }
        drop(work);
        self.shared.changed.notify_all();
        asked
    }

    /// Sends what may be sent now, and waits for it, at most `timeout`. Says whether nothing is left.
    pub fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        // A round that is going on may have begun before what is to be flushed came: it is not the one to wait for.
        let asked = self.ask();
        let mut work = locked(&self.shared.work);
        while work.served < asked {
            if !work.running {
                return false;
            }
            let left = deadline.map_or(MAX_SLEEP, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            work = self.shared.changed.wait_timeout(work, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        work.last.left == 0
    }
}

impl Shared {
    /// The thread: rounds, and sleeps until the next is due.
    fn run(&self) {
        let mut work = locked(&self.work);
        loop {
            work.begun = work.asked;
            drop(work);
            let round = std::panic::catch_unwind(AssertUnwindSafe(|| (self.round)()));
            // What made a round panic will do so again.
            let round = round.unwrap_or(Round { left: 1, again: None });
            work = locked(&self.work);
            work.served = work.begun;
            work.last = round;
            self.changed.notify_all();
            let Some(again) = round.again else {
                if work.asked > work.begun {
                    continue;
                }
                work.running = false;
                return;
            };
            let until = Instant::now() + again.min(MAX_SLEEP);
            while work.asked == work.begun {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                work = self.changed.wait_timeout(work, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl fmt::Debug for SendingThread {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SendingThread").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

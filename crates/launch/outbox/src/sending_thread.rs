//! The background sending thread; it runs while messages are queued.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::locked::locked;

/// Maximum sleep of the sending thread. Longer sleeps would miss clock changes and networks that
/// come back.
const MAX_SLEEP: Duration = Duration::from_hours(1);

/// The result of a sending round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Number of messages still queued.
    pub left: usize,
    /// Wait until the next attempt is due; `None` if no attempt is planned.
    pub again: Option<Duration>,
}

/// A thread that sends in rounds and sleeps in between. It ends when nothing is queued, and starts
/// when it is woken.
pub struct SendingThread {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    round: Box<dyn Fn() -> Round + Send + Sync>,
    work: Mutex<Work>,
    changed: Condvar,
}

/// The thread's progress.
#[derive(Debug, Default)]
struct Work {
    running: bool,
    /// Number of requests for a round so far.
    asked: u64,
    /// Value of `asked` when the last round started.
    begun: u64,
    /// Value of `begun` of the last finished round.
    served: u64,
    /// Result of the last finished round.
    last: Round,
}

impl SendingThread {
    /// Creates a thread with the given name, without starting it. `round` sends what is due.
    pub fn new(name: &'static str, round: impl Fn() -> Round + Send + Sync + 'static) -> Self {
        let shared = Shared { name, round: Box::new(round), work: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Starts sending in the background, if it isn't already running.
    pub fn wake(&self) {
        self.ask();
    }

    /// Requests a round. Returns the value that [`Work::served`] reaches when a round that started
    /// after this call is finished.
    fn ask(&self) -> u64 {
        let mut work = locked(&self.shared.work);
        work.asked += 1;
        let asked = work.asked;
        if !work.running {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name(shared.name.into());
            match thread.spawn(move || shared.run()) {
                Ok(_) => work.running = true,
                Err(error) => log::warn!("coroner: can't start the sending thread: {error}"),
            }
        }
        drop(work);
        self.shared.changed.notify_all();
        asked
    }

    /// Sends what may be sent now and waits for at most `timeout`. Returns `true` if nothing is
    /// left.
    pub fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        // A round in progress may have started before the messages to be flushed were queued, so
        // wait for the next one.
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
    /// The thread's main loop: runs rounds, and sleeps until the next is due.
    fn run(&self) {
        let mut work = locked(&self.work);
        loop {
            work.begun = work.asked;
            drop(work);
            let round = std::panic::catch_unwind(AssertUnwindSafe(|| (self.round)()));
            // A round that panicked would probably panic again.
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

//! Threads that crash while another one's report is being written: what happened to them becomes part of that report.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use coroner_report::wire::ConcurrentCrash;

/// Concurrent crashes that one report can hold.
pub(crate) const CAPACITY: usize = 16;

const EMPTY: ConcurrentCrash = ConcurrentCrash { tid: 0, signal: 0, code: 0, address: None, after_ns: None };

struct Place {
    ready: AtomicBool,
    crash: UnsafeCell<ConcurrentCrash>,
}

/// The table of a process. It is open whenever nobody owns the report lock, so that a thread that finds it taken can always add
/// its crash, and until the owner has written the other threads.
///
/// It is open for one count of the lock's releases: a thread that found the lock taken, and comes here when its owner has
/// reopened the table for the next report, must not take its crash for a part of the one that is written already.
pub(crate) struct ConcurrentCrashes {
    /// The count of releases that it is open for; [`CLOSED`].
    open_for: AtomicU64,
    used: AtomicU32,
    places: [Place; CAPACITY],
}

/// No count of releases.
const CLOSED: u64 = u64::MAX;

/// See [`ConcurrentCrashes`].
pub(crate) static CONCURRENT: ConcurrentCrashes = ConcurrentCrashes::new();

// SAFETY: a place is written once by the thread whose index it is, and read after `ready` says so.
unsafe impl Sync for ConcurrentCrashes {}

impl ConcurrentCrashes {
    const fn new() -> Self {
        ConcurrentCrashes {
            open_for: AtomicU64::new(0),
            used: AtomicU32::new(0),
            places: [const { Place { ready: AtomicBool::new(false), crash: UnsafeCell::new(EMPTY) } }; CAPACITY],
        }
    }

    /// The owner, before it releases the lock: the table is empty, and open once the lock's count of releases is `releases`.
    pub(crate) fn reopen(&self, releases: u32) {
        for place in &self.places {
            place.ready.store(false, Ordering::Relaxed);
        }
        self.used.store(0, Ordering::Release);
        self.open_for.store(releases.into(), Ordering::SeqCst);
    }

    /// The owner: from now on it takes no more in.
    pub(crate) fn close(&self) {
        self.open_for.store(CLOSED, Ordering::SeqCst);
    }

    /// Another thread: adds its crash; `after_ns` holds its time by the monotonic clock, `releases` is the lock's count from before
    /// the claim that failed. False if it is too late or there are too many.
    pub(crate) fn add(&self, crash: &ConcurrentCrash, releases: u32) -> bool {
        let is_open = || self.open_for.load(Ordering::SeqCst) == u64::from(releases);
        if !is_open() {
            return false;
        }
        let index = self.used.fetch_add(1, Ordering::AcqRel);
        let Some(place) = self.places.get(index as usize) else { return false };
        // SAFETY: the index is this thread's alone.
        unsafe { place.crash.get().write(*crash) };
        place.ready.store(true, Ordering::SeqCst);
        is_open()
    }

    /// The owner: copies the crashes of other threads than `own`, with their time relative to `started`; returns how many there
    /// are.
    pub(crate) fn copy(&self, into: &mut [ConcurrentCrash; CAPACITY], own: u64, started: u64) -> usize {
        let mut count = 0;
        for (to, crash) in into.iter_mut().zip(self.others(own)) {
            *to = crash;
            to.after_ns = to.after_ns.map(|time| time.saturating_sub(started));
            count += 1;
        }
        count
    }

    /// How many there are of other threads than `own`.
    pub(crate) fn count(&self, own: u64) -> usize {
        self.others(own).count()
    }

    /// Whether that thread is among them.
    pub(crate) fn has(&self, tid: u64) -> bool {
        self.ready().any(|crash| crash.tid == tid)
    }

    /// Without the owner's own: it may have added its crash to the report of one that ended before it was written.
    fn others(&self, own: u64) -> impl Iterator<Item = ConcurrentCrash> {
        self.ready().filter(move |crash| crash.tid != own)
    }

    /// Those that are there. A thread that has a place and was stopped before it was ready hides no other.
    fn ready(&self) -> impl Iterator<Item = ConcurrentCrash> {
        // SAFETY: written before `ready`, and not again before the next `reopen`.
        self.places.iter().filter(|place| place.ready.load(Ordering::SeqCst)).map(|place| unsafe { *place.crash.get() })
    }
}

#[cfg(test)]
mod tests;

//! Threads that crash while another thread's report is being written; their crashes become part of
//! that report.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use coroner_report::wire::ConcurrentCrash;

/// Maximum number of concurrent crashes in one report.
pub(crate) const CAPACITY: usize = 16;

const EMPTY: ConcurrentCrash = ConcurrentCrash { tid: 0, signal: 0, code: 0, address: None, after_ns: None };

struct Place {
    ready: AtomicBool,
    crash: UnsafeCell<ConcurrentCrash>,
}

/// Table of concurrent crashes, one per process. It is open whenever nobody owns the report lock,
/// so that a thread that finds the lock taken can always add its crash, and until the owner has
/// written the other threads.
///
/// It is open for one value of the lock's release count: a thread that found the lock taken, but
/// gets here after its owner has reopened the table for the next report, must not take its crash
/// for a part of the report that is already written.
pub(crate) struct ConcurrentCrashes {
    /// The release count that the table is open for; or [`CLOSED`].
    open_for: AtomicU64,
    used: AtomicU32,
    places: [Place; CAPACITY],
}

/// Not a valid release count.
const CLOSED: u64 = u64::MAX;

/// The process's table. See [`ConcurrentCrashes`].
pub(crate) static CONCURRENT: ConcurrentCrashes = ConcurrentCrashes::new();

// SAFETY: a place is written once by the thread whose index it is, and read after `ready` is set.
unsafe impl Sync for ConcurrentCrashes {}

impl ConcurrentCrashes {
    const fn new() -> Self {
        ConcurrentCrashes {
            open_for: AtomicU64::new(0),
            used: AtomicU32::new(0),
            places: [const { Place { ready: AtomicBool::new(false), crash: UnsafeCell::new(EMPTY) } }; CAPACITY],
        }
    }

    /// Empties the table and opens it for release count `releases`. Called by the owner before it
    /// releases the lock.
    pub(crate) fn reopen(&self, releases: u32) {
        for place in &self.places {
            place.ready.store(false, Ordering::Relaxed);
        }
        self.used.store(0, Ordering::Release);
        self.open_for.store(releases.into(), Ordering::SeqCst);
    }

    /// Closes the table: it accepts no more crashes. Called by the owner.
    pub(crate) fn close(&self) {
        self.open_for.store(CLOSED, Ordering::SeqCst);
    }

    /// Adds another thread's crash. `after_ns` holds its time by the monotonic clock; `releases` is
    /// the lock's count from before the failed claim. Returns `false` if it is too late or the
    /// table is full.
    pub(crate) fn add(&self, crash: &ConcurrentCrash, releases: u32) -> bool {
        let is_open = || self.open_for.load(Ordering::SeqCst) == u64::from(releases);
        if !is_open() {
            return false;
        }
        let index = self.used.fetch_add(1, Ordering::AcqRel);
        let Some(place) = self.places.get(index as usize) else { return false };
        // SAFETY: the index belongs to this thread alone.
        unsafe { place.crash.get().write(*crash) };
        place.ready.store(true, Ordering::SeqCst);
        is_open()
    }

    /// Copies the crashes of threads other than `own`, with their time relative to `started`, and
    /// returns their number. Called by the owner.
    pub(crate) fn copy(&self, into: &mut [ConcurrentCrash; CAPACITY], own: u64, started: u64) -> usize {
        let mut count = 0;
        for (to, crash) in into.iter_mut().zip(self.others(own)) {
            *to = crash;
            to.after_ns = to.after_ns.map(|time| time.saturating_sub(started));
            count += 1;
        }
        count
    }

    /// Returns the number of crashes of threads other than `own`.
    pub(crate) fn count(&self, own: u64) -> usize {
        self.others(own).count()
    }

    /// Returns `true` if the table contains a crash of thread `tid`.
    pub(crate) fn has(&self, tid: u64) -> bool {
        self.ready().any(|crash| crash.tid == tid)
    }

    /// Iterates over the crashes of threads other than `own`: the owner may have added its crash to
    /// a report whose owner ended before writing it.
    fn others(&self, own: u64) -> impl Iterator<Item = ConcurrentCrash> {
        self.ready().filter(move |crash| crash.tid != own)
    }

    /// Iterates over the completed entries. A thread that has a place but was stopped before its
    /// entry was ready doesn't hide the others.
    fn ready(&self) -> impl Iterator<Item = ConcurrentCrash> {
        // SAFETY: written before `ready`, and not again before the next `reopen`.
        self.places.iter().filter(|place| place.ready.load(Ordering::SeqCst)).map(|place| unsafe { *place.crash.get() })
    }
}

#[cfg(test)]
mod tests;

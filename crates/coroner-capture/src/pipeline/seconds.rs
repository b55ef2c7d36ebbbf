//! Threads that crash while another one's report is being written: they tell what happened to them and become part of
//! that report.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use coroner_report::wire::SecondCrash;

/// Other crashes that one report can hold.
pub(crate) const PLACES: usize = 16;

const EMPTY: SecondCrash = SecondCrash { tid: 0, signal: 0, code: 0, address: None, after_ns: None };

struct Place {
    ready: AtomicBool,
    crash: UnsafeCell<SecondCrash>,
}

/// The table. It is open whenever nobody owns the latch, so that a thread that finds it taken can always tell, and until
/// the owner has taken the other threads in.
pub(crate) struct Seconds {
    open: AtomicBool,
    taken: AtomicU32,
    places: [Place; PLACES],
}

// SAFETY: a place is written once by the thread whose index it is, and read after `ready` says so.
unsafe impl Sync for Seconds {}

impl Seconds {
    pub(crate) const fn new() -> Self {
        Seconds {
            open: AtomicBool::new(true),
            taken: AtomicU32::new(0),
            places: [const { Place { ready: AtomicBool::new(false), crash: UnsafeCell::new(EMPTY) } }; PLACES],
        }
    }

    /// The owner, before it lets the latch go: the table is empty and open again.
    pub(crate) fn reopen(&self) {
        for place in &self.places {
            place.ready.store(false, Ordering::Relaxed);
        }
        self.taken.store(0, Ordering::Release);
        self.open.store(true, Ordering::SeqCst);
    }

    /// The owner: from now on they are not.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
    }

    /// Another thread: takes its crash in; `after_ns` holds its time by the monotonic clock. False where it is too late or
    /// there are too many.
    pub(crate) fn tell(&self, crash: &SecondCrash) -> bool {
        if !self.open.load(Ordering::SeqCst) {
            return false;
        }
        let index = self.taken.fetch_add(1, Ordering::AcqRel);
        let Some(place) = self.places.get(index as usize) else { return false };
        // SAFETY: the index is this thread's alone.
        unsafe { place.crash.get().write(*crash) };
        place.ready.store(true, Ordering::SeqCst);
        self.open.load(Ordering::SeqCst)
    }

    /// The owner: copies the crashes that were told, with their time relative to `started`; answers how many.
    pub(crate) fn copy(&self, into: &mut [SecondCrash; PLACES], started: u64) -> usize {
        let mut count = 0;
        for (to, place) in into.iter_mut().zip(&self.places) {
            if !place.ready.load(Ordering::SeqCst) {
                break;
            }
            // SAFETY: written before `ready`, and not again before the next `open`.
            *to = unsafe { *place.crash.get() };
            to.after_ns = to.after_ns.map(|time| time.saturating_sub(started));
            count += 1;
        }
        count
    }

    /// Whether that thread told of a crash.
    pub(crate) fn has(&self, tid: u64) -> bool {
        self.places.iter().take_while(|place| place.ready.load(Ordering::SeqCst)).any(|place| {
            // SAFETY: as in `copy`.
            unsafe { (*place.crash.get()).tid == tid }
        })
    }
}

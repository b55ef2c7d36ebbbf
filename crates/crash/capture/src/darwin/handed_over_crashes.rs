//! Crashes that a signal handler hands over to the primary thread, which writes all reports.
//!
//! Places in a table, not addresses: a handler that has waited long enough continues, and the crash
//! that it handed over must not be read from its stack then.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use coroner_process::threads::Tid;

use crate::concurrent_crashes::CAPACITY;
use crate::crash_context::{CrashContext, Reported};
use coroner_process::exception_messages::{self, Own};
use mach2::port::mach_port_t;

const FREE: u32 = 0;
const FILLING: u32 = 1;
const WAITING: u32 = 2;
const TAKEN: u32 = 3;
/// The primary thread has finished with the place; the handler frees it.
const DONE: u32 = 4;
/// The handler has continued; the primary thread frees the place.
const LEFT: u32 = 5;

struct Place {
    state: AtomicU32,
    context: UnsafeCell<Option<CrashContext>>,
    /// Outcome of reporting the crash, see [`Reported::as_word`].
    reported: AtomicU64,
}

/// Table of crashes that were handed over.
pub(crate) struct HandedOver {
    places: [Place; CAPACITY],
}

// SAFETY: a place is written by the thread that took it from `FREE`, and read only by the primary
// thread once it is `TAKEN`.
unsafe impl Sync for HandedOver {}

impl HandedOver {
    pub(crate) const fn new() -> Self {
        HandedOver {
            places: [const {
                Place { state: AtomicU32::new(FREE), context: UnsafeCell::new(None), reported: AtomicU64::new(0) }
            }; CAPACITY],
        }
    }

    /// Hands a crash over, in the handler, and waits until the report that includes it is written,
    /// at most for `milliseconds`.
    pub(crate) fn hand_over(&self, primary_port: mach_port_t, context: &CrashContext, milliseconds: u32) -> Reported {
        let found = self.places.iter().enumerate().find(|(_, place)| {
            place.state.compare_exchange(FREE, FILLING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let Some((index, place)) = found else { return Reported::Not };
        // SAFETY: this thread took the place.
        unsafe { *place.context.get() = Some(*context) };
        place.state.store(WAITING, Ordering::Release);
        exception_messages::ask(primary_port, Own::HandedOver(index as u32), milliseconds);
        // The place is more accurate than the answer, which may be late.
        let left = |state, next| place.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if left(WAITING, FREE) || left(TAKEN, LEFT) {
            return Reported::Not;
        }
        let reported = Reported::of_word(place.reported.load(Ordering::Relaxed));
        place.state.store(FREE, Ordering::Release);
        reported
    }

    /// Takes the crash in place `index`, in the primary thread. Returns `None` if the crash's
    /// thread has continued.
    pub(crate) fn take(&self, index: u32) -> Option<CrashContext> {
        let place = self.places.get(index as usize)?;
        place.state.compare_exchange(WAITING, TAKEN, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: `TAKEN` makes it ours.
        unsafe { *place.context.get() }
    }

    /// Returns the crash that the waiting thread `tid` has handed over. Called by the primary
    /// thread.
    pub(crate) fn of_thread(&self, tid: Tid) -> Option<CrashContext> {
        let taken = self.places.iter().filter(|place| place.state.load(Ordering::Acquire) == TAKEN);
        // SAFETY: as in `take`.
        let mut contexts = taken.filter_map(|place| unsafe { *place.context.get() });
        // A hung thread doesn't wait in a handler: another one has handed the hang over.
        contexts.find(|context| context.tid == tid && context.hung.is_none())
    }

    /// Marks a place as finished. Called by the primary thread before it answers.
    pub(crate) fn give_back(&self, index: u32, reported: Reported) {
        let Some(place) = self.places.get(index as usize) else { return };
        place.reported.store(reported.as_word(), Ordering::Relaxed);
        if place.state.compare_exchange(TAKEN, DONE, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            place.state.store(FREE, Ordering::Release);
        }
    }
}

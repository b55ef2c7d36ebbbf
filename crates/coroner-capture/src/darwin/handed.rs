//! Crashes that a signal handler hands over to the primary thread, which writes all reports.
//!
//! Places in a table and not addresses: a handler that has waited long enough goes on, and what it left behind must not be
//! read from its stack then.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

use coroner_machine::threads::Tid;

use super::messages::{self, Own};
use crate::global::Global;
use crate::pipeline::incident::Incident;
use crate::pipeline::seconds;

const FREE: u32 = 0;
const FILLING: u32 = 1;
const WAITING: u32 = 2;
const TAKEN: u32 = 3;

struct Place {
    state: AtomicU32,
    incident: UnsafeCell<Option<Incident>>,
}

/// The table.
pub(crate) struct Handed {
    places: [Place; seconds::PLACES],
}

// SAFETY: a place is written by the thread that took it from `FREE`, and read by the primary thread alone once it is `TAKEN`.
unsafe impl Sync for Handed {}

impl Handed {
    pub(crate) const fn new() -> Self {
        Handed {
            places: [const { Place { state: AtomicU32::new(FREE), incident: UnsafeCell::new(None) } }; seconds::PLACES],
        }
    }

    /// The handler: hands its crash over and waits until the report that it is part of is written, at most so long. False
    /// where nobody took it.
    pub(crate) fn over(global: &Global, incident: &Incident, milliseconds: u32) -> bool {
        let handed = &global.os.handed;
        let found = handed.places.iter().enumerate().find(|(_, place)| {
            place.state.compare_exchange(FREE, FILLING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let Some((index, place)) = found else { return false };
        // SAFETY: this thread took the place.
        unsafe { *place.incident.get() = Some(*incident) };
        place.state.store(WAITING, Ordering::Release);
        let answered = messages::ask(global.os.primary_port, Own::Handed(index as u32), milliseconds);
        if !answered && place.state.compare_exchange(WAITING, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return false;
        }
        answered
    }

    /// The primary thread: the crash in the place of that number, unless its thread has gone on.
    pub(crate) fn take(&self, index: u32) -> Option<Incident> {
        let place = self.places.get(index as usize)?;
        place.state.compare_exchange(WAITING, TAKEN, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: `TAKEN` makes it ours.
        unsafe { *place.incident.get() }
    }

    /// The primary thread: what a thread that waits has handed over, by the thread's id.
    pub(crate) fn of_thread(&self, tid: Tid) -> Option<Incident> {
        let taken = self.places.iter().filter(|place| place.state.load(Ordering::Acquire) == TAKEN);
        // SAFETY: as in `take`.
        let mut incidents = taken.filter_map(|place| unsafe { *place.incident.get() });
        // A hang's thread waits nowhere: another one has handed it over.
        incidents.find(|incident| incident.tid == tid && incident.hung.is_none())
    }

    /// The primary thread: the place is free again.
    pub(crate) fn give_back(&self, index: u32) {
        if let Some(place) = self.places.get(index as usize) {
            place.state.store(FREE, Ordering::Release);
        }
    }
}

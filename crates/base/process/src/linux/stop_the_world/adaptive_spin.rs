//! Spins on a word for a short time before sleeping until it changes.
//!
//! If two threads on two processors interact within some microseconds, sleeping and waking cost
//! more than everything else: a sleeper whose processor is idle is woken by an interrupt to that
//! processor, for which both virtual machines of a hypervisor leave the guest. So the waiting
//! thread spins first. This helps only if the other thread runs meanwhile: on one processor it runs
//! when the spinning thread goes to sleep. Hence the spinning is bounded, and it is skipped for
//! threads for which it did not help recently ([`Habits`]).

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU8, AtomicU32};

use crate::linux::syscall::syscall;
use crate::linux::threads::{Tid, monotonic_now};

/// Number of reads between two clock reads: less than a microsecond.
const LOOKS: u32 = 16;

/// Spins while `word` is `value`, for at most `limit` nanoseconds; returns the last value read.
pub(super) fn while_it_is(word: &AtomicU32, value: u32, limit: u64) -> u32 {
    let mut now = word.load(SeqCst);
    if now != value || limit == 0 {
        return now;
    }
    let until = monotonic_now().saturating_add(limit);
    loop {
        for _ in 0..LOOKS {
            now = word.load(SeqCst);
            if now != value {
                return now;
            }
            core::hint::spin_loop();
        }
        if monotonic_now() >= until {
            return now;
        }
    }
}

/// Returns the processor that the calling thread runs on, which may change at any moment.
pub(super) fn this_processor() -> u32 {
    let mut processor = u32::MAX;
    // SAFETY: the kernel writes one 32-bit number. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_getcpu, &raw mut processor, 0, 0) };
    processor
}

/// Maximum time to spin for an answer, in nanoseconds.
///
/// About the cost of a wake-up where it is most expensive (measured: 20 to 40 microseconds for a
/// thread of a virtual machine whose processor is idle).
const MAX_TIME: u64 = 50_000;

/// Number of entries for threads' habits.
///
/// The threads of a large process share them: the consequence is a spin too many or too few.
const PLACES: usize = 64;

/// The result of asking a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// The thread answered this many nanoseconds after it was sent the signal.
    ///
    /// It ran on a processor other than the asker's, or answered before the asker slept.
    After(u64),
    /// The thread answered on the asker's processor, while the asker slept.
    InPlaceOfTheAsker,
    /// The thread did not answer in time.
    Not,
}

/// The times that threads took to answer, from which the next spin time is computed.
#[derive(Debug)]
pub(super) struct Habits {
    /// The habit of each entry's threads, in one byte.
    ///
    /// The low [`UNIT_BITS`] bits are a time in units of 1024 nanoseconds, 0 if unknown; those
    /// above count consecutive misses, [`MAX_MISSES`] at most.
    places: [AtomicU8; PLACES],
}

const UNIT_BITS: u32 = 6;
/// Number of misses after which there is no spinning for a thread.
///
/// Fewer may be chance, if other threads occasionally need its processor.
const MAX_MISSES: u8 = 3;

impl Habits {
    fn of(&self, tid: Tid) -> &AtomicU8 {
        // `PLACES` is a power of two: always inside.
        &self.places[tid as usize % PLACES]
    }

    /// Returns the time to spin for a thread's answer, in nanoseconds.
    pub(super) fn spin_time(&self, tid: Tid) -> u64 {
        let habit = self.of(tid).load(Relaxed);
        match (habit >> UNIT_BITS, habit & ((1 << UNIT_BITS) - 1)) {
            (MAX_MISSES.., _) => 0,
            (_, 0) => MAX_TIME,
            // Twice the time plus two microseconds: most answers come later than the earliest ones.
            (_, units) => (2 * (u64::from(units) << 10) + 2_000).min(MAX_TIME),
        }
    }

    /// Records the result of asking a thread.
    pub(super) fn note(&self, tid: Tid, answered: Answered) {
        let place = self.of(tid);
        let habit = place.load(Relaxed);
        let (misses, units) = (habit >> UNIT_BITS, habit & ((1 << UNIT_BITS) - 1));
        let (misses, units) = match answered {
            // The longest recent time, which decays gradually.
            Answered::After(time) if time < MAX_TIME => {
                (if misses == MAX_MISSES { misses - 1 } else { 0 }, ((time >> 10) as u8 + 1).max(units - units / 4))
            }
            Answered::After(_) | Answered::Not => ((misses + 1).min(MAX_MISSES), units),
            Answered::InPlaceOfTheAsker => (MAX_MISSES, units),
        };
        place.store(misses << UNIT_BITS | units, Relaxed);
    }
}

const _: () =
    assert!(PLACES.is_power_of_two() && MAX_TIME >> 10 < (1 << UNIT_BITS) - 1 && MAX_MISSES >> (8 - UNIT_BITS) == 0);

#[cfg(test)]
mod tests;

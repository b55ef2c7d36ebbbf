//! Looking at a word for a short time before sleeping until it changes.
//!
//! Two threads that meet for some microseconds on two processors pay more for going to sleep and being woken than for all
//! the rest: a sleeper whose processor is idle is woken by an interrupt to that processor, for which both virtual machines of
//! a hypervisor leave the guest. So whoever waits looks first. It helps only where the other thread runs meanwhile: on
//! one processor it runs when the one that looks goes to sleep. Hence the looking is bounded, and threads for which it
//! did not help the last time are not looked for ([`Habits`]).

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU8, AtomicU32};

use crate::linux::syscall::syscall;
use crate::linux::threads::{Tid, monotonic_now};

/// Looks at a word between two looks at the clock: less than a microsecond.
const LOOKS: u32 = 16;

/// Looks while `word` is `value`, for `limit` nanoseconds; returns what it was last.
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

/// The processor that the calling thread runs on, as far as anybody can say: it may be another one a moment later.
pub(super) fn this_processor() -> u32 {
    let mut processor = u32::MAX;
    // SAFETY: the kernel writes one 32-bit number. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_getcpu, &raw mut processor, 0, 0) };
    processor
}

/// The longest that an answer is looked for, in nanoseconds: about what being woken costs, where it costs most (measured: 20 to
/// 40 microseconds for a thread of a virtual machine whose processor is idle).
const MAX_TIME: u64 = 50_000;

/// Places for what is known of threads. Those of a large process share them: what comes of it is a look too many or too few.
const PLACES: usize = 64;

/// What came of asking a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// It answered so many nanoseconds after it was sent the signal, on another processor than the asker's or before the asker
    /// slept.
    After(u64),
    /// It answered on the asker's processor, when the asker slept.
    InPlaceOfTheAsker,
    /// It did not answer in time.
    Not,
}

/// How long threads took to answer, for which they are looked for the next time.
#[derive(Debug)]
pub(super) struct Habits {
    /// The low [`UNIT_BITS`] bits are a time in units of 1024 nanoseconds, 0 if it is not known; those above count misses in a
    /// row, [`MAX_MISSES`] at most.
    places: [AtomicU8; PLACES],
}

const UNIT_BITS: u32 = 6;
/// Misses after which a thread is not looked for: fewer are chance, where others want its processor now and then.
const MAX_MISSES: u8 = 3;

impl Habits {
    fn of(&self, tid: Tid) -> &AtomicU8 {
        // `PLACES` is a power of two: always inside.
        &self.places[tid as usize % PLACES]
    }

    /// How long to look for the answer of a thread, in nanoseconds.
    pub(super) fn spin_time(&self, tid: Tid) -> u64 {
        let habit = self.of(tid).load(Relaxed);
        match (habit >> UNIT_BITS, habit & ((1 << UNIT_BITS) - 1)) {
            (MAX_MISSES.., _) => 0,
            (_, 0) => MAX_TIME,
            // Twice that and two microseconds: most answers are not the earliest that there are.
            (_, units) => (2 * (u64::from(units) << 10) + 2_000).min(MAX_TIME),
        }
    }

    /// Keeps what came of asking a thread.
    pub(super) fn note(&self, tid: Tid, answered: Answered) {
        let place = self.of(tid);
        let habit = place.load(Relaxed);
        let (misses, units) = (habit >> UNIT_BITS, habit & ((1 << UNIT_BITS) - 1));
        let (misses, units) = match answered {
            // The longest of late, which is forgotten by and by.
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

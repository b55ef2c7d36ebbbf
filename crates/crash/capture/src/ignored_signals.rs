//! Per-thread requests to leave the next signal of a kind to other handlers, and faults that a
//! handler which ran first may have repaired.
//!
//! Uses no thread-locals: the first access to one in a signal handler may allocate. Instead, small
//! tables of atomic words are searched by thread ID; a full table rejects the request.

use core::sync::atomic::{AtomicU64, Ordering};

use coroner_process::threads::Tid;

const PLACES: usize = 64;

/// Threads whose next signal is not Coroner's: `tid << 8 | signal`, 0 for a free place.
static IGNORED: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

fn entry(tid: Tid, signal: i32) -> u64 {
    (tid as u64) << 8 | (signal as u64 & 0xff)
}

/// Leaves the next `signal` of thread `tid` to the handlers from before Coroner. Returns `false` if
/// the table is full.
pub(crate) fn ignore_next(tid: Tid, signal: i32) -> bool {
    let entry = entry(tid, signal);
    IGNORED.iter().any(|place| place.compare_exchange(0, entry, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

/// Returns `true` if this thread's `signal` was to be left to others, and removes the request.
pub(crate) fn take_ignored(tid: Tid, signal: i32) -> bool {
    let entry = entry(tid, signal);
    IGNORED.iter().any(|place| place.compare_exchange(entry, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

/// A fault that was left to the earlier handler, which returned without a trace: it may have made
/// the page accessible.
struct Retry {
    tid: AtomicU64,
    pc: AtomicU64,
    address: AtomicU64,
}

static RETRIES: [Retry; PLACES] =
    [const { Retry { tid: AtomicU64::new(0), pc: AtomicU64::new(0), address: AtomicU64::new(0) } }; PLACES];

/// Notes that a handler that ran first returned from this fault. Returns `true` the first time: the
/// instruction must be retried. Returns `false` if the same thread has the same fault again
/// immediately: nobody repaired it.
pub(crate) fn try_again(tid: Tid, pc: u64, address: u64) -> bool {
    let Some(place) = RETRIES.get(tid as usize % PLACES) else { return false };
    let same = place.tid.swap(tid as u64, Ordering::AcqRel) == tid as u64
        && place.pc.load(Ordering::Relaxed) == pc
        && place.address.load(Ordering::Relaxed) == address;
    place.pc.store(pc, Ordering::Relaxed);
    place.address.store(address, Ordering::Relaxed);
    !same
}

#[cfg(test)]
mod tests;

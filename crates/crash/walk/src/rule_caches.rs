//! Caches of the unwinder's rules, one for each walk in progress: claimed, used, returned warm.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use coroner_unwind::RuleCache;

/// Maximum number of walks in progress at once.
const MAX_WALKS: usize = 16;

/// Number of times that all caches are tried if none is free.
const ATTEMPTS: u32 = 256;

struct Place {
    taken: AtomicBool,
    cache: UnsafeCell<RuleCache>,
}

// SAFETY: the cache is accessed only by whoever set `taken`.
unsafe impl Sync for Place {}

static PLACES: [Place; MAX_WALKS] =
    [const { Place { taken: AtomicBool::new(false), cache: UnsafeCell::new(RuleCache::new()) } }; MAX_WALKS];

/// A cache that belongs to one owner until this is dropped.
#[must_use]
#[allow(missing_debug_implementations)]
pub struct Claimed(&'static Place);

/// Claims a cache: the first free one, so that few concurrent walks use few, warm caches. Returns
/// `None` if sixteen walks are in progress for a long time. Async-signal-safe.
#[inline]
pub fn claim() -> Option<Claimed> {
    first_free().or_else(wait_for_one)
}

#[inline]
fn first_free() -> Option<Claimed> {
    let free = |place: &&Place| !place.taken.load(Ordering::Relaxed) && !place.taken.swap(true, Ordering::Acquire);
    PLACES.iter().find(free).map(Claimed)
}

#[cold]
fn wait_for_one() -> Option<Claimed> {
    (0..ATTEMPTS).find_map(|_| {
        // SAFETY: no arguments; other threads run. Each walk takes microseconds.
        unsafe { libc::sched_yield() };
        first_free()
    })
}

impl Deref for Claimed {
    type Target = RuleCache;

    fn deref(&self) -> &RuleCache {
        // SAFETY: claimed.
        unsafe { &*self.0.cache.get() }
    }
}

impl DerefMut for Claimed {
    fn deref_mut(&mut self) -> &mut RuleCache {
        // SAFETY: claimed.
        unsafe { &mut *self.0.cache.get() }
    }
}

impl Drop for Claimed {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;

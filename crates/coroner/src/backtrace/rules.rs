//! Caches of the unwinder's rules, one for each capture that is under way: claimed, used, given back warm.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use coroner_unwind::RuleCache;

/// Captures that may be under way at once without waiting for each other.
const PLACES: usize = 16;

struct Place {
    taken: AtomicBool,
    cache: UnsafeCell<RuleCache>,
}

// SAFETY: the cache is touched only by who set `taken`.
unsafe impl Sync for Place {}

static CACHES: [Place; PLACES] =
    [const { Place { taken: AtomicBool::new(false), cache: UnsafeCell::new(RuleCache::new()) } }; PLACES];

/// A cache that nobody else has.
pub(super) struct Claimed(&'static Place);

/// Claims a cache: the first free one, so that few captures at once use few, warm ones.
pub(super) fn claim() -> Claimed {
    loop {
        for place in &CACHES {
            if !place.taken.load(Ordering::Relaxed) && !place.taken.swap(true, Ordering::Acquire) {
                return Claimed(place);
            }
        }
        // Sixteen captures are under way; each takes microseconds.
        std::thread::yield_now();
    }
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
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

//! An allocator that counts allocations, live bytes, and their peak.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

pub(crate) struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(size: usize) {
    ALLOCATIONS.fetch_add(1, Relaxed);
    PEAK.fetch_max(LIVE.fetch_add(size, Relaxed) + size, Relaxed);
}

// SAFETY: everything is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller follows the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller follows the rules of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_sub(layout.size(), Relaxed);
        grown(size);
        // SAFETY: the caller follows the rules of `realloc`.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Returns the number of allocations so far, and the live bytes.
pub(crate) fn now() -> (usize, usize) {
    (ALLOCATIONS.load(Relaxed), LIVE.load(Relaxed))
}

/// Returns the maximum live bytes since the last call.
pub(crate) fn peak() -> usize {
    PEAK.swap(LIVE.load(Relaxed), Relaxed)
}

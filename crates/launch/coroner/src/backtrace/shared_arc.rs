//! An [`Arc`] that one thread replaces while others clone it without locking or waiting.

use std::sync::atomic::Ordering::{Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicUsize};
use std::sync::{Arc, Mutex};

use crate::locked::locked;

pub(super) struct SharedArc<T> {
    /// From [`Arc::into_raw`], or null.
    current: AtomicPtr<T>,
    /// Number of threads between reading `current` and owning a share of its target.
    readers: AtomicUsize,
    /// Replaced values that a thread counted in `readers` may still be about to share.
    ///
    /// A child of fork, where such a thread doesn't exist, keeps them forever.
    replaced: Mutex<Vec<Arc<T>>>,
}

impl<T> SharedArc<T> {
    pub(super) const fn new() -> Self {
        SharedArc {
            current: AtomicPtr::new(std::ptr::null_mut()),
            readers: AtomicUsize::new(0),
            replaced: Mutex::new(Vec::new()),
        }
    }

    /// Returns the value that was stored last, if any.
    #[inline]
    pub(super) fn load(&self) -> Option<Arc<T>> {
        self.readers.fetch_add(1, SeqCst);
        let current = self.current.load(SeqCst);
        let held = (!current.is_null()).then(|| {
            // SAFETY: the pointer came from `Arc::into_raw`, and `store` keeps its share of the
            // value while this thread is counted.
            unsafe {
                Arc::increment_strong_count(current);
                Arc::from_raw(current)
            }
        });
        self.readers.fetch_sub(1, Release);
        held
    }

    pub(super) fn store(&self, fresh: &Arc<T>) {
        let before = self.current.swap(Arc::into_raw(Arc::clone(fresh)).cast_mut(), SeqCst);
        let mut replaced = locked(&self.replaced);
        if !before.is_null() {
            // SAFETY: the pointer came from `Arc::into_raw`, and only this call took it out.
            replaced.push(unsafe { Arc::from_raw(before) });
        }
        // All threads see these operations in one order: a thread counted after this load reads
        // `fresh` or a later value, and of those counted before, none is left.
        let nobody = self.readers.load(SeqCst) == 0;
        let freed = if nobody { std::mem::take(&mut *replaced) } else { Vec::new() };
        drop(replaced);
        drop(freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_values_are_intact_and_replaced_ones_are_freed() {
        struct Counted(Arc<AtomicUsize>, [usize; 8]);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
                self.1 = [usize::MAX; 8];
            }
        }
        let alive = Arc::new(AtomicUsize::new(0));
        let shared = SharedArc::new();
        assert!(shared.load().is_none());
        let store = |number| {
            alive.fetch_add(1, SeqCst);
            shared.store(&Arc::new(Counted(Arc::clone(&alive), [number; 8])));
        };
        store(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 20_000 {
                        let held = shared.load().unwrap();
                        assert!(held.1[0] >= last && held.1 == [held.1[0]; 8]);
                        last = held.1[0];
                    }
                });
            }
            (1..=20_000).for_each(&store);
        });
        // No thread reads anymore.
        store(20_001);
        assert_eq!(alive.load(SeqCst), 1);
    }
}

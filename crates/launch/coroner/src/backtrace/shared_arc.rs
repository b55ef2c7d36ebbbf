//! An [`Arc`] that one thread replaces while others clone it: those take no lock and never wait.

use std::sync::atomic::Ordering::{Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicUsize};
use std::sync::{Arc, Mutex};

use crate::locked::locked;

pub(super) struct SharedArc<T> {
    /// By [`Arc::into_raw`], or null.
    current: AtomicPtr<T>,
    /// How many are between reading `current` and having a share of what it points to.
    readers: AtomicUsize,
    /// What was replaced and may still be between the two. A child of fork, where such a thread is not, keeps it for ever.
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

    /// What was stored last, if anything was.
    #[inline]
    pub(super) fn load(&self) -> Option<Arc<T>> {
        self.readers.fetch_add(1, SeqCst);
        let current = self.current.load(SeqCst);
        let held = (!current.is_null()).then(|| {
            // SAFETY: it came from `Arc::into_raw`, and `store` keeps the share that it stands for as long as this thread is counted.
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
            // SAFETY: it came from `Arc::into_raw`, and only this call took it out.
            replaced.push(unsafe { Arc::from_raw(before) });
        }
        // Of one order that all threads see: who is counted later than this reads `fresh`, or what came after it; and of those before,
        // nobody is left.
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
    fn what_is_loaded_is_whole_and_what_is_replaced_is_freed() {
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
        // Nobody reads any more.
        store(20_001);
        assert_eq!(alive.load(SeqCst), 1);
    }
}

//! Locks that are held across `fork`, so that the child doesn't find them taken.
//!
//! Otherwise the child would wait forever for a thread that doesn't exist in it. The locks are
//! taken before a fork and released after it in both processes, as pthread_atfork(3) recommends.
//! Each wait is bounded ([`MAX_TRIES`], [`MAX_TRIES_OF_APP`]): another thread may be inside the
//! app's own code ([`Scope::configure`](crate::Scope::configure)), or the forking thread may hold
//! the lock itself. The app's own fork handlers may call Coroner in between, so all code takes
//! these locks by [`lock`], which calls [`release_own`] first.
//!
//! The other work that a fork requires ([`Around`]) is done while none of these locks is held.

use std::sync::{Mutex, MutexGuard};

use crate::locked::locked;

#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
pub(crate) use over_forks::{Around, MAX_TRIES, MAX_TRIES_OF_APP, hold_over_forks, release_own};

/// Takes a lock that is held over forks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
    release_own();
    locked(mutex)
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
mod over_forks {
    use std::any::Any;
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
    use std::time::Duration;

    /// Maximum tries for a lock that is never held over the app's code, 0.1 ms apart: about 2 s.
    ///
    /// A thread that is preempted while it holds the lock keeps it until it is scheduled again,
    /// which takes tens of milliseconds on a busy machine.
    pub(crate) const MAX_TRIES: u32 = 20_000;

    /// Maximum tries for a lock that may be held over the app's code, and by the forking thread
    /// itself: about 0.5 s.
    pub(crate) const MAX_TRIES_OF_APP: u32 = 5_000;

    /// The thread that is forking and holds the locks, as its pthread_self(3); 0 if none does.
    ///
    /// Not a thread-local variable: accessing one may allocate, and a signal handler of the app may
    /// call code that reads this.
    static HOLDER: AtomicUsize = AtomicUsize::new(0);

    /// A lock and its maximum number of tries.
    type HeldOverForks = (&'static Mutex<dyn Any + Send>, u32);

    /// Number of locks.
    const COUNT: usize = 5;

    static LOCKS: OnceLock<[HeldOverForks; COUNT]> = OnceLock::new();

    /// The other work around a fork.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Around {
        /// Called before it.
        pub(crate) before: fn(),
        /// Called after it, in the parent.
        pub(crate) in_parent: fn(),
        /// Called after it, in the child.
        pub(crate) in_child: fn(),
    }

    static AROUND: OnceLock<Around> = OnceLock::new();

    thread_local! {
        /// The locks that this thread has taken for a fork.
        static HELD: RefCell<[Option<MutexGuard<'static, dyn Any + Send>>; COUNT]> = const { RefCell::new([const { None }; COUNT]) };
    }

    /// Registers these locks to be held across each fork from now on, taken in this order, and what
    /// else to do.
    pub(crate) fn hold_over_forks(locks: [HeldOverForks; COUNT], around: Around) {
        let _ = AROUND.set(around);
        if LOCKS.set(locks).is_ok() {
            // SAFETY: functions without requirements, which stay valid: `install` keeps their
            // library loaded.
            unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        }
    }

    unsafe extern "C" fn before() {
        if let Some(around) = AROUND.get() {
            (around.before)();
        }
        // One fork at a time, because the child of another thread's fork would find the locks
        // taken. Forking a large process takes a tenth of a second.
        let is_taken = || HOLDER.compare_exchange(0, this_thread(), Ordering::Relaxed, Ordering::Relaxed).is_err();
        for _ in 0..MAX_TRIES {
            if !is_taken() {
                return take();
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn take() {
        let Some(locks) = LOCKS.get() else { return };
        let held = locks.map(|(lock, max_tries)| get(lock, max_tries));
        // If the thread is exiting, they are released immediately.
        let _ = HELD.try_with(|of_thread| *of_thread.borrow_mut() = held);
    }

    unsafe extern "C" fn in_parent() {
        release_own();
        if let Some(around) = AROUND.get() {
            (around.in_parent)();
        }
    }

    unsafe extern "C" fn in_child() {
        release_own();
        // The child doesn't contain another thread that held them.
        HOLDER.store(0, Ordering::Relaxed);
        if let Some(around) = AROUND.get() {
            (around.in_child)();
        }
    }

    /// Releases the locks if the calling thread holds them for a fork.
    pub(crate) fn release_own() {
        if HOLDER.load(Ordering::Relaxed) == this_thread() {
            let _ = HELD.try_with(|held| held.borrow_mut().fill_with(|| None));
            HOLDER.store(0, Ordering::Relaxed);
        }
    }

    fn this_thread() -> usize {
        nix::sys::pthread::pthread_self() as usize
    }

    fn get(lock: &'static Mutex<dyn Any + Send>, max_tries: u32) -> Option<MutexGuard<'static, dyn Any + Send>> {
        for _ in 0..max_tries {
            match lock.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        None
    }
}

//! Locks of this crate that a child of `fork` must not find taken by a thread that it does not have: it would wait forever.
//!
//! They are taken before a fork and released after it in both processes, as pthread_atfork(3) recommends. Each wait is bounded
//! ([`MAX_TRIES`], [`MAX_TRIES_OF_APP`]): another thread may be inside the app's own code
//! ([`Scope::configure`](crate::Scope::configure)), or the forking thread may hold the lock itself. The app's own fork handlers may
//! call Coroner between the two: code that takes one of these locks calls [`release_own`] first.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, TryLockError};
use std::time::Duration;

use crate::Coroner;

/// Maximum tries for a lock that is never held over the app's code, 0.1 ms apart: about 2 s. A thread that is off its processor
/// can hold it for as long as the scheduler keeps it waiting, tens of milliseconds on a busy machine.
const MAX_TRIES: u32 = 20_000;

/// Maximum tries for a lock that may be held over the app's code, and by the forking thread itself: about 0.5 s.
const MAX_TRIES_OF_APP: u32 = 5_000;

/// The thread that forks and has them, as pthread_self(3) says; 0 if none does. (A look at a thread-local variable may allocate, and an app's signal
/// handler may call what asks for this.)
static HOLDER: AtomicUsize = AtomicUsize::new(0);

/// The locks that were got.
struct Held {
    _installed: Option<MutexGuard<'static, Option<Coroner>>>,
    _change: Option<MutexGuard<'static, ()>>,
    _flags: Option<MutexGuard<'static, Vec<(String, bool)>>>,
    _in_app: Option<MutexGuard<'static, Vec<String>>>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Has them held over each fork from now on.
pub(crate) fn hold_over_forks() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: functions without requirements, which stay: `install` keeps the library that they are in loaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

unsafe extern "C" fn before() {
    // One fork at a time: the child of another thread's would find them taken. A fork of a large process takes a tenth of a second.
    let is_taken = || HOLDER.compare_exchange(0, this_thread(), Ordering::Relaxed, Ordering::Relaxed).is_err();
    for _ in 0..MAX_TRIES {
        if !is_taken() {
            return take();
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn take() {
    let held = Held {
        _installed: get(&crate::install::INSTALLED, MAX_TRIES_OF_APP),
        _change: get(&crate::scope::CHANGE, MAX_TRIES_OF_APP),
        _flags: get(&crate::scope::FLAGS, MAX_TRIES),
        _in_app: get(&crate::backtrace::images::IN_APP, MAX_TRIES),
    };
    // Of a thread that ends just now they are released at once.
    let _ = HELD.try_with(|of_thread| *of_thread.borrow_mut() = Some(held));
}

unsafe extern "C" fn in_parent() {
    release_own();
}

unsafe extern "C" fn in_child() {
    release_own();
    // Another thread that had them is not here.
    HOLDER.store(0, Ordering::Relaxed);
}

/// Releases them if the calling thread has them for a fork.
pub(crate) fn release_own() {
    if HOLDER.load(Ordering::Relaxed) == this_thread() {
        let _ = HELD.try_with(|held| drop(held.borrow_mut().take()));
        HOLDER.store(0, Ordering::Relaxed);
    }
}

fn this_thread() -> usize {
    // SAFETY: no requirements.
    unsafe { libc::pthread_self() as usize }
}

fn get<T>(lock: &'static Mutex<T>, max_tries: u32) -> Option<MutexGuard<'static, T>> {
    for _ in 0..max_tries {
        match lock.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(100)),
        }
    }
    None
}

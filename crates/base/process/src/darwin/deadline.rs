//! A time limit for the app's code that a thread calls before a report (`what()`).
//!
//! A watcher thread waits for the end of the limit, and then sends the thread a signal, whose
//! handler, which is Coroner's, leaves the interrupted code. (The deadline of a report itself is
//! the secondary thread's task.) Not async-signal-safe.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::syscall::{Errno, Result};
use crate::threads::{Tid, monotonic_now};

/// The signal sent at the end of the limit.
const SIGNAL: i32 = libc::SIGSYS;

/// Duration of each sleep in nanoseconds: the watcher may notice the end that much later.
const STEP_NS: u64 = 5_000_000;

/// A running limit. At most one per process: guarded calls run one at a time.
#[derive(Debug)]
pub struct Deadline {
    watcher: libc::pthread_t,
}

/// The watched thread and its deadline.
struct Watched {
    victim: UnsafeCell<libc::pthread_t>,
    /// The deadline by the monotonic clock.
    until: UnsafeCell<u64>,
    over: AtomicU32,
}

// SAFETY: the cells are written before the watcher starts, and by nobody while it runs.
unsafe impl Sync for Watched {}

static WATCHED: Watched = Watched { victim: UnsafeCell::new(0), until: UnsafeCell::new(0), over: AtomicU32::new(0) };

impl Deadline {
    /// Starts a limit for the calling thread.
    ///
    /// The thread is interrupted after that time, and then again every second.
    pub fn start(_tid: Tid, milliseconds: u32) -> Result<Deadline> {
        let mut watcher: libc::pthread_t = 0;
        // SAFETY: no watcher runs; the values that `watch` reads don't change while it runs.
        let answer = unsafe {
            *WATCHED.victim.get() = libc::pthread_self();
            *WATCHED.until.get() = monotonic_now().saturating_add(u64::from(milliseconds).saturating_mul(1_000_000));
            WATCHED.over.store(0, Ordering::Release);
            libc::pthread_create(&raw mut watcher, core::ptr::null(), watch, core::ptr::null_mut())
        };
        if answer == 0 { Ok(Deadline { watcher }) } else { Err(Errno(answer)) }
    }

    /// Ends the limit.
    pub fn stop(self) {
        WATCHED.over.store(1, Ordering::Release);
        // SAFETY: a thread of ours that nobody else joins.
        unsafe { libc::pthread_join(self.watcher, core::ptr::null_mut()) };
    }
}

extern "C" fn watch(_: *mut c_void) -> *mut c_void {
    // SAFETY: written before this thread was created.
    let (victim, mut until) = unsafe { (*WATCHED.victim.get(), *WATCHED.until.get()) };
    while WATCHED.over.load(Ordering::Acquire) == 0 {
        let now = monotonic_now();
        if now >= until {
            // SAFETY: the victim joins this thread before it exits.
            unsafe { libc::pthread_kill(victim, SIGNAL) };
            until = now.saturating_add(1_000_000_000);
        }
        let time = libc::timespec { tv_sec: 0, tv_nsec: STEP_NS as libc::c_long };
        // SAFETY: reads one timespec.
        unsafe { libc::nanosleep(&raw const time, core::ptr::null_mut()) };
    }
    core::ptr::null_mut()
}

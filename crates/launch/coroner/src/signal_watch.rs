//! Takes back crash signals whose handlers are replaced after install, without a call by the app.
//!
//! A thread checks the signals twice soon after install, and then once a second. A child made by
//! fork inherits the handlers but not the thread. So the signals are also checked before each fork,
//! and the child gets its own thread when it first starts another one, or calls
//! [`after_fork`](crate::after_fork). A child without threads gets none: some system calls, such as
//! unshare(2), refuse a process with several threads.

use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{JoinHandle, park_timeout};
use std::time::Duration;

use crate::background_thread;
use crate::own_run;
use crate::scope::Scope;
use crate::signal_owners;
use crate::system::capture::call_before_creation;
use crate::system::process::threads::process_id;

/// Times before the first checks: libraries usually install their handlers early.
const FIRST: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];
/// Time between later checks.
const INTERVAL: Duration = Duration::from_secs(1);

/// ID of the process that has a watch thread; 0 if the signals aren't watched. A child made by fork
/// has another ID.
static WATCHED: AtomicI32 = AtomicI32::new(0);

/// Starts the watch thread, unless this process has one.
pub(crate) fn start() -> Option<JoinHandle<()>> {
    static FORKS: Once = Once::new();
    let pid = process_id();
    if WATCHED.swap(pid, Ordering::AcqRel) == pid {
        return None;
    }
    FORKS.call_once(|| {
        // Registered after the locks that are held over forks, so called before they are taken.
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
        // SAFETY: a function without requirements, which stays valid: `install` keeps its library
        // loaded.
        unsafe {
            libc::pthread_atfork(Some(before_fork), None, None)
        };
    });
    call_before_creation(Some(before_thread));
    let thread = background_thread::spawn("coroner-signals", move || watch(pid));
    thread.inspect_err(|error| log::warn!("coroner: can't start the thread that watches signals: {error}")).ok()
}

/// Starts the watch thread of a child made by fork, if its parent had one.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn continue_in_child() -> Option<JoinHandle<()>> {
    (WATCHED.load(Ordering::Acquire) != 0).then(start).flatten()
}

/// Ends the watch, and waits for the thread's end.
pub(crate) fn end(thread: Option<JoinHandle<()>>) {
    WATCHED.store(0, Ordering::Release);
    call_before_creation(None);
    if let Some(thread) = thread {
        thread.thread().unpark();
        let _ = thread.join();
    }
}

fn watch(pid: i32) {
    for wait in FIRST.into_iter().chain(std::iter::repeat(INTERVAL)) {
        park_timeout(wait);
        if WATCHED.load(Ordering::Acquire) != pid {
            return;
        }
        if let Some(state) = own_run::state() {
            Scope::new(state).note_signal_owners(None);
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
unsafe extern "C" fn before_fork() {
    if WATCHED.load(Ordering::Acquire) != 0 {
        signal_owners::look_before_fork();
    }
}

extern "C" fn before_thread() {
    let watched = WATCHED.load(Ordering::Acquire);
    if watched != 0 && watched != process_id() {
        drop(start());
    }
}

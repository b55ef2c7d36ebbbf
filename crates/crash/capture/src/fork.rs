//! A child made by fork: it must not write into its parent's run.
//!
//! The run state is a shared mapping, so the child replaces it by a private copy, at the same address, before the app goes on in
//! it. (A child made by vfork or a bare clone never comes by here; it shares its parent's memory, or runs an exec.) The report's
//! mapping stays shared; a child writes to the spare one alone, and only if it can make no run of its own.
//!
//! On Linux all else is found out when it matters: a child has another process id, and makes a run of its own when it crashes, or when it
//! goes on as an app does ([`crate::after_fork`]).
//! On macOS the child has neither Coroner's threads nor its ports (the kernel copies the *task's exception ports*, which lead to
//! the parent: it refuses what is not its own): its deaths are its own and leave no report. A sandboxed app on iOS can't fork,
//! so nothing of this is compiled there.

use core::sync::atomic::{AtomicBool, Ordering};

use coroner_process::files::make_private;

use crate::installed;
use crate::report_lock::REPORT_LOCK;

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers the child's handler (not async-signal-safe, once in a process).
pub(crate) fn prepare() {
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        #[cfg(target_vendor = "apple")]
        let before = None;
        #[cfg(not(target_vendor = "apple"))]
        let before: Option<unsafe extern "C" fn()> = Some(crate::os::parent_exit::before_fork);
        // SAFETY: the handlers are async-signal-safe, as the child of a process with threads needs.
        unsafe { libc::pthread_atfork(before, None, Some(in_child)) };
    }
}

/// Runs in the child, right after fork. A few system calls and a copy, no allocation.
unsafe extern "C" fn in_child() {
    REPORT_LOCK.forget_parent();
    if let Some(installed) = installed::get() {
        #[cfg(not(target_vendor = "apple"))]
        crate::os::parent_exit::note_fork(installed);
        let files = &installed.run.files;
        // SAFETY: the state's mapping, in a child right after fork.
        unsafe { make_private(files.state_address, files.state_size) };
    }
}

//! Fork handling: keeps a child made by fork from writing into its parent's run.
//!
//! The run state is a shared mapping, so the child replaces it by a private copy, at the same
//! address, before the app continues in it. (A child made by vfork or a bare clone never runs this
//! code; it shares its parent's memory, or calls exec.) The report's mapping stays shared; a child
//! writes only to the spare report, and only if it can't create its own run.
//!
//! On Linux, everything else is determined when it matters: a child has a different process ID, and
//! creates its own run when it crashes, or when it continues as an app ([`crate::after_fork`]). On
//! macOS the child has neither Coroner's threads nor its ports (the kernel copies the *task's
//! exception ports*, which lead to the parent: the parent refuses what isn't its own), so a child's
//! death leaves no report. A sandboxed app on iOS can't fork, so this module isn't compiled there.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::installed;
use crate::report_lock::REPORT_LOCK;

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers the child's handler (not async-signal-safe; once per process).
pub(crate) fn prepare() {
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        #[cfg(target_vendor = "apple")]
        let before = None;
        #[cfg(not(target_vendor = "apple"))]
        let before: Option<unsafe extern "C" fn()> = Some(crate::os::parent_exit::before_fork);
        // SAFETY: the handlers are async-signal-safe, as required in the child of a process with
        // threads.
        unsafe { libc::pthread_atfork(before, None, Some(in_child)) };
    }
}

/// Runs in the child, right after fork. A few system calls and a copy; no allocation.
unsafe extern "C" fn in_child() {
    REPORT_LOCK.forget_parent();
    if let Some(installed) = installed::get() {
        #[cfg(not(target_vendor = "apple"))]
        crate::os::parent_exit::note_fork(installed);
        // The file is the parent's.
        if let Some(mirror) = installed.run.mirror {
            mirror.close();
        }
    }
}

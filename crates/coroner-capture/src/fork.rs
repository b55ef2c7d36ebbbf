//! A child made by fork: it must not write into its parent's run.
//!
//! The run state is a shared mapping, so the child replaces it by a private copy, at the same address, before the app goes
//! on in it. (A child made by vfork or a bare clone never comes by here; it shares its parent's memory, or runs an exec.)
//!
//! On Linux all else is found out when it matters: a child has another process id, and makes a run of its own when it crashes.
//! On macOS the child has neither Coroner's threads nor its ports (the kernel copies the *task's exception ports*, which lead to
//! the parent: it refuses what is not its own): its deaths are its own and leave no report. A sandboxed app on iOS can't fork,
//! so nothing of this is compiled there.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::global;
use crate::os::files;

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers the child's handler (normal life, once in a process).
pub(crate) fn prepare() {
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler is async-signal-safe, as the child of a process with threads needs.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// Runs in the child, right after fork. One system call, no allocation.
unsafe extern "C" fn in_child() {
    if let Some(global) = global::get() {
        let run = &global.run;
        let _ = files::map_file(run.files.state, global.setup.state_size as usize, run.state_address, false);
    }
}

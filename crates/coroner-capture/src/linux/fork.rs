//! A child made by fork: it must not write into its parent's run.
//!
//! The run state is a shared mapping, so the child replaces it by a private copy, at the same address, before the app goes
//! on in it. All else is found out when it matters: a child has another process id, and makes a run of its own when it
//! crashes. (A child made by vfork or a bare clone never comes by here; it shares its parent's memory, or runs an exec.)

use core::sync::atomic::{AtomicBool, Ordering};

use super::files;
use crate::global;

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

//! A child made by fork: it must not write into its parent's run.
//!
//! The run state is a shared mapping, so the child replaces it by a private copy, at the same address, before the app goes
//! on in it. The child has neither Coroner's threads nor its ports (the kernel copies the *task's exception ports*, which lead
//! to the parent: it refuses what is not its own): its deaths are its own and leave no report. A sandboxed app on iOS can't
//! fork, so this is macOS's alone.

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

//! macOS, iOS and related systems: the system-specific parts of crash time. The other systems'
//! folders have the same interface, see `lib.rs`.
//!
//! Two threads of Coroner's own wait for exception messages. The **primary** one takes the task's
//! exceptions and writes the report; in the meantime, the crashing threads wait in the kernel, or
//! in their signal handler, which hands its crash over to the same thread
//! ([`handed_over_crashes`]). The **secondary** one takes only the primary thread's exceptions: it
//! recovers guarded loads, ends a section that faulted or hangs, and answers for a primary thread
//! that can't continue. So nothing of the crash path runs on a stack that may be full or with a
//! mask that may block.

pub(crate) mod crash_entry;
pub(crate) mod dispatch_queue;
pub(crate) mod handed_over_crashes;
pub(crate) mod image_encoding;
pub(crate) mod install;
pub(crate) mod mach_exception;
pub(crate) mod other_threads;
pub(crate) mod platform_state;
pub(crate) mod signal_death;
pub(crate) mod suspended_threads;
pub(crate) mod symbol_source;

//! macOS, iOS and their kin: what of crash time only they know. The other systems' folders have the same faces, see `lib.rs`.
//!
//! Two threads of Coroner's own wait for exception messages. The **primary** one takes the exceptions of the task and writes
//! the report; the threads that crash stand still in the kernel meanwhile, or in their signal handler, which hands its crash
//! over to the same thread ([`handed`]). The **secondary** one takes the exceptions of the primary thread alone: it makes
//! guarded loads good, ends a section that faulted or hangs, and answers for a primary thread that can't go on. So nothing of
//! the crash path runs on a stack that may be full or with a mask that may block.

pub(crate) mod action;
pub(crate) mod clock;
pub(crate) mod deadline;
pub(crate) mod facts;
pub(crate) mod files;
pub(crate) mod handed;
pub(crate) mod images;
pub(crate) mod install;
pub mod live;
pub(crate) mod machinery;
pub(crate) mod messages;
pub(crate) mod names;
pub(crate) mod others;
pub(crate) mod ports;
pub(crate) mod previous;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod threads;

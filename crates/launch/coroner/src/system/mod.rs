//! This crate's interface to crash time.
//!
//! On systems where faults are caught (`build.rs`), it re-exports the crash-time crates, otherwise
//! replacements that use the standard library.

#[cfg(supported)]
mod crash_time;
#[cfg(not(supported))]
mod portable;

#[cfg(supported)]
use crash_time as os;
#[cfg(not(supported))]
use portable as os;

pub(crate) use os::{Reason, Stack, begin_run, capture, process, walk};

//! This crate's interface to crash time, under one set of names.
//!
//! It consists of the crates that implement crash time or, where faults are not caught
//! (`build.rs`), replacements by the standard library.

#[cfg(supported)]
mod crash_time;
#[cfg(not(supported))]
mod portable;

#[cfg(supported)]
use crash_time as os;
#[cfg(not(supported))]
use portable as os;

pub(crate) use os::{Reason, Stack, begin_run, capture, process, walk};

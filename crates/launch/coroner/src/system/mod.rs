//! What this crate needs of crash time, under one set of names: the crates that have it, or, on systems where no fault is caught
//! (`build.rs`), what the standard library gives in their place.

#[cfg(supported)]
mod crash_time;
#[cfg(not(supported))]
mod portable;

#[cfg(supported)]
use crash_time as os;
#[cfg(not(supported))]
use portable as os;

pub(crate) use os::{Reason, Stack, begin_run, capture, process, walk};

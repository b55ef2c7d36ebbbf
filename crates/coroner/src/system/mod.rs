//! What this crate needs of crash time, under one set of names: the crates that have it, or, on systems where Coroner can't be installed
//! (`build.rs`), what stands in their place.

#[cfg(not(supported))]
mod unsupported;

#[cfg(supported)]
pub(crate) use {coroner_capture as capture, coroner_process as process, coroner_walk as walk};

#[cfg(not(supported))]
pub(crate) use unsupported::{capture, process, walk};

//! Linux and Android.

pub mod context;
pub(crate) mod files;
pub(crate) mod identity;
pub mod images;
pub(crate) mod memory;
mod proc;
pub mod signals;
pub mod stop_the_world;
pub mod syscall;
pub mod threads;
pub mod tracer;

/// The parsers of `/proc` for the fuzz targets, which have texts and no processes.
#[doc(hidden)]
pub mod proc_text {
    pub use super::identity::{Stat, parse_stat};
    pub use super::images::each_of_text as each_mapping;
    pub use super::threads::{blocked_by_status, is_worker_by_stat, number_of_syscall, state_of_stat};
}

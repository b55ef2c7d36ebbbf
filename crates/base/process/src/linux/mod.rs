//! Linux and Android.

pub mod abort_message;
mod access_check;
pub(crate) mod alternate_stack;
pub mod context;
pub mod deadline;
pub(crate) mod files;
pub(crate) mod identity;
pub mod images;
pub mod immediate_exit;
pub(crate) mod kernel_copy;
pub mod memory_tags;
pub mod memory_use;
pub mod mounts;
mod proc_files;
pub mod process;
#[cfg(interpose)]
mod pthread_create;
pub mod shared_handlers;
pub mod signal_frame;
pub mod signals;
pub mod stop_the_world;
pub mod syscall;
pub mod thread_stacks;
pub mod threads;
pub mod tracer;
pub mod vitals;

/// The `/proc` parsers for the fuzz targets, which have texts and no processes.
#[doc(hidden)]
pub mod proc_text {
    pub use super::identity::{Stat, parse_stat};
    pub use super::images::each_of_text as each_mapping;
    pub use super::threads::{is_worker_by_stat, state_of_stat};
}

//! Linux and Android: the system-specific parts of crash time. The other systems' folders have the
//! same interface, see `lib.rs`.

pub(crate) mod crash_entry;
pub mod finished_children;
pub(crate) mod image_encoding;
pub(crate) mod install;
pub(crate) mod other_threads;
pub(crate) mod parent_exit;
pub(crate) mod platform_state;
pub(crate) mod signal_death;
pub(crate) mod symbol_source;

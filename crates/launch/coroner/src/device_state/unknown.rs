//! Device state on other systems.
//!
//! Battery and heat are only available there from frameworks that an app need not link: the app can
//! set them (`set_context("device", …)`).

use super::Power;

pub(super) fn memory_free() -> Option<u64> {
    crate::system::process::memory_use::available()
}

pub(super) fn read() -> Power {
    Power::default()
}

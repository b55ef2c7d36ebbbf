//! Device state on other systems.
//!
//! Battery and thermal state are only available from frameworks that an app need not link. The app
//! can set them itself (`set_context("device", …)`).

use super::Power;

pub(super) fn memory_free() -> Option<u64> {
    crate::system::process::memory_use::available()
}

pub(super) fn read() -> Power {
    Power::default()
}

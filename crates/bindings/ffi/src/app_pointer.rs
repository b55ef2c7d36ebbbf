//! What the app wants to get back with each call of a function of its own.

use std::ffi::c_void;

/// A pointer of the app's, only handed back to it.
pub(crate) struct AppPointer(pub(crate) *mut c_void);

// SAFETY: nothing here looks at what it leads to; the app promises that its function can be called with it on any thread.
unsafe impl Send for AppPointer {}
// SAFETY: as above.
unsafe impl Sync for AppPointer {}

impl AppPointer {
    pub(crate) fn get(&self) -> *mut c_void {
        self.0
    }
}

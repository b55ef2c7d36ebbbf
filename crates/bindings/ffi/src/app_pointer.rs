//! An app's context pointer, passed back to the app's callbacks.

use std::ffi::c_void;

/// An opaque app pointer that is only passed back to the app.
pub(crate) struct AppPointer(pub(crate) *mut c_void);

// SAFETY: this crate never dereferences the pointer; the app promises that its function can be
// called with it on any thread.
unsafe impl Send for AppPointer {}
// SAFETY: as above.
unsafe impl Sync for AppPointer {}

impl AppPointer {
    pub(crate) fn get(&self) -> *mut c_void {
        self.0
    }
}

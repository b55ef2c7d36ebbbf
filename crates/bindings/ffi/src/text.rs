//! Texts from C.

use std::ffi::{CStr, c_char};

use crate::status::{Status, fail};

/// The text at `pointer`, which the caller names `what` in messages.
///
/// # Errors
/// It is null, or not UTF-8; both are noted for `coroner_last_error`.
///
/// # Safety
/// `pointer` is null or points to bytes that end with a NUL and stay as they are for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Status> {
    if pointer.is_null() {
        return Err(fail(Status::InvalidArgument, format!("`{what}` is NULL")));
    }
    // SAFETY: not null, and ends with a NUL as the caller promises.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|error| fail(Status::InvalidArgument, format!("`{what}` is not UTF-8: {error}")))
}

/// A text that may be null.
///
/// # Errors
/// It is not UTF-8.
///
/// # Safety
/// As of [`text`].
pub(crate) unsafe fn optional<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Status> {
    // SAFETY: as the caller promises.
    if pointer.is_null() { Ok(None) } else { unsafe { text(pointer, what) }.map(Some) }
}

//! Strings from C.

use std::ffi::{CStr, c_char};

use crate::status::{Status, fail};

/// Returns the string at `pointer`, which messages call `what`.
///
/// # Errors
/// [`Status::InvalidArgument`] if the pointer is null or the string is not UTF-8; the reason is
/// recorded for `coroner_last_error`.
///
/// # Safety
/// `pointer` must be null or point to a NUL-terminated string that doesn't change during `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Status> {
    if pointer.is_null() {
        return Err(fail(Status::InvalidArgument, format!("`{what}` is NULL")));
    }
    // SAFETY: not null, and NUL-terminated as the caller promises.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|error| fail(Status::InvalidArgument, format!("`{what}` is not UTF-8: {error}")))
}

/// Returns the string at `pointer`; `None` if it is null.
///
/// # Errors
/// [`Status::InvalidArgument`] if the string is not UTF-8.
///
/// # Safety
/// Same as [`text`].
pub(crate) unsafe fn optional<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Status> {
    // SAFETY: as the caller promises.
    if pointer.is_null() { Ok(None) } else { unsafe { text(pointer, what) }.map(Some) }
}

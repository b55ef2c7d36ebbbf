//! Status codes and error messages.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a call.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// An argument is out of range, not UTF-8, or NULL where it must not be.
    InvalidArgument = 1,
    /// Coroner is already installed in this process.
    AlreadyInstalled = 2,
    /// Coroner is not installed in this process.
    NotInstalled = 3,
    /// An operating system call failed.
    System = 4,
    /// A limit is reached, such as the run state's size.
    Full = 5,
    /// Timed out.
    TimedOut = 6,
    /// A bug in Coroner: a panic was caught before it could reach the app.
    Internal = 7,
}

thread_local! {
    /// The reason for this thread's last failed call.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Records why a call fails; returns its status.
pub(crate) fn fail(status: Status, reason: impl Into<Vec<u8>>) -> Status {
    let mut reason: Vec<u8> = reason.into();
    reason.retain(|byte| *byte != 0);
    let reason = CString::new(reason).unwrap_or_default();
    // While a thread exits, its thread-local variables may already be destroyed; nobody can read
    // the reason then.
    let _ = LAST_ERROR.try_with(|last| last.replace(reason));
    status
}

/// Runs the body of an API function; a panic in it becomes [`Status::Internal`].
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Status>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(status)) => status,
        Err(panic) => {
            let message = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            fail(Status::Internal, format!("bug in Coroner: {message}"))
        }
    }
}

/// Returns the reason for the last failed call on this thread. Never NULL; empty if no call failed.
///
/// Valid until the next call on this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of this library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn coroner_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The version of this header, to compare with the result of coroner_version.
pub const CORONER_VERSION_MAJOR: u32 = 0;
/// See CORONER_VERSION_MAJOR.
pub const CORONER_VERSION_MINOR: u32 = 1;
/// See CORONER_VERSION_MAJOR.
pub const CORONER_VERSION_PATCH: u32 = 0;

/// Whether `text` is the decimal representation of `number`.
const fn is_decimal_of(text: &str, number: u32) -> bool {
    matches!(u32::from_str_radix(text, 10), Ok(read) if read == number)
}
const _: () = assert!(is_decimal_of(env!("CARGO_PKG_VERSION_MAJOR"), CORONER_VERSION_MAJOR));
const _: () = assert!(is_decimal_of(env!("CARGO_PKG_VERSION_MINOR"), CORONER_VERSION_MINOR));
const _: () = assert!(is_decimal_of(env!("CARGO_PKG_VERSION_PATCH"), CORONER_VERSION_PATCH));

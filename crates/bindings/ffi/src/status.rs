//! How a call went, and why.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call went.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// An argument is NULL where it may not be, not UTF-8, or out of range.
    InvalidArgument = 1,
    /// Coroner is installed already, in this process.
    AlreadyInstalled = 2,
    /// Coroner is not installed in this process.
    NotInstalled = 3,
    /// The operating system refused something.
    System = 4,
    /// There is no room for it: a limit of the run state is reached.
    Full = 5,
    /// It did not come to its end in the time given.
    TimedOut = 6,
    /// A mistake in Coroner itself was stopped before it could reach the app.
    Internal = 7,
}

thread_local! {
    /// The reason of this thread's last failed call.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Notes why a call fails; returns the status for it.
pub(crate) fn fail(status: Status, reason: impl Into<Vec<u8>>) -> Status {
    let mut reason: Vec<u8> = reason.into();
    reason.retain(|byte| *byte != 0);
    let reason = CString::new(reason).unwrap_or_default();
    // At a thread's end its variables may be gone already; then there is nobody to read it either.
    let _ = LAST_ERROR.try_with(|last| last.replace(reason));
    status
}

/// Runs the body of a function of the ABI; a panic in it becomes [`Status::Internal`].
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
            fail(Status::Internal, format!("a mistake in Coroner: {message}"))
        }
    }
}

/// The reason, in words, why the last call on this thread that failed did. Never NULL; empty if none failed. It is valid
/// until the next call on this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The version of this library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn coroner_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The version of this header, to compare with what coroner_version returns.
pub const CORONER_VERSION_MAJOR: u32 = 0;
/// See CORONER_VERSION_MAJOR.
pub const CORONER_VERSION_MINOR: u32 = 1;
/// See CORONER_VERSION_MAJOR.
pub const CORONER_VERSION_PATCH: u32 = 0;

/// Whether `text` is that number in digits.
const fn is_written(text: &str, number: u32) -> bool {
    matches!(u32::from_str_radix(text, 10), Ok(read) if read == number)
}
const _: () = assert!(is_written(env!("CARGO_PKG_VERSION_MAJOR"), CORONER_VERSION_MAJOR));
const _: () = assert!(is_written(env!("CARGO_PKG_VERSION_MINOR"), CORONER_VERSION_MINOR));
const _: () = assert!(is_written(env!("CARGO_PKG_VERSION_PATCH"), CORONER_VERSION_PATCH));

//! Exceptions and errors that the app has handled.

use std::ffi::c_char;

use coroner::{HandledException, Language};

use crate::install::installed;
use crate::status::{Status, fail, guarded};
use crate::text::text;

/// The language of an exception.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceptionLanguage {
    /// C++.
    Cpp = 1,
    /// Objective-C.
    ObjC = 2,
    /// Rust.
    Rust = 3,
    /// Swift.
    Swift = 4,
}

/// Reports an exception that was handled: a report of all threads, as of a crash, with the calling thread's stack. The app goes
/// on. At most 16 in one run; CORONER_STATUS_FULL after that. `language` is one of coroner_exception_language; `message` may be
/// NULL.
///
/// # Safety
/// `kind` (the exception's type) is a text that ends with a NUL, `message` one or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_report_exception(
    language: i32,
    kind: *const c_char,
    message: *const c_char,
) -> Status {
    let registers = coroner::current_registers();
    guarded(|| {
        let Ok(language @ 1..=4) = u8::try_from(language) else {
            return Err(fail(Status::InvalidArgument, format!("{language} is no `coroner_exception_language`")));
        };
        // SAFETY: as the caller promises.
        let kind = unsafe { text(kind, "kind") }?;
        let message = if message.is_null() {
            ""
        } else {
            // SAFETY: not null, and a text as the caller promises.
            unsafe { text(message, "message") }?
        };
        installed()?;
        let handled = HandledException { language: Language(language), kind, message, location: None };
        if coroner::report_exception_above(&handled, &registers) {
            return Ok(());
        }
        Err(fail(Status::Full, "16 exceptions of this run are reported, or there is no space for another report"))
    })
}

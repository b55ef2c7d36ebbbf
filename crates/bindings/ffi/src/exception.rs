//! Exceptions and errors that the app has handled.

use std::ffi::c_char;

use coroner::{ForeignException, ForeignFrame, HandledException, Language};

use crate::install::installed;
use crate::status::{Status, fail, guarded};
use crate::text::{optional, text};

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
    /// JavaScript, for coroner_report_foreign_exception, as all below.
    Javascript = 6,
    /// C# and what else runs on .NET.
    Csharp = 7,
    /// Dart.
    Dart = 8,
    /// Lua.
    Lua = 9,
    /// Python.
    Python = 10,
    /// Ruby.
    Ruby = 11,
    /// PHP.
    Php = 12,
}

/// Reports an exception that was handled: a report of all threads, as of a crash, with the calling thread's stack. The app goes
/// on, and delivers the report within seconds. CORONER_STATUS_FULL if there are more in an hour than
/// coroner_config_set_reports_per_hour allows, or 16 wait; those are counted, and the next report says how many. `language` is one of coroner_exception_language up to Swift; `message` may be
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
            return Err(no_language(language));
        };
        // SAFETY: as the caller promises.
        let (kind, message) = unsafe { (text(kind, "kind")?, optional(message, "message")?) };
        let message = message.unwrap_or_default();
        installed()?;
        let handled = HandledException::new(Language(language), kind, message);
        if coroner::report_exception_above(&handled, &registers) {
            return Ok(());
        }
        Err(no_room())
    })
}

/// An error of a system that has domains and codes: `NSError`, or what Swift makes one of.
#[repr(C)]
#[derive(Debug)]
pub struct CodedError {
    /// Its domain, such as `NSCocoaErrorDomain`, or a type of Swift's: the exception's type.
    pub domain: *const c_char,
    /// Its code in that domain.
    pub code: i64,
    /// What it says of itself, or NULL.
    pub description: *const c_char,
}

/// Reports an error of Objective-C or Swift that was handled, with the errors below it as its causes: the first of `count` is the one that was handled, each other
/// one is the cause of the one before (`NSUnderlyingErrorKey`). At most eight are reported. As coroner_report_exception otherwise. `coroner_apple.h` has a function
/// that makes them of an `NSError`.
///
/// # Safety
/// `errors` points to `count` errors, whose domains are texts that end with a NUL, and whose descriptions are, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_report_coded_error(language: i32, errors: *const CodedError, count: usize) -> Status {
    let registers = coroner::current_registers();
    guarded(|| {
        let Ok(language @ (2 | 4)) = u8::try_from(language) else {
            return Err(no_language(language));
        };
        if errors.is_null() || count == 0 {
            return Err(fail(Status::InvalidArgument, "there are no `errors`"));
        }
        // SAFETY: not null, and so many as the caller promises.
        let given = unsafe { std::slice::from_raw_parts(errors, count) };
        let mut errors = Vec::with_capacity(count.min(8));
        for error in given.iter().take(8) {
            // SAFETY: as the caller promises.
            let (domain, description) =
                unsafe { (text(error.domain, "domain")?, optional(error.description, "description")?) };
            let description = description.unwrap_or_default();
            errors.push(coroner::CodedError::new(domain, error.code, description));
        }
        installed()?;
        if coroner::report_coded_error_above(Language(language), &errors, &registers) { Ok(()) } else { Err(no_room()) }
    })
}

/// A frame of an exception of a language whose runtime walks its own stacks.
#[repr(C)]
#[derive(Debug)]
pub struct ExceptionFrame {
    /// The function; may be NULL.
    pub function: *const c_char,
    /// Its source file, or NULL.
    pub file: *const c_char,
    /// The line in it, from 1; 0 where it is not known.
    pub line: u32,
    /// The column, from 1; 0 where it is not known.
    pub column: u32,
    /// Whether it is the app's own code, and not that of the runtime or a library.
    pub in_app: bool,
}

/// Reports an exception of JavaScript, C#, Dart, Lua, Python, Ruby or PHP with the `count` frames that its runtime has, innermost first, and the native stack of
/// the calling thread. With `all_threads` the other threads stand still for some milliseconds, and their stacks are in the report.
///
/// With `fatal` the process ends of it: the caller has it ended afterwards. Otherwise the app goes on as after coroner_report_exception, with
/// the same limits. CORONER_STATUS_FULL where there is no report. `message` may be NULL.
///
/// # Safety
/// `kind` (the exception's type) is a text that ends with a NUL, `message` one or NULL. `frames` points to `count` frames, whose texts
/// end with a NUL or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_report_foreign_exception(
    language: i32,
    kind: *const c_char,
    message: *const c_char,
    frames: *const ExceptionFrame,
    count: usize,
    all_threads: bool,
    fatal: bool,
) -> Status {
    let registers = coroner::current_registers();
    guarded(|| {
        let Ok(language @ 6..=12) = u8::try_from(language) else {
            return Err(no_language(language));
        };
        // SAFETY: as the caller promises.
        let (kind, message) = unsafe { (text(kind, "kind")?, optional(message, "message")?) };
        let given = match (frames.is_null(), count) {
            (_, 0) => &[][..],
            (true, _) => return Err(fail(Status::InvalidArgument, "`frames` is NULL")),
            // SAFETY: not null, and so many as the caller promises.
            (false, count) => unsafe { std::slice::from_raw_parts(frames, count) },
        };
        let mut frames = Vec::with_capacity(count);
        for frame in given {
            // SAFETY: as the caller promises.
            let (function, file) = unsafe { (optional(frame.function, "function")?, optional(frame.file, "file")?) };
            let mut said = ForeignFrame::new(function.unwrap_or_default()).in_app(frame.in_app);
            said.file = file;
            said.line = Some(frame.line).filter(|line| *line > 0);
            said.column = Some(frame.column).filter(|column| *column > 0);
            frames.push(said);
        }
        installed()?;
        let thrown = ForeignException::new(Language(language), kind, message.unwrap_or_default(), &frames);
        let thrown = thrown.all_threads(all_threads).fatal(fatal);
        if coroner::report_foreign_exception_above(&thrown, &registers) { Ok(()) } else { Err(no_room()) }
    })
}

fn no_language(language: i32) -> Status {
    fail(Status::InvalidArgument, format!("{language} is no `coroner_exception_language` of this function"))
}

fn no_room() -> Status {
    fail(
        Status::Full,
        "as many exceptions were reported as an hour may have, 16 wait, or there is no space for another report",
    )
}

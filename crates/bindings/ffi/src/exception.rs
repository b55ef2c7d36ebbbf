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
    /// JavaScript. This and the following are for coroner_report_foreign_exception.
    Javascript = 6,
    /// C# and other .NET languages.
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

/// An [`ExceptionLanguage`] from C, which may pass any number. The header declares it as the enum.
pub type ExceptionLanguageArgument = i32;

/// Reports a handled exception, with the stacks of all threads as in a crash report.
///
/// The app continues and delivers the report within seconds. `language` is C++, Objective-C, Rust
/// or Swift; `kind` is the exception's type; `message` may be NULL.
///
/// Returns CORONER_STATUS_FULL if coroner_config_set_reports_per_hour is exceeded or 16 reports are
/// waiting. Dropped reports are counted, and the next report contains their number.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_report_exception(
    language: ExceptionLanguageArgument,
    kind: *const c_char,
    message: *const c_char,
) -> Status {
    let registers = coroner::current_registers();
    guarded(|| {
        let Ok(language @ 1..=4) = u8::try_from(language) else {
            return Err(reject_language(language));
        };
        // SAFETY: as the caller promises.
        let (kind, message) = unsafe { (text(kind, "kind")?, optional(message, "message")?) };
        let message = message.unwrap_or_default();
        installed()?;
        let handled = HandledException::new(Language(language), kind, message);
        if coroner::report_exception_above(&handled, &registers) {
            return Ok(());
        }
        Err(no_report_written())
    })
}

/// An error with a domain and a code: an `NSError`, or a Swift error bridged to one.
#[repr(C)]
#[derive(Debug)]
pub struct CodedError {
    /// The domain, such as `NSCocoaErrorDomain`, or a Swift type. It becomes the exception's type.
    pub domain: *const c_char,
    /// The code in that domain.
    pub code: i64,
    /// The error's description, or NULL.
    pub description: *const c_char,
}

/// Reports a handled Objective-C or Swift error, with its underlying errors as causes.
///
/// The first of the `count` errors is the handled one; each other is the cause of the one before it
/// (`NSUnderlyingErrorKey`). At most eight are reported. `language` is Objective-C or Swift.
/// Otherwise like coroner_report_exception. coroner_report_nserror in coroner_apple.h converts an
/// `NSError`.
///
/// # Safety
/// `errors` must point to `count` errors: domains are strings, descriptions strings or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_report_coded_error(
    language: ExceptionLanguageArgument,
    errors: *const CodedError,
    count: usize,
) -> Status {
    let registers = coroner::current_registers();
    guarded(|| {
        let Ok(language @ (2 | 4)) = u8::try_from(language) else {
            return Err(reject_language(language));
        };
        if errors.is_null() || count == 0 {
            return Err(fail(Status::InvalidArgument, "`errors` is NULL or empty"));
        }
        // SAFETY: not null, and `count` elements, as the caller promises.
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
        if coroner::report_coded_error_above(Language(language), &errors, &registers) {
            Ok(())
        } else {
            Err(no_report_written())
        }
    })
}

/// A frame of an exception in a language whose runtime walks its own stack.
#[repr(C)]
#[derive(Debug)]
pub struct ExceptionFrame {
    /// The function, or NULL.
    pub function: *const c_char,
    /// The function's source file, or NULL.
    pub file: *const c_char,
    /// The line in the file, from 1; 0 if unknown.
    pub line: u32,
    /// The column, from 1; 0 if unknown.
    pub column: u32,
    /// Whether the frame is the app's own code rather than the runtime's or a library's.
    pub in_app: bool,
}

/// Reports an exception of JavaScript, C#, Dart, Lua, Python, Ruby or PHP.
///
/// `frames` are the runtime's `count` frames, innermost first; the report also has the calling
/// thread's native stack. With `all_threads` the other threads are stopped for some milliseconds,
/// and the report contains their stacks. `kind` is the exception's type; `message` may be NULL.
///
/// Set `fatal` if the caller is going to end the process because of the exception. Otherwise the
/// app continues as after coroner_report_exception, with the same limits. Returns
/// CORONER_STATUS_FULL if no report was written.
///
/// # Safety
/// `frames` must point to `count` frames, whose strings may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_report_foreign_exception(
    language: ExceptionLanguageArgument,
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
            return Err(reject_language(language));
        };
        // SAFETY: as the caller promises.
        let (kind, message) = unsafe { (text(kind, "kind")?, optional(message, "message")?) };
        let given = match (frames.is_null(), count) {
            (_, 0) => &[][..],
            (true, _) => return Err(fail(Status::InvalidArgument, "`frames` is NULL")),
            // SAFETY: not null, and `count` elements, as the caller promises.
            (false, count) => unsafe { std::slice::from_raw_parts(frames, count) },
        };
        let mut frames = Vec::with_capacity(count);
        for frame in given {
            // SAFETY: as the caller promises.
            let (function, file) = unsafe { (optional(frame.function, "function")?, optional(frame.file, "file")?) };
            let mut converted = ForeignFrame::new(function.unwrap_or_default()).in_app(frame.in_app);
            converted.file = file;
            converted.line = Some(frame.line).filter(|line| *line > 0);
            converted.column = Some(frame.column).filter(|column| *column > 0);
            frames.push(converted);
        }
        installed()?;
        let thrown = ForeignException::new(Language(language), kind, message.unwrap_or_default(), &frames);
        let thrown = thrown.all_threads(all_threads).fatal(fatal);
        if coroner::report_foreign_exception_above(&thrown, &registers) { Ok(()) } else { Err(no_report_written()) }
    })
}

fn reject_language(language: ExceptionLanguageArgument) -> Status {
    fail(
        Status::InvalidArgument,
        format!("invalid `language` {language}: not a coroner_exception_language that this function accepts"),
    )
}

fn no_report_written() -> Status {
    fail(
        Status::Full,
        "can't report the exception: the hourly limit is reached, 16 reports are waiting, or there is no space left",
    )
}

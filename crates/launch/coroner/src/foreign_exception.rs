//! Exceptions of languages whose runtimes walk their own stacks.
//!
//! These are JavaScript, C#, Dart, Lua, Python, Ruby and PHP. Their exceptions are reported with
//! the runtime's frames as text ([`frame_text`](crate::frame_text)).

use coroner_process::registers::Registers;
use coroner_report::wire::{Exception, Language, Monitor};
use serde::Serialize;

use crate::exception::current_registers;
use crate::frame_text::lines;
use crate::own_run;
use crate::system::capture::exception::{self, Ending, Threads};

/// An exception of a language with its own runtime, for [`report_foreign_exception`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ForeignException<'a> {
    /// The exception's language.
    pub language: Language,
    /// The exception's type, such as `TypeError`.
    pub kind: &'a str,
    /// The exception's message; may be empty.
    pub message: &'a str,
    /// The exception's stack from the runtime, innermost frame first.
    pub frames: &'a [ForeignFrame<'a>],
    /// Whether the report contains the other threads' native stacks.
    ///
    /// These threads are stopped for a few milliseconds.
    pub all_threads: bool,
    /// Whether the exception ends the process.
    ///
    /// The caller then ends the process, as the runtime does.
    pub fatal: bool,
}

impl<'a> ForeignException<'a> {
    /// Creates a non-fatal exception, without the native stacks of other threads.
    pub fn new(language: Language, kind: &'a str, message: &'a str, frames: &'a [ForeignFrame<'a>]) -> Self {
        Self { language, kind, message, frames, all_threads: false, fatal: false }
    }

    /// Sets whether to include the other threads' native stacks.
    ///
    /// These threads are stopped for a few milliseconds.
    #[must_use]
    pub fn all_threads(self, all_threads: bool) -> Self {
        Self { all_threads, ..self }
    }

    /// Sets whether the exception ends the process.
    ///
    /// The caller then ends the process, as the runtime does.
    #[must_use]
    pub fn fatal(self, fatal: bool) -> Self {
        Self { fatal, ..self }
    }
}

/// A frame of a [`ForeignException`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForeignFrame<'a> {
    /// The function's name; may be empty.
    pub function: &'a str,
    /// The source file, if known.
    pub file: Option<&'a str>,
    /// The line, from 1, if known.
    pub line: Option<u32>,
    /// The column, from 1, if known.
    pub column: Option<u32>,
    /// Whether the frame is the app's own code rather than the runtime's or a library's.
    pub in_app: bool,
}

impl<'a> ForeignFrame<'a> {
    /// Creates a frame in a runtime or a library. The function's name may be empty.
    pub fn new(function: &'a str) -> Self {
        Self { function, ..Self::default() }
    }

    /// Sets the source file.
    #[must_use]
    pub fn file(self, file: &'a str) -> Self {
        Self { file: Some(file), ..self }
    }

    /// Sets the line, from 1.
    #[must_use]
    pub fn line(self, line: u32) -> Self {
        Self { line: Some(line), ..self }
    }

    /// Sets the column, from 1.
    #[must_use]
    pub fn column(self, column: u32) -> Self {
        Self { column: Some(column), ..self }
    }

    /// Sets whether the frame is the app's own code.
    #[must_use]
    pub fn in_app(self, in_app: bool) -> Self {
        Self { in_app, ..self }
    }
}

/// Reports an exception of another language that its runtime caught, or that ends the process.
///
/// The report is like a crash's, with the exception's frames and the native stacks. If it is not
/// fatal, the app continues, and the report is delivered like one of
/// [`report_exception`](crate::report_exception).
///
/// Returns `false` if no report was written: Coroner is not installed, this thread is already
/// dying, or, for a non-fatal exception,
/// [`Limits::reports_per_hour`](crate::Limits::reports_per_hour) is exceeded.
///
/// ```no_run
/// use coroner::{ForeignException, ForeignFrame, Language};
///
/// let frame = |function, line| ForeignFrame::new(function).file("cart.js").line(line).in_app(true);
/// let frames = [frame("total", 41), frame("checkout", 12)];
/// let thrown = ForeignException::new(Language::JAVASCRIPT, "TypeError", "cart is undefined", &frames);
/// coroner::report_foreign_exception(&thrown);
/// ```
#[inline(never)]
pub fn report_foreign_exception(thrown: &ForeignException<'_>) -> bool {
    report_foreign_exception_above(thrown, &current_registers())
}

/// Reports an exception for bindings, like
/// [`report_exception_above`](crate::report_exception_above).
#[doc(hidden)]
pub fn report_foreign_exception_above(thrown: &ForeignException<'_>, registers: &Registers) -> bool {
    let frames = lines(thrown.frames);
    let exception = Exception {
        language: thrown.language,
        type_name: Some(thrown.kind.as_bytes()),
        message: Some(thrown.message.as_bytes()).filter(|message| !message.is_empty()),
        tid: crate::system::process::threads::this_thread() as u64,
        location: None,
        frames: &[],
        user_info: Some(frames.as_bytes()),
    };
    let threads = if thrown.all_threads { Threads::AsInstalled } else { Threads::This };
    let ending = if thrown.fatal { Ending::Fatal } else { Ending::NonFatal };
    let reported = exception::report_with(threads, registers, Monitor::USER, &[exception], ending);
    if reported && !thrown.fatal {
        own_run::survived_error();
    }
    reported
}

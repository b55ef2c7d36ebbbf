//! Reports of exceptions and errors that the app handled, and of managed runtimes' uncaught ones.

use std::error::Error;
use std::fmt::Write;

use coroner_process::registers::Registers;
use coroner_report::wire::{Exception, Monitor};

pub use coroner_report::wire::Language;

use crate::own_run;
use crate::system::Stack;
use crate::system::capture::exception::{self, Ending};

/// A handled exception of any language, for [`report_exception`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct HandledException<'a> {
    /// The exception's language.
    pub language: Language,
    /// The exception's type, such as `std::runtime_error`.
    pub kind: &'a str,
    /// The exception's message; may be empty.
    pub message: &'a str,
    /// The exception's origin as `file:line:column`, if known.
    pub location: Option<&'a str>,
}

impl<'a> HandledException<'a> {
    /// Creates an exception with this language, type and message.
    pub fn new(language: Language, kind: &'a str, message: &'a str) -> Self {
        Self { language, kind, message, location: None }
    }

    /// Sets the exception's origin as `file:line:column`.
    #[must_use]
    pub fn location(self, location: &'a str) -> Self {
        Self { location: Some(location), ..self }
    }
}

/// Reports a handled exception.
///
/// The report contains all threads, as for a crash, and the calling thread's stack as the
/// exception's. The app continues; all threads stop for a few milliseconds. The report is delivered
/// within seconds by this process, or by the next launch.
///
/// Returns `false` if no report was written: Coroner is not installed,
/// [`Limits::reports_per_hour`](crate::Limits::reports_per_hour) is exceeded, or 16 reports are
/// waiting for delivery. Dropped reports are counted, and the next report contains their number.
///
/// ```no_run
/// use coroner::{HandledException, Language};
///
/// let exception = HandledException::new(Language::CPP, "shop::ClosedError", "the shop is closed");
/// coroner::report_exception(&exception.location("shop.cpp:41"));
/// ```
#[inline(never)]
pub fn report_exception(handled: &HandledException<'_>) -> bool {
    report_exception_above(handled, &current_registers())
}

/// Reports a handled exception for bindings, whose own frames should not be in the stack either.
///
/// The stack begins at the caller of the function that `registers` were captured in
/// ([`current_registers`]).
#[doc(hidden)]
pub fn report_exception_above(handled: &HandledException<'_>, registers: &Registers) -> bool {
    let stack = Stack::above(registers);
    survive(registers, &[wire(handled, Some(&stack))])
}

/// Writes a non-fatal report and starts its delivery. Returns whether it was written.
fn survive(registers: &Registers, exceptions: &[Exception<'_>]) -> bool {
    let reported = exception::report(registers, Monitor::USER, exceptions, Ending::NonFatal);
    if reported {
        own_run::survived_error();
    }
    reported
}

#[doc(hidden)]
pub use crate::system::walk::current_registers;

/// Reports a handled error with its [sources](Error::source) as its causes, up to eight errors.
///
/// Otherwise like [`report_exception`]. The exception's type is `E`. For a `&dyn Error` and for
/// causes, it is the type name at the beginning of the error's [`Debug`](std::fmt::Debug) text
/// (`Os` for an `std::io::Error`), or `Error` if the text doesn't begin with one.
///
/// ```no_run
/// # fn save() -> std::io::Result<()> { Ok(()) }
/// if let Err(error) = save() {
///     coroner::report_error(&error);
/// }
/// ```
#[inline(never)]
pub fn report_error<E: Error + ?Sized>(error: &E) -> bool {
    let kind = std::any::type_name::<E>();
    let registers = current_registers();
    let kind = if kind.starts_with("dyn ") { name_in_debug(&error) } else { kind.to_owned() };
    let mut texts = vec![(kind, error.to_string())];
    let mut source = error.source();
    while let Some(cause) = source.filter(|_| texts.len() < 8) {
        texts.push((name_in_debug(&cause), cause.to_string()));
        source = cause.source();
    }
    let stack = Stack::above(&registers);
    let all: Vec<Exception<'_>> = texts
        .iter()
        .enumerate()
        .map(|(index, (kind, message))| {
            let handled = HandledException { language: Language::RUST, kind, message, location: None };
            wire(&handled, (index == 0).then_some(&stack))
        })
        .collect();
    survive(&registers, &all)
}

/// An error with a domain and a code, for [`report_coded_error`].
///
/// This is an `NSError`, or a Swift error converted to one.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct CodedError<'a> {
    /// The error's domain, such as `NSCocoaErrorDomain`, or a Swift type.
    ///
    /// It becomes the exception's type.
    pub domain: &'a str,
    /// The error's code in that domain.
    pub code: i64,
    /// The error's description; may be empty.
    pub description: &'a str,
}

impl<'a> CodedError<'a> {
    /// Creates an error with this domain, code and description, which may be empty.
    pub fn new(domain: &'a str, code: i64, description: &'a str) -> Self {
        Self { domain, code, description }
    }

    /// Formats the message as sentry-cocoa does.
    fn message(&self) -> String {
        match self.description {
            "" => format!("Code: {}", self.code),
            description => format!("{description} (Code: {})", self.code),
        }
    }
}

/// Reports a handled error of Objective-C or Swift with its underlying errors as its causes.
///
/// At most eight errors are reported. Each element of `errors` is the cause of the one before it.
/// Returns `false` if `errors` is empty. Otherwise like [`report_exception`].
///
/// ```no_run
/// let file = coroner::CodedError::new("NSCocoaErrorDomain", 257, "The file couldn’t be opened.");
/// let system = coroner::CodedError::new("NSPOSIXErrorDomain", 13, "");
/// coroner::report_coded_error(coroner::Language::OBJC, &[file, system]);
/// ```
#[inline(never)]
pub fn report_coded_error(language: Language, errors: &[CodedError<'_>]) -> bool {
    report_coded_error_above(language, errors, &current_registers())
}

/// Reports an error for bindings, like [`report_exception_above`].
#[doc(hidden)]
pub fn report_coded_error_above(language: Language, errors: &[CodedError<'_>], registers: &Registers) -> bool {
    let messages: Vec<String> = errors.iter().take(8).map(CodedError::message).collect();
    let stack = Stack::above(registers);
    let chain = errors.iter().zip(&messages).enumerate().map(|(index, (error, message))| {
        let handled = HandledException { language, kind: error.domain, message, location: None };
        wire(&handled, (index == 0).then_some(&stack))
    });
    let chain: Vec<Exception<'_>> = chain.collect();
    !chain.is_empty() && survive(registers, &chain)
}

/// Returns the type name at the beginning of a derived `Debug` text: a camel-case word followed
/// by nothing or by fields. Formats no more of the text than that.
fn name_in_debug(value: &dyn std::fmt::Debug) -> String {
    struct Beginning(String);
    impl Write for Beginning {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.push_str(text);
            // An error ends the formatting: the rest may be long.
            if self.0.len() > 100 { Err(std::fmt::Error) } else { Ok(()) }
        }
    }
    let mut beginning = Beginning(String::new());
    let _ = write!(beginning, "{value:?}");
    let text = beginning.0;
    let end = text.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let is_name = name.starts_with(|letter: char| letter.is_ascii_uppercase()) && name.len() <= 64;
    let is_end = rest.is_empty() || rest.starts_with('(') || rest.starts_with(" {");
    if is_name && is_end { name.to_owned() } else { "Error".to_owned() }
}

/// A Java exception, for [`report_uncaught_exception`] and [`report_managed_exception`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ManagedException<'a> {
    /// The exception's type, such as `java.lang.IllegalStateException`.
    pub kind: &'a str,
    /// The exception's message; may be empty.
    pub message: &'a str,
    /// The exception's stack trace with its causes, as written by `Throwable.printStackTrace`.
    pub stack_trace: &'a str,
}

impl<'a> ManagedException<'a> {
    /// Creates an exception with this type, message and stack trace.
    pub fn new(kind: &'a str, message: &'a str, stack_trace: &'a str) -> Self {
        Self { kind, message, stack_trace }
    }
}

/// Maximum length of a stack trace in a report, in bytes.
const MAX_STACK_TRACE: usize = 24 << 10;

/// Reports an uncaught Java exception.
///
/// Call it on the thread that threw the exception, just before its runtime ends the process. The
/// report contains all threads with their native stacks, as for a crash, and the exception with its
/// stack trace's frames.
///
/// Returns `false` if no report was written: Coroner is not installed, or this thread is already
/// dying.
#[inline(never)]
pub fn report_uncaught_exception(exception: &ManagedException<'_>) -> bool {
    exception::report(&current_registers(), Monitor::USER, &[managed(exception)], Ending::Fatal)
}

/// Reports a handled Java exception with its stack trace's frames.
///
/// Otherwise like [`report_exception`].
#[inline(never)]
pub fn report_managed_exception(exception: &ManagedException<'_>) -> bool {
    survive(&current_registers(), &[managed(exception)])
}

fn managed<'a>(exception: &ManagedException<'a>) -> Exception<'a> {
    let ManagedException { kind, message, stack_trace } = *exception;
    let handled = HandledException { language: Language::JAVA, kind, message, location: None };
    let mut end = stack_trace.len().min(MAX_STACK_TRACE);
    while !stack_trace.is_char_boundary(end) {
        end -= 1;
    }
    Exception { user_info: Some(&stack_trace.as_bytes()[..end]), ..wire(&handled, None) }
}

fn wire<'a>(handled: &HandledException<'a>, stack: Option<&'a Stack>) -> Exception<'a> {
    Exception {
        language: handled.language,
        type_name: Some(handled.kind.as_bytes()),
        message: Some(handled.message.as_bytes()).filter(|message| !message.is_empty()),
        tid: crate::system::process::threads::this_thread() as u64,
        location: handled.location.map(str::as_bytes),
        frames: stack.map(Stack::frames).unwrap_or_default(),
        user_info: stack.and_then(Stack::text),
    }
}

#[cfg(test)]
mod tests;

//! Exceptions and errors that the app has handled and wants to know of: a report of them, while the app goes on.

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
    /// The language whose exception it is.
    pub language: Language,
    /// Its type, such as `std::runtime_error`.
    pub kind: &'a str,
    /// What it says of itself; may be empty.
    pub message: &'a str,
    /// Where it is from, as `file:line:column`, if that is known.
    pub location: Option<&'a str>,
}

impl<'a> HandledException<'a> {
    /// An exception of that language, type and message.
    pub fn new(language: Language, kind: &'a str, message: &'a str) -> Self {
        Self { language, kind, message, location: None }
    }

    /// Where it is from, as `file:line:column`.
    #[must_use]
    pub fn location(self, location: &'a str) -> Self {
        Self { location: Some(location), ..self }
    }
}

/// Reports an exception that was handled: a report of all threads, as of a crash, with the calling thread's stack as the
/// exception's. The app goes on; all threads stand still for some milliseconds. The report is delivered within seconds by this process, or by the next launch.
///
/// `false` if there is no report: Coroner is not installed, there are more than
/// [`Limits::reports_per_hour`](crate::Limits::reports_per_hour) allows, or 16 wait for their delivery. Those that are left out are
/// counted, and the next report says how many.
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

/// For bindings, whose own frames are not to be in the stack either: reports with the stack of the caller of the function that
/// `registers` are of ([`current_registers`]).
#[doc(hidden)]
pub fn report_exception_above(handled: &HandledException<'_>, registers: &Registers) -> bool {
    let stack = Stack::above(registers);
    survive(registers, &[wire(handled, Some(&stack))])
}

/// Writes the report of what was handled, and has it delivered.
fn survive(registers: &Registers, exceptions: &[Exception<'_>]) -> bool {
    let reported = exception::report(registers, Monitor::USER, exceptions, Ending::NonFatal);
    if reported {
        own_run::survived();
    }
    reported
}

#[doc(hidden)]
pub use crate::system::walk::current_registers;

/// Reports an error that was handled, with its [sources](Error::source) as its causes, up to eight. Like [`report_exception`].
///
/// The type is that of the reference. Of a `&dyn Error`, and of the causes, it is the one whose name the error's [`Debug`](std::fmt::Debug)
/// text begins with (`Os` of an `std::io::Error`), if it does so, else `Error`.
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

/// An error of a system that has domains and codes, for [`report_coded_error`]: `NSError`, or what Swift makes one of.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct CodedError<'a> {
    /// Its domain, such as `NSCocoaErrorDomain`, or a type of Swift's: the exception's type.
    pub domain: &'a str,
    /// Its code in that domain.
    pub code: i64,
    /// What it says of itself; may be empty.
    pub description: &'a str,
}

impl<'a> CodedError<'a> {
    /// An error of that domain and code; what it says of itself may be empty.
    pub fn new(domain: &'a str, code: i64, description: &'a str) -> Self {
        Self { domain, code, description }
    }

    /// As sentry-cocoa writes it.
    fn message(&self) -> String {
        match self.description {
            "" => format!("Code: {}", self.code),
            description => format!("{description} (Code: {})", self.code),
        }
    }
}

/// Reports an error that was handled, with the errors below it as its causes, each that of the one before, up to eight. `language` is Objective-C or
/// Swift. Like [`report_exception`]; nothing is reported of no error.
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

/// For bindings, as [`report_exception_above`].
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

/// The name with which a derived `Debug` begins: a word in camel case, and then nothing or its fields. No more than that is written.
fn name_in_debug(value: &dyn std::fmt::Debug) -> String {
    struct Beginning(String);
    impl Write for Beginning {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.push_str(text);
            // An error ends the writing: what follows may be long.
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

/// An exception of a managed runtime, such as Java's, for [`report_uncaught_exception`] and [`report_managed_exception`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ManagedException<'a> {
    /// Its type, such as `java.lang.IllegalStateException`.
    pub kind: &'a str,
    /// What it says of itself; may be empty.
    pub message: &'a str,
    /// Its stack trace with its causes, as `Throwable.printStackTrace` writes it.
    pub stack_trace: &'a str,
}

impl<'a> ManagedException<'a> {
    /// An exception of that type and message, with its stack trace.
    pub fn new(kind: &'a str, message: &'a str, stack_trace: &'a str) -> Self {
        Self { kind, message, stack_trace }
    }
}

/// The longest stack trace that fits into a report, in bytes.
const MAX_STACK_TRACE: usize = 24 << 10;

/// Reports an exception of Java that nobody caught, on the thread that threw it, just before its runtime ends the process: a report of all
/// threads with their native stacks, as of a crash, and the exception with the frames of its stack trace.
///
/// `false` if there is no report: Coroner is not installed, or this thread is dying already.
#[inline(never)]
pub fn report_uncaught_exception(exception: &ManagedException<'_>) -> bool {
    exception::report(&current_registers(), Monitor::USER, &[managed(exception)], Ending::Fatal)
}

/// Reports an exception of Java that the app has handled, with the frames of its stack trace. Otherwise like [`report_exception`].
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

//! Exceptions and errors that the app has handled and wants to know of: a report of them, while the app goes on.

use std::error::Error;

use coroner_capture::exception::{self, Ending};
use coroner_process::registers::Registers;
use coroner_report::wire::{AddressKind, Exception, FoundBy, Frame, Monitor};

pub use coroner_report::wire::Language;

use crate::backtrace::Backtrace;

/// A handled exception of any language, for [`report_exception`].
#[derive(Debug, Clone, Copy)]
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

/// Reports an exception that was handled: a report of all threads, as of a crash, with the calling thread's stack as the
/// exception's. The app goes on; all threads stand still for some milliseconds. The report is delivered at the next launch.
///
/// `false` if there is no report: Coroner is not installed, or 16 of this run were written already, which is the most.
///
/// ```no_run
/// let exception = coroner::HandledException {
///     language: coroner::Language::CPP,
///     kind: "shop::ClosedError",
///     message: "the shop is closed",
///     location: None,
/// };
/// coroner::report_exception(&exception);
/// ```
#[inline(never)]
pub fn report_exception(handled: &HandledException<'_>) -> bool {
    report_exception_above(handled, &current_registers())
}

/// For bindings, whose own frames are not to be in the stack either: reports with the stack of the caller of the function that
/// `registers` are of ([`current_registers`]).
#[doc(hidden)]
pub fn report_exception_above(handled: &HandledException<'_>, registers: &Registers) -> bool {
    let frames = frames_above(registers);
    exception::report(registers, Monitor::USER, &[wire(handled, &frames)], Ending::NonFatal)
}

#[doc(hidden)]
pub use coroner_walk::current_registers;

/// Reports an error that was handled, with its [sources](Error::source) as its causes, up to eight. Like [`report_exception`].
///
/// The type is that of the reference: of a `&dyn Error` it can't be known.
#[inline(never)]
pub fn report_error<E: Error + ?Sized>(error: &E) -> bool {
    let kind = std::any::type_name::<E>();
    let registers = current_registers();
    let mut texts = vec![(kind, error.to_string())];
    let mut source = error.source();
    while let Some(cause) = source.filter(|_| texts.len() < 8) {
        texts.push(("cause", cause.to_string()));
        source = cause.source();
    }
    let frames = frames_above(&registers);
    let all: Vec<Exception<'_>> = texts
        .iter()
        .enumerate()
        .map(|(index, (kind, message))| {
            let handled = HandledException { language: Language::RUST, kind, message, location: None };
            wire(&handled, if index == 0 { &frames } else { &[] })
        })
        .collect();
    exception::report(&registers, Monitor::USER, &all, Ending::NonFatal)
}

fn wire<'a>(handled: &HandledException<'a>, frames: &'a [Frame]) -> Exception<'a> {
    Exception {
        language: handled.language,
        type_name: Some(handled.kind.as_bytes()),
        message: Some(handled.message.as_bytes()).filter(|message| !message.is_empty()),
        tid: coroner_process::threads::this_thread() as u64,
        location: handled.location.map(str::as_bytes),
        frames,
        user_info: None,
    }
}

/// The stack of the caller of a function that is running on this thread, as the report format has it. `registers` are that
/// function's, whose own frame is none of the app's.
pub(crate) fn frames_above(registers: &Registers) -> Vec<Frame> {
    let backtrace = Backtrace::above(registers);
    let frames = backtrace.addresses().iter().enumerate().map(|(index, pc)| {
        let is_instruction = backtrace.lookup_address(index) == Some(*pc);
        let address_kind = if is_instruction { AddressKind::INSTRUCTION } else { AddressKind::RETURN };
        let found_by = if index == 0 { FoundBy::CONTEXT } else { FoundBy::CFI };
        Frame { pc: *pc, found_by, address_kind, sp: None, cfa: None }
    });
    frames.collect()
}

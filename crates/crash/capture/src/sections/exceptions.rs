//! Exceptions section: the language exceptions that caused the crash.

use coroner_report::wire::{Exception, SectionKind};

use super::SectionResult;
use crate::monitor::caught_panic;
use crate::session::CrashSession;

pub(crate) fn write(session: &mut CrashSession<'_>) -> SectionResult {
    let context = session.context;
    if let Some(uncaught) = context.uncaught {
        return encode(session, uncaught.exceptions);
    }
    let aborts = context.signal.is_some_and(|signal| signal.number == libc::SIGABRT);
    let led_here = |panic: &Exception<'_>| encode(session, core::slice::from_ref(panic));
    let written = aborts.then(|| caught_panic::with_that_of_aborting(context.pid, context.tid, led_here));
    written.flatten().unwrap_or(SectionResult::Empty)
}

fn encode(session: &mut CrashSession<'_>, exceptions: &[Exception<'_>]) -> SectionResult {
    if exceptions.is_empty() {
        return SectionResult::Empty;
    }
    session.section(SectionKind::EXCEPTIONS, |encoder| {
        encoder.begin_array();
        for exception in exceptions {
            encoder.element(|encoder| exception.encode(encoder));
        }
        encoder.end();
    })
}

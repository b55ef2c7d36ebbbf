//! The sentence.

use coroner_report::Report;
use coroner_report::model::{Crash, CrashFlag, Explanation, FaultKind};
use coroner_report::wire::{Language, Monitor};

/// Characters that a headline has at most.
const MAX_HEADLINE: usize = 400;

/// The kind of an end that the program or the system named itself.
pub(crate) fn said_kind(report: &Report, crash: &Crash) -> FaultKind {
    let signal = crash.signal.as_ref();
    let name = signal.and_then(|signal| signal.name).unwrap_or_default();
    match () {
        () if crash.monitor == Monitor::HANG => FaultKind::Hang,
        () if crash.has(CrashFlag::StackOverflow) => FaultKind::StackOverflow,
        () if crash.monitor == Monitor::PANIC => FaultKind::Panic,
        () if report.exceptions.first().is_some_and(|exception| exception.language == Language::RUST) => {
            FaultKind::Panic
        }
        () if !report.exceptions.is_empty()
            || matches!(crash.monitor, Monitor::CPP_EXCEPTION | Monitor::NS_EXCEPTION) =>
        {
            FaultKind::Exception
        }
        () if crash.monitor == Monitor::USER => FaultKind::Requested,
        () if name == "SIGABRT" => FaultKind::Abort,
        () if name == "SIGSYS" => FaultKind::SystemCall,
        () if signal.is_some_and(|signal| signal.sender_pid.is_some()) => FaultKind::SentSignal,
        () => FaultKind::Unknown,
    }
}

/// The sentence of an explanation whose other parts are known.
pub(crate) fn of(report: &Report, crash: &Crash, _explanation: &Explanation) -> String {
    let kind = report.exceptions.first().map_or_else(|| crash.kind(), |exception| exception.kind());
    let message = report.exceptions.first().and_then(|exception| exception.message.clone());
    let cause = message.or_else(|| report.cause());
    one_line(&cause.map_or(kind.clone(), |cause| format!("{kind}: {cause}")))
}

/// The first line of a text, cut where it is too long for a sentence.
fn one_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match line.char_indices().nth(MAX_HEADLINE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

//! Terminations that the program or the system identified itself, so that no fault has to be found.

use coroner_report::Report;
use coroner_report::model::Crash;
use coroner_report::wire::{Language, Monitor};

use crate::notice::{self, Notice};
use coroner_report::model::FaultKind;
use coroner_report::model::{Certainty, Explanation};

/// Explains a termination whose cause the report contains. `None` for faults.
pub(crate) fn explain(report: &Report, crash: &Crash) -> Option<Explanation> {
    let language = report.exceptions.first().map(|exception| exception.language);
    let kind = match () {
        () if crash.monitor == Monitor::HANG => FaultKind::Hang,
        () if crash.monitor == Monitor::PANIC || language == Some(Language::RUST) => FaultKind::Panic,
        () if language.is_some() || matches!(crash.monitor, Monitor::CPP_EXCEPTION | Monitor::NS_EXCEPTION) => {
            FaultKind::Exception
        }
        () if crash.monitor == Monitor::USER => FaultKind::Requested,
        () => match notice::from_crash(report, crash) {
            Notice::Abort if is_from_elsewhere(report, crash) => FaultKind::SentSignal,
            Notice::Abort if !crash.has(coroner_report::model::CrashFlag::StackOverflow) => FaultKind::Abort,
            Notice::Thrown => FaultKind::Exception,
            Notice::SystemCall => FaultKind::SystemCall,
            Notice::Sent => FaultKind::SentSignal,
            _ => return None,
        },
    };
    Some(Explanation { kind, certainty: Certainty::Certain, ..Explanation::default() })
}

/// Whether the signal came from outside the process, unlike that of `abort`.
///
/// It was sent by another process, or by the kernel for a timer, a message or input (`SI_TIMER`,
/// `SI_MESGQ`, `SI_ASYNCIO`, `SI_SIGIO`).
fn is_from_elsewhere(report: &Report, crash: &Crash) -> bool {
    let Some(signal) = &crash.signal else { return false };
    matches!(signal.code, -5..=-2) || signal.sender_pid.is_some_and(|pid| pid != report.header.pid)
}

//! App memory sections: memory that the app registered, the end of its output, and its crash
//! callback's output. The callback runs last.

use crate::run::{ReportWriter, app_memory};
use coroner_report::wire::SectionKind;

use crate::recrash::RECRASH;
use crate::session::{CrashSession, memory};

/// Writes the sections of the app's memory and of its crash callback.
///
/// Not inlined, so that `xtask signal-safety` can identify its calls by name.
#[inline(never)]
pub(crate) fn write_all(session: &mut CrashSession<'_>) {
    let dies = session.context.hung.is_none() && !session.is_non_fatal();
    let calls_back = dies && session.installed.is_own_process(session.context.pid);
    for number in 0..app_memory::SECTIONS + usize::from(calls_back) {
        super::section(session, SectionKind::APP_MEMORY, None, |session| {
            let payload = ReportWriter::payload_bytes(&mut session.workspace.buffer);
            let length = match number {
                _ if RECRASH.is_expired() => 0,
                app_memory::SECTIONS => app_memory::call_back(payload),
                number => app_memory::encode(number, payload, &mut memory()),
            };
            length > 0 && session.seal(SectionKind::APP_MEMORY, length) == super::SectionResult::Written
        });
    }
}

//! The exceptions of a language behind the crash.

use coroner_report::wire::SectionKind;

use super::SectionResult;
use crate::report_file::ReportWriter;
use crate::session::CrashSession;

pub(super) fn write(session: &mut CrashSession<'_>) -> SectionResult {
    let uncaught = session.context.uncaught.filter(|uncaught| !uncaught.exceptions.is_empty());
    let Some(uncaught) = uncaught else { return SectionResult::Empty };
    let mut encoder = ReportWriter::payload(&mut session.workspace.buffer);
    encoder.begin_array();
    for exception in uncaught.exceptions {
        encoder.element(|encoder| exception.encode(encoder));
    }
    encoder.end();
    let length = encoder.position();
    session.seal(SectionKind::EXCEPTIONS, length)
}

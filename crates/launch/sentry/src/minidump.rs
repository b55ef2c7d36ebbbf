//! Minidumps created from reports, sent as attachments.

use coroner_formats::minidump_writer::MinidumpError;
use coroner_report::model::{CrashFlag, Report};
use coroner_report::wire::Monitor;

use crate::envelope::{Attachment, AttachmentType};
use crate::event::{EventOptions, hide_home};

/// Whether a minidump would improve what the server shows. The server takes the exception from the
/// minidump and so loses details from a language's runtime; errors that the app survived are not
/// crashes.
pub(crate) fn is_wanted(report: &Report) -> bool {
    let by_system = |monitor| matches!(monitor, Monitor::SIGNAL | Monitor::MACH);
    report.exceptions.is_empty()
        && report.crash.as_ref().is_some_and(|crash| by_system(crash.monitor) && !crash.has(CrashFlag::NotFatal))
}

/// Creates a report's minidump as an attachment of its event.
///
/// # Errors
/// [`MinidumpError`] if the report can't be represented as a minidump.
pub fn attachment(report: &Report, options: &EventOptions) -> Result<Attachment, MinidumpError> {
    let bytes = if options.send_default_pii {
        coroner_formats::minidump_writer::from_report(report)?
    } else {
        let mut images = report.images.clone();
        images.iter_mut().for_each(|image| hide_home(&mut image.path));
        // The parts of the report that the minidump uses.
        let report = Report {
            header: report.header.clone(),
            crash: report.crash.clone(),
            threads: report.threads.clone(),
            stack_memory: report.stack_memory.clone(),
            run: report.run.clone(),
            annotations: report.annotations.clone(),
            explanation: report.explanation.clone(),
            images,
            ..Report::default()
        };
        coroner_formats::minidump_writer::from_report(&report)?
    };
    Ok(Attachment {
        filename: format!("{}.dmp", report.header.event_id),
        content_type: Some("application/x-dmp".to_owned()),
        ty: Some(AttachmentType::Minidump),
        buffer: bytes,
    })
}

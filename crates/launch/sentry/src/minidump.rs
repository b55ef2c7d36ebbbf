//! A report as a minidump that goes with its event.

use coroner_formats::minidump_writer::MinidumpError;
use coroner_report::model::{CrashFlag, Report};
use coroner_report::wire::Monitor;

use crate::envelope::{Attachment, AttachmentKind};
use crate::event::{EventOptions, hide_home};

/// Whether a server would know more with one than without. It takes the exception out of the minidump, and with it loses what a
/// language's runtime said; and what the app survived is no crash.
pub(crate) fn is_wanted(report: &Report) -> bool {
    let by_system = |monitor| matches!(monitor, Monitor::SIGNAL | Monitor::MACH);
    report.exceptions.is_empty()
        && report.crash.as_ref().is_some_and(|crash| by_system(crash.monitor) && !crash.has(CrashFlag::NotFatal))
}

/// The minidump of a report, to go with its event.
///
/// # Errors
/// The report can't be written as one.
pub fn attachment(report: &Report, options: &EventOptions) -> Result<Attachment, MinidumpError> {
    let bytes = if options.send_default_pii {
        coroner_formats::minidump_writer::from_report(report)?
    } else {
        let mut images = report.images.clone();
        images.iter_mut().for_each(|image| hide_home(&mut image.path));
        // All that a minidump is made of.
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
        kind: AttachmentKind::Minidump,
        bytes,
    })
}

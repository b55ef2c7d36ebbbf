//! Why it crashed, as a comment.

use coroner_report::model::Report;
use minidump_common::format::MINIDUMP_LOCATION_DESCRIPTOR as Location;

use crate::minidump_writer::MinidumpError;
use crate::minidump_writer::file::File;

/// The comment (`CommentStreamW` of Microsoft's `MINIDUMP_STREAM_TYPE`): text in UTF-16 with a zero behind it and no length before. WinDbg shows
/// it when it opens the file.
pub(crate) fn stream(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let Some(text) = text(report) else { return Ok(None) };
    let bytes: Vec<u8> = text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    Ok(Some(file.append_bytes(&bytes)))
}

/// The sentence, and below it the facts that it rests on.
fn text(report: &Report) -> Option<String> {
    let explanation = report.explanation.as_ref()?;
    let sentence = report.explained_cause().unwrap_or_else(|| explanation.headline.clone());
    let instruction = explanation.instruction.as_ref().map(|found| format!("{} at {}", found.text, found.address));
    let lines: Vec<String> =
        [sentence].into_iter().chain(instruction).chain(explanation.facts.iter().cloned()).collect();
    Some(lines.join("\n"))
}

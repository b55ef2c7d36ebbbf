//! The explanation of the crash, as a comment.

use coroner_report::model::Report;
use minidump_common::format::MINIDUMP_LOCATION_DESCRIPTOR as Location;

use crate::minidump_writer::MinidumpError;
use crate::minidump_writer::file::File;

/// Writes the comment (`CommentStreamW` of Microsoft's `MINIDUMP_STREAM_TYPE`): NUL-terminated
/// UTF-16 without a length. WinDbg shows it when it opens the file.
pub(crate) fn stream(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let Some(text) = text(report) else { return Ok(None) };
    let bytes: Vec<u8> = text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    Ok(Some(file.append_bytes(&bytes)))
}

/// Returns the headline followed by the facts.
fn text(report: &Report) -> Option<String> {
    let explanation = report.explanation.as_ref()?;
    let sentence = report.explained_cause().unwrap_or_else(|| explanation.headline.clone());
    let instruction = explanation.instruction.as_ref().map(|found| format!("{} at {}", found.text, found.address));
    let lines: Vec<String> =
        [sentence].into_iter().chain(instruction).chain(explanation.facts.iter().cloned()).collect();
    Some(lines.join("\n"))
}

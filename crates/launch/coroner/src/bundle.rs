//! Combines a report and its run state in one file: a report file with a run state section.
//!
//! A crash leaves two files, because there is no time to copy the run state. Outside the store they
//! must stay together: the run state becomes the section [`RUN_STATE`](SectionKind::RUN_STATE),
//! which [`Report::read`](crate::Report::read) merges.

use coroner_report::wire::{Encoder, FILE_PREFIX, FRAME_HEADER_LEN, SectionKind, parse_header, seal_header};

/// Maximum size of the head of a CBOR byte string in bytes (RFC 8949, section 3).
const MAX_HEAD: usize = 9;

/// Returns a run state file as a section of a report; `None` if it is too long for one.
pub(crate) fn run_state_section(state: &[u8]) -> Option<Vec<u8>> {
    // A run state consists of words of 8 bytes; its reader treats missing ones as zeros.
    let words = without_zeros(state).len().next_multiple_of(8);
    section(SectionKind::RUN_STATE, state.get(..words).unwrap_or(state))
}

fn section(kind: SectionKind, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut payload = vec![0; bytes.len() + MAX_HEAD];
    let mut encoder = Encoder::new(&mut payload);
    encoder.bytes(bytes);
    let length = encoder.position();
    payload.truncate(length);
    let mut section = seal_header(kind, &payload)?.to_vec();
    section.extend_from_slice(&payload);
    Some(section)
}

/// Appends the run state file `state` to the report file `report` as its last section.
///
/// The zeros reserved at the report's end are left out, and so is a run state that is too long for
/// a section, or that the report already contains.
///
/// `system`, the system's record of the same death, becomes the section
/// [`SYSTEM_REPORT`](SectionKind::SYSTEM_REPORT).
pub(crate) fn pack(report: &[u8], state: &[u8], system: &[u8]) -> Vec<u8> {
    let (written, has_state) = written(report);
    let mut packed = written.to_vec();
    let state = Some(state).filter(|state| !has_state && is_written(state)).and_then(run_state_section);
    let system = Some(system).filter(|system| is_written(system));
    let system = system.and_then(|system| section(SectionKind::SYSTEM_REPORT, system));
    packed.extend(state.into_iter().chain(system).flatten());
    packed
}

/// Returns the written part of a reserved report file, and whether it contains a run state.
///
/// A section may end with zeros of its own, so sections are counted; where they are damaged,
/// everything up to the last non-zero byte is kept.
fn written(report: &[u8]) -> (&[u8], bool) {
    let mut end = FILE_PREFIX.len();
    let mut has_state = false;
    while let Some(header) = report.get(end..).and_then(|rest| parse_header(rest).ok()) {
        has_state |= header.kind == SectionKind::RUN_STATE;
        end = end.saturating_add(FRAME_HEADER_LEN).saturating_add(header.payload_len);
    }
    let end = end.max(without_zeros(report).len());
    (report.get(..end).unwrap_or(report), has_state)
}

fn without_zeros(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)]
}

/// Whether a report file contains anything. A run that did not crash leaves only zeros.
pub(crate) fn is_written(report: &[u8]) -> bool {
    report.iter().any(|byte| *byte != 0)
}

#[cfg(test)]
mod tests;

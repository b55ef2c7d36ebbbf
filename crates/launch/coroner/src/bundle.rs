//! Combines a report and its run state in one file: a report file with a run state section.
//!
//! A crash leaves two files, because there is no time to copy the run state. Outside the store they
//! must stay together: the run state becomes the section [`RUN_STATE`](SectionKind::RUN_STATE),
//! which [`Report::read`](crate::Report::read) merges.

use coroner_report::wire::{Encoder, FILE_PREFIX, FRAME_HEADER_LEN, SectionKind, parse_header, seal_header};

/// Maximum size of the head of a CBOR byte string in bytes (RFC 8949, section 3).
const MAX_HEAD: usize = 9;

/// Appends the run state file `state` to the report file `report` as its last section.
///
/// The zeros reserved at the report's end are left out, and so is a run state that is too long for
/// a section.
///
/// `system`, the system's record of the same death, becomes the section
/// [`SYSTEM_REPORT`](SectionKind::SYSTEM_REPORT).
pub(crate) fn pack(report: &[u8], state: &[u8], system: &[u8]) -> Vec<u8> {
    let mut packed = written(report).to_vec();
    // A run state consists of words of 8 bytes; its reader treats missing ones as zeros.
    let words = without_zeros(state).len().next_multiple_of(8);
    let state = state.get(..words).unwrap_or(state);
    for (kind, bytes) in [(SectionKind::RUN_STATE, state), (SectionKind::SYSTEM_REPORT, system)] {
        if !is_written(bytes) {
            continue;
        }
        let mut payload = vec![0; bytes.len() + MAX_HEAD];
        let mut encoder = Encoder::new(&mut payload);
        encoder.bytes(bytes);
        let length = encoder.position();
        payload.truncate(length);
        if let Some(header) = seal_header(kind, &payload) {
            packed.extend_from_slice(&header);
            packed.extend_from_slice(&payload);
        }
    }
    packed
}

/// Returns the written part of a reserved report file.
///
/// A section may end with zeros of its own, so sections are counted; where they are damaged,
/// everything up to the last non-zero byte is kept.
fn written(report: &[u8]) -> &[u8] {
    let mut end = FILE_PREFIX.len();
    while let Some(header) = report.get(end..).and_then(|rest| parse_header(rest).ok()) {
        end = end.saturating_add(FRAME_HEADER_LEN).saturating_add(header.payload_len);
    }
    let end = end.max(without_zeros(report).len());
    report.get(..end).unwrap_or(report)
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

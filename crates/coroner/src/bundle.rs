//! A report and the run state that belongs to it, in one file: a report file with a run state section.
//!
//! The crash leaves two files, since it has no time to copy the run state. Once they leave the store they stay together:
//! the run state becomes the section [`RUN_STATE`](SectionKind::RUN_STATE), which [`Report::read`](crate::Report::read)
//! stitches in.

use coroner_report::wire::{Encoder, FILE_PREFIX, FRAME_HEADER_LEN, SectionKind, parse_header, seal_header};

/// Room for the head of a CBOR byte string (RFC 8949, section 3: at most 9 bytes).
const MAX_HEAD: usize = 9;

/// The report file `report`, without the zeros that were reserved behind it, and the run state file `state` as its last
/// section. A run state that is too long for a section is left out.
pub(crate) fn pack(report: &[u8], state: &[u8]) -> Vec<u8> {
    let mut packed = written(report).to_vec();
    // A run state is made of words of 8 bytes; its reader takes those that are not there for zeros.
    let words = without_zeros(state).len().next_multiple_of(8);
    let state = state.get(..words).unwrap_or(state);
    if !is_written(state) {
        return packed;
    }
    let mut payload = vec![0; state.len() + MAX_HEAD];
    let mut encoder = Encoder::new(&mut payload);
    encoder.bytes(state);
    let length = encoder.position();
    payload.truncate(length);
    if let Some(header) = seal_header(SectionKind::RUN_STATE, &payload) {
        packed.extend_from_slice(&header);
        packed.extend_from_slice(&payload);
    }
    packed
}

/// What was written of a reserved report file. A section may end with zeros of its own, so the sections are counted; where
/// they are damaged, everything up to the last byte that is not zero is kept.
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

/// Whether a report file has anything in it: a run that did not crash leaves what was reserved, all zeros.
pub(crate) fn is_written(report: &[u8]) -> bool {
    report.iter().any(|byte| *byte != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report file with one section whose payload is `payload`, and 100 reserved zeros.
    fn report(payload: &[u8]) -> Vec<u8> {
        let mut report = FILE_PREFIX.to_vec();
        report.extend_from_slice(&seal_header(SectionKind::HEADER, payload).unwrap());
        report.extend_from_slice(payload);
        report.resize(report.len() + 100, 0);
        report
    }

    #[test]
    fn only_reserved_zeros_are_left_out() {
        // A map {0: 0}: its last byte is a zero that is part of it.
        let file = report(&[0xA1, 0, 0]);
        assert_eq!(written(&file), &file[..file.len() - 100]);
        assert_eq!(pack(&file, &[0; 50]), written(&file));
        assert_eq!(written(&[0; 100]), &[0; 3]);
    }

    #[test]
    fn the_run_state_is_one_more_section() {
        let file = report(&[0xA0]);
        let packed = pack(&file, b"state\0more\0\0\0\0\0\0\0\0\0");
        let rest = &packed[written(&file).len()..];
        let header = parse_header(rest).unwrap();
        assert_eq!(header.kind, SectionKind::RUN_STATE);
        // Whole words of 8 bytes, in a byte string of 16: head 0x50.
        assert_eq!(&rest[FRAME_HEADER_LEN..], b"\x50state\0more\0\0\0\0\0\0");
    }

    #[test]
    fn a_torn_report_keeps_all_that_is_there() {
        let whole = report(&[0xA1, 0, 7]);
        let torn = &whole[..=FILE_PREFIX.len() + FRAME_HEADER_LEN];
        assert_eq!(written(torn), torn);
        assert!(pack(torn, b"s").starts_with(torn));
    }
}

use super::*;

/// Returns a report file with one section with this payload, and 100 reserved zeros.
fn report(payload: &[u8]) -> Vec<u8> {
    let mut report = FILE_PREFIX.to_vec();
    report.extend_from_slice(&seal_header(SectionKind::HEADER, payload).unwrap());
    report.extend_from_slice(payload);
    report.resize(report.len() + 100, 0);
    report
}

#[test]
fn only_reserved_zeros_are_left_out() {
    // A map {0: 0}: its last byte is a zero that belongs to it.
    let file = report(&[0xA1, 0, 0]);
    assert_eq!(written(&file).0, &file[..file.len() - 100]);
    assert_eq!(pack(&file, &[0; 50], &[]), written(&file).0);
    assert_eq!(written(&[0; 100]).0, &[0; 3]);
}

#[test]
fn the_run_state_becomes_the_last_section() {
    let file = report(&[0xA0]);
    let packed = pack(&file, b"state\0more\0\0\0\0\0\0\0\0\0", &[]);
    let rest = &packed[written(&file).0.len()..];
    let header = parse_header(rest).unwrap();
    assert_eq!(header.kind, SectionKind::RUN_STATE);
    // Whole words of 8 bytes, in a byte string of 16: head 0x50.
    assert_eq!(&rest[FRAME_HEADER_LEN..], b"\x50state\0more\0\0\0\0\0\0");
}

#[test]
fn a_torn_report_keeps_all_its_bytes() {
    let whole = report(&[0xA1, 0, 7]);
    let torn = &whole[..=FILE_PREFIX.len() + FRAME_HEADER_LEN];
    assert_eq!(written(torn).0, torn);
    assert!(pack(torn, b"s", &[]).starts_with(torn));
}

#[test]
fn a_report_keeps_its_own_run_state() {
    let file = pack(&report(&[0xA0]), b"state of the moment", &[]);
    assert_eq!(pack(&file, b"later state", &[]), file);
}

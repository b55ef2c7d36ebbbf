//! Reports that are truncated, damaged, repeated or hostile, and files that aren't reports.

use crate::common::*;
use coroner_report::reader::limits;
use coroner_report::text::TextOptions;
use coroner_report::wire::{self, Encoder, SectionKind, Thread, WalkEnd};
use coroner_report::{ReadError, Report};

/// Returns the number of sections of each kind that a report shows.
fn sections(report: &Report) -> usize {
    usize::from(report.header.pid != 0)
        + usize::from(report.crash.is_some())
        + report.exceptions.len()
        + usize::from(report.threads.iter().any(|thread| thread.tid == 4322))
        + report.images.len()
        + usize::from(report.threads.iter().any(|thread| thread.tid == 4321))
        + report.stack_memory.len()
        + report.code.len()
        + report.mappings.len()
        + report.app_memory.len()
        + report.zombies.len()
        + usize::from(!report.symbol_names.is_empty())
        + report.images.iter().filter(|image| image.replaced).count()
        + report.annotations.len()
        + report.faults.len()
        + usize::from(report.profile.is_some())
        + usize::from(report.end.is_some())
}

#[test]
fn a_report_truncated_at_any_byte_is_read_up_to_there() {
    let file = full_report();
    assert_eq!(sections(&Report::read(&file.bytes).expect("whole")), file.ends.len());
    for cut in (0..file.bytes.len()).step_by(ONE_OF) {
        let whole = file.ends.iter().filter(|(end, _)| *end <= cut).count();
        for reserved in [0, 500] {
            // Truncated by the end of the file, and by the zeros of its reserved rest.
            let mut bytes = file.bytes[..cut].to_vec();
            bytes.resize(cut + reserved, 0);
            match Report::read(&bytes) {
                Ok(report) => {
                    assert_eq!(sections(&report), whole, "cut at {cut}");
                    assert!(!report.complete, "cut at {cut}");
                    let missing =
                        report.problems.iter().any(|p| p.section == Some(SectionKind::END) && p.what == "missing");
                    assert!(missing, "cut at {cut}: {:?}", report.problems);
                    // The damage begins where the last whole section ends.
                    let end = file.ends[whole - 1].0;
                    assert!(
                        report.problems.iter().all(|p| p.offset >= end as u64),
                        "cut at {cut}: {:?}",
                        report.problems
                    );
                    if end < cut && file.bytes[end..cut].iter().any(|byte| *byte != 0) {
                        assert_eq!(report.problems[0].offset, end as u64, "cut at {cut}");
                    }
                }
                Err(error) => {
                    assert_eq!(whole, 0, "cut at {cut}: {error}");
                    let expected = match (cut, reserved) {
                        (0, 0) => matches!(error, ReadError::Empty),
                        (0, _) => matches!(error, ReadError::Unwritten { size: 500 }),
                        (1 | 2, 500) => matches!(error, ReadError::NotAReport { .. }),
                        _ => matches!(error, ReadError::NothingWhole { offset: 3, .. }),
                    };
                    assert!(expected, "cut at {cut}: {error:?}");
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}

#[test]
fn a_flipped_bit_loses_at_most_its_own_section() {
    let file = full_report();
    let all = file.ends.len();
    for offset in (0..file.bytes.len()).step_by(ONE_OF) {
        for bit in [0, 3, 7] {
            let mut bytes = file.bytes.clone();
            bytes[offset] ^= 1 << bit;
            let report = match Report::read(&bytes) {
                Ok(report) => report,
                Err(error) => panic!("bit {bit} of byte {offset}: {error}"),
            };
            if offset < wire::FILE_PREFIX.len() {
                assert_eq!(sections(&report), all);
                continue;
            }
            let start = |index: usize| if index == 0 { 3 } else { file.ends[index - 1].0 };
            let hit = file.ends.iter().position(|(end, _)| offset < *end).expect("in a section");
            assert!(!report.complete, "bit {bit} of byte {offset} is not noticed");
            assert_eq!(report.problems[0].offset, start(hit) as u64, "{:?}", report.problems);
            // A lost image also loses the information that its file was replaced.
            let lost = 1 + usize::from(report.images.is_empty());
            assert_eq!(sections(&report), all - lost, "bit {bit} of byte {offset}: {:?}", report.problems);
        }
    }
}

#[test]
fn a_lost_page_loses_only_its_sections() {
    let file = full_report();
    let (from, to) = (file.ends[2].0 + 5, file.ends[5].0 + 30);
    let mut bytes = file.bytes.clone();
    bytes[from..to].fill(0);
    let report = Report::read(&bytes).expect("readable");
    assert!(report.crash.is_some() && report.end.is_some());
    assert_eq!(report.symbol_names.len(), 2);
    assert!(report.threads.is_empty() && report.images.is_empty() && report.stack_memory.is_empty());
    assert!(report.problems.iter().any(|problem| problem.offset == file.ends[2].0 as u64));
}

#[test]
fn a_lost_first_page_leaves_later_sections() {
    let file = full_report();
    let mut bytes = file.bytes.clone();
    bytes[..file.ends[0].0 + 10].fill(0);
    let report = Report::read(&bytes).expect("readable");
    assert!(report.crash.is_none() && report.header.pid == 0);
    assert_eq!((report.threads.len(), report.images.len()), (3, 1));
    assert!(report.problems.iter().any(|problem| problem.section == Some(SectionKind::HEADER)));
    assert!(matches!(Report::read(b"\0\0\0 another format"), Err(ReadError::NotAReport { offset: 0, .. })));
}

#[test]
fn a_repeated_section_is_read_once() {
    let file = full_report();
    let mut bytes = file.bytes.clone();
    bytes.extend_from_slice(&file.bytes[3..]);
    let report = Report::read(&bytes).expect("readable");
    assert_eq!(sections(&report), file.ends.len());
    assert_eq!((report.threads.len(), report.images.len(), report.symbol_names.len()), (3, 1, 2));
    assert_eq!(report.problems.len(), file.ends.len());
    assert!(report.problems.iter().all(|problem| problem.what.starts_with("repeats the section at byte")));
}

#[test]
fn a_repeated_thread_is_read_once() {
    let mut file = full_report();
    file.list(SectionKind::THREADS, |encoder| {
        assert!(Thread { tid: 4322, name: Some(b"impostor"), ..Thread::default() }.encode(encoder, &[], WalkEnd::ROOT));
        assert!(Thread { tid: 1, ..Thread::default() }.encode(encoder, &[], WalkEnd::ROOT));
    });
    let report = Report::read(&file.bytes).expect("readable");
    assert_eq!(report.threads.len(), 4);
    assert_eq!(report.threads[0].name.as_deref(), Some("worker"));
    assert_eq!(report.problems.len(), 1);
    assert!(report.problems[0].what.contains("thread 4322"), "{:?}", report.problems);
}

#[test]
fn a_section_header_inside_a_payload_is_not_a_section() {
    // Stack memory with a copy of a frame (the crash path's own buffer, say), in a damaged section.
    let inner = {
        let mut file = File::new();
        file.section(SectionKind::CRASH, |encoder| crash().encode(encoder));
        file.bytes[3..].to_vec()
    };
    let mut file = File::new();
    file.section(SectionKind::HEADER, |encoder| header().encode(encoder))
        .list(SectionKind::STACK_MEMORY, |encoder| {
            assert!(wire::StackMemory { tid: 1, address: 0, bytes: &inner }.encode(encoder));
        })
        .section(SectionKind::FAULT, |encoder| wire::Fault::default().encode(encoder));
    let last = file.ends[1].0 - 1;
    file.bytes[last] ^= 1;
    let report = Report::read(&file.bytes).expect("readable");
    assert!(report.crash.is_none());
    assert_eq!((report.stack_memory.len(), report.faults.len()), (0, 1));
}

#[test]
fn other_file_formats_are_named() {
    for (bytes, what) in [
        (&b"MDMP\x93\xA7\0\0"[..], "minidump"),
        (b"\x7FELF\x02\x01\x01", "ELF"),
        (b"{\"report\": 1}", "JSON"),
        (b"\x1F\x8B\x08", "gzip"),
        (b"CRNRRUN\x1A", "run state"),
        (b"hello, world", "unknown format"),
        (b"\xD9\xD9\xF6 other CBOR", "byte 2"),
        (b"\xD9\xD9\xF7\xA1\x01\x02", "no section starts here"),
    ] {
        let error = Report::read(bytes).expect_err("no report");
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn unreadable_files_give_errors() {
    let directory = tempfile::tempdir().expect("a directory");
    assert!(matches!(Report::read_file(directory.path()), Err(ReadError::NotAFile { .. })));
    let path = directory.path().join("report");
    assert!(matches!(Report::read_file(&path), Err(ReadError::Io { .. })));
    std::fs::write(&path, []).expect("written");
    assert!(matches!(Report::read_file(&path), Err(ReadError::Empty)));
    // Sparse: takes no space.
    std::fs::File::create(&path).and_then(|file| file.set_len(limits::FILE + 1)).expect("made");
    assert!(matches!(Report::read_file(&path), Err(ReadError::TooLarge { size }) if size == limits::FILE + 1));
    std::fs::write(&path, full_report().bytes).expect("written");
    assert!(Report::read_file(&path).expect("readable").complete);
    #[cfg(unix)]
    {
        let pipe = directory.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().expect("text")).expect("no zero");
        // SAFETY: a path that ends in a zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(matches!(Report::read_file(&pipe), Err(ReadError::NotAFile { .. })));
    }
}

/// Returns a section with this payload and a correct checksum.
fn sealed(kind: SectionKind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = wire::seal_header(kind, payload).expect("short enough").to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn with_header(sections: &[Vec<u8>]) -> Vec<u8> {
    let mut file = File::new();
    file.section(SectionKind::HEADER, |encoder| header().encode(encoder));
    file.bytes.extend(sections.iter().flatten());
    file.bytes
}

#[test]
fn hostile_payloads_are_problems_with_their_offset() {
    let deep = |byte: u8, n: usize| vec![byte; n];
    let cases: &[(&str, Vec<u8>)] = &[
        ("an array of 2⁶⁴ − 1", vec![0x9B, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
        ("a map of 2⁶³", vec![0xBB, 0x80, 0, 0, 0, 0, 0, 0, 0]),
        ("a byte string of 2⁶⁴ − 1", vec![0x5B, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
        ("a text of 4 GiB in a list", vec![0x81, 0x7A, 0xFF, 0xFF, 0xFF, 0xFF]),
        ("arrays in arrays", deep(0x81, 1 << 20)),
        ("endless arrays in endless arrays", deep(0x9F, 1 << 20)),
        ("maps in maps", [vec![0x9F], deep(0xA1, 1 << 20)].concat()),
        ("tags of tags", [vec![0x9F], deep(0xC1, 1 << 20)].concat()),
        ("endless strings", deep(0x7F, 1000)),
        ("a break alone", vec![0xFF]),
        ("a reserved initial byte", vec![0x1C]),
        ("text that is not UTF-8", vec![0xA1, 0x01, 0x62, 0xFF, 0xFE]),
        ("nothing", vec![]),
        ("another type", vec![0x01]),
        ("two items", vec![0xA0, 0xA0, 0x00]),
    ];
    for kind in SectionKind::ALL.iter().map(|(kind, _)| *kind).chain([SectionKind(999)]) {
        for (name, payload) in cases {
            let report = Report::read(&with_header(&[sealed(kind, payload)])).expect("readable");
            let offset = report.problems[0].offset;
            assert!(!report.complete);
            assert!(report.problems.len() <= limits::PROBLEMS + 10, "{name}");
            assert!(offset > 3, "{name} in {kind}: {:?}", report.problems[0]);
        }
    }
}

#[test]
fn the_number_of_every_item_is_bounded() {
    // A million threads of three bytes each, several times over, each with another number.
    let mut payload = vec![0x9F];
    for tid in 0..400_000u32 {
        payload.extend_from_slice(&[0xA1, 0x00, 0x1A]);
        payload.extend_from_slice(&tid.to_be_bytes());
    }
    payload.push(0xFF);
    let report = Report::read(&with_header(&[sealed(SectionKind::THREADS, &payload)])).expect("readable");
    assert_eq!(report.threads.len(), limits::THREADS);
    assert!(report.problems[0].what.contains("more than"));

    // One thread with too many frames.
    let mut payload = vec![0x81, 0xA2, 0x00, 0x01, 0x06, 0x9F];
    for _ in 0..=limits::FRAMES {
        payload.extend_from_slice(&[0x83, 0x01, 0x01, 0x01]);
    }
    payload.extend_from_slice(&[0xFF]);
    let report = Report::read(&with_header(&[sealed(SectionKind::THREADS, &payload)])).expect("readable");
    assert_eq!(report.threads[0].frames.len(), limits::FRAMES);

    // Many different sections of an unknown kind.
    let many: Vec<Vec<u8>> =
        (0..5000u16).map(|i| sealed(SectionKind(1000), &[0x19, (i >> 8) as u8, i as u8])).collect();
    let report = Report::read(&with_header(&many)).expect("readable");
    assert_eq!(report.unknown_sections.len(), limits::PROBLEMS);
    assert!(report.problems.len() < limits::PROBLEMS + 10);

    // More items than a report may have, in values that are kept.
    let zeros = [vec![0x9A, 0x00, 0x50, 0x00, 0x00], vec![0; 5 << 20]].concat();
    let report = Report::read(&with_header(&[sealed(SectionKind(1000), &zeros)])).expect("readable");
    assert!(report.unknown_sections.is_empty());
    assert!(report.problems[0].what.contains("too many items"), "{:?}", report.problems[0]);
}

#[test]
fn overlapping_large_sections_are_read_in_linear_time() {
    // Each claims 16 MiB, and none has a correct checksum: checking them all would mean reading a
    // terabyte.
    let mut header = wire::seal_header(SectionKind::THREADS, &[]).expect("short");
    header[18..22].copy_from_slice(&(wire::MAX_PAYLOAD as u32).to_be_bytes());
    let mut bytes = with_header(&[]);
    while bytes.len() < 24 << 20 {
        bytes.extend_from_slice(&header);
    }
    let report = Report::read(&bytes).expect("the header is whole");
    assert!(!report.complete);
}

#[test]
fn random_bytes_cause_no_panic() {
    let mut random = Random(0x5EED);
    for _ in 0..8_000 / ONE_OF {
        let len = random.below(300);
        let bytes = random.bytes(len);
        assert!(Report::read(&bytes).is_err());
        // The same after a correct prefix, and as the payload of each section with a correct
        // checksum.
        let _ = Report::read(&[&wire::FILE_PREFIX[..], &bytes].concat());
        let kind = SectionKind(random.below(13) as u16);
        let report = Report::read(&with_header(&[sealed(kind, &bytes)])).expect("its header is whole");
        let _ = report.to_json();
        let _ = report.to_text(&TextOptions::default());
    }
}

#[test]
fn random_damage_causes_no_panic() {
    let file = full_report();
    let mut random = Random(0xDA_3A6E);
    for _ in 0..3000 / ONE_OF {
        let mut bytes = file.bytes.clone();
        for _ in 0..=random.below(8) {
            let (from, len) = (random.below(bytes.len()), random.below(40));
            let to = (from + len).min(bytes.len());
            match random.below(4) {
                0 => bytes[from..to].fill(0),
                1 => drop(bytes.drain(from..to)),
                2 => drop(bytes.splice(from..from, random.bytes(len))),
                _ => bytes[from..to].copy_from_slice(&random.bytes(to - from)),
            }
        }
        if let Ok(report) = Report::read(&bytes) {
            let _ = report.to_json();
        }
    }
}

/// Damaged payloads with a correct checksum, which a bug in a writer might leave.
#[test]
fn random_damage_with_a_correct_checksum_causes_no_panic() {
    let file = full_report();
    let mut random = Random(0x00C0_FFEE);
    for _ in 0..8_000 / ONE_OF {
        let index = random.below(file.ends.len());
        let start = if index == 0 { 3 } else { file.ends[index - 1].0 };
        let mut payload = file.bytes[start + wire::FRAME_HEADER_LEN..file.ends[index].0].to_vec();
        for _ in 0..=random.below(4) {
            let at = random.below(payload.len());
            payload[at] = random.next() as u8;
        }
        let report = Report::read(&with_header(&[sealed(file.ends[index].1, &payload)]));
        if let Ok(report) = report {
            let _ = (report.to_json(), report.to_text(&TextOptions::default()));
        }
    }
}

#[test]
fn a_section_cannot_be_sealed_beyond_its_buffer() {
    let mut buffer = [0; 100];
    assert_eq!(wire::seal(&mut buffer, SectionKind::END, 79), None);
    assert_eq!(wire::seal(&mut buffer[..10], SectionKind::END, 0), None);
    assert!(buffer.iter().all(|byte| *byte == 0));
    assert_eq!(wire::seal(&mut buffer, SectionKind::END, 78), Some(100));
    assert!(Encoder::new(&mut []).written().is_empty());
}

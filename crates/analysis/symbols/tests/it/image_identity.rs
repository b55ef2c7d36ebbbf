//! What stands for a build id that is not there.

use std::time::{Duration, SystemTime};

use crate::common::fixture;
use coroner_report::model::{Address, Header, Image, Report, Segment};
use coroner_report::wire::ImageKind;
use coroner_symbols::identify_images;

/// The code segment of the fixture, as `readelf -lW` has it: address, size, place in the file.
const CODE: (u64, u64, u64) = (0, 0x2511, 0);
/// The debug id of the fixture without its build id.
const ID: &str = "af2784f4-a13e-27f5-f7a2-4cc852e798ea";

/// The debug id of an image of the file at `path`, loaded with a code segment at `code` (svma, size and place in the file) by a process that
/// began at `began`.
fn identified(path: &std::path::Path, code: (u64, u64, u64), began: SystemTime) -> Option<String> {
    const SLIDE: u64 = 0x7f00_0000_0000;
    let segment = Segment { address: Address(SLIDE + code.0), size: code.1, file_offset: code.2, protection: 5 };
    let image = Image {
        kind: ImageKind::ELF,
        path: path.to_str().unwrap().to_owned(),
        slide: Address(SLIDE),
        segments: vec![segment],
        ..Image::default()
    };
    let header = Header { process_start: began.into(), ..Header::default() };
    let mut report = Report { header, images: vec![image], ..Report::default() };
    identify_images(&mut report);
    report.images[0].debug_id()
}

#[test]
fn it_is_derived_from_the_code_of_a_file_that_is_the_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let mut bytes = std::fs::read(fixture("cpp.elf")).unwrap();
    let later = || SystemTime::now() + Duration::from_mins(1);
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(identified(&path, CODE, later()), None, "that file has a build id, which the image had not");

    // Its note of the build id (type 3) becomes one of another type.
    const NOTE: &[u8] = b"\x03\0\0\0GNU\0";
    let at = bytes.windows(NOTE.len()).position(|bytes| bytes == NOTE).unwrap();
    bytes[at] = 0x33;
    std::fs::write(&path, &bytes).unwrap();
    // As `sentry-cli debug-files check` has it.
    assert_eq!(identified(&path, CODE, later()).as_deref(), Some(ID));
    assert_eq!(identified(&path, (CODE.0, CODE.1 + 1, CODE.2), later()), None, "another layout");
    assert_eq!(identified(&path, CODE, SystemTime::now() - Duration::from_hours(1)), None, "it has changed since");
    assert_eq!(identified(&folder.path().join("gone"), CODE, later()), None);
}

//! The substitute for a missing build id.

use std::time::{Duration, SystemTime};

use crate::common::fixture;
use coroner_report::model::{Address, Header, Image, Report, Segment};
use coroner_report::wire::ImageKind;
use coroner_symbols::identify_images;

/// The fixture's code segment, from `readelf -lW`: address, size, file offset.
const CODE: (u64, u64, u64) = (0, 0x2511, 0);
/// The fixture's debug id without its build id.
const ID: &str = "af2784f4-a13e-27f5-f7a2-4cc852e798ea";

/// Returns the debug id of an image of the file at `path`, loaded with a code segment at `code`
/// (svma, size and file offset) by a process that started at `began`.
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
fn an_id_is_derived_from_the_code_if_the_file_is_the_loaded_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let mut bytes = std::fs::read(fixture("cpp.elf")).unwrap();
    let later = || SystemTime::now() + Duration::from_mins(1);
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(identified(&path, CODE, later()), None, "the file has a build id, but the image has none");

    // The type of the build id note (3) is changed.
    const NOTE: &[u8] = b"\x03\0\0\0GNU\0";
    let at = bytes.windows(NOTE.len()).position(|bytes| bytes == NOTE).unwrap();
    bytes[at] = 0x33;
    std::fs::write(&path, &bytes).unwrap();
    // The same as the output of `sentry-cli debug-files check`.
    assert_eq!(identified(&path, CODE, later()).as_deref(), Some(ID));
    assert_eq!(identified(&path, (CODE.0, CODE.1 + 1, CODE.2), later()), None, "another layout");
    assert_eq!(
        identified(&path, CODE, SystemTime::now() - Duration::from_hours(1)),
        None,
        "the file was changed later"
    );
    assert_eq!(identified(&folder.path().join("gone"), CODE, later()), None);
}

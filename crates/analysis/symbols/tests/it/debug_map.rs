//! Mach-O images whose debug information is in the object files: each address has the same calls as
//! with the dSYM that dsymutil created from the same files.

#![cfg(unix)]

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::common::fixture;
use coroner_symbols::{Call, LookupAddress, SymbolFile};

/// Returns the calls at each address of the code, and the errors.
fn calls(path: &Path) -> (Vec<Vec<Call>>, Vec<String>) {
    let file = &SymbolFile::open(path).unwrap()[0];
    let calls = (0x540..0x6c0).map(|svma| file.calls(LookupAddress::of_instruction(svma))).collect();
    (calls, file.take_problems().iter().map(ToString::to_string).collect())
}

fn inlined(calls: &[Vec<Call>]) -> usize {
    calls.iter().filter(|calls| calls.len() > 1).count()
}

/// Writes a time into the debug map's only object.
fn set_time(image: &Path, seconds: u64) {
    let mut bytes = std::fs::read(image).unwrap();
    // `nlist_64` after the name: N_OSO, section 3, description 1, the value.
    let entry = [0x66, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let at = bytes.windows(entry.len()).position(|window| window == entry).expect("N_OSO");
    bytes[at + 4..at + 12].copy_from_slice(&seconds.to_le_bytes());
    std::fs::write(image, bytes).unwrap();
}

#[test]
fn object_files_and_archive_members_are_read() {
    let (expected, _) = calls(&fixture("debug-map/mapped.dwarf"));
    assert!(inlined(&expected) > 40, "{expected:?}");
    for image in ["mapped.dylib", "archived.dylib"] {
        let path = fixture("debug-map").join(image);
        assert!(SymbolFile::open(&path).unwrap()[0].has_lines());
        let (found, problems) = calls(&path);
        assert_eq!(problems, [""; 0]);
        for (svma, (found, expected)) in (0x540..).zip(found.iter().zip(&expected)) {
            assert_eq!(found, expected, "{image} {svma:#x}");
        }
    }
}

#[test]
fn missing_and_rebuilt_object_files_are_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let (image, object) = (folder.path().join("mapped.dylib"), folder.path().join("program.o"));
    std::fs::copy(fixture("debug-map/mapped.dylib"), &image).unwrap();
    let (found, problems) = calls(&image);
    assert_eq!((inlined(&found), problems.len()), (0, 0), "{problems:?}");
    assert!(!SymbolFile::open(&image).unwrap()[0].has_lines(), "the object files are missing, as on other machines");
    // The symbol table still names it.
    assert!(found.iter().flatten().any(|call| call.name.as_deref() == Some("_Z4deepi")));

    std::fs::copy(fixture("debug-map/program.o"), &object).unwrap();
    set_time(&image, 1_700_000_000);
    let modified = |seconds| {
        let file = std::fs::File::options().write(true).open(&object).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    };
    modified(1_700_000_000);
    assert!(inlined(&calls(&image).0) > 40);
    modified(1_700_000_001);
    let (found, problems) = calls(&image);
    assert_eq!((inlined(&found), problems.len()), (0, 1), "{problems:?}");
    assert!(problems[0].contains("was rebuilt"), "{problems:?}");

    // Malformed object files result in errors.
    let whole = std::fs::read(&object).unwrap();
    for length in (0..whole.len()).step_by(97) {
        std::fs::write(&object, &whole[..length]).unwrap();
        modified(1_700_000_000);
        let _ = calls(&image);
    }
}

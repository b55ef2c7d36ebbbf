//! Breakpad files: functions, lines, inlined calls, malformed lines.

use std::path::Path;

use coroner_symbols::{Arch, FileKind, ImageKey, LookupAddress, SymbolError, SymbolFile};

const TEXT: &[u8] = b"MODULE Linux x86_64 67452301AB89EFCD0123456789ABCDEF0 app\n\
    INFO CODE_ID 0123456789ABCDEF0123456789ABCDEF01234567\n\
    FILE 0 /src/main.c\n\
    FILE 1 /src/deep folder/inner.h\n\
    INLINE_ORIGIN 0 inner(int)\n\
    INLINE_ORIGIN 1 innermost()\n\
    FUNC m 1000 20 0 outer(char const*)\n\
    INLINE 0 12 0 0 1004 8 1018 4\n\
    INLINE 1 7 1 1 1008 4\n\
    1000 8 10 0\n\
    1008 4 99 1\n\
    100c 14 13 0\n\
    PUBLIC 2000 0 label\n\
    STACK CFI INIT 1000 20 .cfa: $rsp 8 +\n";

fn open(text: &[u8]) -> Result<SymbolFile, SymbolError> {
    SymbolFile::from_bytes(Path::new("app.sym"), text.to_vec()).map(|mut files| files.remove(0))
}

/// Returns the offsets of the malformed lines.
fn problems(text: &[u8]) -> Vec<Option<u64>> {
    let file = open(text).unwrap();
    file.calls(LookupAddress::of_instruction(0x10));
    file.take_problems().iter().map(SymbolError::offset).collect()
}

#[test]
fn nested_inlined_calls_are_listed_innermost_first() {
    assert_eq!(problems(TEXT), []);
    let file = open(TEXT).unwrap();
    let calls = |address| -> Vec<(String, String, u32)> {
        let frames = file.calls(LookupAddress::of_instruction(address));
        assert!(frames.iter().rev().skip(1).all(|frame| frame.inlined));
        frames.into_iter().map(|f| (f.name.unwrap(), f.file.unwrap_or_default(), f.line.unwrap_or(0))).collect()
    };
    let call = |name: &str, file: &str, line| (name.to_owned(), file.to_owned(), line);
    assert_eq!(calls(0x1000), [call("outer(char const*)", "/src/main.c", 10)]);
    assert_eq!(
        calls(0x1008),
        [
            call("innermost()", "/src/deep folder/inner.h", 99),
            call("inner(int)", "/src/deep folder/inner.h", 7),
            call("outer(char const*)", "/src/main.c", 12)
        ]
    );
    assert!(calls(0x1020).is_empty() && calls(0xfff).is_empty());
}

#[test]
fn the_module_line_identifies_the_image() {
    let file = open(TEXT).unwrap();
    let id = file.debug_id().unwrap();
    assert_eq!(id.to_string(), "0123456789abcdef0123456789abcdef01234567");
    assert_eq!(Some(id.to_breakpad_elf()), file.breakpad_debug_id());
    let (kind, arch) = (FileKind::Elf, Arch::X86_64);
    assert_eq!(file.arch(), arch);
    assert!(file.matches(&ImageKey {
        path: "app".into(),
        debug_id: Some(id.clone()),
        kind,
        arch,
        base_svma: 0,
        replaced: false
    }));
}

#[test]
fn the_module_line_may_name_the_system_in_any_case() {
    for system in ["mac", "Mac", "ios"] {
        let text = format!("MODULE {system} arm64 00112233445566778899AABBCCDDEEFF0 app\nPUBLIC 10 0 f\n");
        let file = open(text.as_bytes()).unwrap();
        let id = file.debug_id().map(ToString::to_string);
        assert_eq!(id.as_deref(), Some("00112233445566778899aabbccddeeff"), "{system}");
    }
}

#[test]
fn a_windows_module_is_matched_by_its_codeview_data() {
    let text = b"MODULE windows x86_64 0123456789ABCDEF0123456789ABCDEFA app.pdb\nINFO CODE_ID 5A9832E5287000 app.exe\nFUNC 1000 20 0 paint\n";
    let file = open(text).unwrap();
    let key = |guid: [u8; 16]| {
        // The image's time stamp and size, GUID and age.
        let id = [&[1, 2, 3, 4, 5, 6, 7, 8][..], &guid, &[10, 0, 0, 0]].concat();
        ImageKey {
            path: "C:\\app.exe".into(),
            debug_id: coroner_symbols::DebugId::new(&id),
            kind: FileKind::Pe,
            arch: Arch::X86_64,
            base_svma: 0,
            replaced: false,
        }
    };
    let guid = [0x67, 0x45, 0x23, 0x01, 0xab, 0x89, 0xef, 0xcd, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
    assert!(file.matches(&key(guid)));
    assert!(!file.matches(&key([7; 16])));
}

#[test]
fn malformed_lines_are_reported_with_their_offset_and_skipped() {
    let text = b"MODULE Linux x86_64 67452301AB89EFCD0123456789ABCDEF0 app\nFUNC zz 1 0 f\nFUNC 10 5 0 g\n10 5 1\n";
    assert_eq!(problems(text), [Some(58), Some(86)]);
    assert_eq!(open(text).unwrap().symbol(LookupAddress::of_instruction(0x10)), Some(("g".to_owned(), 0x10)));
    assert!(open(b"MODULE Linux x86_64 short app").is_err());
    // A line record before any function is malformed.
    assert_eq!(problems(b"MODULE Linux x86_64 67452301AB89EFCD0123456789ABCDEF0 app\n10 5 1 0\n").len(), 1);
}

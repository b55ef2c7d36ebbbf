//! Truncated, damaged and malicious files: they result in errors with a position, never in a panic
//! or unbounded work.

use std::path::{Path, PathBuf};

use crate::common::{Random, fixture};
use coroner_symbols::{LookupAddress, SymbolError, SymbolFile};
use tempfile::TempDir;

const BREAKPAD: &str = "MODULE Linux x86_64 67452301AB89EFCD0123456789ABCDEF0 app\n\
    INFO CODE_ID 0123456789ABCDEF0123456789ABCDEF01234567\nFILE 0 a.c\nINLINE_ORIGIN 0 inner\nFUNC 1000 20 0 outer\n\
    INLINE 0 12 0 0 1004 8\n1000 8 10 0\n1008 18 12 0\nPUBLIC 2000 0 label\nSTACK CFI INIT 1000 20 .cfa: $rsp 8 +\n";

/// Returns a file of every supported kind.
fn inputs() -> Vec<(&'static str, Vec<u8>)> {
    let read = |name: &str| std::fs::read(fixture(name)).unwrap();
    vec![
        ("ELF", read("cpp.elf")),
        ("fat Mach-O", read("program.dylib")),
        ("dSYM", read("program.dylib.dSYM/Contents/Resources/DWARF/program.dylib")),
        ("Objective-C arm64", read("classes-arm64.dylib")),
        ("Objective-C x86_64", read("classes-x86_64.dylib")),
        ("breakpad", BREAKPAD.into()),
    ]
}

struct TempFile {
    _folder: TempDir,
    path: PathBuf,
}

impl TempFile {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        Self { _folder: folder, path }
    }

    fn write(&self, bytes: &[u8]) -> &Path {
        // A new file each time: the old one may still be mapped.
        let _ = std::fs::remove_file(&self.path);
        std::fs::write(&self.path, bytes).unwrap();
        &self.path
    }
}

/// Calls every function of the API on a file; returns the errors.
fn exercise(path: &Path, random: &mut Random) -> Vec<SymbolError> {
    let files = match SymbolFile::open(path) {
        Ok(files) => files,
        Err(error) => return vec![error],
    };
    let mut errors = Vec::new();
    for file in &files {
        let _ = (file.sources(), file.can_name(), file.debug_id(), file.has_lines());
        let addresses: Vec<LookupAddress> =
            (0..40).map(|_| LookupAddress::of_return_address(random.below(0x3000))).collect();
        if random.below(2) == 0 {
            file.look_up(&addresses);
        }
        for address in addresses {
            let _ = file.symbol(address);
            let _ = file.calls(address);
        }
        errors.extend(file.take_problems());
    }
    errors
}

#[test]
fn truncation_at_any_offset_is_reported() {
    let scratch = TempFile::new();
    let mut random = Random::new(1);
    for (name, bytes) in inputs() {
        let whole = bytes.len();
        let step = (whole / 400).max(1);
        for length in (0..whole).step_by(step).chain(whole.saturating_sub(20)..whole) {
            let errors = exercise(scratch.write(&bytes[..length]), &mut random);
            for error in &errors {
                let offset = error.offset().unwrap_or_else(|| panic!("{name} truncated to {length}: {error}"));
                assert!(offset <= whole as u64, "{name} truncated to {length}: {error}");
                assert!(error.to_string().contains("byte") || offset == 0, "{error}");
            }
            // A truncated breakpad file may still be valid; a dSYM ends with padding.
            let must_fail = !matches!(name, "breakpad" | "dSYM") || length < 40;
            assert!(
                !must_fail || !errors.is_empty(),
                "{name}: truncation from {whole} to {length} bytes was not detected"
            );
        }
        assert!(exercise(scratch.write(&bytes), &mut random).is_empty(), "{name}: errors in the intact file");
    }
}

#[test]
fn damage_at_any_offset_is_survived() {
    let scratch = TempFile::new();
    let mut random = Random::new(2);
    for (name, original) in inputs() {
        let mut noticed = 0;
        for round in 0..400 {
            let mut bytes = original.clone();
            for _ in 0..=random.below(12) {
                let near_start = random.below(2) == 0;
                let limit = if near_start { original.len().min(2048) } else { original.len() };
                let at = random.below(limit as u64) as usize;
                bytes[at] = match round % 3 {
                    0 => random.next() as u8,
                    1 => 0xff,
                    _ => bytes[at] ^ 1 << random.below(8),
                };
            }
            noticed += usize::from(!exercise(scratch.write(&bytes), &mut random).is_empty());
        }
        assert!(noticed >= 10, "{name}: damage was detected in only {noticed} of 400 files");
    }
}

#[test]
fn other_files_are_refused() {
    let scratch = TempFile::new();
    let mut random = Random::new(3);
    let noise: Vec<u8> = (0..5000).map(|_| random.next() as u8).collect();
    for bytes in [&b""[..], b"\x7f", b"\x7fELF", b"MODULE", b"hello, world\n", b"\xca\xfe\xba\xbe\0\0\0\x34", &noise] {
        let error = SymbolFile::open(scratch.write(bytes)).unwrap_err();
        assert!(error.offset().is_some(), "{error}");
        assert!(error.to_string().starts_with(scratch.path.to_str().unwrap()), "{error}");
    }
    let error = SymbolFile::open(scratch.path.parent().unwrap()).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    let error = SymbolFile::open(Path::new("/nowhere/at all")).unwrap_err();
    assert!(matches!(error, SymbolError::Io { .. }), "{error}");
}

/// Replaces debug sections of the ELF fixture with handwritten ones.
#[cfg(target_os = "linux")]
fn with_dwarf(sections: &[(&str, &[u8])]) -> TempFile {
    let scratch = TempFile::new();
    let mut command = std::process::Command::new("objcopy");
    for (number, (name, bytes)) in sections.iter().enumerate() {
        let part = scratch.path.with_file_name(number.to_string());
        std::fs::write(&part, bytes).unwrap();
        command.arg("--remove-section").arg(name).arg("--add-section").arg(format!("{name}={}", part.display()));
    }
    let output = command.arg(fixture("cpp.elf")).arg(&scratch.path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    scratch
}

/// Abbreviations: 1 is a unit and 2 a function, each with children and the range [0x1000, 0x2000);
/// 3 is an inlined call with children; 4 is an inlined call with the ranges at offset 0.
#[cfg(target_os = "linux")]
const ABBREVIATIONS: &[u8] = &[
    1, 0x11, 1, 0x11, 0x01, 0x12, 0x06, 0, 0, // DW_TAG_compile_unit: low_pc addr, high_pc data4
    2, 0x2e, 1, 0x11, 0x01, 0x12, 0x06, 0, 0, // DW_TAG_subprogram
    3, 0x1d, 1, 0, 0, // DW_TAG_inlined_subroutine
    4, 0x1d, 0, 0x55, 0x17, 0, 0, // with DW_AT_ranges sec_offset
    0,
];

/// Returns a DWARF 4 unit with a function whose children are `inside`.
#[cfg(target_os = "linux")]
fn unit(inside: &[u8]) -> Vec<u8> {
    let mut entries = vec![];
    for code in [1, 2] {
        entries.push(code);
        entries.extend(0x1000u64.to_le_bytes());
        entries.extend(0x1000u32.to_le_bytes());
    }
    entries.extend(inside);
    entries.extend([0, 0]);
    // version, offset of the abbreviations, size of an address
    let header = [&4u16.to_le_bytes()[..], &0u32.to_le_bytes(), &[8]].concat();
    [&((header.len() + entries.len()) as u32).to_le_bytes()[..], &header, &entries].concat()
}

#[cfg(target_os = "linux")]
#[test]
fn a_million_nested_inlined_calls_are_refused() {
    const DEPTH: usize = 1_000_000;
    let inside = [vec![3; DEPTH], vec![0; DEPTH]].concat();
    let scratch = with_dwarf(&[(".debug_info", &unit(&inside)), (".debug_abbrev", ABBREVIATIONS)]);
    let file = &SymbolFile::open(&scratch.path).unwrap()[0];
    // A function without DWARF still gets its symbol's name.
    assert!(file.symbol(LookupAddress::of_instruction(0x1941)).is_some());
    let calls = file.calls(LookupAddress::of_instruction(0x1941));
    assert_eq!(calls.len(), 1);
    assert!(calls[0].line.is_none());
    let problems = file.take_problems();
    assert!(problems[0].to_string().contains("nested more than"), "{}", problems[0]);
    assert!(problems[0].offset().unwrap() > 0);
}

#[cfg(target_os = "linux")]
#[test]
fn calls_that_share_a_long_range_list_are_refused() {
    // 20,000 calls of 20,000 ranges each: 400 million.
    let mut ranges = vec![];
    for index in 0..20_000u64 {
        ranges.extend((0x10 + index * 2).to_le_bytes());
        ranges.extend((0x11 + index * 2).to_le_bytes());
    }
    ranges.extend([0; 16]);
    let inside = [4, 0, 0, 0, 0].repeat(20_000);
    let sections: [(&str, &[u8]); 3] =
        [(".debug_info", &unit(&inside)), (".debug_abbrev", ABBREVIATIONS), (".debug_ranges", &ranges)];
    let scratch = with_dwarf(&sections);
    for at_once in [false, true] {
        let file = &SymbolFile::open(&scratch.path).unwrap()[0];
        if at_once {
            file.look_up(&[0x1941, 0x1945].map(LookupAddress::of_instruction));
        }
        assert!(file.calls(LookupAddress::of_instruction(0x1941))[0].line.is_none());
        let problems = file.take_problems();
        assert!(problems[0].to_string().contains("share range lists"), "{}", problems[0]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn overlapping_abbreviation_tables_are_refused() {
    // Each of 50,000 units refers to a position one byte further in a table of 1 MB.
    let mut table = vec![];
    while table.len() < 1 << 20 {
        table.extend([1, 0x11, 0, 0, 0]);
    }
    let mut info = vec![];
    for index in 0..50_000u32 {
        info.extend(8u32.to_le_bytes());
        info.extend(4u16.to_le_bytes());
        info.extend((index * 5).to_le_bytes());
        info.extend([8, 0]);
    }
    let scratch = with_dwarf(&[(".debug_info", &info), (".debug_abbrev", &table)]);
    let file = &SymbolFile::open(&scratch.path).unwrap()[0];
    let _ = file.calls(LookupAddress::of_instruction(0x1941));
    let problems = file.take_problems();
    assert!(problems[0].to_string().contains("overlapping abbreviation tables"), "{}", problems[0]);
}

#[cfg(target_os = "linux")]
#[test]
fn sections_that_would_decompress_to_gigabytes_are_refused() {
    // Elf64_Chdr: ELFCOMPRESS_ZLIB, 1 TiB, alignment 1; then bytes that are not a zlib stream.
    let mut section = vec![];
    section.extend(1u64.to_le_bytes());
    section.extend((1u64 << 40).to_le_bytes());
    section.extend(1u64.to_le_bytes());
    section.extend([0x78, 0x9c, 0, 0]);
    let scratch = with_dwarf(&[(".debug_info", &section)]);
    // SHF_COMPRESSED of that section.
    let mut bytes = std::fs::read(&scratch.path).unwrap();
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (table, count) = (word(&bytes, 40), bytes[60] as usize);
    let at = (0..count).rev().map(|i| table + i * 64).find(|&at| word(&bytes, at + 32) == section.len()).unwrap();
    bytes[at + 9] |= 8;
    let path = scratch.write(&bytes);
    let file = &SymbolFile::open(path).unwrap()[0];
    let _ = file.calls(LookupAddress::of_instruction(0x1941));
    let problems = file.take_problems();
    assert!(problems[0].to_string().contains("would decompress to"), "{}", problems[0]);
}

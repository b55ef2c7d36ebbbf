//! Compares Mach-O names and lines with those of LLVM's tools: fat files, dSYMs, stripped
//! libraries, Objective-C metadata.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{Random, fixture};
use coroner_process::memory::{Snapshot, SnapshotRange};
use coroner_process::symtab::{MachO, NameScan, Placement};
use coroner_symbols::{Arch, FileKind, ImageKey, LookupAddress, Match, Options, SymbolFile, SymbolSource, Symbolizer};

/// Runs an LLVM tool; `None` if it is not installed.
fn llvm(program: &str, arguments: &[&str]) -> Option<String> {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        println!("skipped: {program} is not installed");
        return None;
    };
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

fn slice_of(path: &Path, arch: Arch) -> SymbolFile {
    SymbolFile::open(path).unwrap().into_iter().find(|file| file.arch() == arch).unwrap()
}

/// Runs `llvm-nm`; returns the addresses of text symbols with their names, without the leading
/// underscore.
fn nm(path: &Path, arch: &str) -> Option<BTreeMap<u64, Vec<String>>> {
    let text = llvm("llvm-nm", &[&format!("--arch={arch}"), path.to_str().unwrap()])?;
    let mut symbols: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((address, rest)) = line.split_once(' ')
            && let Ok(address) = u64::from_str_radix(address, 16)
            && let ("t" | "T", name) = rest.split_at(1)
        {
            let name = name.trim_start();
            symbols.entry(address).or_default().push(name.strip_prefix('_').unwrap_or(name).to_owned());
        }
    }
    assert!(symbols.len() >= 6, "{text}");
    Some(symbols)
}

#[test]
fn names_agree_with_llvm_nm() {
    for (name, arch, cpu) in [
        ("program.dylib", "arm64", Arch::Aarch64),
        ("program.dylib", "x86_64", Arch::X86_64),
        ("classes-arm64.dylib", "arm64", Arch::Aarch64),
        ("classes-x86_64.dylib", "x86_64", Arch::X86_64),
    ] {
        let path = fixture(name);
        let Some(symbols) = nm(&path, arch) else { return };
        let file = slice_of(&path, cpu);
        let starts: Vec<u64> = symbols.keys().copied().collect();
        for (index, &start) in starts.iter().enumerate() {
            // Up to the next symbol; nm doesn't print the last one's end.
            let end = starts.get(index + 1).copied().unwrap_or(start + 4);
            for address in [start, start + (end - start) / 2, end - 1] {
                let (found, at) = file.symbol(LookupAddress::of_instruction(address)).unwrap();
                assert_eq!(at, start, "{name} {arch} {address:#x}: {found}");
                assert!(symbols[&start].contains(&found), "{name} {arch} {address:#x}: {found}");
            }
        }
        assert_eq!(file.symbol(LookupAddress::of_instruction(0)), None);
        assert_eq!(file.symbol(LookupAddress::of_instruction(1 << 40)), None);
    }
}

fn program_key(arch: Arch) -> ImageKey {
    let file = slice_of(&fixture("program.dylib"), arch);
    ImageKey {
        path: "/Applications/Program.app/Contents/Frameworks/program.dylib".into(),
        debug_id: file.debug_id().cloned(),
        kind: FileKind::MachO,
        arch,
        base_svma: 0,
        replaced: false,
    }
}

/// Compares a dSYM's names, files, lines and inlined calls with those of llvm-symbolizer. Returns
/// the number of inlined calls; `None` if llvm-symbolizer is not installed.
fn compare_lines(
    dsym: &Path,
    arch: &str,
    symbolizer: &mut Symbolizer,
    key: &ImageKey,
    addresses: &[u64],
    symbols: &BTreeMap<u64, Vec<String>>,
) -> Option<usize> {
    let object = format!("--obj={}", dsym.display());
    let default_arch = format!("--default-arch={arch}");
    let mut theirs: BTreeMap<u64, Vec<(String, String, u32)>> = BTreeMap::new();
    for part in addresses.chunks(1000) {
        let hex: Vec<String> = part.iter().map(|address| format!("{address:#x}")).collect();
        let mut arguments =
            vec![object.as_str(), &default_arch, "--no-demangle", "--output-style=GNU", "-a", "-f", "-i"];
        arguments.extend(hex.iter().map(String::as_str));
        let text = llvm("llvm-symbolizer", &arguments)?;
        let mut lines = text.lines();
        let mut address = 0;
        while let Some(line) = lines.next() {
            if let Some(hex) = line.strip_prefix("0x") {
                address = u64::from_str_radix(hex, 16).unwrap();
            } else if !line.is_empty() {
                let (file, number) = lines.next().unwrap().rsplit_once(':').unwrap();
                let file = file.rsplit('/').next().unwrap().to_owned();
                let number = number.split_whitespace().next().unwrap().parse().unwrap_or(0);
                // The outermost name is from the symbol table, with its underscore; DWARF's names
                // have none.
                let name = ["__Z", "__R", "_"].iter().find(|prefix| line.starts_with(**prefix));
                let name =
                    name.filter(|_| !line.starts_with("_Z") && !line.starts_with("_R")).map_or(line, |_| &line[1..]);
                theirs.entry(address).or_default().push((name.to_owned(), file, number));
            }
        }
    }
    let mut inlined = 0;
    for address in addresses {
        let ours: Vec<(String, String, u32)> = symbolizer
            .symbolicate(key, LookupAddress::of_instruction(*address))
            .into_iter()
            .map(|frame| {
                inlined += usize::from(frame.inlined);
                let file = frame.file.as_deref().unwrap_or("??").rsplit('/').next().unwrap().to_owned();
                (frame.raw_name.unwrap(), file, frame.line.unwrap_or(0))
            })
            .collect();
        let theirs = &theirs[address];
        // If the compiler recorded no line, the tool prints the unit's name as the file; we print
        // none. For the outermost call it prints the symbol table's name instead of DWARF's: one
        // with LLVM's suffix (`name.llvm.123`), or another of several functions that were folded
        // because their code is the same.
        let symbols = symbols.range(..=address).next_back().map_or(&[][..], |(_, names)| names);
        let same = ours.len() == theirs.len()
            && ours.iter().zip(theirs).all(|(our, their)| {
                (our.0 == their.0 || symbols.contains(&their.0)) && our.2 == their.2 && (our.1 == their.1 || our.2 == 0)
            });
        assert!(same, "{arch} {address:#x}:\nours   {ours:?}\ntheirs {theirs:?}");
    }
    Some(inlined)
}

#[test]
fn lines_of_a_dsym_agree_with_llvm_symbolizer() {
    for (arch, name) in [(Arch::Aarch64, "arm64"), (Arch::X86_64, "x86_64")] {
        // The dSYM is found by its UUID in a folder, for an image that is not on this machine.
        let mut symbolizer = Symbolizer::new(Options { search: vec![fixture("")], ..Options::default() });
        let key = program_key(arch);
        assert_eq!(symbolizer.status(&key).matched, Match::Matched);
        assert!(
            symbolizer.status(&key).files[0].ends_with("program.dylib.dSYM/Contents/Resources/DWARF/program.dylib")
        );
        assert!(symbolizer.status(&key).problems.is_empty(), "{:?}", symbolizer.status(&key).problems);
        let dsym = fixture("program.dylib.dSYM/Contents/Resources/DWARF/program.dylib");
        let Some(symbols) = nm(&fixture("program.dylib"), name) else { return };
        let addresses: Vec<u64> = (*symbols.keys().next().unwrap()..*symbols.keys().last().unwrap()).collect();
        let Some(inlined) = compare_lines(&dsym, name, &mut symbolizer, &key, &addresses, &symbols) else { return };
        assert!(inlined > 100, "only {inlined} inlined calls at {} addresses", addresses.len());
    }
}

/// Builds a Rust library for macOS with the compiler's own linker, and its dSYM; `None` if the
/// compiler lacks the target or `dsymutil` is not installed.
fn rust_library(folder: &Path, target: &str) -> Option<PathBuf> {
    let run =
        |program: &str, arguments: &[&str]| Command::new(program).args(arguments).current_dir(folder).output().ok();
    let text = r#"
        use std::collections::{BTreeMap, HashMap};
        #[unsafe(no_mangle)]
        pub extern "C" fn entry(count: u64) -> usize {
            let mut words: HashMap<String, Vec<usize>> = HashMap::new();
            for (number, word) in std::env::args().enumerate() {
                words.entry(word.to_uppercase()).or_default().push(number);
            }
            let sorted: BTreeMap<_, _> = words.iter().map(|(word, at)| (word.len(), (at.iter().sum::<usize>(), word))).collect();
            let threads: Vec<_> = (0..count).map(|n| std::thread::spawn(move || (0..n).map(|x| x * x).sum::<u64>())).collect();
            println!("{sorted:?} {}", threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>());
            sorted.len()
        }"#;
    std::fs::write(folder.join("app.rs"), text).unwrap();
    // Stubs of the libraries that std links; symbols are resolved at run time.
    for library in ["System", "c", "m", "iconv"] {
        let stub = format!(
            "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos, x86_64-macos ]\ninstall-name: '/usr/lib/lib{library}.dylib'\n...\n"
        );
        std::fs::write(folder.join(format!("lib{library}.tbd")), stub).unwrap();
    }
    let library = format!("{target}.dylib");
    let arguments = [
        "-O",
        "-g",
        "--edition=2024",
        "--crate-type=cdylib",
        "--target",
        target,
        "-Lnative=.",
        "-Clinker=rust-lld",
        "-Clinker-flavor=ld64.lld",
        "-Clink-arg=-undefined",
        "-Clink-arg=dynamic_lookup",
        "-Csplit-debuginfo=off",
        "-Cstrip=none",
        "-Csave-temps",
        "-o",
        &library,
        "app.rs",
    ];
    let built = run("rustc", &arguments)?;
    if !built.status.success() {
        println!("skipped: can't build a library for {target}: {}", String::from_utf8_lossy(&built.stderr));
        return None;
    }
    run("dsymutil", &[&library])?.status.success().then(|| folder.join(&library))
}

#[test]
fn rust_libraries_for_both_architectures_agree_with_llvm() {
    for (target, arch, cpu) in
        [("aarch64-apple-darwin", "arm64", Arch::Aarch64), ("x86_64-apple-darwin", "x86_64", Arch::X86_64)]
    {
        let folder = tempfile::tempdir().unwrap();
        let Some(library) = rust_library(folder.path(), target) else { return };
        let Some(symbols) = nm(&library, arch) else { return };
        let starts: Vec<u64> = symbols.keys().copied().collect();
        assert!(starts.len() > 500);
        let file = slice_of(&library, cpu);
        let mut random = Random::new(9);
        let mut addresses = vec![];
        for _ in 0..4000 {
            let index = random.below(starts.len() as u64 - 1) as usize;
            let address = starts[index] + random.below(starts[index + 1] - starts[index]);
            let (name, start) = file.symbol(LookupAddress::of_instruction(address)).unwrap();
            assert!(start == starts[index] && symbols[&start].contains(&name), "{arch} {address:#x}: {name}");
            addresses.push(address);
        }
        addresses.sort_unstable();
        addresses.dedup();
        let key = ImageKey {
            path: library.clone(),
            debug_id: file.debug_id().cloned(),
            kind: FileKind::MachO,
            arch: cpu,
            base_svma: 0,
            replaced: false,
        };
        // The dSYM is found beside the library.
        let mut symbolizer = Symbolizer::new(Options::default());
        let dsym =
            library.with_extension("dylib.dSYM").join("Contents/Resources/DWARF").join(format!("{target}.dylib"));
        assert_eq!(symbolizer.status(&key).files, [dsym.clone(), library]);
        let Some(inlined) = compare_lines(&dsym, arch, &mut symbolizer, &key, &addresses, &symbols) else { return };
        assert!(inlined > 1000, "only {inlined} inlined calls at {} addresses", addresses.len());
    }
}

/// Returns one slice without its symbol table, like a library after `strip -x`.
fn without_symtab(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap();
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut at = 32;
    for _ in 0..word(&bytes, 16) {
        if word(&bytes, at) == 2 {
            // LC_SYMTAB: nsyms
            bytes[at + 12..at + 16].fill(0);
            return bytes;
        }
        at += word(&bytes, at + 4) as usize;
    }
    panic!("no LC_SYMTAB");
}

fn stripped(name: &str) -> (tempfile::TempDir, SymbolFile) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stripped.dylib");
    std::fs::write(&path, without_symtab(&fixture(name))).unwrap();
    let file = SymbolFile::open(&path).unwrap().remove(0);
    (folder, file)
}

#[test]
fn objective_c_methods_are_named_in_a_stripped_library() {
    for (name, cpu) in [("classes-arm64.dylib", Arch::Aarch64), ("classes-x86_64.dylib", Arch::X86_64)] {
        let full = slice_of(&fixture(name), cpu);
        let (_folder, stripped) = stripped(name);
        let sources: BTreeMap<SymbolSource, usize> = stripped.sources().into_iter().collect();
        assert!(!sources.contains_key(&SymbolSource::Symtab), "{sources:?}");
        assert_eq!(sources[&SymbolSource::ObjcMetadata], 9, "{name}");
        let text = 0x500..0x1000;
        let mut methods = vec![];
        for address in text {
            let address = LookupAddress::of_instruction(address);
            let expected = full.symbol(address);
            let found = stripped.symbol(address);
            match &found {
                Some(found) => {
                    // A category on another image's class doesn't contain the class's name.
                    let expected = expected.unwrap();
                    assert_eq!(found.0.replace("[(Ours)", "[Foreign(Ours)"), expected.0);
                    assert_eq!(found.1, expected.1);
                    methods.push(found.0.clone());
                }
                // A local function: its start is known, its name was stripped, and no method's name
                // covers it.
                None => assert!(expected.is_none_or(|(name, _)| !name.contains('[')), "{name} {address:?}"),
            }
        }
        methods.dedup();
        assert_eq!(methods.len(), 9, "{methods:?}");
    }
}

#[test]
fn exports_of_a_stripped_library_are_named_by_index_and_scan() {
    // The fat file's two slices: one has LC_DYLD_EXPORTS_TRIE, the other LC_DYLD_INFO.
    for (arch, cpu) in [(Arch::Aarch64, 0x0100_000c), (Arch::X86_64, 0x0100_0007)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thin");
        std::fs::write(&path, thin(cpu)).unwrap();
        let full = slice_of(&path, arch);
        std::fs::write(&path, without_symtab(&path)).unwrap();
        let stripped = slice_of(&path, arch);
        let bytes = std::fs::read(&path).unwrap();

        let mut exported = 0;
        for address in 0x200..0x1000 {
            let lookup = LookupAddress::of_instruction(address);
            let expected = full.symbol(lookup);
            let found = stripped.symbol(lookup);
            let scanned = scan(&bytes, address);
            assert_eq!(found, scanned, "{address:#x}");
            let local = expected.as_ref().is_none_or(|(name, _)| {
                name.contains("not_exported") || name.contains("hidden") || name.contains("area")
            });
            if local {
                assert_eq!(found, None, "{address:#x}: {expected:?}");
            } else {
                assert_eq!(found, expected, "{address:#x}");
                exported += 1;
            }
        }
        assert!(exported > 50);
    }
}

/// Returns one slice of the fat file.
fn thin(cpu: u32) -> Vec<u8> {
    let fat = std::fs::read(fixture("program.dylib")).unwrap();
    let word = |at: usize| u32::from_be_bytes(fat[at..at + 4].try_into().unwrap());
    let entry = (0..word(4) as usize).map(|index| 8 + index * 20).find(|&at| word(at) == cpu).unwrap();
    fat[word(entry + 8) as usize..][..word(entry + 12) as usize].to_vec()
}

/// Returns the offset of a symbol's entry in a thin file's symbol table. `name` includes the
/// underscore; debugger symbols are skipped.
fn entry_of(bytes: &[u8], name: &str) -> usize {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let mut at = 32;
    while word(at) != 2 {
        at += word(at + 4);
    }
    let (symbols, count, strings) = (word(at + 8), word(at + 12), word(at + 16));
    let has_name = |entry: usize| bytes[strings + word(entry)..].starts_with(&[name.as_bytes(), b"\0"].concat());
    let is_it = |&entry: &usize| bytes[entry + 4] & 0xe0 == 0 && has_name(entry);
    (0..count).map(|index| symbols + index * 16).find(is_it).unwrap()
}

/// Returns the name by index and by scan, which must agree.
fn name_at(bytes: &[u8], address: u64) -> Option<String> {
    let file = SymbolFile::from_bytes(Path::new("patched"), bytes.to_vec()).unwrap().remove(0);
    let found = file.symbol(LookupAddress::of_instruction(address));
    assert_eq!(found, scan(bytes, address), "{address:#x}");
    found.map(|(name, _)| name)
}

#[test]
fn entries_that_are_not_section_symbols_are_ignored() {
    for cpu in [0x0100_000c, 0x0100_0007] {
        let bytes = thin(cpu);
        let entry = entry_of(&bytes, "_not_exported");
        let address = u64::from_le_bytes(bytes[entry + 8..entry + 16].try_into().unwrap()) + 4;
        assert_eq!(name_at(&bytes, address).as_deref(), Some("not_exported"));
        // n_type and n_sect: a debugger's N_FUN and N_BNSYM; N_ABS, N_UNDF and N_INDR, with and
        // without an invalid section; N_SECT without a section. (<mach-o/nlist.h>, <mach-o/stab.h>)
        for (kind, section) in [(0x24, 1), (0x2e, 1), (0x02, 0), (0x02, 1), (0x00, 0), (0x0a, 1), (0x0e, 0)] {
            let mut patched = bytes.clone();
            (patched[entry + 4], patched[entry + 5]) = (kind, section);
            // The function still starts there: the preceding one doesn't cover the address.
            assert_eq!(name_at(&patched, address), None, "n_type {kind:#x}");
        }
    }
}

#[test]
fn a_symbol_is_preferred_to_an_alternate_entry() {
    for cpu in [0x0100_000c, 0x0100_0007] {
        let mut bytes = thin(cpu);
        let names = ["_not_exported", "__ZN6shapesL6hiddenEi"];
        let entries = names.map(|name| entry_of(&bytes, name));
        // Both are local, and both at the address of the first.
        bytes.copy_within(entries[0] + 8..entries[0] + 16, entries[1] + 8);
        let address = u64::from_le_bytes(bytes[entries[0] + 8..entries[0] + 16].try_into().unwrap());
        for (alternate, other) in [(0, 1), (1, 0)] {
            let mut patched = bytes.clone();
            // n_desc: N_ALT_ENTRY
            patched[entries[alternate] + 7] |= 0x02;
            for address in [address, address + 4] {
                assert_eq!(name_at(&patched, address).as_deref(), names[other].strip_prefix('_'), "{cpu:#x}");
            }
        }
    }
}

#[test]
fn an_alternate_entry_names_the_rest_of_its_function() {
    let mut bytes = thin(0x0100_000c);
    let (function, entry) = (entry_of(&bytes, "_entry"), entry_of(&bytes, "_not_exported"));
    let start = u64::from_le_bytes(bytes[function + 8..function + 16].try_into().unwrap());
    bytes[entry + 8..entry + 16].copy_from_slice(&(start + 16).to_le_bytes());
    bytes[entry + 7] |= 0x02;
    // The nearest symbol, as in llvm-symbolizer.
    for (offset, name) in [(0, "entry"), (15, "entry"), (16, "not_exported"), (40, "not_exported")] {
        assert_eq!(name_at(&bytes, start + offset).as_deref(), Some(name), "{offset}");
    }
}

/// Returns the result of the allocation-free scan of the file.
fn scan(bytes: &[u8], address: u64) -> Option<(String, u64)> {
    let ranges = [SnapshotRange { address: 0x1_0000, bytes }];
    let mut memory = Snapshot { ranges: &ranges };
    let image = MachO::read(&mut memory, 0x1_0000, Placement::File { size: bytes.len() as u64 }).unwrap();
    let mut scan = Box::new(NameScan::<2>::new());
    scan.push(LookupAddress::of_instruction(address), 1);
    scan.macho(&mut memory, &image, u32::MAX).unwrap();
    let mut found = None;
    scan.for_each_name(&mut memory, &mut [0; 256], |named| {
        found = Some((String::from_utf8(named.name.to_vec()).unwrap(), named.symbol_svma));
    });
    found
}

#[test]
fn the_scan_reads_a_loaded_image() {
    for name in ["classes-arm64.dylib", "classes-x86_64.dylib"] {
        let bytes = std::fs::read(fixture(name)).unwrap();
        // Mapped like dyld does: each segment at its address plus a slide.
        let slide = 0x1_2345_0000;
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let mut ranges = vec![];
        let mut at = 32;
        for _ in 0..u32_at(16) {
            if u32_at(at) == 0x19 {
                let (svma, offset, size) = (u64_at(at + 24), u64_at(at + 40) as usize, u64_at(at + 48) as usize);
                ranges.push(SnapshotRange { address: svma + slide, bytes: &bytes[offset..offset + size] });
            }
            at += u32_at(at + 4) as usize;
        }
        let mut memory = Snapshot { ranges: &ranges };
        let image = MachO::read(&mut memory, slide, Placement::Loaded).unwrap();
        assert_eq!((image.slide(), image.text_svma), (slide, 0));
        let file = &SymbolFile::open(&fixture(name)).unwrap()[0];
        assert_eq!(
            image.uuid.as_ref().map(<[u8; 16]>::as_slice),
            file.debug_id().map(coroner_symbols::DebugId::as_bytes)
        );
        let mut random = Random::new(5);
        let mut scan = Box::new(NameScan::<128>::new());
        let addresses: Vec<u64> = (0..128).map(|_| 0x400 + random.below(0x800)).collect();
        for (tag, &address) in addresses.iter().enumerate() {
            scan.push(LookupAddress::of_instruction(address), tag as u32);
        }
        scan.macho(&mut memory, &image, u32::MAX).unwrap();
        let mut found = vec![None; addresses.len()];
        scan.for_each_name(&mut memory, &mut [0; 256], |named| {
            found[named.tag as usize] = Some((String::from_utf8(named.name.to_vec()).unwrap(), named.symbol_svma));
        });
        assert!(found.iter().flatten().count() > 10);
        for (found, &address) in found.into_iter().zip(&addresses) {
            assert_eq!(found, file.symbol(LookupAddress::of_instruction(address)), "{address:#x}");
        }
    }
}

#[test]
fn a_dsym_from_another_build_is_not_used() {
    let mut symbolizer = Symbolizer::new(Options { search: vec![fixture("")], ..Options::default() });
    let mut key = program_key(Arch::Aarch64);
    key.debug_id = Some("00112233445566778899aabbccddeeff".parse().unwrap());
    // A dSYM with its name is in the folder.
    let status = symbolizer.status(&key);
    assert!(matches!(&status.matched, Match::Mismatched { found, .. } if found.len() == 2), "{status:?}");
    key.path = "/A/another.dylib".into();
    assert_eq!(symbolizer.status(&key).matched, Match::Missing);
    key.path = fixture("program.dylib");
    let status = symbolizer.status(&key);
    assert!(matches!(&status.matched, Match::Mismatched { found, .. } if found.len() == 2), "{status:?}");
    assert!(symbolizer.symbolicate(&key, LookupAddress::of_instruction(0x600)).is_empty());
}

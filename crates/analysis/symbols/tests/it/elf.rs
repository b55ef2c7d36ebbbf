//! Compares ELF names with those of binutils (`nm`, `addr2line`) at thousands of random addresses.

#![cfg(target_os = "linux")]

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{Random, fixture};
use coroner_symbols::{ImageKey, LookupAddress, Options, SymbolFile, SymbolSource, Symbolizer, demangle};

/// Returns the test program's path: a Rust executable with tens of thousands of symbols and debug
/// information.
fn this_program() -> PathBuf {
    std::env::current_exe().unwrap()
}

fn key_of(path: &Path) -> ImageKey {
    let file = &SymbolFile::open(path).unwrap()[0];
    ImageKey {
        path: path.into(),
        debug_id: file.debug_id().cloned(),
        kind: file.kind(),
        arch: file.arch(),
        base_svma: 0,
        replaced: false,
    }
}

fn command(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the functions from `nm -S`: address, size and name.
fn nm_functions(path: &Path, options: &[&str]) -> Vec<(u64, u64, String)> {
    let text = command("nm", &[options, &["-n", "-S", path.to_str().unwrap()]].concat());
    text.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let &[address, size, kind, name] = words.as_slice() else { return None };
            let hex = |text| u64::from_str_radix(text, 16).unwrap();
            // nm appends symbol versions (`name@@GLIBC_2.2`).
            let name = name.split('@').next().unwrap().to_owned();
            matches!(kind, "t" | "T" | "w" | "W" | "i").then(|| (hex(address), hex(size), name))
        })
        .collect()
}

#[derive(Debug, PartialEq, Eq, Clone)]
struct Call {
    name: String,
    file: String,
    line: u32,
}

/// Returns another tool's results: the calls at each address, innermost first.
fn calls_by(program: &[&str], path: &Path, addresses: &[u64]) -> HashMap<u64, Vec<Call>> {
    let mut found: HashMap<u64, Vec<Call>> = HashMap::new();
    for chunk in addresses.chunks(1000) {
        let hex: Vec<String> = chunk.iter().map(|address| format!("{address:#x}")).collect();
        let mut arguments = program[1..].to_vec();
        arguments.extend(["-a", "-f", "-i", "-e", path.to_str().unwrap()]);
        arguments.extend(hex.iter().map(String::as_str));
        let text = command(program[0], &arguments);
        let mut lines = text.lines();
        let mut address = 0;
        while let Some(line) = lines.next() {
            if let Some(hex) = line.strip_prefix("0x") {
                address = u64::from_str_radix(hex, 16).unwrap();
                continue;
            }
            if line.is_empty() {
                continue;
            }
            let place = lines.next().unwrap();
            let (file, number) = place.rsplit_once(':').unwrap();
            let line_number = number.split_whitespace().next().unwrap().parse().unwrap_or(0);
            found.entry(address).or_default().push(Call { name: line.into(), file: file.into(), line: line_number });
        }
    }
    found
}

/// Returns random addresses inside functions, including the first and last byte of some functions.
fn addresses_in(functions: &[(u64, u64, String)], count: usize) -> Vec<u64> {
    let mut random = Random::new(7);
    (0..count)
        .map(|index| {
            let (start, size, _) = &functions[random.below(functions.len() as u64) as usize];
            match index % 4 {
                0 => *start,
                1 => start + size.max(&1) - 1,
                _ => start + random.below((*size).max(1)),
            }
        })
        .collect()
}

/// Returns the names of all functions that contain an address. `functions` must be sorted by
/// address (`nm -n`).
fn names_at(functions: &[(u64, u64, String)], address: u64) -> Vec<&str> {
    let behind = functions.partition_point(|function| function.0 <= address);
    // A function that contains others is at most this far before them in the list.
    functions[behind.saturating_sub(2000)..behind]
        .iter()
        .filter(|&&(start, size, _)| address - start < size.max(1))
        .map(|(_, _, name)| name.as_str())
        .collect()
}

/// Returns code labels, for which `nm` has no size, by address. llvm-symbolizer uses a label inside
/// an assembly function as its name.
fn nm_labels(path: &Path) -> Vec<(u64, String)> {
    let text = command("nm", &["-n", "-S", path.to_str().unwrap()]);
    text.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let &[address, "t" | "T", name] = words.as_slice() else { return None };
            Some((u64::from_str_radix(address, 16).unwrap(), name.to_owned()))
        })
        .collect()
}

/// Returns the nearest label at or before an address.
fn label_at(labels: &[(u64, String)], address: u64) -> Option<&str> {
    let behind = labels.partition_point(|label| label.0 <= address);
    labels[..behind].last().map(|label| label.1.as_str())
}

fn check_names(path: &Path, nm_options: &[&str], count: usize) {
    let functions = nm_functions(path, nm_options);
    assert!(functions.len() > 5, "{} has only {} functions", path.display(), functions.len());
    let file = &SymbolFile::open(path).unwrap()[0];
    for address in addresses_in(&functions, count) {
        let (name, start) = file.symbol(LookupAddress::of_instruction(address)).unwrap_or_else(|| {
            panic!("{}: {address:#x} has no name; nm: {:?}", path.display(), names_at(&functions, address))
        });
        let theirs = names_at(&functions, address);
        assert!(theirs.contains(&name.as_str()), "{}: {address:#x} is {name}, nm: {theirs:?}", path.display());
        assert!(start <= address);
    }
}

#[test]
fn a_rust_program_agrees_with_nm() {
    check_names(&this_program(), &[], 5000);
}

#[test]
fn a_stripped_library_agrees_with_nm() {
    // This process's C library: thousands of dynamic symbols, aliases and versions, and no .symtab.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("libc.so")).unwrap();
    check_names(Path::new(libc), &["-D"], 5000);
}

#[test]
fn a_library_of_150_000_symbols_agrees_with_nm() {
    // The compiler's own library.
    let sysroot = command("rustc", &["--print", "sysroot"]);
    let folder = Path::new(sysroot.trim()).join("lib");
    let large = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()).find(|path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("librustc_driver-"))
    });
    let Some(large) = large else {
        println!("skipped: no librustc_driver in {}", folder.display());
        return;
    };
    check_names(&large, &[], 10_000);
    let symtab = SymbolFile::open(&large).unwrap()[0].sources().into_iter().find(|s| s.0 == SymbolSource::Symtab);
    assert!(symtab.is_some_and(|(_, count)| count > 100_000), "{symtab:?}");
}

/// Builds a small program in release mode with debug information, like an app that keeps its
/// symbols.
fn release_program(folder: &Path) -> PathBuf {
    let (source, program) = (folder.join("app.rs"), folder.join("app"));
    let text = r#"
        use std::collections::{BTreeMap, HashMap};
        fn main() {
            let mut words: HashMap<String, Vec<usize>> = HashMap::new();
            for (number, word) in std::env::args().enumerate() {
                words.entry(word.to_uppercase()).or_default().push(number);
            }
            let sorted: BTreeMap<_, _> = words.iter().map(|(word, at)| (word.len(), (at.iter().sum::<usize>(), word))).collect();
            let threads: Vec<_> = (0..4u64).map(|n| std::thread::spawn(move || (0..n).map(|x| x * x).sum::<u64>())).collect();
            println!("{sorted:?} {}", threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>());
        }"#;
    std::fs::write(&source, text).unwrap();
    command("rustc", &["-O", "-g", "--edition=2021", "-o", program.to_str().unwrap(), source.to_str().unwrap()]);
    program
}

#[test]
fn a_release_rust_program_agrees_with_other_tools() {
    let folder = tempfile::tempdir().unwrap();
    let program = release_program(folder.path());
    check_names(&program, &[], 5000);
    compare_lines(&program, 5000);
}

#[test]
fn cpp_agrees_with_nm() {
    check_names(&fixture("cpp.elf"), &[], 2000);
}

/// The tools whose files, lines and inlined calls are the reference. llvm-symbolizer is optional,
/// binutils is required.
const ORACLES: [&[&str]; 2] = [&["addr2line"], &["llvm-symbolizer", "--output-style=GNU", "--no-demangle"]];

fn compare_lines(path: &Path, count: usize) {
    let (functions, labels) = (nm_functions(path, &[]), nm_labels(path));
    let mut addresses = addresses_in(&functions, count);
    addresses.sort_unstable();
    addresses.dedup();
    let mut symbolizer = Symbolizer::new(Options::default());
    let key = key_of(path);
    let ours: Vec<Vec<Call>> = addresses
        .iter()
        .map(|&address| {
            let frames = symbolizer.symbolicate(&key, LookupAddress::of_instruction(address));
            assert!(frames.split_last().is_some_and(|(last, inner)| !last.inlined && inner.iter().all(|f| f.inlined)));
            frames
                .into_iter()
                .map(|frame| Call {
                    name: frame.raw_name.unwrap_or_else(|| "??".into()),
                    file: frame.file.unwrap_or_else(|| "??".into()),
                    line: frame.line.unwrap_or(0),
                })
                .collect()
        })
        .collect();
    let with_lines = ours.iter().filter(|calls| calls.iter().any(|call| call.line > 0)).count();
    assert!(with_lines * 2 > addresses.len(), "only {with_lines} of {} addresses have lines", addresses.len());
    for oracle in ORACLES {
        if Command::new(oracle[0]).arg("--version").output().is_err() && oracle[0] != "addr2line" {
            println!("{} is not installed", oracle[0]);
            continue;
        }
        let theirs = calls_by(oracle, path, &addresses);
        let mut different = Vec::new();
        for (ours, address) in ours.iter().zip(&addresses) {
            let theirs = &theirs[address];
            let mut names = names_at(&functions, *address);
            names.extend(label_at(&labels, *address));
            if !same_calls(ours, theirs, &names) {
                different.push(format!("{address:#x}\n  ours   {ours:?}\n  theirs {theirs:?}"));
            }
        }
        println!("{}: {} addresses, {} differ", oracle[0], addresses.len(), different.len());
        assert!(different.is_empty(), "different result from {}, for example at {}", oracle[0], different[0]);
    }
}

/// Whether two call chains are equivalent. These differences are accepted:
/// * If DWARF has no linker name for a call (a C function, a static one, a lambda), the tools print
///   a symbol that contains the address, binutils even for inlined calls; we print DWARF's name.
/// * If DWARF has only the last part of the outermost function's name (line tables only), we print
///   the symbol, which has the rest.
/// * `f` and its part `f.cold` are one function in DWARF and two in the symbol table.
/// * If the compiler recorded no line, the tools print the unit's name as the file
///   (`app.1234-cgu.0`); we print none.
/// * The tools' paths keep `./.` and doubled separators.
fn same_calls(ours: &[Call], theirs: &[Call], symbols: &[&str]) -> bool {
    ours.len() == theirs.len()
        && ours.iter().zip(theirs).all(|(our, their)| {
            let base = their.name.trim_start_matches('{').split(['<', '#']).next().unwrap();
            let whole = || symbols.contains(&our.name.as_str()) && demangle(&our.name).name.contains(base);
            let name = our.name == their.name || symbols.contains(&their.name.as_str()) || whole();
            let file = our.line == 0 || file_name(&our.file) == file_name(&their.file);
            name && our.line == their.line && file
        })
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

#[test]
fn rust_lines_agree_with_other_tools() {
    compare_lines(&this_program(), 3000);
}

#[test]
fn cpp_lines_agree_with_other_tools() {
    compare_lines(&fixture("cpp.elf"), 2000);
}

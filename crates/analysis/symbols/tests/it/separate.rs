//! Symbols outside the image itself: debug links, build-id folders, `.gnu_debugdata`, breakpad
//! files; and PLT names.

#![cfg(target_os = "linux")]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::fixture;
use coroner_symbols::{FileKind, ImageKey, LookupAddress, Match, Options, SymbolFile, SymbolSource, Symbolizer};
use tempfile::TempDir;

/// Returns an address inside `deeper`, which is inlined into `deep` and not exported.
fn inlined_address() -> LookupAddress {
    address_of("_Z4deepi", 0x11)
}

fn address_of(name: &str, offset: u64) -> LookupAddress {
    let text = run("nm", &[path_text(&fixture("cpp.elf"))]);
    let line = text.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
    LookupAddress::of_instruction(u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap() + offset)
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Creates a stripped copy of the fixture, `app`, and its debug information, `app.debug`, in a new
/// folder.
fn split() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (app, debug) = (folder.path().join("app"), folder.path().join("app.debug"));
    let original = fixture("cpp.elf");
    run("objcopy", &["--only-keep-debug", path_text(&original), path_text(&debug)]);
    run("objcopy", &["--strip-all", path_text(&original), path_text(&app)]);
    (folder, app, debug)
}

fn key_of(path: &Path) -> ImageKey {
    let file = &SymbolFile::open(path).unwrap()[0];
    ImageKey {
        path: path.into(),
        debug_id: file.debug_id().cloned(),
        kind: FileKind::Elf,
        arch: file.arch(),
        base_svma: 0,
        replaced: false,
    }
}

fn without_system_folders() -> Options {
    Options { debug_roots: vec![], ..Options::default() }
}

/// Returns the functions and lines at the inlined address.
fn calls(symbolizer: &mut Symbolizer, key: &ImageKey) -> Vec<String> {
    let frames = symbolizer.symbolicate(key, inlined_address());
    frames.into_iter().map(|frame| format!("{} {}", frame.function.unwrap(), frame.line.unwrap_or(0))).collect()
}

fn expected() -> Vec<String> {
    let path = fixture("cpp.elf");
    let calls = calls(&mut Symbolizer::new(without_system_folders()), &key_of(&path));
    assert!(
        calls.len() >= 2 && calls.last().unwrap().starts_with("deep(int)") || calls.last().unwrap() == "_Z4deepi 44",
        "{calls:?}"
    );
    calls
}

#[test]
fn a_debug_link_is_followed() {
    let (folder, app, debug) = split();
    let key = key_of(&app);
    assert_eq!(calls(&mut Symbolizer::new(without_system_folders()), &key), [""; 0], "the image itself has no symbols");
    run("objcopy", &[&format!("--add-gnu-debuglink={}", path_text(&debug)), path_text(&app)]);
    let mut symbolizer = Symbolizer::new(without_system_folders());
    assert_eq!(calls(&mut symbolizer, &key), expected());
    assert_eq!(symbolizer.status(&key).files, [debug.clone(), app.clone()]);
    // In `.debug`, where GDB looks for it.
    std::fs::create_dir(folder.path().join(".debug")).unwrap();
    std::fs::rename(&debug, folder.path().join(".debug/app.debug")).unwrap();
    assert_eq!(calls(&mut Symbolizer::new(without_system_folders()), &key), expected());
}

#[test]
fn a_debug_link_without_ids_is_checked_by_its_crc() {
    let (_folder, app, debug) = split();
    for path in [&app, &debug] {
        run("objcopy", &["--remove-section=.note.gnu.build-id", path_text(path)]);
    }
    run("objcopy", &[&format!("--add-gnu-debuglink={}", path_text(&debug)), path_text(&app)]);
    let key = key_of(&app);
    assert_eq!(key.debug_id, None);
    let mut symbolizer = Symbolizer::new(without_system_folders());
    assert_eq!(calls(&mut symbolizer, &key), expected());
    assert_eq!(symbolizer.status(&key).matched, Match::Unverified);
    // Another file with that name.
    let mut bytes = std::fs::read(&debug).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&debug, bytes).unwrap();
    assert_eq!(calls(&mut Symbolizer::new(without_system_folders()), &key), [""; 0]);
}

#[test]
fn build_id_and_search_folders_are_searched() {
    let (folder, app, debug) = split();
    let key = key_of(&app);
    let id = key.debug_id.as_ref().unwrap().to_string();
    let root = folder.path().join("root");
    let place = root.join(".build-id").join(&id[..2]).join(format!("{}.debug", &id[2..]));
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::rename(&debug, &place).unwrap();
    let options = Options { debug_roots: vec![root.clone()], ..Options::default() };
    assert_eq!(calls(&mut Symbolizer::new(options), &key), expected());
    // The same tree, given by the user; the image is not on this machine.
    let options = Options { search: vec![root.clone()], ..without_system_folders() };
    let elsewhere = ImageKey { path: "/nowhere/app".into(), ..key };
    let mut symbolizer = Symbolizer::new(options);
    assert_eq!(calls(&mut symbolizer, &elsewhere), expected());
    assert_eq!(symbolizer.status(&elsewhere).matched, Match::Matched);
    // Missing folders, and files without symbols, are reported.
    std::fs::write(folder.path().join("notes.txt"), "hello").unwrap();
    let search = vec![folder.path().join("absent"), folder.path().join("notes.txt"), root];
    let mut symbolizer = Symbolizer::new(Options { search, ..without_system_folders() });
    assert_eq!(symbolizer.search_problems().len(), 2, "{:?}", symbolizer.search_problems());
}

#[test]
fn compressed_debug_sections_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let app = folder.path().join("app");
    let original = fixture("cpp.elf");
    run("objcopy", &["--compress-debug-sections=zlib", path_text(&original), path_text(&app)]);
    assert!(std::fs::metadata(&app).unwrap().len() < std::fs::metadata(&original).unwrap().len());
    assert_eq!(calls(&mut Symbolizer::new(without_system_folders()), &key_of(&app)), expected());
}

#[test]
fn mini_debug_info_is_read() {
    let (folder, app, _) = split();
    let mini = folder.path().join("mini");
    run("objcopy", &["--strip-debug", "--remove-section=.comment", path_text(&fixture("cpp.elf")), path_text(&mini)]);
    if Command::new("xz").arg("--version").output().is_err() {
        println!("skipped: xz is not installed");
        return;
    }
    run("xz", &[path_text(&mini)]);
    let packed = folder.path().join("mini.xz");
    run("objcopy", &[&format!("--add-section=.gnu_debugdata={}", path_text(&packed)), path_text(&app)]);
    let file = &SymbolFile::open(&app).unwrap()[0];
    let name = |name: &str| file.symbol(address_of(name, 1)).map(|(name, _)| name);
    assert_eq!(name("_Z4deepi").as_deref(), Some("_Z4deepi"));
    assert_eq!(name("plain_c").as_deref(), Some("plain_c"));
    assert!(file.sources().iter().any(|&(source, count)| source == SymbolSource::MiniDebugInfo && count > 10));
    assert!(file.take_problems().is_empty());
    // Damage is reported, and the rest of the file is used.
    let mut bytes = std::fs::read(&packed).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(&packed, &bytes).unwrap();
    run("objcopy", &["--remove-section=.gnu_debugdata", path_text(&app)]);
    run("objcopy", &[&format!("--add-section=.gnu_debugdata={}", path_text(&packed)), path_text(&app)]);
    let file = &SymbolFile::open(&app).unwrap()[0];
    assert_eq!(file.symbol(inlined_address()), None);
    let problems = file.take_problems();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].offset().unwrap() > 0, "{:?}", problems[0]);
}

#[test]
fn plt_stubs_are_named_after_their_targets() {
    let text =
        run("objdump", &["-d", "-j", ".plt", "-j", ".plt.sec", "-j", ".plt.got", path_text(&fixture("cpp.elf"))]);
    let file = &SymbolFile::open(&fixture("cpp.elf")).unwrap()[0];
    let mut stubs = 0;
    for line in text.lines() {
        // 0000000000000d40 <abort@plt>:
        let Some((address, name)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) else { continue };
        if !name.ends_with("@plt") {
            continue;
        }
        let address = u64::from_str_radix(address, 16).unwrap();
        let (found, start) = file.symbol(LookupAddress::of_instruction(address + 6)).unwrap_or_default();
        assert_eq!((found.as_str(), start), (name, address));
        stubs += 1;
    }
    assert!(stubs >= 10, "{text}");
}

#[test]
fn arm64_plt_stubs_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("a.c"), folder.path().join("a.so"));
    std::fs::write(&source, "int puts(const char *); int rand(void); int f(void) { return puts(\"\") + rand(); }")
        .unwrap();
    for protection in ["none", "bti"] {
        let branch = format!("-mbranch-protection={protection}");
        let force = if protection == "bti" { "-Wl,-z,force-bti" } else { "-Wl,-z,now" };
        let arguments = ["-shared", "-fPIC", &branch, force, "-o", path_text(&library), path_text(&source)];
        let Ok(built) = Command::new("aarch64-linux-gnu-gcc").args(arguments).output() else {
            println!("skipped: aarch64-linux-gnu-gcc is not installed");
            return;
        };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let text = run("aarch64-linux-gnu-objdump", &["-d", "-j", ".plt", path_text(&library)]);
        let file = &SymbolFile::open(&library).unwrap()[0];
        let mut stubs = 0;
        for line in text.lines() {
            let Some((address, name)) = line.strip_suffix("@plt>:").and_then(|line| line.split_once(" <")) else {
                continue;
            };
            let address = u64::from_str_radix(address, 16).unwrap();
            let (found, start) = file.symbol(LookupAddress::of_instruction(address + 5)).unwrap_or_default();
            assert_eq!((found, start), (format!("{name}@plt"), address), "{protection}");
            stubs += 1;
        }
        assert!(stubs >= 2, "{text}");
    }
}

#[test]
fn a_breakpad_file_is_found_by_its_module_id() {
    let folder = tempfile::tempdir().unwrap();
    let mut key = key_of(&fixture("cpp.elf"));
    let id = key.debug_id.clone().unwrap();
    // As for a program linked at a fixed address: breakpad's addresses are relative to its first
    // byte.
    key.base_svma = 0x40_0000;
    key.path = "/nowhere/app".into();
    let text = format!(
        "MODULE Linux x86_64 {} app\nFILE 7 /src/app.c\nFUNC 1000 20 0 crash_here(int)\n1000 20 42 7\n",
        id.to_breakpad_elf()
    );
    std::fs::write(folder.path().join("app.sym"), text).unwrap();
    let mut symbolizer = Symbolizer::new(Options { search: vec![folder.path().into()], ..without_system_folders() });
    let frames = symbolizer.symbolicate(&key, LookupAddress::of_return_address(0x40_1010));
    assert_eq!(frames.len(), 1, "{:?}", symbolizer.status(&key));
    assert_eq!(frames[0].function.as_deref(), Some("crash_here(int)"));
    assert_eq!((frames[0].file.as_deref(), frames[0].line), (Some("/src/app.c"), Some(42)));
    assert_eq!(frames[0].symbol_address, Some(0x40_1000));
    // An image with another id doesn't get its names.
    key.debug_id = Some("ffffffffffffffffffffffffffffffffffffffff".parse().unwrap());
    assert_eq!(symbolizer.symbolicate(&key, LookupAddress::of_return_address(0x40_1010)), []);
    assert_eq!(symbolizer.status(&key).matched, Match::Missing);
}

#[test]
fn an_image_without_an_id_is_found_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let app = folder.path().join("app");
    run("objcopy", &["--remove-section=.note.gnu.build-id", path_text(&fixture("cpp.elf")), path_text(&app)]);
    let key = ImageKey { path: "/nowhere/app".into(), ..key_of(&app) };
    assert_eq!(key.debug_id, None);
    let mut symbolizer = Symbolizer::new(Options { search: vec![folder.path().into()], ..without_system_folders() });
    assert_eq!(calls(&mut symbolizer, &key), expected());
    assert_eq!(symbolizer.status(&key).matched, Match::Unverified);
    // A file with an id is another build.
    std::fs::copy(fixture("cpp.elf"), &app).unwrap();
    let mut symbolizer = Symbolizer::new(Options { search: vec![folder.path().into()], ..without_system_folders() });
    assert_eq!(symbolizer.status(&key).matched, Match::Missing);
}

/// In reports, U+FFFD replaces the parts of a path that are not UTF-8.
#[test]
fn a_path_that_is_not_utf8_is_found() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join(std::ffi::OsStr::from_bytes(b"\xffolder"));
    std::fs::create_dir(&inner).unwrap();
    let path = inner.join(std::ffi::OsStr::from_bytes(b"lib\xe9.so"));
    std::fs::copy(fixture("cpp.elf"), &path).unwrap();
    let key = ImageKey { path: path.to_string_lossy().into_owned().into(), ..key_of(&path) };
    assert_ne!(key.path, path);
    assert_eq!(calls(&mut Symbolizer::new(without_system_folders()), &key), expected());
}

/// The vdso is not in a file. This process's vdso provides the names for a report's, if the kernel
/// is the same.
#[test]
fn the_vdso_is_named_if_the_kernel_is_the_same() {
    // SAFETY: only asks; the vdso stays where it is.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    if vdso == 0 {
        return;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let end = u64::from_str_radix(line.split(['-', ' ']).nth(1).unwrap(), 16).unwrap();
    // SAFETY: it is mapped, from there to the mapping's end.
    let bytes = unsafe { std::slice::from_raw_parts(vdso as *const u8, (end - vdso) as usize) }.to_vec();
    let file = &SymbolFile::from_bytes(Path::new("[vdso]"), bytes).unwrap()[0];
    let key = ImageKey {
        path: "[vdso]".into(),
        debug_id: file.debug_id().cloned(),
        kind: FileKind::Elf,
        arch: file.arch(),
        base_svma: 0,
        replaced: false,
    };
    // SAFETY: looks a symbol up; both names are constants.
    let handle = unsafe { libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!handle.is_null());
    let name = if cfg!(target_arch = "x86_64") { c"__vdso_clock_gettime" } else { c"__kernel_clock_gettime" };
    // SAFETY: as above.
    let function = unsafe { libc::dlsym(handle, name.as_ptr()) } as u64;
    let address = LookupAddress::of_instruction(function - vdso + 4);
    let found = Symbolizer::new(without_system_folders()).symbolicate(&key, address);
    assert!(found.iter().any(|frame| frame.raw_name.as_ref().unwrap().ends_with("clock_gettime")), "{found:?}");
    // It is not used for another kernel.
    let other = ImageKey { debug_id: coroner_symbols::DebugId::new(&[1; 20]), ..key };
    assert!(Symbolizer::new(without_system_folders()).symbolicate(&other, address).is_empty());
}

/// Returns a ZIP archive with these files, uncompressed. (PKWARE's APPNOTE.TXT, 4.3.7, 4.3.12 and
/// 4.3.16.)
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut local, mut central) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let offset = (local.len() as u32).to_le_bytes();
        let size = (content.len() as u32).to_le_bytes();
        let checksum = crc32fast::hash(content).to_le_bytes();
        // Version, flags, method, time, date, checksum, sizes, lengths of the name and of the extra
        // field.
        let times = [10, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let middle = [&times[..], &checksum, &size, &size, &(name.len() as u16).to_le_bytes(), &[0, 0]].concat();
        central.extend([b"PK\x01\x02\x0a\0", &middle[..], &[0; 10], &offset, name.as_bytes()].concat());
        local.extend([b"PK\x03\x04", &middle[..], name.as_bytes(), content].concat());
    }
    let count = (files.len() as u16).to_le_bytes();
    let sizes = [central.len() as u32, local.len() as u32].map(u32::to_le_bytes).concat();
    let end = [b"PK\x05\x06\0\0\0\0", &count[..], &count, &sizes, &[0, 0]].concat();
    [local, central, end].concat()
}

#[test]
fn a_library_inside_an_archive_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let apk = folder.path().join("base.apk");
    let (own, other) = (std::fs::read(fixture("cpp.elf")).unwrap(), std::env::current_exe().unwrap());
    let other = std::fs::read(other).unwrap();
    let name = "lib/x86_64/libapp.so";
    let files = [("classes.dex", &b"dex\n035"[..]), ("lib/x86_64/libother.so", &other), (name, &own)];
    std::fs::write(&apk, archive(&files)).unwrap();
    let inside = PathBuf::from(format!("{}!/{name}", apk.display()));
    assert_eq!(SymbolFile::open(&inside).unwrap().len(), 1);
    assert!(SymbolFile::open(&apk).unwrap().iter().any(|file| file.path() == inside));
    let address = address_of("_Z4deepi", 0x11);
    let expected = {
        let key = key_of(&fixture("cpp.elf"));
        Symbolizer::new(without_system_folders()).symbolicate(&key, address)
    };
    assert!(!expected.is_empty());
    // The linker's path of the library; the archive's path, as for an app that opened it; and the
    // archive given by the user.
    for (path, search) in [(&inside, None), (&apk, None), (&PathBuf::from("/gone.so"), Some(&apk))] {
        let key = ImageKey { path: path.clone(), ..key_of(&fixture("cpp.elf")) };
        assert!(key.debug_id.is_some());
        let options = Options { search: search.into_iter().cloned().collect(), ..without_system_folders() };
        let mut symbolizer = Symbolizer::new(options);
        assert_eq!(symbolizer.symbolicate(&key, address), expected, "{}", path.display());
        assert_eq!(symbolizer.status(&key).files, std::slice::from_ref(&inside));
    }
    // A name that is not in the archive, and truncated archives.
    let missing = format!("{}!/lib/x86_64/libmissing.so", apk.display());
    assert!(SymbolFile::open(Path::new(&missing)).is_err());
    let whole = std::fs::read(&apk).unwrap();
    for length in [4, 30, whole.len() / 2, whole.len() - 30, whole.len() - 1] {
        std::fs::write(&apk, &whole[..length]).unwrap();
        assert!(SymbolFile::open(&apk).is_err() && SymbolFile::open(&inside).is_err(), "{length}");
    }
}

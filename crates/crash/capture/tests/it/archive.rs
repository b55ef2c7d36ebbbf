//! Crashes in a library that Android's linker loaded out of an archive, where an APK has it: by a
//! path into the archive, and by a descriptor and an offset. Every case is a real process: this
//! test's own program, started again.
#![cfg(target_os = "android")]

use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use coroner_capture::InstallOptions;
use coroner_report::model::Report;

const STORE: &str = "CORONER_TEST_STORE";
const LIBRARY: &str = "CORONER_TEST_LIBRARY";
const OFFSET: &str = "CORONER_TEST_OFFSET";

/// The first function is in the file's symbol table alone, which is not in memory.
const SOURCE: &str = "static void inner(int *at) { *at = 1; }
void crash_in_library(int *at) { inner(at); __asm__ volatile(\"\"); }
";

/// `android_dlextinfo` (android/dlext.h).
#[repr(C)]
#[derive(Default)]
struct Extension {
    flags: u64,
    reserved_address: usize,
    reserved_size: usize,
    relro: i32,
    library: i32,
    offset: i64,
    namespace: usize,
}

const USE_LIBRARY_FD: u64 = 0x10;
const USE_LIBRARY_FD_OFFSET: u64 = 0x20;

unsafe extern "C" {
    fn android_dlopen_ext(name: *const libc::c_char, flags: i32, extension: *const Extension) -> *mut libc::c_void;
}

/// The process that crashes; a plain pass when it is not started as one.
#[test]
fn crash_as_asked() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let store = CString::new(store.as_bytes()).unwrap();
    let path = std::env::var_os(LIBRARY).unwrap();
    let library = CString::new(path.as_bytes()).unwrap();
    let mut setup = InstallOptions::DEFAULT;
    setup.symbol_names = true;
    coroner_capture::install(&store, &setup).unwrap();
    // SAFETY: a library of this test's own, whose function has this type; the crash is what is
    // wanted.
    unsafe {
        let handle = match std::env::var(OFFSET) {
            Ok(offset) => {
                let file = std::fs::File::open(&path).unwrap();
                let extension = Extension {
                    flags: USE_LIBRARY_FD | USE_LIBRARY_FD_OFFSET,
                    library: file.as_raw_fd(),
                    offset: offset.parse().unwrap(),
                    ..Extension::default()
                };
                android_dlopen_ext(library.as_ptr(), libc::RTLD_NOW, &raw const extension)
            }
            Err(_) => libc::dlopen(library.as_ptr(), libc::RTLD_NOW),
        };
        if handle.is_null() {
            panic!("{:?}", CStr::from_ptr(libc::dlerror()));
        }
        let function = libc::dlsym(handle, c"crash_in_library".as_ptr());
        let function: extern "C" fn(*mut i32) = std::mem::transmute(function);
        function(std::ptr::null_mut());
    }
}

/// Writes an archive with one file of that name, stored, whose bytes begin at a page; returns
/// where. (APPNOTE.TXT of PKWARE, 4.3.7, 4.3.12 and 4.3.16; the linker looks at no checksum.)
fn write_archive(path: &Path, name: &str, content: &[u8]) -> usize {
    const PAGE: usize = 16 << 10;
    let size = (content.len() as u32).to_le_bytes();
    let length = (name.len() as u16).to_le_bytes();
    let padding = PAGE - 30 - name.len();
    // Version, flags, method, time, date, checksum, sizes, length of the name.
    let middle = [&[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &size, &size, &length].concat();
    let padding_length = (padding as u16).to_le_bytes();
    let local = [b"PK\x03\x04", &middle[..], &padding_length, name.as_bytes(), &vec![0; padding]].concat();
    let central = [b"PK\x01\x02\x0a\x00", &middle[..], &[0; 16], name.as_bytes()].concat();
    let central_size = (central.len() as u32).to_le_bytes();
    let central_at = ((local.len() + content.len()) as u32).to_le_bytes();
    let end = [b"PK\x05\x06\0\0\0\0\x01\0\x01\0", &central_size[..], &central_at, &[0, 0]].concat();
    std::fs::write(path, [&local, content, &central, &end].concat()).unwrap();
    local.len()
}

fn crashes_in_archive(by_descriptor: bool) {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("library.c"), folder.path().join("libapp.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut compiler = Command::new(std::env::var("CORONER_TEST_CXX").expect("`cargo xtask android` names a compiler"));
    compiler.args(["-shared", "-fPIC", "-O1", "-fno-inline", "-nostdlib", "-Wl,--build-id=sha1"]);
    assert!(compiler.arg("-o").arg(&library).arg(&source).status().unwrap().success());
    let archive = folder.path().join("base.apk");
    let name = "lib/the-abi/libapp.so";
    let offset = write_archive(&archive, name, &std::fs::read(&library).unwrap());
    let inside = format!("{}!/{name}", archive.display());
    let store = folder.path().join("store");
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["archive::crash_as_asked", "--exact", "--test-threads=1"]).env(STORE, &store);
    if by_descriptor {
        program.env(LIBRARY, &archive).env(OFFSET, offset.to_string());
    } else {
        program.env(LIBRARY, &inside);
    }
    let output = program.stdout(Stdio::null()).output().unwrap();
    assert_eq!(output.status.signal(), Some(11), "{}", String::from_utf8_lossy(&output.stderr));
    let runs: Vec<_> = std::fs::read_dir(store.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [run] = &runs[..] else { panic!("one run and not {runs:?}") };
    let mut report = Report::read_file(run.join("report")).unwrap();
    report.attribute_frames();
    assert!(report.complete, "{:#?}", report.problems);
    let frames = &report.crashed_thread().unwrap().frames;
    let names: Vec<_> = frames.iter().map(|frame| frame.raw_function.as_deref().unwrap_or("?")).collect();
    assert_eq!(names[..2], ["inner", "crash_in_library"], "{names:#?}");
    assert!(names[2].contains("crash_as_asked") || names[2].contains("call_once"), "{names:#?}");
    let path = if by_descriptor { archive.display().to_string() } else { inside };
    let image = report.images.iter().find(|image| image.path == path).expect("the library");
    assert_eq!((image.build_id.len(), image.load_address), (20, image.slide));
    assert!(image.contains(frames[0].address) && image.unwind.len() == 2, "{image:#?}");
}

#[test]
fn a_library_inside_an_archive_is_named() {
    crashes_in_archive(false);
}

#[test]
fn a_library_loaded_from_a_descriptor_is_named() {
    crashes_in_archive(true);
}

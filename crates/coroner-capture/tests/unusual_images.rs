//! Installs and crashes beside libraries that are not where their headers say, or whose path is no text. Every case is a real
//! process: this test's own program, started again with a library that is compiled on the way (by the words of
//! `CORONER_TEST_CC`, or by `cc`).
#![cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static")))]

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use coroner_capture::InstallOptions;
use coroner_report::model::Report;
use coroner_report::wire::FoundBy;

const STORE: &str = "CORONER_TEST_STORE";
const LIBRARY: &str = "CORONER_TEST_LIBRARY";
const LATE: &str = "CORONER_TEST_LATE";

const SOURCE: &str = "static void inner(int *at) { *at = 1; }
void crash_in_library(int *at) { inner(at); __asm__ volatile(\"\"); }
";

/// A library whose segments begin at 2 MiB, without ELF header and program headers in any of them.
const NO_HEADER: &str = "PHDRS { text PT_LOAD FLAGS(5); data PT_LOAD FLAGS(6); dynamic PT_DYNAMIC FLAGS(6);
    note PT_NOTE FLAGS(4); hdr 0x6474e550 FLAGS(4); }
SECTIONS {
    . = 0x200000;
    .note.gnu.build-id : { *(.note.gnu.build-id) } :text :note
    .gnu.hash : { *(.gnu.hash) } :text
    .dynsym : { *(.dynsym) } .dynstr : { *(.dynstr) } .rela.dyn : { *(.rela.*) }
    .text : { *(.text .text.*) }
    .eh_frame_hdr : { *(.eh_frame_hdr) } :text :hdr
    .eh_frame : { *(.eh_frame) } :text
    . = ALIGN(0x1000) + 0x1000;
    .dynamic : { *(.dynamic) } :data :dynamic
    .got : { *(.got .got.plt) } :data
}
";

/// The process that crashes; a plain pass when it is not started as one.
#[test]
fn crash_as_asked() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let store = CString::new(store.as_bytes()).unwrap();
    let library = CString::new(std::env::var_os(LIBRARY).unwrap().as_bytes()).unwrap();
    let mut setup = InstallOptions::DEFAULT;
    setup.symbol_names = true;
    let install = || coroner_capture::install(&store, &setup).unwrap();
    let late = std::env::var_os(LATE).is_some();
    if late {
        install();
    }
    // SAFETY: a library of this test's own, whose function has this type; the crash is what is wanted.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        let function = libc::dlsym(handle, c"crash_in_library".as_ptr());
        let function: extern "C" fn(*mut i32) = std::mem::transmute(function);
        if !late {
            install();
        }
        function(std::ptr::null_mut());
    }
}

fn compile(directory: &Path, name: &OsStr, option: &str) -> PathBuf {
    let (source, library) = (directory.join("library.c"), directory.join(name));
    std::fs::write(&source, SOURCE).unwrap();
    let words = std::env::var("CORONER_TEST_CC").unwrap_or_else(|_| "cc".to_owned());
    let mut words = words.split_whitespace();
    let mut compiler = Command::new(words.next().expect("a compiler"));
    compiler.args(words).args(["-shared", "-fPIC", "-O1", "-fno-inline", "-nostdlib", "-Wl,--build-id", option, "-o"]);
    assert!(compiler.arg(&library).arg(&source).status().expect("a C compiler is needed").success());
    library
}

/// Crashes in a library that is linked with an option: all its frames are found, and have names.
fn crashes_in(name: &[u8], option: &str, late: bool) -> Report {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("no_header.ld"), NO_HEADER).unwrap();
    let option = option.replace("DIRECTORY", folder.path().to_str().unwrap());
    crashes_in_library(&compile(folder.path(), OsStr::from_bytes(name), &option), &folder.path().join("store"), late)
}

fn crashes_in_library(library: &Path, store: &Path, late: bool) -> Report {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["crash_as_asked", "--exact", "--test-threads=1"]).env(STORE, store).env(LIBRARY, library);
    // A library that was linked to an address is loaded there, as a prelinked one is (glibc up to 2.36).
    program.env("LD_USE_LOAD_BIAS", "1").stdout(Stdio::null()).stderr(Stdio::null());
    if late {
        program.env(LATE, "1");
    }
    let status = program.status().unwrap();
    assert_eq!(status.signal(), Some(11), "{status}");
    let runs: Vec<_> = std::fs::read_dir(store.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [run] = &runs[..] else { panic!("one run and not {runs:?}") };
    let mut report = Report::read_file(run.join("report")).unwrap();
    report.attribute_frames();
    assert!(report.complete, "{report:#?}");
    let crashed = report.crashed_thread().unwrap();
    let names: Vec<_> = crashed.frames.iter().map(|frame| frame.raw_function.as_deref().unwrap_or("?")).collect();
    let found = names.first() == Some(&"inner")
        && names.get(1) == Some(&"crash_in_library")
        && names.get(2).is_some_and(|name| name.contains("crash_as_asked") || name.contains("call_once"));
    assert!(found, "{names:#?}");
    report
}

/// Whether these programs run under an emulator: there is no linker for its libraries here, and it loads them as it likes.
fn is_emulated() -> bool {
    std::env::var_os("CORONER_TEST_RUNNER").is_some()
}

#[test]
fn a_library_that_was_linked_to_another_base() {
    if is_emulated() {
        return;
    }
    for late in [false, true] {
        let report = crashes_in(b"libother.so", "-Wl,-Ttext-segment=0x40000000", late);
        let image = report.images.iter().find(|image| image.path.ends_with("/libother.so")).unwrap();
        assert_eq!(image.load_address.0 - image.slide.0, 0x4000_0000);
    }
}

#[test]
fn a_library_without_an_elf_header_in_memory() {
    if is_emulated() {
        return;
    }
    crashes_in(b"libscript.so", "-Wl,-T,DIRECTORY/no_header.ld", false);
}

#[test]
fn a_library_whose_path_is_no_text() {
    if is_emulated() {
        return;
    }
    for late in [false, true] {
        crashes_in(b"lib\xff\xfe.so", "-O1", late);
    }
}

/// Libraries of `fixtures/sframe`, of which `.eh_frame` can't be found.
#[test]
fn a_library_with_sframe_alone() {
    if is_emulated() {
        return;
    }
    for version in ["v2", "v3"] {
        let name = format!("{version}-{}.so", std::env::consts::ARCH);
        let mut bytes = std::fs::read(format!("{}/../../fixtures/sframe/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        for header in (64..).step_by(56).take(usize::from(bytes[56])) {
            let kind = &mut bytes[header..header + 4];
            if *kind == libc::PT_GNU_EH_FRAME.to_le_bytes() {
                kind.copy_from_slice(&libc::PT_NULL.to_le_bytes());
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join(name);
        std::fs::write(&library, bytes).unwrap();
        let report = crashes_in_library(&library, &folder.path().join("store"), false);
        let frames = &report.crashed_thread().unwrap().frames;
        assert_eq!([frames[1].found_by, frames[2].found_by], [FoundBy::SFRAME; 2], "{frames:#?}");
    }
}

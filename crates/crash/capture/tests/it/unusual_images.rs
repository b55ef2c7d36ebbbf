//! Installs and crashes with libraries that are not at their headers' addresses, or whose path is
//! not text. Every case is a real process: this test's own program, started again with a library
//! that is compiled on the way (by the words of `CORONER_TEST_CC`, or by `cc`).
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
    // SAFETY: a library of this test's own, whose function has this type; the crash is what is
    // wanted.
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

fn compile(directory: &Path, name: &OsStr, text: &str, option: &str) -> PathBuf {
    let (source, library) = (directory.join("library.c"), directory.join(name));
    std::fs::write(&source, text).unwrap();
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
    let library = compile(folder.path(), OsStr::from_bytes(name), SOURCE, &option);
    crashes_in_library(&library, &folder.path().join("store"), late, &["inner", "crash_in_library"])
}

/// Crashes in a library: the first frames have these names, and above them is this test's.
fn crashes_in_library(library: &Path, store: &Path, late: bool, expected: &[&str]) -> Report {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args(["unusual_images::crash_as_asked", "--exact", "--test-threads=1"])
        .env(STORE, store)
        .env(LIBRARY, library);
    // A library that was linked to an address is loaded there, as a prelinked one is (glibc up to
    // 2.36).
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
    let above = names.get(expected.len()).copied().unwrap_or_default();
    let found = names.starts_with(expected) && (above.contains("crash_as_asked") || above.contains("call_once"));
    assert!(found, "{names:#?}");
    report
}

/// Whether these programs run under an emulator: there is no linker for its libraries here, and it
/// loads them as it likes.
fn is_emulated() -> bool {
    std::env::var_os("CORONER_TEST_RUNNER").is_some()
}

#[test]
fn a_library_linked_to_another_base_is_named() {
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
fn a_library_without_an_elf_header_in_memory_is_unwound() {
    if is_emulated() {
        return;
    }
    crashes_in(b"libscript.so", "-Wl,-T,DIRECTORY/no_header.ld", false);
}

#[test]
fn a_library_whose_path_is_not_text_is_named() {
    if is_emulated() {
        return;
    }
    for late in [false, true] {
        crashes_in(b"lib\xff\xfe.so", "-O1", late);
    }
}

/// Libraries of `fixtures/sframe`, of which `.eh_frame` can't be found.
#[test]
fn a_library_with_only_sframe_is_unwound() {
    if is_emulated() {
        return;
    }
    for version in ["v2", "v3"] {
        let name = format!("{version}-{}.so", std::env::consts::ARCH);
        let mut bytes =
            std::fs::read(format!("{}/../../../fixtures/sframe/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        for header in (64..).step_by(56).take(usize::from(bytes[56])) {
            let kind = &mut bytes[header..header + 4];
            if *kind == libc::PT_GNU_EH_FRAME.to_le_bytes() {
                kind.copy_from_slice(&libc::PT_NULL.to_le_bytes());
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join(name);
        std::fs::write(&library, bytes).unwrap();
        let report = crashes_in_library(&library, &folder.path().join("store"), false, &["inner", "crash_in_library"]);
        let frames = &report.crashed_thread().unwrap().frames;
        assert_eq!([frames[1].found_by, frames[2].found_by], [FoundBy::SFRAME; 2], "{frames:#?}");
    }
}

/// Two functions of a compiler in the process, which has registered them for debuggers: nothing but
/// their unwind data says how large their frames are, since they do not return, and nothing else
/// has their names.
#[cfg(target_arch = "x86_64")]
const COMPILER: &str = r#"
#include <elf.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
struct entry { struct entry *next, *previous; const void *file; uint64_t size; };
struct { uint32_t version, action; struct entry *relevant, *first; } __jit_debug_descriptor = { 1, 0, 0, 0 };
static const unsigned char code[64] = {
    /* jit_outer: sub $0x28, %rsp; call jit_inner; jmp *%rax */
    0x48, 0x83, 0xec, 0x28, 0xe8, 0x17, 0, 0, 0, 0xff, 0xe0, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
    0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
    /* jit_inner: sub $0x1008, %rsp; movl $1, (%rdi); jmp *%rax */
    0x48, 0x81, 0xec, 0x08, 0x10, 0, 0, 0xc7, 0x07, 1, 0, 0, 0, 0xff, 0xe0,
};
static const char names[] = "\0.text\0.debug_frame\0.symtab\0.strtab\0jit_outer\0jit_inner";
struct __attribute__((packed)) fde { uint32_t length, cie; uint64_t start, size; unsigned char rules[8]; };
static struct {
    Elf64_Ehdr header;
    Elf64_Shdr sections[5];
    Elf64_Sym symbols[3];
    struct { uint32_t length, id; unsigned char rest[16]; struct fde functions[2]; } frames;
    char names[sizeof names];
} file;
static struct entry other = { 0, 0, code, sizeof code }, entry = { &other, 0, &file, sizeof file };
static Elf64_Shdr section(int name, int type, int flags, const void *at, uint64_t size, int link, int size_of_entry) {
    return (Elf64_Shdr){ name, type, flags, 0, (const char *)at - (const char *)&file, size, link, 0, 8, size_of_entry };
}
void crash_in_library(int *at) {
    unsigned char *made = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, code, sizeof code);
    memcpy(file.names, names, sizeof names);
    file.header = (Elf64_Ehdr){ .e_ident = "\177ELF\2\1\1", .e_type = ET_DYN, .e_machine = EM_X86_64, .e_version = 1,
        .e_shoff = (char *)file.sections - (char *)&file, .e_ehsize = 64, .e_shentsize = 64, .e_shnum = 5, .e_shstrndx = 4 };
    file.sections[1] = section(1, SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, file.sections, sizeof code, 0, 0);
    file.sections[1].sh_addr = (uint64_t)made;
    file.sections[2] = section(7, SHT_PROGBITS, 0, &file.frames, sizeof file.frames, 0, 0);
    file.sections[3] = section(20, SHT_SYMTAB, 0, file.symbols, sizeof file.symbols, 4, 24);
    file.sections[4] = section(28, SHT_STRTAB, 0, file.names, sizeof names, 0, 0);
    file.symbols[1] = (Elf64_Sym){ 36, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, 1, (uint64_t)made, 32 };
    file.symbols[2] = (Elf64_Sym){ 46, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, 1, (uint64_t)made + 32, 32 };
    /* cfa = rsp + 8, the return address at cfa - 8; a larger frame after the first instruction */
    file.frames.length = 20;
    file.frames.id = -1;
    memcpy(file.frames.rest, (unsigned char[16]){ 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1 }, 16);
    file.frames.functions[0] = (struct fde){ 28, 0, (uint64_t)made, 32, { 0x44, 0x0e, 0x30 } };
    file.frames.functions[1] = (struct fde){ 28, 0, (uint64_t)made + 32, 32, { 0x47, 0x0e, 0x90, 0x20 } };
    __jit_debug_descriptor.first = &entry;
    ((void (*)(int *))made)(at);
    __asm__ volatile("");
}
"#;

#[cfg(target_arch = "x86_64")]
#[test]
fn code_from_a_jit_compiler_is_named() {
    if is_emulated() {
        return;
    }
    for style in ["-Wl,--hash-style=gnu", "-Wl,--hash-style=sysv"] {
        let folder = tempfile::tempdir().unwrap();
        let library = compile(folder.path(), OsStr::new("libcompiler.so"), COMPILER, style);
        let expected = ["jit_inner", "jit_outer", "crash_in_library"];
        let report = crashes_in_library(&library, &folder.path().join("store"), false, &expected);
        let frames = &report.crashed_thread().unwrap().frames;
        assert_eq!([frames[1].found_by, frames[2].found_by], [FoundBy::CFI; 2], "{frames:#?}");
    }
}

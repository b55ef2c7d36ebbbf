//! arm64: an access by a pointer with another memory tag than its memory has (MTE). The process is
//! this test's own program, started again; qemu has such memory, and processors that have not are
//! not asked.
#![cfg(all(any(target_os = "linux", target_os = "android"), target_arch = "aarch64"))]

use std::arch::asm;
use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use coroner_capture::InstallOptions;
use coroner_report::model::Report;

const STORE: &str = "CORONER_TEST_STORE";
/// Exit statuses of the app's handler: it got an address without a tag, or with one.
const UNTAGGED: c_int = 40;
const TAGGED: c_int = 41;
/// The processor has no memory tags.
const NO_TAGS: c_int = 42;

/// The tag of the memory, and that of the pointer.
const OF_MEMORY: u64 = 3;
const OF_POINTER: u64 = 5;

extern "C" fn app_handler(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel's siginfo of a fault; `_exit` may be called here.
    unsafe { libc::_exit(if (*info).si_addr() as u64 >> 56 == 0 { UNTAGGED } else { TAGGED }) };
}

/// A page with memory tags, of which the first 16 bytes have [`OF_MEMORY`]; faults are synchronous.
fn tagged_page() -> Option<u64> {
    const SET_TAGGED_ADDRESSES: c_int = 55; // PR_SET_TAGGED_ADDR_CTRL
    const ENABLE: u64 = 1; // PR_TAGGED_ADDR_ENABLE
    const SYNCHRONOUS: u64 = 1 << 1; // PR_MTE_TCF_SYNC
    const PROT_MTE: c_int = 0x20;
    // SAFETY: changes how this process's loads are checked; maps fresh memory.
    unsafe {
        if libc::prctl(SET_TAGGED_ADDRESSES, ENABLE | SYNCHRONOUS | 0xffff << 3, 0, 0, 0) != 0 {
            return None;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE | PROT_MTE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return None;
        }
        let pointer = page as u64 | OF_MEMORY << 56;
        asm!(".arch_extension memtag", "stg {0}, [{0}]", in(reg) pointer);
        Some(page as u64)
    }
}

/// The process that crashes; a plain pass when it is not started as one.
#[test]
fn crash_as_asked() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let Some(page) = tagged_page() else { std::process::exit(NO_TAGS) };
    // SAFETY: the action is whole; the handler calls `_exit` alone.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = app_handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
    }
    let store = CString::new(store.as_bytes()).unwrap();
    coroner_capture::install(&store, &InstallOptions::DEFAULT).unwrap();
    println!("page: {page:#x}");
    let (pointer, good) = (page | OF_POINTER << 56, page | OF_MEMORY << 56);
    // SAFETY: the first store is to the page's own memory; the second one is the fault that is
    // wanted.
    unsafe { asm!("str {good}, [{good}]", "strb wzr, [{pointer}]", good = in(reg) good, pointer = in(reg) pointer) };
}

fn crash(store: &Path) -> std::process::Output {
    let program = std::env::current_exe().unwrap();
    let runner = std::env::var("CORONER_TEST_RUNNER").unwrap_or_default();
    let mut words: Vec<_> = runner.split_whitespace().map(Into::into).collect();
    words.push(program.into_os_string());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["memory_tag::crash_as_asked", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(STORE, store).output().unwrap()
}

#[test]
fn the_tag_is_kept_and_the_address_found_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let ended = crash(&store);
    let code = ended.status.code();
    if code == Some(NO_TAGS) {
        println!("skipped: this processor has no memory tags");
        return;
    }
    assert_eq!(code, Some(UNTAGGED), "{ended:?}");
    let said = String::from_utf8(ended.stdout).unwrap();
    let page = said.lines().find_map(|line| line.split_once("page: 0x")).unwrap().1;
    let page = u64::from_str_radix(page.trim(), 16).unwrap();

    let run = std::fs::read_dir(store.join("runs")).unwrap().next().unwrap().unwrap().path();
    let report = Report::read_file(run.join("report")).unwrap();
    let crash = report.crash.as_ref().unwrap();
    let signal = crash.signal.as_ref().unwrap();
    assert_eq!(signal.code_name, Some("SEGV_MTESERR"), "{crash:#?}");
    assert_eq!(signal.address.unwrap().0, page | OF_POINTER << 56);
    assert_eq!(crash.address.unwrap().0, page);
    let text = report.to_text(&coroner_report::text::TextOptions::default());
    assert!(text.contains("through a pointer with tag 0x05"), "{text}");
    // What the registers point to is read all the same, once.
    let kept: Vec<_> = report.stack_memory.iter().filter(|piece| piece.address.0 == page).collect();
    assert_eq!(kept.len(), 1, "{:#x?}", report.stack_memory);
    assert_eq!(kept[0].bytes.0[..8], (page | OF_MEMORY << 56).to_le_bytes());
}

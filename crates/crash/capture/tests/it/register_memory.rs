//! A report has what the crashed thread's registers point to, and nothing of pages that are not in
//! memory or can't be read. The process is this test's own program, started again.
#![cfg(any(target_os = "linux", target_os = "android"))]

use std::arch::asm;
use std::ffi::{CString, c_int};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};

use coroner_capture::InstallOptions;
use coroner_report::model::Report;

const STORE: &str = "CORONER_TEST_STORE";
const NO_MEMORY: &str = "CORONER_TEST_NO_MEMORY";
const PAGE: usize = 1 << 16;
/// Offset of the first register's target: less memory follows in its block than is captured.
const IN_PAGE: u64 = 0x2c8;

fn map(protection: c_int, flags: c_int, file: c_int) -> u64 {
    // SAFETY: a fresh mapping, which is never unmapped.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags | libc::MAP_PRIVATE, file, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    page as u64
}

/// The process that crashes; a plain pass when it is not started as one.
#[test]
fn crash_as_asked() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let anonymous = libc::MAP_ANONYMOUS;
    let readable = map(libc::PROT_READ | libc::PROT_WRITE, anonymous, -1);
    for word in 0..0x200 {
        // SAFETY: within the mapping that was just made.
        unsafe { (readable as *mut u64).add(word).write(word as u64 | 0xfeed << 32) };
    }
    let guard = map(libc::PROT_NONE, anonymous, -1);
    let untouched = map(libc::PROT_READ, anonymous, -1);
    let file = tempfile::tempfile().unwrap();
    let beyond_the_end = map(libc::PROT_READ, 0, file.as_raw_fd());
    // Its pages are in the page cache, and in no page table of this process: as those of a server
    // that does not answer may be.
    let mut unread = tempfile::tempfile().unwrap();
    unread.write_all(&[7; PAGE]).unwrap();
    let unread = map(libc::PROT_READ, 0, unread.as_raw_fd());
    let store = CString::new(store.as_bytes()).unwrap();
    let stack_memory = if std::env::var_os(NO_MEMORY).is_some() { 0 } else { 2048 };
    coroner_capture::install(&store, &InstallOptions { stack_memory, ..InstallOptions::DEFAULT }).unwrap();
    println!("pages: {readable:x} {guard:x} {untouched:x} {beyond_the_end:x} {unread:x}");
    let values = (readable + IN_PAGE, guard + 0x400, untouched + 0x400, beyond_the_end + 0x400);
    // SAFETY: none; the fault is what is wanted.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "mov dword ptr [rax], 1",
            in("rax") 0, in("r12") values.0, in("r13") values.1, in("r14") values.2, in("r15") values.3,
            in("rdx") values.0 + 8, in("rsi") unread + 0x400,
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "str wzr, [x0]",
            in("x0") 0, in("x20") values.0, in("x21") values.1, in("x22") values.2, in("x23") values.3,
            in("x24") values.0 + 8, in("x25") unread + 0x400,
        );
    }
}

fn crash(store: &Path, has_memory: bool) -> (Output, Report) {
    let program = std::env::current_exe().unwrap();
    let runner = std::env::var("CORONER_TEST_RUNNER").unwrap_or_default();
    let mut words: Vec<_> = runner.split_whitespace().map(Into::into).collect();
    words.push(program.into_os_string());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["register_memory::crash_as_asked", "--exact", "--nocapture", "--test-threads=1"]);
    if !has_memory {
        command.env(NO_MEMORY, "1");
    }
    let ended = command.env(STORE, store).output().unwrap();
    let run = std::fs::read_dir(store.join("runs")).unwrap().next().unwrap().unwrap().path();
    (ended, Report::read_file(run.join("report")).unwrap())
}

#[test]
fn memory_that_registers_point_to_is_recorded_once() {
    let folder = tempfile::tempdir().unwrap();
    let (ended, report) = crash(&folder.path().join("store"), true);
    let said = String::from_utf8(ended.stdout).unwrap();
    let pages = said.lines().find_map(|line| line.split_once("pages: ")).unwrap().1;
    let pages: Vec<u64> = pages.split_whitespace().map(|page| u64::from_str_radix(page, 16).unwrap()).collect();
    let pieces_in = |page: u64| {
        let inside = report.stack_memory.iter().filter(move |piece| piece.address.0.wrapping_sub(page) < PAGE as u64);
        inside.map(|piece| (piece.address.0 - page, &piece.bytes.0)).collect::<Vec<_>>()
    };
    // Another register may have the page's own address still.
    let kept: Vec<_> = pieces_in(pages[0]).into_iter().filter(|(at, _)| *at > 0).collect();
    let bytes = |from: u64| -> Vec<u8> {
        (from / 8..from / 8 + 32).flat_map(|word| (word | 0xfeed << 32).to_le_bytes()).collect()
    };
    assert_eq!(kept, [(0x200, &bytes(0x200)), (0x300, &bytes(0x300))]);
    for page in &pages[1..] {
        assert!(pieces_in(*page).is_empty(), "{page:#x}");
    }
    assert!(report.faults.is_empty() && report.end.as_ref().is_some_and(|end| end.complete), "{:#?}", report.end);
    // No two pieces have the same byte.
    let mut extents: Vec<_> = report
        .stack_memory
        .iter()
        .map(|piece| (piece.address.0, piece.address.0 + piece.bytes.0.len() as u64))
        .collect();
    extents.sort_unstable();
    assert!(extents.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{extents:#x?}");
}

#[test]
fn stack_memory_can_be_turned_off() {
    let folder = tempfile::tempdir().unwrap();
    assert!(crash(&folder.path().join("store"), false).1.stack_memory.is_empty());
}

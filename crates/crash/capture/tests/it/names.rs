//! Names that the dying process finds in its own images. Every case is a real process: this test's
//! own program, started again.
#![cfg(any(target_os = "linux", target_os = "android"))]

use std::ffi::{CString, c_int, c_void};
use std::fs::File;
use std::hint::black_box;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use coroner_capture::InstallOptions;
use coroner_report::model::{Frame, Report};
use coroner_report::wire::{Phase, SectionKind};

const STORE: &str = "CORONER_TEST_STORE";
const HOW: &str = "CORONER_TEST_HOW";

/// Called by the C library's `qsort`.
extern "C" fn compare_and_crash(_: *const c_void, _: *const c_void) -> c_int {
    // SAFETY: none; the crash is what is wanted.
    unsafe { black_box(std::ptr::null_mut::<u32>()).write_volatile(1) };
    0
}

#[inline(never)]
fn sorts_by_the_c_library() {
    let mut numbers = [3_u32, 1, 2];
    // SAFETY: three elements of four bytes, and a comparison that takes pointers to two of them.
    unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 3, 4, Some(compare_and_crash)) };
    black_box(numbers);
}

/// The process that crashes; a plain pass when it is not started as one.
#[test]
fn crash_as_asked() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let how = std::env::var(HOW).unwrap();
    let store = CString::new(store.as_bytes()).unwrap();
    let mut setup = InstallOptions::DEFAULT;
    setup.symbol_names = !how.ends_with("off");
    coroner_capture::install(&store, &setup).unwrap();
    if how == "deleted" {
        std::fs::remove_file(std::env::current_exe().unwrap()).unwrap();
    }
    if how.starts_with("replaced") {
        // Another build of the same size: its symbols are the same, its id and its file header
        // aren't.
        let path = std::env::current_exe().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let build_id = bytes.windows(8).position(|part| part == b"\x03\0\0\0GNU\0").map(|at| at + 8);
        bytes[build_id.unwrap_or(48)] ^= 0xff;
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    sorts_by_the_c_library();
}

/// A copy of a program that has no name in any file system, not open for writing.
fn memory_file(program: &Path) -> File {
    // SAFETY: a descriptor of ours, or -1.
    let mut file = unsafe {
        // By its number: bionic has the function from API level 30 on.
        let descriptor = libc::syscall(libc::SYS_memfd_create, c"app".as_ptr(), libc::MFD_CLOEXEC) as i32;
        assert!(descriptor >= 0, "a file in memory");
        File::from_raw_fd(descriptor)
    };
    std::io::copy(&mut File::open(program).unwrap(), &mut file).unwrap();
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

/// Crashes a copy of this program.
fn report(how: &str) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("app");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let in_memory = (how == "memory").then(|| memory_file(&program));
    let program = in_memory.as_ref().map_or(program, |file| format!("/proc/self/fd/{}", file.as_raw_fd()).into());
    let runner = std::env::var("CORONER_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let mut command = match words.next() {
        Some(emulator) => Command::new(emulator),
        None => Command::new(&program),
    };
    if !runner.is_empty() {
        command.args(words).arg(&program);
    }
    let store = folder.path().join("store");
    command
        .args(["names::crash_as_asked", "--exact", "--test-threads=1"])
        .envs([(STORE, store.as_os_str()), (HOW, how.as_ref())])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    // Another test's child may have been forked while the copy was open for writing, and not have
    // gone on to its own program yet: until then the copy can't be executed.
    let mut tries = 0;
    let status = loop {
        match command.status() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy && tries < 500 => tries += 1,
            status => break status.unwrap(),
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    assert_eq!(status.signal(), Some(11), "{how}: {status}");
    read_only_report(&store)
}

fn read_only_report(store: &Path) -> Report {
    let runs: Vec<_> = std::fs::read_dir(store.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [run] = &runs[..] else { panic!("one run and not {runs:?}") };
    let mut report = Report::read_file(run.join("report")).unwrap();
    report.attribute_frames();
    report
}

/// Frames in the image of that name, with what they are called.
fn frames<'r>(report: &'r Report, image: &str) -> Vec<(&'r Frame, &'r str)> {
    let crashed = report.crashed_thread().unwrap();
    let inside = |frame: &&Frame| {
        frame.module.as_deref().is_some_and(|path| path.rsplit('/').next().unwrap_or(path).starts_with(image))
    };
    crashed.frames.iter().filter(inside).map(|frame| (frame, frame.raw_function.as_deref().unwrap_or("?"))).collect()
}

#[test]
fn own_and_system_frames_have_names() {
    let report = report("on");
    assert!(report.complete, "{report:#?}");
    assert!(report.end.as_ref().unwrap().phases.iter().any(|phase| phase.phase == Phase::SYMBOL_NAMES));
    let own = frames(&report, "app");
    assert!(own[0].1.contains("compare_and_crash"), "{own:#?}");
    assert!(own.iter().any(|(_, name)| name.contains("sorts_by_the_c_library")), "{own:#?}");
    // The C library may be stripped of all but what it exports; its own functions for sorting
    // aren't.
    let system = frames(&report, "libc.");
    assert!(system.iter().any(|(_, name)| name.starts_with("qsort")), "{system:#?}");
    for (frame, _) in own.iter().chain(&system).filter(|(_, name)| *name != "?") {
        assert!(frame.named_in_process && frame.symbol_address.unwrap() <= frame.lookup_address(), "{frame:#?}");
    }
    // Each address once, whatever number of frames has it.
    let mut addresses: Vec<u64> = report.symbol_names.iter().map(|name| name.address.0).collect();
    let all = addresses.len();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), all);
}

/// By what the process was executed from, though nobody asked for names.
#[test]
fn a_replaced_program_is_named_from_the_running_file() {
    for how in ["deleted", "replaced", "replaced off"] {
        let report = report(how);
        assert!(report.complete, "{how}: {report:#?}");
        let replaced: Vec<_> = report.images.iter().filter(|image| image.replaced).collect();
        assert!(replaced.len() == 1 && replaced[0].is_main, "{how}: {replaced:#?}");
        let own = frames(&report, "app");
        assert!(own[0].1.contains("compare_and_crash"), "{how}: {own:#?}");
        // Others have theirs only where names are wanted.
        let system = frames(&report, "libc.");
        let is_named = system.iter().any(|(_, name)| name.starts_with("qsort"));
        assert_eq!(is_named, !how.ends_with("off"), "{how}: {system:#?}");
    }
}

/// Nobody finds the file later.
#[test]
fn a_program_in_a_memory_file_is_named_from_that_file() {
    // An emulator is what runs then, and opens the file itself.
    if std::env::var_os("CORONER_TEST_RUNNER").is_some() {
        return;
    }
    let report = report("memory");
    assert!(report.images.iter().any(|image| image.is_main && image.replaced), "{:#?}", report.images);
    let own = frames(&report, "memfd:app");
    assert!(own.first().is_some_and(|(_, name)| name.contains("compare_and_crash")), "{own:#?}");
}

#[test]
fn names_can_be_left_to_others() {
    let report = report("off");
    assert!(report.complete && report.symbol_names.is_empty());
    assert!(report.end.as_ref().unwrap().dropped.iter().all(|dropped| dropped.section != SectionKind::SYMBOL_NAMES));
}

//! In a minidump with all threads' stacks, another walker (the crate `minidump-unwind`, used by
//! `minidump-stackwalk`) finds as many frames as the process's own walk did. The process is this
//! test program, started again.
#![cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static")))]

use std::ffi::{CString, c_int, c_void};
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};

use coroner_capture::InstallOptions;
use coroner_report::model::Report;
use minidump::{
    Minidump, MinidumpMemoryList, MinidumpModuleList, MinidumpSystemInfo, MinidumpThreadList, UnifiedMemory,
};
use minidump_unwind::{CallStack, CallStackInfo, MultiSymbolProvider, SystemInfo, walk_stack};

const STORE: &str = "CORONER_TEST_STORE";
const LIBRARY: &str = "CORONER_TEST_LIBRARY";
const ALL: &str = "CORONER_TEST_ALL";

/// Number of the library's frames (about 160 bytes each) on the crashed thread's stack, and on
/// those of the others.
const DEEP: c_int = 300;
const OTHERS: c_int = 60;
const THREADS: usize = 6;

/// Built with frame pointers: the walker has no symbol files, hence no unwind data.
const SOURCE: &str = "
void descend(int depth, void (*act)(void *), void *with) {
    volatile char room[96];
    room[0] = (char)depth;
    if (depth > 1) descend(depth - 1, act, with); else act(with);
    room[1] = room[0];
}
";

type Descend = unsafe extern "C" fn(c_int, extern "C" fn(*mut c_void), *mut c_void);

extern "C" fn crash(_: *mut c_void) {
    // SAFETY: none: this crashes on purpose.
    unsafe { std::hint::black_box(std::ptr::null_mut::<u32>()).write_volatile(1) };
}

extern "C" fn wait(barrier: *mut c_void) {
    // SAFETY: the barrier of `crash_on_request`, which does not return while this waits.
    let barrier = unsafe { &*barrier.cast::<Barrier>() };
    barrier.wait();
    loop {
        std::thread::park();
    }
}

/// The crashing process; does nothing unless started as such.
#[test]
fn crash_on_request() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let store = CString::new(store.as_bytes()).unwrap();
    let stack_memory_all = std::env::var_os(ALL).is_some();
    coroner_capture::install(&store, &InstallOptions { stack_memory_all, ..InstallOptions::DEFAULT }).unwrap();
    let library = CString::new(std::env::var_os(LIBRARY).unwrap().as_bytes()).unwrap();
    // SAFETY: the library's function has that type.
    let descend: Descend = unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        std::mem::transmute(libc::dlsym(handle, c"descend".as_ptr()))
    };
    let barrier = Arc::new(Barrier::new(THREADS + 1));
    for _ in 0..THREADS {
        let barrier = Arc::clone(&barrier);
        // SAFETY: the library's function calls `wait` with the barrier, which lives as long as the
        // closure.
        std::thread::spawn(move || unsafe { descend(OTHERS, wait, Arc::as_ptr(&barrier).cast_mut().cast()) });
    }
    barrier.wait();
    // SAFETY: as above.
    unsafe { descend(DEEP, crash, std::ptr::null_mut()) };
}

fn report(folder: &Path, all: bool) -> Report {
    let (source, library) = (folder.join("deep.c"), folder.join("libdeep.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let words = std::env::var("CORONER_TEST_CC").unwrap_or_else(|_| "cc".to_owned());
    let mut words = words.split_whitespace();
    let mut compiler = Command::new(words.next().unwrap());
    compiler.args(words).args(["-O1", "-fno-omit-frame-pointer", "-fPIC", "-shared", "-o"]).arg(&library).arg(source);
    assert!(compiler.status().unwrap().success());
    let store = folder.join(if all { "all" } else { "one" });
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["minidump_stacks::crash_on_request", "--exact", "--test-threads=1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.env(STORE, &store).env(LIBRARY, &library);
    if all {
        command.env(ALL, "1");
    }
    assert_eq!(command.status().unwrap().signal(), Some(libc::SIGSEGV));
    let runs: Vec<_> = std::fs::read_dir(store.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [run] = &runs[..] else { panic!("expected one run, got {runs:?}") };
    let report = Report::read_file(run.join("report")).unwrap();
    assert!(report.complete, "{:?}", report.problems);
    report
}

/// Runs a future that is ready at once: there are no symbol files to download.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

/// Returns for each thread with frames in the library: their number, and whether the minidump's
/// walk has found at least as many (minus the one above a function without a frame pointer),
/// including the outermost.
fn compare(report: &Report) -> Vec<(usize, bool)> {
    let bytes = coroner_formats::minidump_writer::from_report(report).unwrap();
    let dump = Minidump::read(bytes).unwrap();
    let system: MinidumpSystemInfo = dump.get_stream().unwrap();
    let modules: MinidumpModuleList = dump.get_stream().unwrap();
    let memory = minidump::UnifiedMemoryList::Memory(dump.get_stream::<MinidumpMemoryList>().unwrap());
    let threads: MinidumpThreadList = dump.get_stream().unwrap();
    let library = report.images.iter().find(|image| image.path.ends_with("/libdeep.so")).unwrap();
    let in_library = |address: u64| address.wrapping_sub(library.load_address.0) < library.size;
    let info = SystemInfo {
        os: system.os,
        os_version: None,
        os_build: None,
        cpu: system.cpu,
        cpu_info: None,
        cpu_microcode_version: None,
        cpu_count: 1,
    };
    let walk = |thread: &coroner_report::model::Thread| {
        let ours = thread.frames.iter().filter(|frame| in_library(frame.address.0)).count();
        let skipped: u64 = thread.skipped.iter().map(|skipped| skipped.count).sum();
        let in_dump = threads.get_thread(thread.tid as u32).unwrap();
        let context = in_dump.context(&system, None).unwrap();
        let mut stack = CallStack::with_context(context.into_owned());
        stack.info = CallStackInfo::Ok;
        let stack_memory: Option<UnifiedMemory<'_, '_>> = in_dump.stack_memory(&memory);
        let provider = MultiSymbolProvider::new();
        now(walk_stack(0, (), &mut stack, stack_memory, &modules, &info, &provider));
        let outermost = thread.frames.iter().rfind(|frame| in_library(frame.address.0)).and_then(|frame| frame.sp);
        let theirs: Vec<_> = stack.frames.iter().filter(|frame| in_library(frame.instruction)).collect();
        let ours = ours + skipped as usize;
        let is_there = theirs.iter().any(|frame| Some(frame.context.get_stack_pointer()) == outermost.map(|sp| sp.0));
        (ours, is_there && theirs.len() + 1 >= ours)
    };
    report.threads.iter().map(walk).filter(|(ours, _)| *ours > 0).collect()
}

#[test]
fn another_walker_finds_as_many_frames_in_the_minidump() {
    let folder = tempfile::tempdir().unwrap();
    let mut wanted = vec![(OTHERS as usize, true); THREADS];
    wanted.push((DEEP as usize, true));
    let mut all = compare(&report(folder.path(), true));
    all.sort_unstable();
    assert_eq!(all, wanted);
    // Not without all stacks.
    let one = compare(&report(folder.path(), false));
    assert!(one.iter().all(|(_, is_there)| !is_there), "{one:?}");
}

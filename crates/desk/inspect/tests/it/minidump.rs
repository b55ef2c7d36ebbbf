//! In a process's minidump, the walker of `minidump-stackwalk` finds the frames of the report.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll, Waker};

use coroner_symbols::{Options, Symbolizer};
use minidump::{Minidump, MinidumpModuleList, MinidumpSystemInfo, MinidumpThreadList};
use minidump_unwind::{CallStack, CallStackInfo, FrameTrust, MultiSymbolProvider, SystemInfo, walk_stack};

/// Built with frame pointers: the walker has no symbol files, hence no unwind data.
const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
static void waits(void) {
    for (;;) {
        long call = 34; /* pause */
        __asm__ volatile("syscall" : "+a"(call) : : "rcx", "r11", "memory");
    }
}
static void serves(int depth) {
    volatile char room[64];
    room[0] = (char)depth;
    if (depth > 1) serves(depth - 1); else waits();
    room[1] = room[0];
}
static void *table(void *depth) { serves(*(int *)depth); return 0; }
int main(void) {
    static int depths[] = {10, 20, 30};
    pthread_t thread;
    for (int i = 0; i < 3; i++) pthread_create(&thread, 0, table, &depths[i]);
    puts("open");
    fflush(stdout);
    serves(40);
    return 0;
}
"#;
const PAUSE: &str = "34 ";

struct Restaurant(Child);

impl Drop for Restaurant {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program, and returns when all its threads wait.
fn start(folder: &std::path::Path) -> Restaurant {
    let (source, program) = (folder.join("restaurant.c"), folder.join("restaurant"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O0", "-fno-omit-frame-pointer", "-pthread", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    let mut started = Restaurant(Command::new(&program).stdout(Stdio::piped()).spawn().unwrap());
    BufReader::new(started.0.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let waits = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.unwrap().path().join("syscall")).unwrap().starts_with(PAUSE)
    };
    while !std::fs::read_dir(format!("/proc/{}/task", started.0.id())).unwrap().all(waits) {
        std::thread::yield_now();
    }
    started
}

/// Runs a future that is ready at once: there are no symbol files to download.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn a_minidump_has_the_reports_frames_and_the_process_continues() {
    let folder = tempfile::tempdir().unwrap();
    let mut restaurant = start(folder.path());
    let pid = restaurant.0.id();
    let report = coroner_inspect::read_process(pid, &mut Symbolizer::new(Options::default())).unwrap();
    let dump = Minidump::read(coroner_inspect::write_minidump(pid).unwrap()).unwrap();
    let (system, modules): (MinidumpSystemInfo, MinidumpModuleList) =
        (dump.get_stream().unwrap(), dump.get_stream().unwrap());
    let threads: MinidumpThreadList<'_> = dump.get_stream().unwrap();
    let memory = dump.get_memory().unwrap();
    let info = SystemInfo {
        os: system.os,
        os_version: None,
        os_build: None,
        cpu: system.cpu,
        cpu_info: None,
        cpu_microcode_version: None,
        cpu_count: 1,
    };
    let program = report.images.iter().find(|image| image.is_main).unwrap();
    let is_program = |address: &u64| address.wrapping_sub(program.load_address.0) < program.size;
    let mut counts = Vec::new();
    for thread in &report.threads {
        let ours: Vec<u64> = thread.frames.iter().map(|frame| frame.address.0).filter(is_program).collect();
        let in_dump = threads.get_thread(thread.tid as u32).unwrap();
        let mut stack = CallStack::with_context(in_dump.context(&system, None).unwrap().into_owned());
        stack.info = CallStackInfo::Ok;
        let saved = in_dump.stack_memory(&memory);
        now(walk_stack(0, (), &mut stack, saved, &modules, &info, &MultiSymbolProvider::new()));
        // It guesses beyond the C library, which has no frame pointers.
        let known = stack.frames.iter().take_while(|frame| frame.trust != FrameTrust::Scan);
        let theirs = known.map(|frame| frame.context.get_instruction_pointer()).filter(is_program).collect::<Vec<_>>();
        assert!(ours.starts_with(&theirs), "{ours:x?} {theirs:x?}");
        counts.push(theirs.len());
    }
    counts.sort_unstable();
    // The waiting function, the calls, and the thread's own function.
    assert_eq!(counts, [12, 22, 32, 42]);
    // Its parent, like a shell, has seen no stop; and it still runs.
    let mut status = 0;
    // SAFETY: the status is written to a local variable.
    let seen =
        unsafe { libc::waitpid(pid as i32, &raw mut status, libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED) };
    assert_eq!(seen, 0, "{status:#x}");
    assert!(restaurant.0.try_wait().unwrap().is_none());
}

#[test]
fn a_process_that_is_not_there_is_an_error() {
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let error = coroner_inspect::write_minidump(ended.id()).unwrap_err();
    assert!(error.to_string().contains(&ended.id().to_string()), "{error}");
}

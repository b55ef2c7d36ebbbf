//! `coroner run` and `coroner dump`: unmodified programs.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(super) struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        // No core files in the repository.
        command.args(["-c", "ulimit -c 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_coroner")]).args(arguments);
        command.env("CORONER_STORE", self.path("store")).env("HOME", self.folder.path());
        command.env_remove("DEBUGINFOD_URLS").env_remove("COLUMNS").current_dir(self.folder.path());
        command
    }

    pub(super) fn run(&self, arguments: &[&str]) -> CommandOutput {
        CommandOutput::new(&self.command(arguments).output().unwrap())
    }

    /// Builds a C program from this source.
    pub(super) fn program(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let (file, program) = (self.path(&format!("{name}.c")), self.path(name));
        std::fs::write(&file, source).unwrap();
        let built =
            Command::new("cc").args(["-g", "-O1", "-o"]).args([&program, &file]).args(options).output().unwrap();
        assert!(built.status.success(), "{built:?}");
        program
    }
}

#[derive(Debug)]
pub(super) struct CommandOutput {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) out: String,
    pub(super) err: String,
}

impl CommandOutput {
    pub(super) fn new(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let status = output.status;
        Self { code: status.code(), signal: status.signal(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

const CART: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct cart { int total; };
__attribute__((noinline)) static int total(struct cart *cart) { return *(volatile int *)&cart->total; }
int main(int argc, char **argv) {
    puts("open"); fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "crash")) return total(0) + 1;
    if (argc > 1 && !strcmp(argv[1], "abort")) abort();
    if (argc > 1 && !strcmp(argv[1], "wait")) for (;;) pause();
    return argc > 1 ? atoi(argv[1]) : 0;
}
"#;

#[test]
fn a_crash_is_explained_and_the_exit_status_is_the_programs() {
    let bench = Bench::new();
    let cart = bench.program("cart", CART, &[]);
    let cart = cart.to_str().unwrap();
    let crashed = bench.run(&["run", "--", cart, "crash"]);
    assert_eq!((crashed.signal, crashed.out.as_str()), (Some(libc::SIGSEGV), "open\n"), "{crashed:?}");
    let why = "Null pointer: `cart` was null: read of 4 bytes at `cart->total` (rdi is null) in total (cart.c:7)";
    assert!(crashed.err.starts_with(why), "{crashed:?}");
    // It is kept, and is the newest.
    let shown = bench.run(&["show", "--format", "json"]);
    let report: Value = serde_json::from_str(&shown.out).unwrap_or_else(|error| panic!("{error}: {shown:?}"));
    assert_eq!(report["header"]["process_name"], "cart");

    // The output shows how to display it again, also from another store.
    for (store, named) in [("store", false), ("elsewhere", true)] {
        let store = bench.path(store);
        let crashed = bench.run(&["run", "--store", store.to_str().unwrap(), "--", cart, "crash"]);
        let (_, command) = crashed.err.split_once(": coroner ").unwrap_or_else(|| panic!("{crashed:?}"));
        assert_eq!(command.contains("--store"), named, "{crashed:?}");
        let shown = bench.run(&command.split_whitespace().collect::<Vec<_>>());
        assert!(shown.out.contains("cart.c:7"), "{shown:?}");
    }

    // Also the crash of a child; and the output mentions what started it.
    let script = format!("'{cart}' abort; exit 7");
    let child = bench.run(&["run", "--", "sh", "-c", &script]);
    assert_eq!(child.code, Some(7), "{child:?}");
    assert!(child.err.contains("(cart) crashed") && child.err.contains("Abort"), "{child:?}");
}

/// Tests a pure virtual call, which is detected only after the program has run.
#[test]
fn a_pure_virtual_call_is_named_in_every_output() {
    const PURE: &str = r#"
struct Shape {
    Shape() { draw(); }
    virtual ~Shape() {}
    void draw() { area(); }
    virtual void area() = 0;
};
struct Circle : Shape {
    void area() override {}
};
int main() { Circle circle; }
"#;
    let bench = Bench::new();
    std::fs::write(bench.path("shapes.cpp"), PURE).unwrap();
    let (source, program) = (bench.path("shapes.cpp"), bench.path("shapes"));
    let built = Command::new("c++").args(["-g", "-O0", "-o"]).args([&program, &source]).output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let crashed = bench.run(&["run", "--", program.to_str().unwrap()]);
    assert_eq!(crashed.signal, Some(libc::SIGABRT), "{crashed:?}");
    assert!(crashed.err.contains("\nA pure virtual function was called, called by Shape::draw()"), "{crashed:?}");
    for arguments in [
        &["list"][..],
        &["list", "--format", "json"],
        &["top"],
        &["show", "--format", "markdown"],
        &["convert", "--to", "sentry"],
        &["show", "--format", "otlp"],
    ] {
        let result = bench.run(arguments);
        assert_eq!(result.code, Some(0), "{arguments:?} {result:?}");
        assert!(result.out.contains("a pure virtual function was called"), "{arguments:?} {result:?}");
        assert!(!result.out.contains("without an active exception"), "{arguments:?} {result:?}");
    }
}

#[test]
fn a_report_that_cannot_be_stored_is_kept_elsewhere_with_a_message() {
    let bench = Bench::new();
    let cart = bench.program("cart", CART, &[]);
    std::fs::write(bench.path("store"), "no folder").unwrap();
    let mut command = bench.command(&["run", "--", cart.to_str().unwrap(), "crash"]);
    let crashed = CommandOutput::new(&command.env("TMPDIR", bench.folder.path()).output().unwrap());
    let result = crashed.err.split("Stored in `").nth(1).and_then(|rest| rest.split_once("` instead"));
    let (kept, _) = result.unwrap_or_else(|| panic!("{crashed:?}"));
    let kept: Vec<_> = std::fs::read_dir(kept).unwrap().map(|entry| entry.unwrap().path()).collect();
    let shown = bench.run(&["show", kept[0].to_str().unwrap()]);
    assert!(kept.len() == 1 && shown.out.starts_with("Null pointer"), "{kept:?} {shown:?}");
}

/// `coroner run … 2>&1 | head -1`.
#[test]
fn a_report_is_kept_if_the_output_is_closed() {
    let bench = Bench::new();
    let cart = bench.program("cart", CART, &[]);
    let mut command = bench.command(&["run", "--", cart.to_str().unwrap(), "crash"]);
    // A pipe whose reader has closed before the program ends.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command.stderr(writer).status().unwrap();
    assert_eq!(status.signal(), Some(11), "{status:?}");
    let list = bench.run(&["list"]);
    assert!(list.out.lines().count() == 1 && list.out.contains("null pointer"), "{list:?}");
}

/// A program that continues as a copy of itself without a file, and then writes to null.
const UNFILED: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>
extern char **environ;
__attribute__((noinline)) static void fill(volatile int *row) { *row = 7; }
int main(int argc, char **argv) {
    if (argc == 1) {
        int own = open("/proc/self/exe", O_RDONLY), copy = memfd_create("copy", MFD_CLOEXEC);
        while (sendfile(copy, own, 0, 1 << 20) > 0);
        char *arguments[] = {argv[0], "crash", 0};
        fexecve(copy, arguments, environ);
        return 1;
    }
    fill(0);
    return 0;
}
"#;

#[test]
fn a_program_without_a_file_is_symbolicated() {
    let bench = Bench::new();
    let crashed = bench.run(&["run", "--", bench.program("unfiled", UNFILED, &[]).to_str().unwrap()]);
    assert_eq!(crashed.signal, Some(libc::SIGSEGV), "{crashed:?}");
    assert!(crashed.err.contains(" is null) in fill"), "{crashed:?}");
    let shown = bench.run(&["show", "--format", "json"]);
    let report: Value = serde_json::from_str(&shown.out).unwrap_or_else(|error| panic!("{error}: {shown:?}"));
    assert_eq!(report["header"]["process_name"], "memfd:copy", "{}", report["header"]);
}

#[test]
fn a_successful_program_prints_nothing() {
    let bench = Bench::new();
    let cart = bench.program("cart", CART, &[]);
    for code in ["0", "42"] {
        let ended = bench.run(&["run", "--", cart.to_str().unwrap(), code]);
        assert_eq!(
            (ended.code, ended.out.as_str(), ended.err.as_str()),
            (code.parse().ok(), "open\n", ""),
            "{ended:?}"
        );
    }
    assert!(!bench.path("store").exists());
    // A signal sent to this command is forwarded to the program, which ends by it.
    let mut running =
        bench.command(&["run", "--", cart.to_str().unwrap(), "wait"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(running.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(running.id() as i32, libc::SIGTERM) };
    assert_eq!(running.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn a_crashing_forked_child_of_a_successful_parent_is_reported() {
    const PARENT: &str = r#"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int ended;
    if (fork() == 0) return *(volatile int *)16;
    wait(&ended);
    if (argc > 1) exit(3);
    return 0;
}
"#;
    let bench = Bench::new();
    let parent = bench.program("parent", PARENT, &[]);
    let parent = parent.to_str().unwrap();
    for (arguments, code) in [(&["run", "--", parent][..], 0), (&["run", "--", parent, "exit"][..], 3)] {
        let result = bench.run(arguments);
        assert_eq!(result.code, Some(code), "{result:?}");
        assert!(result.err.contains("(parent) crashed") && result.err.contains("0x10"), "{result:?}");
    }
}

#[test]
fn programs_that_cannot_be_run_are_named() {
    let bench = Bench::new();
    let none = bench.run(&["run", "--", "no-such-program"]);
    assert!(none.code == Some(127) && none.err.contains("can't run `no-such-program`: no such program"), "{none:?}");
    std::fs::write(bench.path("text"), "exit 3").unwrap();
    for (name, what) in [("./text", "not an executable file"), ("./", "is a folder")] {
        let not_run = bench.run(&["run", "--", name]);
        assert!(not_run.code == Some(126) && not_run.err.contains(what), "{not_run:?}");
    }
    // As with `env`: a file without a known format is a shell script.
    let make_executable = |name: &str| {
        let status = Command::new("chmod").args(["+x", name]).current_dir(bench.folder.path()).status();
        assert!(status.unwrap().success());
    };
    make_executable("text");
    assert_eq!(bench.run(&["run", "--", "./text"]).code, Some(3));
    std::fs::write(bench.path("script"), "#!/no/such/interpreter\n").unwrap();
    make_executable("script");
    let script = bench.run(&["run", "--", "./script"]);
    assert!(script.code == Some(127) && script.err.contains("its interpreter does not exist"), "{script:?}");
}

#[test]
fn a_dumped_process_continues() {
    const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) static void waits_for_customers(void) { char c; while (read(0, &c, 1) == 1) { putchar(c); fflush(stdout); } }
static void *idle(void *none) { for (;;) pause(); return none; }
int main(void) {
    pthread_t thread;
    for (int i = 0; i < 3; i++) pthread_create(&thread, 0, idle, 0);
    puts("ready"); fflush(stdout);
    waits_for_customers();
    return 0;
}
"#;
    let bench = Bench::new();
    let program = bench.program("shop", THREADS, &["-lpthread"]);
    let mut shop = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(shop.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let pid = shop.id().to_string();
    let dumped = bench.run(&["dump", &pid, "--format", "json", "--minidump", "shop.dmp"]);
    assert_eq!(dumped.code, Some(0), "{dumped:?}");
    let report: Value = serde_json::from_str(&dumped.out).unwrap_or_else(|error| panic!("{error}: {dumped:?}"));
    let threads = report["threads"].as_array().unwrap();
    let functions = |thread: &Value| -> Vec<String> {
        let frames = thread["frames"].as_array().unwrap().iter();
        frames.filter_map(|frame| frame["function"].as_str().map(ToOwned::to_owned)).collect()
    };
    assert_eq!(threads.len(), 4, "{report:#}");
    assert!(functions(&threads[0]).contains(&"waits_for_customers".to_owned()), "{:?}", functions(&threads[0]));
    assert!(functions(&threads[0]).contains(&"main".to_owned()));
    assert!(threads[1..].iter().all(|thread| functions(thread).contains(&"idle".to_owned())), "{report:#}");
    assert_eq!((&report["header"]["process_name"], &report["complete"]), (&Value::from("shop"), &Value::from(true)));
    // The minidump has the same stacks.
    let minidump = bench.run(&["show", "shop.dmp", "--thread", "all"]);
    assert!(minidump.out.contains("waits_for_customers") && minidump.out.contains("idle"), "{minidump:?}");
    assert!(minidump.out.starts_with("Dump of a running process"), "no signal: {minidump:?}");
    let dumped = bench.run(&["dump", &pid]);
    assert!(
        dumped.out.contains("waits_for_customers") && dumped.out.contains("Dump of a running process"),
        "{dumped:?}"
    );
    let list = bench.run(&["list"]);
    assert!(list.out.contains("dump of a running process in waits_for_customers"), "{list:?}");
    // It continues.
    shop.stdin.take().unwrap().write_all(b"x").unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), shop.wait().unwrap().code()), ("x", Some(0)));
    let gone = bench.run(&["dump", &pid]);
    assert!(gone.code == Some(1) && gone.err.contains("no such process"), "{gone:?}");
}

/// Its locks record their owners by ids that belong to other threads here, or to none.
#[test]
fn lock_owners_in_another_pid_namespace_are_not_named() {
    const WAITS: &str = r#"
#include <pthread.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
int main(void) { pthread_mutex_lock(&mutex); pthread_mutex_lock(&mutex); return 0; }
"#;
    let bench = Bench::new();
    let program = bench.program("waits", WAITS, &["-lpthread"]);
    let waits_in = |command: &mut Command| {
        let mut started = command.stderr(Stdio::piped()).spawn().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let is_it = |pid: &u32| {
            let (name, call) = (format!("/proc/{pid}/comm"), format!("/proc/{pid}/syscall"));
            let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
            read(name).trim() == "waits" && read(call).starts_with(&libc::SYS_futex.to_string())
        };
        let id = started.id();
        let children = || {
            let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
            children.split_whitespace().filter_map(|child| child.parse().ok()).chain([id]).collect::<Vec<u32>>()
        };
        let pid = loop {
            if let Some(pid) = children().into_iter().find(is_it) {
                break pid;
            }
            if started.try_wait().unwrap().is_some() || std::time::Instant::now() > until {
                let _ = started.kill();
                println!("no such process can be made here: {:?}", started.wait_with_output());
                return None;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        let result = bench.run(&["dump", &pid.to_string()]);
        // SAFETY: a process that this test started.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        let _ = started.wait();
        assert_eq!(result.code, Some(0), "{result:?}");
        Some(result.out)
    };
    let here = waits_in(&mut Command::new(&program)).unwrap();
    assert!(here.contains("deadlock"), "{here}");
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]).arg(&program);
    let Some(elsewhere) = waits_in(&mut unshare) else { return };
    assert!(!elsewhere.contains("deadlock") && !elsewhere.contains("waits for thread"), "{elsewhere}");
}

/// Whether this process has CAP_CHECKPOINT_RESTORE (proc(5)).
///
/// Without it a deleted library can't be read, but the program can.
fn may_follow_map_files() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let (start, end) = maps.split(' ').next().unwrap().split_once('-').unwrap();
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
    std::fs::metadata(format!("/proc/self/map_files/{start:x}-{end:x}")).is_ok()
}

#[test]
fn a_process_with_deleted_or_replaced_files_is_symbolicated() {
    const LIBRARY: &str = r#"
#include <unistd.h>
__attribute__((noinline)) void waits_in_library(void) { for (;;) pause(); }
"#;
    const PROGRAM: &str = r#"
#include <stdio.h>
void waits_in_library(void);
__attribute__((noinline)) static void calls_library(void) { waits_in_library(); }
int main(void) { puts("ready"); fflush(stdout); calls_library(); return 0; }
"#;
    // Also without a build ID: then only the file itself identifies it.
    for id in ["-Wl,--build-id", "-Wl,--build-id=none"] {
        let bench = Bench::new();
        let library = bench.program("libwaits.so", LIBRARY, &["-shared", "-fPIC", id]);
        let library_text = library.to_str().unwrap();
        let program = bench.program("caller", PROGRAM, &[library_text, id]);
        let mut caller = Command::new(&program).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(caller.stdout.take().unwrap()).read_line(&mut line).unwrap();
        std::fs::remove_file(&program).unwrap();
        std::fs::remove_file(&library).unwrap();
        let other = "int other_function_of_the_new_library(void) { return 1; }";
        bench.program("libwaits.so", other, &["-shared", "-fPIC", id]);
        let dumped = bench.run(&["dump", &caller.id().to_string()]);
        caller.kill().unwrap();
        caller.wait().unwrap();
        let of_library = may_follow_map_files().then_some("waits_in_library");
        for name in ["calls_library", "main"].into_iter().chain(of_library) {
            assert!(dumped.out.contains(name), "{id}: no {name} in {dumped:?}");
        }
        assert!(!dumped.out.contains("other_function") && !dumped.out.contains("(deleted)"), "{dumped:?}");
    }
}

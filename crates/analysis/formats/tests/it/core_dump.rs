//! Core dumps of real processes have the same stacks as in a debugger.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use coroner_formats::dump::{DumpError, Form};
use coroner_report::Report;
use coroner_report::model::Timestamp;
use coroner_report::wire::{FoundBy, WalkEnd};
use coroner_symbols::{Options, Symbolizer};

const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
struct cart { int total; };
static pthread_barrier_t started;
__attribute__((noinline)) static int total(struct cart *cart) { return *(volatile int *)&cart->total; }
__attribute__((noinline)) static int pay(struct cart *cart, int n) {
    char text[300];
    snprintf(text, sizeof text, "%d", n);
    return total(cart) + text[0];
}
static void *waits(void *none) {
    pthread_barrier_wait(&started);
    for (;;) pause();
    return none;
}
int main(int argc, char **argv) {
    pthread_t thread;
    pthread_barrier_init(&started, 0, 3);
    pthread_create(&thread, 0, waits, 0);
    pthread_create(&thread, 0, waits, 0);
    pthread_barrier_wait(&started);
    usleep(20000);
    return pay(0, argc) + 1;
}
"#;

fn symbolizer() -> Symbolizer {
    Symbolizer::new(Options::default())
}

/// Creates a symbolizer for files that are read many times: loading the system libraries' symbols
/// takes a while.
fn without_files() -> Symbolizer {
    Symbolizer::new(Options { image_paths: false, debug_roots: vec![], ..Options::default() })
}

/// Returns the program's core dump: the kernel's if this system writes it to the working directory,
/// else gdb's.
fn dump(folder: &Path) -> Option<Vec<u8>> {
    dump_of(folder, &["-g"])
}

/// Builds the program with these options.
fn build(folder: &Path, options: &[&str]) -> PathBuf {
    build_source(folder, PROGRAM, options)
}

fn build_source(folder: &Path, text: &str, options: &[&str]) -> PathBuf {
    let (source, program) = (folder.join("cart.c"), folder.join("cart"));
    std::fs::write(&source, text).unwrap();
    let mut compiler = Command::new("gcc");
    compiler.arg("-O1").args(options).arg("-o").args([&program, &source]).arg("-lpthread");
    assert!(compiler.status().unwrap().success());
    // A process's start time is known to a clock tick, and a file changed later may be another one.
    std::thread::sleep(Duration::from_millis(50));
    program
}

fn dump_of(folder: &Path, options: &[&str]) -> Option<Vec<u8>> {
    dump_of_program(folder, &build(folder, options))
}

fn dump_of_program(folder: &Path, program: &Path) -> Option<Vec<u8>> {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with(['|', '/']) {
        let gdb = Command::new("gdb")
            .args(["-q", "-batch", "-ex", "run", "-ex", "gcore core"])
            .arg(program)
            .current_dir(folder)
            .output();
        if let Err(error) = gdb {
            eprintln!("skipped: this system's core dumps go to `{}`, and gdb can't be run: {error}", pattern.trim());
            return None;
        }
        return Some(std::fs::read(folder.join("core")).unwrap_or_else(|error| panic!("{error}: {gdb:?}")));
    }
    let mut command = Command::new(program);
    command.current_dir(folder).stdout(Stdio::null());
    let all = libc_limit();
    // SAFETY: `setrlimit` is async-signal-safe, and the only call between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::setrlimit(libc::RLIMIT_CORE, &raw const all);
            Ok(())
        });
    }
    assert!(!command.status().unwrap().success());
    let mut entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let core = entries.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("core"));
    Some(std::fs::read(core.expect("a core dump")).unwrap())
}

fn libc_limit() -> libc::rlimit {
    libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY }
}

fn functions(report: &Report, thread: usize) -> Vec<&str> {
    report.threads[thread].frames.iter().filter_map(|frame| frame.function.as_deref()).collect()
}

#[test]
fn a_core_dump_has_the_stacks_of_all_threads() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bytes) = dump(folder.path()) else { return };
    assert_eq!(Form::detect(&bytes), Some(Form::Core));
    let report = coroner_formats::dump::read(&bytes, Some(Timestamp(7)), &mut symbolizer()).unwrap();
    let crash = report.crash.as_ref().unwrap();
    let signal = crash.signal.as_ref().unwrap();
    assert_eq!((signal.name, signal.code_name), (Some("SIGSEGV"), Some("SEGV_MAPERR")));
    assert_eq!((crash.address.map(|address| address.0), crash.time.0), (Some(0), 7));
    assert_eq!(report.header.process_name, "cart");
    assert!(report.complete, "{:?}", report.problems);
    let stack = functions(&report, 0);
    assert_eq!(&stack[..3], ["total", "pay", "main"], "{stack:?}");
    assert!(report.threads[0].crashed && report.threads[0].main);
    assert_eq!(report.threads.len(), 3);
    for thread in 1..3 {
        assert!(functions(&report, thread).contains(&"waits"), "{:?}", report.threads[thread]);
    }
    let main = report.images.iter().find(|image| image.is_main).expect("the program");
    assert!(main.path.ends_with("/cart") && !main.build_id.is_empty());
    assert!(report.images.iter().any(|image| image.name().starts_with("libc.")), "{:?}", report.images);
    // The same file results in the same event.
    let again = coroner_formats::dump::read(&bytes, None, &mut symbolizer()).unwrap();
    assert_eq!(again.header.event_id, report.header.event_id);

    // Truncated anywhere, it is read or refused.
    let mut symbolizer = without_files();
    for length in (0..bytes.len().min(1 << 16)).step_by(4093).chain([bytes.len() / 2, bytes.len() - 1]) {
        match coroner_formats::dump::read(&bytes[..length], None, &mut symbolizer) {
            Ok(report) => {
                assert!(!report.threads.is_empty());
                assert!(
                    report.problems.iter().any(|problem| problem.what.contains("truncated")),
                    "{:?}",
                    report.problems
                );
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    // The same with damaged headers and notes.
    let notes = bytes.len().min(1 << 14);
    for place in (16..notes).step_by(389) {
        let mut damaged = bytes[..bytes.len().min(1 << 18)].to_vec();
        for byte in &mut damaged[place..place + 8] {
            *byte = 0xff;
        }
        let _ = coroner_formats::dump::read(&damaged, None, &mut symbolizer);
    }
}

/// A file without a build id is the loaded one if its headers match the saved ones and it hasn't
/// been changed since.
#[test]
fn callers_of_code_without_unwind_data_that_never_returns_are_found() {
    // Like musl's `abort`, whose objects have no unwind data: its code doesn't show where its frame
    // ends.
    const NEVER: &str = r"
__attribute__((noinline)) static void ends(volatile int *place) { volatile int room[9]; room[3] = 1; for (;;) *place = room[3]; }
__attribute__((noinline)) static int middle(int n) { volatile int room[30]; room[n] = n; ends(0); return room[n]; }
int main(int argc, char **argv) { return middle(argc) + 1; }
";
    let folder = tempfile::tempdir().unwrap();
    let without = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer", "-Wl,--build-id"];
    let Some(bytes) = dump_of_program(folder.path(), &build_source(folder.path(), NEVER, &without)) else { return };
    let report = coroner_formats::dump::read(&bytes, None, &mut symbolizer()).unwrap();
    let stack = functions(&report, 0);
    assert!(stack.starts_with(&["ends", "middle", "main"]), "{stack:?}");
    assert_eq!(report.threads[0].walk_end, Some(WalkEnd::ROOT), "{stack:?}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn callers_of_a_generated_interpreter_are_found() {
    // Like HotSpot's interpreter: each frame has a record, and the return address was pushed before
    // a jump to the method.
    const MADE: &str = r#"
#include <string.h>
#include <sys/mman.h>
static const unsigned char code[] = {
    0x55, 0x48, 0x89, 0xe5,                                      /* push rbp; mov rbp, rsp */
    0x48, 0x8d, 0x05, 0x03, 0x00, 0x00, 0x00,                    /* lea rax, [rip + 3] */
    0x50, 0xeb, 0x0a,                                            /* push rax; jmp inner */
    0x5d, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,  /* pop rbp; ret */
    0x55, 0x48, 0x89, 0xe5, 0x31, 0xc0, 0x89, 0x00, 0x0f, 0x0b,  /* inner: push rbp; mov rbp, rsp; a null pointer */
};
__attribute__((noinline)) static int enter(void) {
    void *made = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, code, sizeof code);
    return ((int (*)(void))made)() + 1;
}
int main(void) { return enter() + 1; }
"#;
    let folder = tempfile::tempdir().unwrap();
    let Some(bytes) = dump_of_program(folder.path(), &build_source(folder.path(), MADE, &["-Wl,--build-id"])) else {
        return;
    };
    let report = coroner_formats::dump::read(&bytes, None, &mut symbolizer()).unwrap();
    let stack: Vec<_> = report.threads[0].frames.iter().map(|frame| frame.function.as_deref()).collect();
    assert!(stack.starts_with(&[None, None, Some("enter"), Some("main")]), "{stack:?}");
    assert_eq!(report.threads[0].walk_end, Some(WalkEnd::ROOT), "{stack:?}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn an_address_in_data_is_not_a_caller() {
    // Like Go's switch from a goroutine's stack to the system stack: the word in place of the
    // return address is data.
    const LIES: &str = r#"
#include <stdlib.h>
int lies(volatile int *place, void *data);
__asm__(".text\n.type lies, @function\nlies:\n.cfi_startproc\nmov %rsi, (%rsp)\nmov (%rdi), %eax\nret\n.cfi_endproc\n.size lies, . - lies");
int main(void) { return lies(0, malloc(64)) + 1; }
"#;
    let folder = tempfile::tempdir().unwrap();
    let Some(bytes) = dump_of_program(folder.path(), &build_source(folder.path(), LIES, &["-Wl,--build-id"])) else {
        return;
    };
    let report = coroner_formats::dump::read(&bytes, None, &mut symbolizer()).unwrap();
    // What the process itself would find as well: words of the stack above, marked as guesses.
    let [lies, others @ ..] = &report.threads[0].frames[..] else { panic!("no frames") };
    assert_eq!(lies.function.as_deref(), Some("lies"));
    assert!(others.iter().all(|frame| frame.found_by == FoundBy::SCAN), "{others:#?}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_return_address_outside_all_memory_is_not_a_caller() {
    // The call frame information lacks the push, so that the return address would be rbx.
    const LATE: &str = r#"
int late(volatile int *place);
int calls(void);
__asm__(".text\n.type late, @function\nlate:\n.cfi_startproc\npush %rbx\nmov (%rdi), %eax\npop %rbx\nret\n.cfi_endproc\n.size late, . - late\n"
        ".type calls, @function\ncalls:\n.cfi_startproc\npush %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset %rbx, -16\n"
        "movabs $0xc2fd67feac415700, %rbx\nxor %edi, %edi\ncall late\npop %rbx\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size calls, . - calls");
int main(void) { return calls() + 1; }
"#;
    let folder = tempfile::tempdir().unwrap();
    let Some(bytes) = dump_of_program(folder.path(), &build_source(folder.path(), LATE, &["-Wl,--build-id"])) else {
        return;
    };
    let report = coroner_formats::dump::read(&bytes, None, &mut symbolizer()).unwrap();
    let stack = functions(&report, 0);
    assert!(stack.starts_with(&["late", "calls", "main"]), "{stack:?}");
    assert_eq!(report.threads[0].walk_end, Some(WalkEnd::ROOT), "{stack:?}");
}

#[test]
fn a_program_without_a_build_id_is_named_only_by_the_loaded_file() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bytes) = dump_of(folder.path(), &["-Wl,--build-id=none"]) else { return };
    let names = |time: Timestamp| {
        let report = coroner_formats::dump::read(&bytes, Some(time), &mut symbolizer()).unwrap();
        let main = report.images.iter().find(|image| image.is_main).expect("the program");
        assert!(main.build_id.is_empty());
        functions(&report, 0).into_iter().map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let now = || Timestamp::from(SystemTime::now());
    let died = now();
    assert_eq!(names(died)[..3], ["total", "pay", "main"]);
    assert!(!names(Timestamp(7)).contains(&"pay".to_owned()), "the file was changed since 1970");
    // Rebuilt with other code; a copied file may keep an old time.
    build(folder.path(), &["-Wl,--build-id=none", "-O0", "-g"]);
    assert!(!names(died).contains(&"pay".to_owned()), "the file was rebuilt since");
    assert!(!names(now()).contains(&"pay".to_owned()), "the file's headers are different");
}

#[test]
fn other_files_are_refused() {
    let read = |bytes: &[u8]| coroner_formats::dump::read(bytes, None, &mut symbolizer()).unwrap_err();
    assert_eq!(read(b""), DumpError::NotADump);
    assert_eq!(read(&std::fs::read("/proc/self/exe").unwrap()), DumpError::NotADump);
    assert!(matches!(read(b"MDMP"), DumpError::Damaged { .. }));
    let mut small = [0_u8; 64];
    small[..5].copy_from_slice(b"\x7fELF\x01");
    small[16] = 4;
    assert!(matches!(read(&small), DumpError::Unsupported(_)));
}

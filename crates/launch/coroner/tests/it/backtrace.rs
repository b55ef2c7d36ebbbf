//! Live backtraces of this very process.
//!
//! Two libraries are compiled on the way: by the words of `CORONER_TEST_CC`, or by `cc`.

use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, LazyLock, Mutex, mpsc};
use std::time::{Duration, Instant};

use coroner::backtrace::{Backtrace, CaptureOptions, NotCaptured, ThreadId, thread_id};
use coroner_test_support::isolated;

/// Coroner, installed once for all tests of this program.
static INSTALLED: LazyLock<(coroner::Coroner, tempfile::TempDir)> = LazyLock::new(|| {
    let store = tempfile::tempdir().unwrap();
    let config = coroner::Config::new("backtrace-test").store_dir(store.path());
    (coroner::install(config).unwrap(), store)
});

fn functions(backtrace: &Backtrace) -> Vec<String> {
    let names = backtrace.names();
    names.frames().iter().map(|frame| frame.function.as_deref().unwrap_or("?").to_owned()).collect()
}

/// The places of `wanted` in `functions`, one after the other.
fn assert_in_order(functions: &[String], wanted: &[&str]) {
    let mut rest = functions.iter();
    for name in wanted {
        assert!(rest.any(|function| function.contains(name)), "{name} is missing or out of order in {functions:#?}");
    }
}

#[inline(never)]
fn inner(depth: u32, make: &mut dyn FnMut()) {
    if depth == 0 {
        make();
    } else {
        inner(depth - 1, make);
    }
    black_box(&make);
}

#[inline(never)]
fn outer(depth: u32, make: &mut dyn FnMut()) {
    inner(depth, make);
    black_box(&make);
}

#[test]
fn the_current_thread_begins_with_the_caller() {
    isolated(concat!(module_path!(), "::the_current_thread_begins_with_the_caller"), || {
        LazyLock::force(&INSTALLED);
        let mut taken = None;
        outer(2, &mut || taken = Some(Backtrace::current()));
        let taken = taken.unwrap();
        let functions = functions(&taken);
        assert!(functions[0].contains("the_current_thread_begins_with_the_caller"), "{functions:#?}");
        assert_in_order(&functions, &["backtrace::inner", "backtrace::inner", "backtrace::inner", "backtrace::outer"]);
        assert!(!taken.is_truncated());
    });
}

#[test]
fn depth_and_skip() {
    isolated(concat!(module_path!(), "::depth_and_skip"), || {
        LazyLock::force(&INSTALLED);
        let mut taken = Vec::new();
        outer(9, &mut || {
            for skip in [0, 1, 3] {
                taken.push(Backtrace::current_with(&CaptureOptions { skip, depth: 5, ..CaptureOptions::default() }));
            }
        });
        for backtrace in &taken {
            assert_eq!(backtrace.addresses().len(), 5);
            assert!(backtrace.is_truncated());
        }
        assert_eq!(taken[0].addresses()[3], taken[2].addresses()[0]);
        assert_ne!(taken[0].hash(), taken[1].hash());
    });
}

#[test]
fn in_app_only_leaves_out_libraries() {
    isolated(concat!(module_path!(), "::in_app_only_leaves_out_libraries"), || {
        LazyLock::force(&INSTALLED);
        let options = CaptureOptions { in_app_only: true, ..CaptureOptions::default() };
        let backtrace = Backtrace::current_with(&options);
        let names = backtrace.names();
        let program = names.frames()[0].image.clone().expect("the program's own");
        assert!(names.frames().iter().all(|frame| frame.image.as_ref() == Some(&program)), "{backtrace:#?}");
        let function = |frame: &&coroner::backtrace::NamedFrame| {
            frame.function.as_ref().is_some_and(|function| function.contains("in_app_only_leaves"))
        };
        assert!(names.frames().iter().find(function).is_some_and(|frame| frame.in_app), "{backtrace:#?}");
        assert!(
            names.frames().iter().any(|frame| !frame.in_app),
            "the standard library is in the program, too: {backtrace:#?}"
        );
        let all = Backtrace::current().names();
        assert!(all.frames().iter().any(|frame| !frame.in_app), "a thread's start is the C library's");
    });
}

#[test]
fn a_backtrace_is_formatted_in_lines() {
    isolated(concat!(module_path!(), "::a_backtrace_is_formatted_in_lines"), || {
        LazyLock::force(&INSTALLED);
        let mut taken = None;
        outer(1, &mut || taken = Some(Backtrace::current()));
        let text = taken.unwrap().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("   0 it-") && lines[0].contains("a_backtrace_is_formatted_in_lines"), "{text}");
        assert!(lines[0].contains("tests/it/backtrace.rs:"), "{text}");
        let inner = lines.iter().find(|line| line.contains("backtrace::inner")).unwrap();
        assert!(inner.contains("tests/it/backtrace.rs:"), "{text}");
    });
}

#[test]
fn the_same_stack_is_named_once() {
    isolated(concat!(module_path!(), "::the_same_stack_is_named_once"), || {
        LazyLock::force(&INSTALLED);
        let mut named = Vec::new();
        let mut make = || named.push(Backtrace::current());
        for depth in [3, 3, 4] {
            outer(depth, &mut make);
        }
        assert_eq!(named[0].hash(), named[1].hash());
        assert!(Arc::ptr_eq(&named[0].names(), &named[1].names()));
        assert_ne!(named[2].hash(), named[0].hash(), "one recursion more is another stack");
    });
}

#[test]
fn another_thread_and_all_threads() {
    isolated(concat!(module_path!(), "::another_thread_and_all_threads"), || {
        LazyLock::force(&INSTALLED);
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                outer(5, &mut || {
                    sender.send(thread_id()).unwrap();
                    while !stop.load(Ordering::SeqCst) {
                        std::thread::park_timeout(Duration::from_secs(5));
                    }
                });
            }
        });
        let id = receiver.recv().unwrap();
        let backtrace = Backtrace::of_thread(id, &CaptureOptions::default()).unwrap();
        assert_in_order(&functions(&backtrace), &["backtrace::inner", "backtrace::outer"]);
        let all = Backtrace::of_all_threads(&CaptureOptions::default());
        let (_, own) = all.iter().find(|(thread, _)| *thread == thread_id()).expect("the asking thread too");
        let own = functions(own.as_ref().unwrap());
        assert!(own[0].contains("another_thread_and_all_threads"), "it begins with who asked: {own:#?}");
        let own = functions(&Backtrace::of_thread(thread_id(), &CaptureOptions::default()).unwrap());
        assert!(own[0].contains("another_thread_and_all_threads"), "{own:#?}");
        let (_, of_that) = all.iter().find(|(thread, _)| *thread == id).expect("that thread");
        assert_in_order(&functions(of_that.as_ref().unwrap()), &["backtrace::outer"]);
        stop.store(true, Ordering::SeqCst);
        thread.thread().unpark();
        thread.join().unwrap();
        assert!(Backtrace::of_thread(id, &CaptureOptions::default()).is_err(), "it has ended");
        #[cfg(any(target_os = "linux", target_os = "android"))]
        for none in [0, -1] {
            for by_ptrace in [false, true] {
                let captured = Backtrace::of_thread(none, &CaptureOptions { by_ptrace, ..CaptureOptions::default() });
                assert_eq!(captured.err(), Some(coroner::backtrace::NotCaptured::ThreadGone), "{none}");
            }
        }
    });
}

/// Two threads that stop each other must not wait for ever.
#[test]
fn threads_capture_each_other_at_once() {
    isolated(concat!(module_path!(), "::threads_capture_each_other_at_once"), || {
        let by_ptrace = CaptureOptions { by_ptrace: true, ..CaptureOptions::default() };
        // By signals, by ptrace, and one against the other.
        capture_each_other(CaptureOptions::default(), CaptureOptions::default(), 1000);
        capture_each_other(by_ptrace, by_ptrace, 100);
        capture_each_other(by_ptrace, CaptureOptions::default(), 100);
    });
}

fn capture_each_other(of_even: CaptureOptions, of_odd: CaptureOptions, turns: usize) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    use coroner::backtrace::NotCaptured;
    static IDS: [Mutex<Option<ThreadId>>; 4] = [const { Mutex::new(None) }; 4];
    static ALL_THERE: Barrier = Barrier::new(IDS.len());
    LazyLock::force(&INSTALLED);
    let threads: Vec<_> = (0..IDS.len())
        .map(|index| {
            std::thread::spawn(move || {
                *IDS[index].lock().unwrap() = Some(thread_id());
                ALL_THERE.wait();
                let mut captured = 0;
                outer(3, &mut || {
                    for turn in 0..turns {
                        // In pairs, and in circles of four.
                        let other = IDS[(index + 1 + turn % 3) % IDS.len()].lock().unwrap().unwrap();
                        match Backtrace::of_thread(other, if index % 2 == 0 { &of_even } else { &of_odd }) {
                            Ok(taken) => assert!(!taken.addresses().is_empty()),
                            // On Linux one that has no processor for a tenth of a second is given
                            // up.
                            #[cfg(any(target_os = "linux", target_os = "android"))]
                            Err(NotCaptured::NoAnswer | NotCaptured::TraceDeadline) => continue,
                            Err(error) => panic!("{error:?}"),
                        }
                        captured += 1;
                    }
                });
                assert!(captured > 0, "thread {index}");
                ALL_THERE.wait();
            })
        })
        .collect();
    let until = Instant::now() + Duration::from_mins(5);
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        assert!(Instant::now() < until, "they wait for each other");
        std::thread::sleep(Duration::from_millis(5));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Mach-O's assembler names C's functions with an underscore in front, and knows no kinds of
/// symbols.
#[cfg(target_vendor = "apple")]
macro_rules! elf_or_mach_o {
    ($_elf:literal, $mach_o:literal) => {
        $mach_o
    };
}
#[cfg(not(target_vendor = "apple"))]
macro_rules! elf_or_mach_o {
    ($elf:literal, $_mach_o:literal) => {
        $elf
    };
}

// Calls `rdi(rsi)` from a frame such as an async function of Swift's has: bit 60 of the frame
// pointer that it saves is set, and below that stands its context, here `rdx`.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".text",
    elf_or_mach_o!(".globl coroner_test_async_frame", ".globl _coroner_test_async_frame"),
    elf_or_mach_o!(".type coroner_test_async_frame, @function", ".p2align 4"),
    elf_or_mach_o!("coroner_test_async_frame:", "_coroner_test_async_frame:"),
    ".cfi_startproc",
    "btsq $60, %rbp",
    "pushq %rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset %rbp, -16",
    "pushq %rdx",
    "leaq 8(%rsp), %rbp",
    ".cfi_def_cfa %rbp, 16",
    "subq $8, %rsp",
    "movq %rdi, %rax",
    "movq %rsi, %rdi",
    "callq *%rax",
    "addq $16, %rsp",
    "popq %rbp",
    ".cfi_def_cfa %rsp, 8",
    "btrq $60, %rbp",
    "retq",
    ".cfi_endproc",
    elf_or_mach_o!(".size coroner_test_async_frame, . - coroner_test_async_frame", ""),
    options(att_syntax)
);

/// Runs a function on a thread that appears to run a Swift task, in the thread-specific data of the
/// Swift runtime.
#[cfg(target_arch = "x86_64")]
fn in_task(run: &mut dyn FnMut()) {
    /// The thread-specific key of the current task, as in `swift_async.rs` of `coroner-unwind`.
    #[cfg(target_vendor = "apple")]
    const TASK_KEY: libc::pthread_key_t = 103;
    let mut task = [0_u32; 16];
    task[9] = 7;
    #[cfg(target_vendor = "apple")]
    // SAFETY: no Swift runtime in this program looks at it; the task outlives it.
    unsafe {
        libc::pthread_setspecific(TASK_KEY, task.as_ptr().cast());
    }
    run();
    #[cfg(target_vendor = "apple")]
    // SAFETY: as above.
    unsafe {
        libc::pthread_setspecific(TASK_KEY, std::ptr::null());
    }
    black_box(&task);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn swift_async_frames_are_followed_or_not() {
    isolated(concat!(module_path!(), "::swift_async_frames_are_followed_or_not"), || {
        unsafe extern "C" {
            fn coroner_test_async_frame(
                call: unsafe extern "C" fn(*mut c_void),
                with: *mut c_void,
                context: *const Context,
            );
        }
        /// A waiting function, and the address at which it resumes.
        #[repr(C)]
        struct Context(*const Context, extern "C" fn());
        extern "C" fn waits_for_the_frame() {
            black_box(());
        }
        extern "C" fn waits_for_that() {
            black_box(1);
        }
        unsafe extern "C" fn capture(into: *mut c_void) {
            // SAFETY: the test passes its own local.
            let taken = unsafe { &mut *into.cast::<Vec<Backtrace>>() };
            for swift_async in [true, false] {
                taken.push(Backtrace::current_with(&CaptureOptions { swift_async, ..CaptureOptions::default() }));
            }
        }
        LazyLock::force(&INSTALLED);
        let outer = Context(std::ptr::null(), waits_for_that);
        let context = Context(&raw const outer, waits_for_the_frame);
        let mut taken: Vec<Backtrace> = Vec::new();
        let mut run = || {
            // SAFETY: the function above calls the first argument with the second, and only keeps
            // the third on its stack.
            unsafe { coroner_test_async_frame(capture, (&raw mut taken).cast(), &raw const context) };
        };
        in_task(&mut run);
        if cfg!(target_vendor = "apple") {
            run();
            let [.., beside, _] = &taken[..] else { panic!("{taken:?}") };
            assert!(!functions(beside).iter().any(|name| name.contains("waits_for")), "without a task: {beside:#?}");
        }
        let [followed, not, ..] = &taken[..] else { panic!("{taken:?}") };
        assert_in_order(
            &functions(followed),
            &["capture", "coroner_test_async_frame", "waits_for_the_frame", "waits_for_that"],
        );
        assert!(functions(followed).last().unwrap().contains("waits_for_that"), "{followed:#?}");
        assert_in_order(
            &functions(not),
            &["capture", "coroner_test_async_frame", "swift_async_frames_are_followed_or_not"],
        );
        assert!(!functions(not).iter().any(|name| name.contains("waits_for")), "{not:#?}");
    });
}

/// Two libraries with the same code under other names, so that a stale name would be a wrong one.
fn libraries(directory: &Path) -> Option<[PathBuf; 2]> {
    let make = |name: &str| {
        let source = directory.join(format!("{name}.c"));
        let library = directory.join(format!("lib{name}.so"));
        let code = format!("void {name}(void (*call)(void *), void *with) {{ call(with); __asm__ volatile(\"\"); }}\n");
        std::fs::write(&source, code).unwrap();
        let words = std::env::var("CORONER_TEST_CC").unwrap_or_else(|_| "cc".to_owned());
        let mut words = words.split_whitespace();
        let mut compiler = Command::new(words.next().expect("a compiler"));
        compiler.args(words).args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
        compiler.status().is_ok_and(|status| status.success()).then_some(library)
    };
    Some([make("coroner_first")?, make("coroner_second")?])
}

/// Eight threads capture and name their stacks while another one captures through libraries that it
/// loads and unloads all the time, one in the other's place. `CORONER_TEST_SECONDS` makes it last
/// longer.
#[test]
fn captures_work_while_libraries_are_loaded_and_unloaded() {
    isolated(concat!(module_path!(), "::captures_work_while_libraries_are_loaded_and_unloaded"), || {
        LazyLock::force(&INSTALLED);
        let directory = tempfile::tempdir().unwrap();
        let Some(libraries) = libraries(directory.path()) else { panic!("a C compiler is needed") };
        let seconds = std::env::var("CORONER_TEST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
        let until = Instant::now() + Duration::from_secs(seconds);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut captures = 0;
                    // Some of each, however slow the machine is.
                    while Instant::now() < until || captures < 4 {
                        let mut taken = None;
                        outer(3, &mut || taken = Some(Backtrace::current()));
                        assert_in_order(&functions(&taken.unwrap()), &["backtrace::inner", "backtrace::outer"]);
                        captures += 1;
                    }
                });
            }
            while Instant::now() < until {
                for (library, name) in libraries.iter().zip(["coroner_first", "coroner_second"]) {
                    let names = through(library, name).names();
                    let own: Vec<_> = names.frames().iter().filter_map(|frame| frame.function.as_deref()).collect();
                    assert!(own.contains(&name), "{name} is not in {:#?}", names.frames());
                    let other = if name == "coroner_first" { "coroner_second" } else { "coroner_first" };
                    assert!(!own.contains(&other), "{other} is in {own:?}");
                }
            }
        });
    });
}

/// Captures inside a function of a library that is loaded for it and unloaded after it, before the
/// names are asked for.
fn through(library: &Path, name: &str) -> Backtrace {
    let handle = load(library);
    let taken = capture_in(handle, name);
    unload(handle);
    taken
}

fn load(library: &Path) -> *mut c_void {
    let path = CString::new(library.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: loads a library of this test's own.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    handle
}

fn unload(handle: *mut c_void) {
    // SAFETY: from `load`.
    let closed: c_int = unsafe { libc::dlclose(handle) };
    assert_eq!(closed, 0);
}

fn capture_in(handle: *mut c_void, name: &str) -> Backtrace {
    unsafe extern "C" fn capture(into: *mut c_void) {
        // SAFETY: `capture_in` passes its own local.
        unsafe { *into.cast::<Option<Backtrace>>() = Some(Backtrace::current()) };
    }
    let name = CString::new(name).unwrap();
    let mut taken: Option<Backtrace> = None;
    // SAFETY: the library's function has this type.
    unsafe {
        let symbol = libc::dlsym(handle, name.as_ptr());
        assert!(!symbol.is_null());
        let call: unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void) = std::mem::transmute(symbol);
        call(capture, (&raw mut taken).cast());
    }
    taken.unwrap()
}

/// Threads that can't answer are missing, and nobody waits for each of them.
#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn all_threads_beside_many_that_block_signals() {
    isolated(concat!(module_path!(), "::all_threads_beside_many_that_block_signals"), || {
        LazyLock::force(&INSTALLED);
        let (ready, go) = (std::sync::Barrier::new(202), std::sync::Barrier::new(202));
        std::thread::scope(|scope| {
            for number in 0..201 {
                let (ready, go) = (&ready, &go);
                scope.spawn(move || {
                    if number != 200 {
                        // SAFETY: a set of all signals, for this thread.
                        unsafe {
                            let mut all = std::mem::zeroed();
                            libc::sigfillset(&raw mut all);
                            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
                        }
                    }
                    ready.wait();
                    go.wait();
                });
            }
            ready.wait();
            let all = Backtrace::of_all_threads(&CaptureOptions::default());
            let silent = all.iter().filter(|(_, captured)| matches!(captured, Err(NotCaptured::NoAnswer)));
            assert_eq!(silent.count(), 200);
            assert!(all.iter().filter(|(_, captured)| captured.is_ok()).count() >= 2, "{all:?}");
            go.wait();
        });
    });
}

/// A plugin is unloaded, and its file written over in place: its names are gone, but nothing reads
/// beyond the file's new end.
#[test]
fn a_stack_of_an_unloaded_library_whose_file_was_cut_can_be_named() {
    isolated(concat!(module_path!(), "::a_stack_of_an_unloaded_library_whose_file_was_cut_can_be_named"), || {
        LazyLock::force(&INSTALLED);
        let directory = tempfile::tempdir().unwrap();
        let Some([library, _]) = libraries(directory.path()) else { panic!("a C compiler is needed") };
        // An app may handle SIGBUS itself.
        // SAFETY: no handler of this program.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        let handle = load(&library);
        let named = capture_in(handle, "coroner_first");
        let other = capture_in(handle, "coroner_first");
        assert!(functions(&named).iter().any(|name| name == "coroner_first"));
        unload(handle);
        std::fs::File::create(&library).unwrap();
        let functions = functions(&other);
        assert!(functions.iter().any(|name| name.contains("backtrace::capture_in")), "{functions:?}");
    });
}

// Calls its first argument with its second, from a frame whose record is at the address in the
// third, where nothing is mapped.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".text",
    elf_or_mach_o!(".globl coroner_test_lost_record", ".globl _coroner_test_lost_record"),
    elf_or_mach_o!(".type coroner_test_lost_record, @function", ".p2align 4"),
    elf_or_mach_o!("coroner_test_lost_record:", "_coroner_test_lost_record:"),
    ".cfi_startproc",
    "pushq %rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset %rbp, -16",
    "movq %rsp, %rbp",
    ".cfi_def_cfa %rbp, 16",
    "pushq %rbx",
    "subq $8, %rsp",
    "movq %rbp, %rbx",
    "movq %rdx, %rbp",
    "movq %rdi, %rax",
    "movq %rsi, %rdi",
    "callq *%rax",
    "movq %rbx, %rbp",
    "addq $8, %rsp",
    "popq %rbx",
    "popq %rbp",
    ".cfi_def_cfa %rsp, 8",
    "retq",
    ".cfi_endproc",
    elf_or_mach_o!(".size coroner_test_lost_record, . - coroner_test_lost_record", ""),
    options(att_syntax)
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".text",
    elf_or_mach_o!(".globl coroner_test_lost_record", ".globl _coroner_test_lost_record"),
    ".p2align 2",
    elf_or_mach_o!("coroner_test_lost_record:", "_coroner_test_lost_record:"),
    ".cfi_startproc",
    "stp x29, x30, [sp, #-32]!",
    "str x19, [sp, #16]",
    "mov x29, sp",
    ".cfi_def_cfa x29, 32",
    ".cfi_offset x29, -32",
    ".cfi_offset x30, -24",
    ".cfi_offset x19, -16",
    "mov x19, x29",
    "mov x29, x2",
    "mov x9, x0",
    "mov x0, x1",
    "blr x9",
    "mov x29, x19",
    "ldr x19, [sp, #16]",
    "ldp x29, x30, [sp], #32",
    "ret",
    ".cfi_endproc",
);

/// A bad address is an error also on a thread that blocked the signals of bad loads after captures
/// had found that it did not: it would be the process' end.
#[test]
fn a_thread_that_blocks_sigsegv_reads_no_unmapped_memory() {
    isolated(concat!(module_path!(), "::a_thread_that_blocks_sigsegv_reads_no_unmapped_memory"), || {
        unsafe extern "C" {
            fn coroner_test_lost_record(call: unsafe extern "C" fn(*mut c_void), with: *mut c_void, record: u64);
        }
        unsafe extern "C" fn capture(into: *mut c_void) {
            // SAFETY: the test passes its own local.
            unsafe { *into.cast::<Option<Backtrace>>() = Some(Backtrace::current()) };
        }
        /// The last page that a process can have, and no process has.
        const NOWHERE: u64 = if cfg!(target_arch = "x86_64") { 0x7fff_ffff_e000 } else { 0xffff_ffff_e000 };
        LazyLock::force(&INSTALLED);
        std::thread::spawn(|| {
            for _ in 0..3 {
                black_box(Backtrace::current());
            }
            // SAFETY: the set is a local; the thread ends with the test.
            unsafe {
                let mut signals = std::mem::zeroed();
                libc::sigemptyset(&raw mut signals);
                libc::sigaddset(&raw mut signals, libc::SIGSEGV);
                libc::sigaddset(&raw mut signals, libc::SIGBUS);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
            }
            let mut taken: Option<Backtrace> = None;
            // SAFETY: the function above calls the first argument with the second, and keeps the
            // third in a register.
            unsafe { coroner_test_lost_record(capture, (&raw mut taken).cast(), NOWHERE) };
            assert_in_order(&functions(&taken.unwrap()), &["capture", "coroner_test_lost_record"]);
        })
        .join()
        .unwrap();
    });
}

/// A handler on an alternate stack captures: its stack is not the thread's own, and the walk goes
/// on from it to the one that was interrupted.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn from_another_stack_to_the_threads_own() {
    isolated(concat!(module_path!(), "::from_another_stack_to_the_threads_own"), || {
        static TAKEN: std::sync::Mutex<Option<Backtrace>> = std::sync::Mutex::new(None);
        extern "C" fn handler(_: c_int) {
            *TAKEN.lock().unwrap() = Some(Backtrace::current());
        }
        #[inline(never)]
        fn interrupted() {
            // SAFETY: the handler is installed.
            unsafe { libc::raise(libc::SIGUSR2) };
            black_box(());
        }
        LazyLock::force(&INSTALLED);
        std::thread::spawn(|| {
            black_box(Backtrace::current());
            let mut stack = vec![0_u8; 256 << 10];
            // SAFETY: the stack outlives its use; the handler takes a lock that nobody holds.
            unsafe {
                let mut before = std::mem::zeroed();
                let own = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
                assert_eq!(libc::sigaltstack(&raw const own, &raw mut before), 0);
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = libc::SA_ONSTACK;
                assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
                interrupted();
                assert_eq!(libc::sigaltstack(&raw const before, std::ptr::null_mut()), 0);
            }
            let taken = TAKEN.lock().unwrap().take().unwrap();
            assert_in_order(&functions(&taken), &["handler", "interrupted", "from_another_stack_to_the_threads_own"]);
        })
        .join()
        .unwrap();
    });
}

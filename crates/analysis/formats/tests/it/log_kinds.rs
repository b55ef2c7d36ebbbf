//! Crashes of further kinds in logs, as printed by real programs.

use coroner_formats::log::read_log;
use coroner_report::Report;
use coroner_report::model::CrashFlag;
use coroner_report::wire::{Access, Language};

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("../files/logs/", $name))
    };
}

/// Reads a text of one crash between other lines, and the same text with a logger's prefix.
fn read(text: &[u8]) -> Report {
    let plain = String::from_utf8_lossy(text).into_owned();
    let between = format!("starting\n{plain}\nrestarting\n");
    let mut reports = read_log(between.as_bytes(), None).unwrap();
    assert_eq!(reports.len(), 1, "{plain}");
    let prefixed: String = plain.lines().map(|line| format!("2026-11-21T10:11:12.123Z app[4711]: {line}\n")).collect();
    let again = read_log(prefixed.as_bytes(), None).unwrap();
    assert_eq!(functions(&again[0]), functions(&reports[0]));
    reports.remove(0)
}

fn functions(report: &Report) -> Vec<&str> {
    report.threads[0].frames.iter().map(|frame| frame.function.as_deref().unwrap_or("?")).collect()
}

fn signal(report: &Report) -> (&str, &str) {
    let signal = report.crash.as_ref().unwrap().signal.as_ref().unwrap();
    (signal.name.unwrap_or("?"), signal.code_name.unwrap_or("?"))
}

#[test]
fn memory_sanitizer_warns() {
    let report = read(file!("msan.log"));
    assert_eq!(functions(&report)[0], "main");
    assert_eq!(report.exceptions[0].type_name.as_deref(), Some("use-of-uninitialized-value"));
    assert_eq!(report.header.pid, 8615);
}

#[test]
fn undefined_behavior_has_its_place_and_stack() {
    let reports = read_log(file!("ubsan_st.log"), None).unwrap();
    let messages: Vec<_> = reports.iter().map(|report| report.exceptions[0].message.as_deref().unwrap()).collect();
    assert_eq!(messages.len(), 4, "{messages:?}");
    assert!(messages[0].starts_with("signed integer overflow: 2 + 2147483647"), "{messages:?}");
    assert_eq!(reports[0].exceptions[0].location.as_deref(), Some("uaf.cc:17:34"));
    // Notes about the memory precede the third one's stack.
    assert_eq!(functions(&reports[2])[0], "main");
    // Without a stack, the place is the only frame.
    let alone = read(b"uaf.cc:17:34: runtime error: division by zero\n");
    assert_eq!(alone.threads[0].frames[0].line, Some(17));
}

#[test]
fn a_java_machines_fatal_error_has_its_stack() {
    let report = read(file!("hs_err_25.log"));
    assert_eq!(signal(&report), ("SIGSEGV", "SEGV_MAPERR"));
    assert_eq!((report.header.pid, report.threads[0].tid), (21_207, 21_208));
    assert_eq!(report.crash.as_ref().unwrap().address.map(|address| address.0), Some(0));
    assert_eq!(report.threads[0].name.as_deref(), Some("main"));
    let functions = functions(&report);
    assert_eq!(functions[..2], ["Unsafe_PutInt", "jdk.internal.misc.Unsafe.putInt"]);
    assert_eq!(functions.len(), 12);
    let own: Vec<_> = report.threads[0].frames.iter().filter(|frame| frame.in_app == Some(true)).collect();
    assert_eq!(own[0].function.as_deref(), Some("Crash.main"));
    assert_eq!(own.len(), 1);
}

#[test]
fn a_java_machines_printed_head_has_the_problematic_frame() {
    let whole = String::from_utf8_lossy(file!("hs_err_25.log")).into_owned();
    let head: String = whole.lines().take_while(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    let report = read(head.as_bytes());
    assert_eq!(functions(&report), ["Unsafe_PutInt"]);
    assert!(!report.complete);
}

#[test]
fn python_fatal_errors_have_all_threads() {
    let report = read(
        b"Fatal Python error: Segmentation fault\n\nThread 0x00007f0a3b1ff6c0 (most recent call first):\n  \
        File \"/usr/lib/python3.11/threading.py\", line 324 in wait\n\nCurrent thread 0x00007f0a3c5d6740 (most recent call first):\n  \
        File \"/home/shop/cart.py\", line 3 in total\n  File \"/home/shop/cart.py\", line 5 in <module>\n\n\
        Extension modules: numpy.core._multiarray_umath (total: 1)\n",
    );
    assert_eq!(signal(&report).0, "SIGSEGV");
    assert_eq!(report.exceptions[0].language, Language::PYTHON);
    assert_eq!(functions(&report), ["total", "<module>"]);
    assert_eq!(report.threads[0].tid, 0x7f0a_3c5d_6740);
    assert_eq!(report.threads.len(), 2);
}

#[test]
fn nodes_fatal_errors_have_their_native_stack() {
    let report = read(
        b"FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n\
        ----- Native stack trace -----\n\n 1: 0xb85bc0 node::OOMErrorHandler(char const*, v8::OOMDetails const&) [node]\n \
        2: 0x7f9a1a2d  [/usr/lib/libnode.so.108]\n",
    );
    let thrown = &report.exceptions[0];
    assert_eq!(thrown.message.as_deref(), Some("Reached heap limit Allocation failed - JavaScript heap out of memory"));
    assert_eq!(functions(&report), ["node::OOMErrorHandler(char const*, v8::OOMDetails const&)", "?"]);
    let check = read(b"#\n# Fatal error in ../src/heap.cc, line 12\n# Check failed: node->IsInUse().\n#\n");
    assert_eq!(check.exceptions[0].message.as_deref(), Some("Check failed: node->IsInUse()."));
}

#[test]
fn valgrinds_end_of_a_process_has_its_stack() {
    let report = read(
        b"==4711== Invalid read of size 4\n==4711==    at 0x109129: total (cart.c:3)\n==4711== \n\
        ==4711== Process terminating with default action of signal 11 (SIGSEGV): dumping core\n\
        ==4711==  Access not within mapped region at address 0x8\n==4711==    at 0x109129: total (cart.c:3)\n\
        ==4711==    by 0x48A2C: raise (in /usr/lib/libc.so.6)\n==4711==    by 0x10913E: main (cart.c:9)\n\
        ==4711==  If you believe this happened as a result of a stack\n==4711== HEAP SUMMARY:\n",
    );
    assert_eq!(functions(&report), ["total", "raise", "main"]);
    assert_eq!(report.crash.as_ref().unwrap().address.map(|address| address.0), Some(8));
    assert_eq!((signal(&report).0, report.header.pid), ("SIGSEGV", 4711));
}

#[test]
fn systemds_message_has_images_and_threads() {
    let report = &read_log(file!("sdcore.log"), None).unwrap()[0];
    assert_eq!((report.header.process_name.as_str(), report.header.pid), ("swww", 797));
    assert_eq!(functions(report), ["?", "raise", "abort", "?"]);
    let images: Vec<_> = report.images.iter().map(|image| (image.path.as_str(), image.load_address.0)).collect();
    assert_eq!(images, [("libc.so.6", 0x7f61_84aef000), ("swww", 0x5652_31f3_8000)]);
    let own: Vec<_> = report.threads[0].frames.iter().map(|frame| frame.in_app).collect();
    assert_eq!(own, [Some(false), Some(false), Some(false), Some(true)]);
}

#[test]
fn the_kernels_line_has_signal_address_and_access() {
    let report = &read_log(file!("dmesg_segv.log"), None).unwrap()[0];
    assert_eq!((report.header.process_name.as_str(), report.header.pid), ("paint", 4711));
    assert_eq!(signal(report), ("SIGSEGV", "SEGV_MAPERR"));
    let crash = report.crash.as_ref().unwrap();
    assert_eq!((crash.address.map(|address| address.0), crash.access), (Some(0), Some(Access::WRITE)));
    let frame = &report.threads[0].frames[0];
    assert_eq!((frame.address.0, frame.module.as_deref()), (0x557f_1ad0_d13d, Some("paint")));
    assert!(report.annotations.iter().any(|note| note.text.contains("Code: 48 89 e5")), "{:?}", report.annotations);

    let trap = &read_log(
        b"Nov 21 10:11:12 host kernel: traps: paint[4712] general protection fault ip:557f1ad0d13d sp:7ffd7a4b8a90 error:0 in paint[557f1ad0d000+1000]\n",
        None,
    )
    .unwrap()[0];
    assert_eq!((trap.header.process_name.as_str(), signal(trap).0), ("paint", "SIGSEGV"));
    assert_eq!(trap.crash.as_ref().unwrap().address, None);
}

#[test]
fn a_stack_overflow_of_rust_is_a_crash_of_its_thread() {
    let report =
        read(b"\nthread 'worker' (4711) has overflowed its stack\nfatal runtime error: stack overflow, aborting\n");
    assert!(report.crash.as_ref().unwrap().has(CrashFlag::StackOverflow));
    assert_eq!((report.threads[0].tid, report.threads[0].name.as_deref()), (4711, Some("worker")));
    assert_eq!(signal(&report).0, "SIGABRT");
    let older = read(b"\nthread 'main' has overflowed its stack\nfatal runtime error: stack overflow\n");
    assert!(older.threads[0].main);
}

#[test]
fn a_panic_by_color_eyre_has_its_message_and_stack() {
    let report = read(
        "The application panicked (crashed).\nMessage:  no cart\nLocation: src/main.rs:7\n\n  \
        ━━━━━━━━━━━━━━ BACKTRACE ━━━━━━━━━━━━━━\n                 ⋮ 6 frames hidden ⋮                 \n   \
        7: shop::total::h0123456789abcdef\n      at /home/shop/src/main.rs:7\n   8: shop::main::hfedcba9876543210\n      \
        at /home/shop/src/main.rs:12\n                 ⋮ 10 frames hidden ⋮\n\nRun with COLORBT_SHOW_HIDDEN=1\n"
            .as_bytes(),
    );
    let thrown = &report.exceptions[0];
    assert_eq!((thrown.message.as_deref(), thrown.location.as_deref()), (Some("no cart"), Some("src/main.rs:7")));
    assert_eq!(functions(&report), ["shop::total", "shop::main"]);
    assert_eq!(report.threads[0].frames[1].line, Some(12));
}

#[test]
fn a_go_panic_that_is_raised_again_has_its_message_once() {
    let report = read(file!("go_re.log"));
    assert_eq!(report.exceptions[0].message.as_deref(), Some("boom"));
    assert_eq!(functions(&report), ["main.main.func1", "panic", "main.main"]);
    let newer = read(
        b"panic: boom [recovered, repanicked]\n\ngoroutine 1 [running]:\nmain.main()\n\t/home/shop/main.go:3 +0x1d\n",
    );
    assert_eq!(newer.exceptions[0].message.as_deref(), Some("boom"));
}

#[test]
fn a_signal_in_c_code_of_a_go_program_has_its_code_and_address() {
    let report = read(file!("go_cgo121.log"));
    assert_eq!(signal(&report), ("SIGSEGV", "SEGV_MAPERR"));
    assert_eq!(report.crash.as_ref().unwrap().address.map(|address| address.0), Some(0));
}

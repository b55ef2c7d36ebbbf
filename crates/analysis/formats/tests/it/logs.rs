//! Crashes in logs, as printed by real programs.

use coroner_formats::log::{LogError, read_log};
use coroner_report::Report;
use coroner_report::model::{Frame, Timestamp};
use coroner_report::wire::{Access, Language};

const RUST: &str = "\
thread 'till 'one'' (1063) panicked at p.rs:1:52:
index out of bounds: the len is 3 but the index is 99
stack backtrace:
   0: __rustc::rust_begin_unwind
             at /rustc/4a4ef493e3a1488c6e321570238084b38948f6db/library/std/src/panicking.rs:689:5
   1: core::panicking::panic_fmt
             at /rustc/4a4ef493e3a1488c6e321570238084b38948f6db/library/core/src/panicking.rs:80:14
   2: p::pay
             at ./p.rs:1:52
   3: p::main::{{closure}}
             at ./p.rs:2:90
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.
";
const RUST_FULL: &str = "\
thread 'main' panicked at 'no cart, no total', src/main.rs:7:9
stack backtrace:
   0:     0x55ab8b05b32a - core[c1f1a4ba060b9bfa]::fmt::write
   1:     0x55ab8b019b41 - shop::total::h0123456789abcdef
                               at /home/shop/src/main.rs:7:9
   2:                0x0 - <unknown>
";
const GO: &str = "\
panic: runtime error: invalid memory address or nil pointer dereference
[signal SIGSEGV: segmentation violation code=0x1 addr=0x8 pc=0x47f5c2]

goroutine 1 [running]:
main.(*Cart).Total(0x0, {0x4b2c80?, 0x1})
\t/home/shop/g.go:5 +0x2
main.main()
\t/home/shop/g.go:6 +0x45

goroutine 18 [sleep, 2 minutes]:
time.Sleep(0x34630b8a000)
\t/usr/lib/go-1.19/src/runtime/time.go:195 +0x135
created by main.main
\t/home/shop/g.go:6 +0x25
exit status 2
";
const ASAN: &str = "\
=================================================================
==1021==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010 at pc 0x555754e5a1bc bp 0x7fff40f19e40 sp 0x7fff40f19e38
READ of size 4 at 0x602000000010 thread T0
    #0 0x555754e5a1bb in use(int*, long) /home/shop/a.c:3
    #1 0x555754e5a1f8 in main /home/shop/a.c:4:10
    #2 0x7f7bc1045249 in __libc_start_call_main ../sysdeps/nptl/libc_start_call_main.h:58
    #3 0x555754e5a0c0 (/home/shop/asan+0x10c0) (BuildId: 8f0a1b2c)

0x602000000010 is located 0 bytes inside of 4-byte region [0x602000000010,0x602000000014)
freed by thread T0 here:
    #0 0x7f7bc12b76a8 in __interceptor_free ../../../../src/libsanitizer/asan/asan_malloc_linux.cpp:52
    #1 0x555754e5a1ec in main /home/shop/a.c:4

SUMMARY: AddressSanitizer: heap-use-after-free /home/shop/a.c:3 in use
==1021==ABORTING
";

fn only(text: &str) -> Report {
    let mut reports = read_log(text.as_bytes(), Some(Timestamp(7))).unwrap();
    assert_eq!(reports.len(), 1, "{reports:#?}");
    reports.remove(0)
}

fn named(frames: &[Frame]) -> Vec<(&str, Option<&str>, Option<u32>, bool)> {
    let of = |frame: &'_ Frame| frame.in_app == Some(true);
    let part = frames
        .iter()
        .map(|frame| (frame.function.as_deref().unwrap_or("?"), frame.file.as_deref(), frame.line, of(frame)));
    part.collect()
}

#[test]
fn a_rust_panic_is_read() {
    let report = only(RUST);
    let exception = &report.exceptions[0];
    assert_eq!(exception.language, Language::RUST);
    assert_eq!(exception.message.as_deref(), Some("index out of bounds: the len is 3 but the index is 99"));
    assert_eq!((exception.location.as_deref(), exception.tid), (Some("p.rs:1:52"), 1063));
    let frames = named(&exception.frames);
    assert_eq!(frames.len(), 4);
    assert!(frames[..2].iter().all(|frame| !frame.3), "{frames:?}");
    assert_eq!(frames[2], ("p::pay", Some("./p.rs"), Some(1), true));
    assert_eq!((report.threads[0].name.as_deref(), report.complete), (Some("till 'one'"), true));
    assert_eq!(report.crash.as_ref().unwrap().time, Timestamp(7));

    let full = only(RUST_FULL);
    let exception = &full.exceptions[0];
    assert_eq!(exception.message.as_deref(), Some("no cart, no total"));
    assert_eq!(exception.location.as_deref(), Some("src/main.rs:7:9"));
    let frames = named(&exception.frames);
    assert_eq!(
        frames,
        [("core::fmt::write", None, None, false), ("shop::total", Some("/home/shop/src/main.rs"), Some(7), true)]
    );
    assert_eq!(exception.frames[1].address.0, 0x55ab_8b01_9b41);
    // Without a backtrace, the report has only the message, which may have several lines.
    let short = only(
        "thread 'main' panicked at src/main.rs:2:5:\nleft\nright\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\nmore\n",
    );
    assert_eq!(short.exceptions[0].message.as_deref(), Some("left\nright"));
    assert!(short.exceptions[0].frames.is_empty());
}

#[test]
fn a_go_panic_is_read() {
    let report = only(GO);
    let crash = report.crash.as_ref().unwrap();
    assert_eq!(crash.signal.as_ref().and_then(|signal| signal.name), Some("SIGSEGV"));
    assert_eq!(crash.address.map(|address| address.0), Some(8));
    let exception = &report.exceptions[0];
    assert_eq!((exception.type_name.as_deref(), exception.language), (Some("panic"), Language::GO));
    assert_eq!(
        named(&exception.frames),
        [
            ("main.(*Cart).Total", Some("/home/shop/g.go"), Some(5), true),
            ("main.main", Some("/home/shop/g.go"), Some(6), true)
        ]
    );
    assert_eq!(report.threads.len(), 2);
    assert_eq!((report.threads[1].tid, report.threads[1].name.as_deref()), (18, Some("goroutine, sleep, 2 minutes")));
    assert_eq!(
        named(&report.threads[1].frames),
        [("time.Sleep", Some("/usr/lib/go-1.19/src/runtime/time.go"), Some(195), false)]
    );
    let deadlock = only(
        "fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [chan receive]:\nmain.main()\n\t/h.go:2 +0x2d\n",
    );
    assert_eq!(deadlock.exceptions[0].type_name.as_deref(), Some("fatal error"));
}

#[test]
fn an_address_sanitizer_report_is_read() {
    let report = only(ASAN);
    let (crash, exception) = (report.crash.as_ref().unwrap(), &report.exceptions[0]);
    assert_eq!(exception.type_name.as_deref(), Some("heap-use-after-free"));
    assert_eq!(exception.message.as_deref(), Some("READ of size 4 at 0x602000000010 thread T0"));
    assert_eq!((crash.access, crash.address.map(|address| address.0)), (Some(Access::READ), Some(0x6020_0000_0010)));
    assert_eq!((report.header.pid, crash.tid, report.threads[0].main), (1021, 1021, true));
    let frames = named(&exception.frames);
    assert_eq!(frames[0], ("use(int*, long)", Some("/home/shop/a.c"), Some(3), true));
    assert_eq!(frames[1], ("main", Some("/home/shop/a.c"), Some(4), true));
    assert!(!frames[2].3 && frames.len() == 4);
    // A frame without a name can be looked up in its image.
    let image = &report.images[0];
    assert_eq!((image.path.as_str(), image.code_id().as_deref()), ("/home/shop/asan", Some("8f0a1b2c")));
    assert_eq!(exception.frames[3].module_offset.map(|offset| offset.0), Some(0x10c0));
    assert!(report.annotations.iter().any(|note| note.text.starts_with("freed by thread T0 here:\n#0 ")));
    assert!(report.complete);
}

#[test]
fn several_crashes_are_read_between_other_lines_and_after_prefixes() {
    let all = [RUST, GO, ASAN, RUST_FULL].join("somebody wrote: panic: no, fatal error: neither\n");
    let plain = read_log(all.as_bytes(), Some(Timestamp(7))).unwrap();
    assert_eq!(plain.len(), 4);
    let mut second = 0;
    let with_prefix: String = all
        .lines()
        .map(|line| {
            second += 1;
            format!("Nov 24 10:11:{:02} host shop[4711]: {line}\r\n", second % 60)
        })
        .collect();
    let logged = read_log(with_prefix.as_bytes(), Some(Timestamp(7))).unwrap();
    assert_eq!(logged.len(), 4);
    for (one, other) in plain.iter().zip(&logged) {
        assert_eq!(one.exceptions[0].frames, other.exceptions[0].frames);
        assert_eq!(one.exceptions[0].message, other.exceptions[0].message);
        assert_eq!(other.header.process_name, "shop");
        assert_ne!(one.header.event_id, other.header.event_id);
    }
    assert_eq!((logged[0].header.pid, logged[2].header.pid), (4711, 1021));
    let again = read_log(all.as_bytes(), Some(Timestamp(7))).unwrap();
    assert!(plain.iter().zip(&again).all(|(one, other)| one.header.event_id == other.header.event_id));
}

#[test]
fn a_truncated_text_is_reported_with_its_line() {
    assert_eq!(read_log(b"a\nb\n", None).unwrap_err(), LogError::Nothing { lines: 2 });
    for text in [RUST, RUST_FULL, GO, ASAN] {
        for end in (0..text.len()).step_by(7) {
            let Ok(reports) = read_log(&text.as_bytes()[..end], None) else { continue };
            assert_eq!(reports.len(), 1);
            for problem in &reports[0].problems {
                assert!(problem.what.contains("line "), "{problem}");
            }
        }
    }
    let cut = &ASAN[..ASAN.find("freed by").unwrap()];
    assert_eq!(only(cut).problems[0].what, "after line 9: the text ends before the summary");
    let cut = &RUST[..RUST.find("p::pay").unwrap() + 3];
    assert!(only(cut).problems[0].what.starts_with("line 8: the text ends within"), "{:?}", only(cut).problems);
    // Very many lines, and lines with little content.
    let deep = format!("{}{}", &GO[..GO.find("main.(").unwrap()], "main.f()\n".repeat(100_000));
    assert_eq!(only(&deep).threads[0].frames.len(), 4096);
    let _ = read_log(&vec![b'='; 1 << 20], None);
    let _ = read_log("panic: \n".repeat(10_000).as_bytes(), None);
    let _ = read_log("thread '' panicked at \nstack backtrace:\n".repeat(5_000).as_bytes(), None);
}

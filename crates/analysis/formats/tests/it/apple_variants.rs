//! Apple's crash reports in the variants of its systems and of other tools.

use coroner_formats::apple_report::{AppleReport, Form, read_report};
use coroner_report::Report;

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("../files/apple/", $name))
    };
}

fn annotation<'r>(report: &'r Report, source: &str) -> &'r str {
    let found = report.annotations.iter().find(|annotation| annotation.source == source);
    &found.unwrap_or_else(|| panic!("no {source}: {:?}", report.annotations)).text
}

fn names(report: &Report) -> Vec<&str> {
    report.images.iter().map(coroner_report::model::Image::name).collect()
}

#[test]
fn arrays_of_macos_11_are_images_and_frames() {
    let bytes = file!("macos-11.ips");
    let report = read_report(bytes).unwrap();
    assert_eq!(names(&report), ["CoreFoundation", "shop"]);
    assert_eq!(report.images[1].load_address.0, 4_527_173_632);
    assert_eq!(report.images[1].size, 212_992);
    let frames: Vec<u64> = report.threads[0].frames.iter().map(|frame| frame.address.0).collect();
    assert_eq!(frames, [140_733_734_195_200 + 37_760, 4_527_173_632 + 38_674]);
    assert!(report.threads[0].crashed);
    let crash = report.crash.as_ref().unwrap();
    let mach = crash.mach.as_ref().unwrap();
    assert_eq!((mach.code_name, mach.unknown_codes), (Some("KERN_INVALID_ADDRESS"), false));
    assert_eq!(crash.address.map(|address| address.0), Some(0));

    let read = AppleReport::read(bytes).unwrap();
    assert_eq!((read.form(), read.frame_count()), (Form::Ips, 2));
}

#[test]
fn the_header_of_macos_26_follows_its_title_directly() {
    let report = read_report(file!("macos-26.crash")).unwrap();
    let app = &report.run.as_ref().unwrap().app;
    assert_eq!((report.header.process_name.as_str(), report.header.pid), ("MarkdownEditor", 87_461));
    assert_eq!((app.version.as_deref(), app.build.as_deref()), (Some("1.0"), Some("1")));
    assert_eq!(app.id.as_deref(), Some("com.example.MarkdownEditor"));
    // `???` from 0 to the last address is not an image.
    assert_eq!(names(&report).iter().filter(|name| name.contains('?')).count(), 0);
    assert_eq!(report.images.len(), 5);
}

#[test]
fn a_termination_code_is_hexadecimal_and_has_its_meaning() {
    let report = read_report(file!("watchdog.ips")).unwrap();
    let reason = annotation(&report, "termination");
    assert!(reason.starts_with("FRONTBOARD 0x8badf00d (watchdog: "), "{reason}");
    assert!(reason.contains("exhausted real (wall clock) time allowance"), "{reason}");
}

#[test]
fn an_exception_of_an_images_text_is_the_thrown_one() {
    let report = read_report(file!("exception.ips")).unwrap();
    let thrown = &report.exceptions[0];
    assert_eq!(thrown.type_name.as_deref(), Some("NSRangeException"));
    assert!(thrown.message.as_deref().unwrap().contains("index 5 beyond bounds"), "{thrown:?}");
    let first = &thrown.frames[0];
    assert_eq!(first.function.as_deref(), Some("__exceptionPreprocess"));
    assert_eq!(first.address.0, 0x1_895c_4014);
}

#[test]
fn subtype_and_message_of_a_guard_are_kept() {
    let report = read_report(file!("guard.ips")).unwrap();
    assert_eq!(annotation(&report, "exception"), "GUARD_TYPE_USER: namespc 7 reason_code 0x0000000000000009");
    assert_eq!(report.crash.as_ref().unwrap().mach.as_ref().unwrap().subcode, 9);
}

#[test]
fn a_possible_pointer_authentication_failure_is_kept() {
    let report = read_report(file!("pointer-authentication.crash")).unwrap();
    let text = annotation(&report, "exception");
    assert!(text.ends_with("(possible pointer authentication failure)"), "{text}");
    assert_eq!(report.crash.as_ref().unwrap().address.unwrap().0, 0x20_0001_047b_ce18);
    assert!(annotation(&report, "VM region").starts_with("0x1047bce18 is in 0x1047bc000-0x1047c8000"));
    assert_eq!(names(&report), ["libc++.1.dylib", "debugserver"]);
}

#[test]
fn a_report_of_plcrashreporter_has_its_signal() {
    let report = read_report(file!("plcrashreporter.crash")).unwrap();
    let crash = report.crash.as_ref().unwrap();
    let signal = crash.signal.as_ref().unwrap();
    assert!(crash.mach.is_none());
    assert_eq!((signal.name, signal.code_name), (Some("SIGSEGV"), Some("SEGV_MAPERR")));
    assert_eq!(crash.address.map(|address| address.0), Some(0x88));
}

#[test]
fn a_process_killed_at_exec_has_a_report_without_stacks() {
    let report = read_report(file!("killed-at-exec.crash")).unwrap();
    let app = &report.run.as_ref().unwrap().app;
    // iOS 14 and earlier write the build first.
    assert_eq!((app.version.as_deref(), app.build.as_deref()), (Some("1.0.7"), Some("1042")));
    assert_eq!(annotation(&report, "Termination Reason"), "CODESIGNING 2");
    assert!(!report.complete && report.threads.is_empty());
    let mach = report.crash.as_ref().unwrap().mach.as_ref().unwrap();
    assert!(mach.unknown_codes && mach.code_text().is_none(), "{mach:?}");
}

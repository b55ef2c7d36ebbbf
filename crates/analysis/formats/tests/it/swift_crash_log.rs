//! JSON crash logs of Swift's runtime: one from a real crash, and handwritten ones, based on the
//! formatter's source, for everything else.

use coroner_formats::swift_crash_log::{SwiftCrashLogError, read_swift_crash_log};
use coroner_report::Report;
use coroner_report::wire::AddressKind;

/// A log as written by `BacktraceJSONFormatter`: one line, between the program's own output.
const LOG: &str = r#"welcome {to the shop}
{ "timestamp": "2025-06-01T10:11:12.500000Z", "kind": "crashReport", "description": "Bad pointer dereference at 0x0000000000000010", "faultAddress": "0x0000000000000010", "platform": "Linux (Ubuntu 24.04)", "architecture": "x86_64", "threads": [ { "name": "shop", "crashed": true, "registers": {"rax": "0x0000000000000000", "rip": "0x0000555500001234", "rsp": "0x00007ffc00000010" }, "frames": [ { "kind": "programCounter", "address": "0x0000555500001234", "inlined": true, "symbol": "$s4shop5priceSiyF", "offset": 20, "description": "price() + 20", "image": "shop", "sourceLocation": { "file": "/src/shop.swift", "line": 7, "column": 3 } }, { "kind": "programCounter", "address": "0x0000555500001234", "symbol": "$s4shop5totalSiyF", "offset": 20, "description": "total() + 20", "image": "shop", "sourceLocation": { "file": "/src/shop.swift", "line": 12, "column": 9 } }, { "kind": "omittedFrames", "count": 40 }, { "kind": "asyncResumePoint", "address": "0x0000555500002000" }, { "kind": "returnAddress", "address": "0x00007f0000000100", "system": true, "symbol": "__libc_start_main", "offset": 128, "description": "__libc_start_main + 128", "image": "libc.so.6" }, { "kind": "truncated" } ] }, { "frames": [ { "kind": "programCounter", "address": "0x00007f0000000200" } ] } ], "capturedMemory": { "0x0000555500001234": "8b00" }, "omittedImages": 3, "images": [ { "name": "shop", "buildId": "00aabb", "path": "/opt/shop", "baseAddress": "0x0000555500000000", "endOfText": "0x0000555500008000" } ] , "backtraceTime": 0.25 }
good bye
"#;

fn read(text: &str) -> Result<Report, SwiftCrashLogError> {
    read_swift_crash_log(text.as_bytes()).expect("a crash log")
}

#[test]
fn a_crash_log_is_converted() {
    let report = read(LOG).unwrap();
    assert!(report.complete);
    let crash = report.crash.as_ref().unwrap();
    let signal = crash.signal.as_ref().unwrap();
    assert_eq!((signal.number, signal.name), (11, Some("SIGSEGV")));
    assert_eq!(crash.address.unwrap().0, 0x10);
    assert_eq!(crash.message.as_deref(), Some("Bad pointer dereference at 0x0000000000000010"));
    assert_eq!(crash.time.to_string(), "2025-06-01T10:11:12.5Z");
    let [shop, other] = &report.threads[..] else { panic!("{} threads", report.threads.len()) };
    assert_eq!((shop.name.as_deref(), shop.crashed, shop.tid == crash.tid), (Some("shop"), true, true));
    assert!(!other.crashed && other.registers.is_none());
    let registers: Vec<_> = shop.registers.as_ref().unwrap().named().filter(|(_, value)| *value != 0).collect();
    assert_eq!(registers, [("rsp", 0x7ffc_0000_0010), ("rip", 0x5555_0000_1234)]);
    let [total, resume, start] = &shop.frames[..] else { panic!("{} frames", shop.frames.len()) };
    assert_eq!(
        (total.function.as_deref(), total.raw_function.as_deref()),
        (Some("total()"), Some("$s4shop5totalSiyF"))
    );
    assert_eq!(
        (total.file.as_deref(), total.line, total.symbol_address.unwrap().0),
        (Some("/src/shop.swift"), Some(12), 0x5555_0000_1220)
    );
    assert_eq!((total.inlined[0].function.as_deref(), total.inlined[0].line), (Some("price()"), Some(7)));
    assert_eq!((total.module.as_deref(), total.module_offset.map(|offset| offset.0)), (Some("shop"), Some(0x1234)));
    assert_eq!(resume.address_kind, AddressKind::ASYNC_RESUME);
    assert_eq!((start.address_kind, start.in_app), (AddressKind::RETURN, Some(false)));
    assert_eq!(shop.skipped.iter().map(|skipped| (skipped.after, skipped.count)).collect::<Vec<_>>(), [(1, 40)]);
    let image = &report.images[0];
    assert_eq!((image.path.as_str(), image.size, &image.build_id.0[..]), ("/opt/shop", 0x8000, &[0, 0xaa, 0xbb][..]));
    // The id is the same each time.
    assert_eq!(read(LOG).unwrap().header.event_id, report.header.event_id);
}

/// Swift 6.2.3 on Linux: index out of range in an async function. Frames without a name or line
/// have none in the report either.
#[test]
fn a_real_crash_log_is_converted() {
    let report = read(include_str!("../files/swift-6.2.json")).unwrap();
    let signal = report.crash.as_ref().unwrap().signal.as_ref().unwrap();
    assert_eq!(signal.name, Some("SIGILL"));
    let crashed = report.threads.iter().find(|thread| thread.crashed).unwrap();
    let frames: Vec<_> = crashed
        .frames
        .iter()
        .map(|frame| {
            let is_async = frame.address_kind == AddressKind::ASYNC_RESUME;
            (frame.function.as_deref(), frame.file.as_deref(), frame.line, is_async)
        })
        .collect();
    let file = Some("/t/plain.swift");
    let thunk = "thunk for @escaping @isolated(any) @callee_guaranteed @async () -> (@out A)";
    assert_eq!(
        frames,
        [
            (None, None, None, false),
            (None, None, None, false),
            (Some("orders(_:)"), file, Some(4), false),
            (Some("leaf()"), file, Some(8), false),
            (Some("middle()"), file, Some(11), true),
            (Some("closure #1 in "), file, Some(13), true),
            (Some("partial apply for closure #1 in "), None, None, true),
            (Some(thunk), None, None, true),
            (Some(format!("partial apply for {thunk}").as_str()), None, None, true),
            (None, None, None, true),
        ]
    );
    assert_eq!(crashed.frames[2].module.as_deref(), Some("plain"));
    let plain = report.images.iter().find(|image| image.path == "/t/plain").unwrap();
    assert_eq!(plain.build_id.0.len(), 20);
}

/// The log was reformatted by another tool: compact, on several lines, and without optional fields.
#[test]
fn json_formatting_does_not_matter() {
    let least = r#"{"timestamp":"?","kind":"crashReport","description":"Illegal instruction at 0x1","faultAddress":"0x1",
        "platform":"macOS 15.5 (24F74)","architecture":"arm64","threads":[{"frames":[],
        "registers":{"x0":"0x1","x29":"0x2"}}],"backtraceTime":1,"omittedThreads":4,"later":{}}"#;
    let report = read(least).unwrap();
    let crash = report.crash.as_ref().unwrap();
    assert_eq!((crash.signal.as_ref().unwrap().name, crash.address), (Some("SIGILL"), None));
    assert!(!report.complete, "threads were left out");
    let registers: Vec<_> =
        report.threads[0].registers.as_ref().unwrap().named().filter(|(_, value)| *value != 0).collect();
    assert_eq!(registers, [("x0", 1), ("fp", 2)]);
}

#[test]
fn errors_name_the_position_and_the_field() {
    assert!(read_swift_crash_log(b"").is_none());
    assert!(read_swift_crash_log(br#"{"kind": "livePreview"}"#).is_none());
    assert!(read_swift_crash_log(br#"a log that says "crashReport" {"#).is_none());
    let refused = |text: &str| read(text).unwrap_err().to_string();
    let begins = LOG.find('\n').unwrap() + 1;
    let cut = refused(&LOG[..LOG.len() / 2]);
    assert!(cut.contains(&format!("at byte {begins}")) && cut.contains("EOF"), "{cut}");
    let no_number = refused(&LOG.replace("\"address\": \"0x00007f0000000200\"", "\"address\": \"main\""));
    assert!(no_number.contains("invalid frame address"), "{no_number}");
    assert!(refused(&LOG.replace("\"faultAddress\"", "\"elsewhere\"")).contains("faultAddress"));
    assert!(refused(&LOG.replace("\"line\": 12", "\"line\": -12")).contains("line 1"));
}

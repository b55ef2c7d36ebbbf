//! A report as a log record: names and values of the semantic conventions.

use std::collections::BTreeMap;

use coroner_otlp::{Labels, MAX_OTHER_STACKS, request};
use coroner_process::registers::Arch;
use coroner_report::model::{
    Address, BadOperand, Breadcrumb, Bytes, Certainty, Crash, CrashFlag, Exception, Explanation, FaultKind, Frame,
    Hang, Header, Id, Image, InlinedFrame, Report, RunFacts, Session, Signal, Thread, Timestamp, Value,
};
use coroner_report::run_state::Level;
use coroner_report::wire::{Language, Monitor, Os};
use coroner_test_otlp_collector::Request;
use serde_json::json;

fn sent(report: &Report, labels: &Labels) -> Request {
    Request { head: String::new(), logs: request(report, labels) }
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

fn map(entries: &[(&str, &str)]) -> Value {
    Value::Map(entries.iter().map(|(key, value)| (text(key), text(value))).collect())
}

/// A crash of a program of ada's.
fn crash() -> Report {
    let program = "/home/ada/paint/paint";
    let frame = |address: u64, function: &str, file: Option<&str>| Frame {
        address: Address(address),
        function: Some(function.to_owned()),
        module: Some(program.to_owned()),
        file: file.map(ToOwned::to_owned),
        line: file.map(|_| 7),
        column: file.map(|_| 3),
        ..Frame::default()
    };
    let inlined = InlinedFrame {
        function: Some("paint::brush::dip".into()),
        file: Some("/home/ada/paint/src/brush.rs".into()),
        line: Some(42),
        column: Some(5),
        ..InlinedFrame::default()
    };
    let frames = vec![
        frame(0x1008, "core::ptr::read", Some("/rustc/1/library/core/src/ptr/mod.rs")),
        Frame { inlined: vec![inlined], ..frame(0x1010, "paint::stroke", Some("src/stroke.rs")) },
    ];
    let crashed = Thread { tid: 7, name: Some("canvas".into()), crashed: true, frames, ..Thread::default() };
    let other =
        Thread { tid: 8, name: Some("io".into()), frames: vec![frame(0x1020, "poll", None)], ..Thread::default() };
    let mut run = RunFacts { run_id: Id([2; 16]), ..RunFacts::default() };
    run.app.id = Some("com.example.paint".into());
    run.app.version = Some("2.1.0".into());
    run.app.build = Some("99".into());
    run.app.environment = Some("beta".into());
    run.os.name = Some("Linux".into());
    run.os.version = Some("6.1".into());
    run.os.distribution = Some("debian".into());
    run.os.distribution_version = Some("12".into());
    run.device.model = Some("ThinkPad".into());
    run.session = Some(Session { id: Id([3; 16]), ..Session::default() });
    run.lifecycle.memory_used = Some(1 << 20);
    run.tags = BTreeMap::from([("channel".into(), "nightly".into()), ("os.name".into(), "a lie".into())]);
    run.user = Some(map(&[("id", "4711"), ("email", "a@example.com"), ("plan", "gold")]));
    let trace = [("trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"), ("span_id", "00f067aa0ba902b7"), ("type", "trace")];
    run.contexts = BTreeMap::from([("trace".into(), map(&trace)), ("document".into(), map(&[("kind", "svg")]))]);
    run.fingerprint = vec!["dip".into()];
    let data = Value::Map(vec![(text("status"), Value::Unsigned(404)), (text("big"), Value::Unsigned(u64::MAX))]);
    let breadcrumb = Breadcrumb { message: Some("asked".into()), data: Some(data), ..Breadcrumb::default() };
    run.breadcrumbs = vec![Breadcrumb { level: Level::INFO, time: Timestamp(1_000_000_000), ..breadcrumb }];
    let image = Image {
        path: program.into(),
        load_address: Address(0x1000),
        size: 0x100,
        build_id: Bytes(vec![0xab; 20]),
        is_main: true,
        ..Image::default()
    };
    Report {
        header: Header {
            event_id: Id([1; 16]),
            run_id: Id([2; 16]),
            pid: 99,
            process_name: "paint".into(),
            arch: Some(Arch::X86_64),
            os: Os::LINUX,
            sdk_version: "0.0.9".into(),
            ..Header::default()
        },
        crash: Some(Crash {
            time: Timestamp(1_790_000_000_123_456_789),
            monitor: Monitor::SIGNAL,
            tid: 7,
            signal: Some(Signal {
                number: 11,
                name: Some("SIGSEGV"),
                code_name: Some("SEGV_MAPERR"),
                ..Signal::default()
            }),
            address: Some(Address(0x10)),
            ..Crash::default()
        }),
        threads: vec![crashed, other],
        images: vec![image],
        run: Some(run),
        ..Report::default()
    }
}

#[test]
fn a_crash_has_the_attributes_of_the_semantic_conventions() {
    let sent = sent(&crash(), &Labels::default());
    let record = sent.record();
    assert_eq!((record.event_name.as_str(), record.severity_text.as_str()), ("app.crash", "FATAL"));
    assert_eq!((record.severity_number, record.time_unix_nano), (21, 1_790_000_000_123_456_789));
    assert!(record.observed_time_unix_nano > 0);
    assert_eq!(record.trace_id[..4], [0x4b, 0xf9, 0x2f, 0x35]);
    assert_eq!(
        (record.trace_id.len(), &record.span_id[..]),
        (16, &[0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7][..])
    );
    let all = sent.attributes();
    for (name, value) in [
        ("log.record.uid", json!("01".repeat(16))),
        ("app.crash.id", json!("01".repeat(16))),
        ("exception.type", json!("SIGSEGV")),
        ("exception.message", json!("SEGV_MAPERR: at 0x10")),
        ("code.function.name", json!("paint::brush::dip")),
        ("code.file.path", json!("~/paint/src/brush.rs")),
        ("code.line.number", json!(42)),
        ("code.column.number", json!(5)),
        ("thread.id", json!(7)),
        ("thread.name", json!("canvas")),
        ("session.id", json!("03030303-0303-0303-0303-030303030303")),
        ("service.version", json!("2.1.0")),
        ("app.build_id", json!("99")),
        ("os.name", json!("Linux")),
        ("os.version", json!("6.1")),
        ("user.id", json!("4711")),
        ("user.email", json!("a@example.com")),
        ("coroner.user.plan", json!("gold")),
        ("coroner.monitor", json!("signal")),
        ("coroner.handled", json!(false)),
        ("coroner.signal.code", json!("SEGV_MAPERR")),
        ("coroner.fault.address", json!("0x10")),
        ("coroner.context.document", json!({"kind": "svg"})),
        ("coroner.memory.used", json!(1 << 20)),
        ("coroner.fingerprint", json!(["dip"])),
        ("channel", json!("nightly")),
    ] {
        assert_eq!(all[name], value, "{name}");
    }
    let data = json!({"status": 404, "big": "18446744073709551615"});
    let breadcrumb = json!({"time": "1970-01-01T00:00:01Z", "message": "asked", "level": "info", "data": data});
    assert_eq!(all["coroner.breadcrumbs"], json!([breadcrumb]));
    let stack = all["exception.stacktrace"].as_str().unwrap();
    for line in ["SIGSEGV: SEGV_MAPERR", "core::ptr::read", "paint::brush::dip (~/paint/src/brush.rs:42:5)"] {
        assert!(stack.contains(line), "{stack}");
    }
    assert!(all["coroner.threads"].as_str().unwrap().starts_with("Thread 8 io\n"), "{all}");
    assert_eq!(all["coroner.images"][0]["code_id"], json!("ab".repeat(20)));
    assert!(!format!("{all}").contains("ada"), "{all}");
    assert_eq!(all.get("coroner.context.trace"), None);

    let resource = sent.resource();
    for (name, value) in [
        ("service.name", "com.example.paint"),
        ("service.version", "2.1.0"),
        ("service.instance.id", "02020202-0202-0202-0202-020202020202"),
        ("deployment.environment.name", "beta"),
        ("process.executable.name", "paint"),
        ("os.type", "linux"),
        ("os.description", "debian 12"),
        ("host.arch", "amd64"),
        ("device.model.identifier", "ThinkPad"),
        ("telemetry.sdk.name", "coroner"),
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.version", "0.0.9"),
    ] {
        assert_eq!(resource[name], json!(value), "{name}");
    }
    assert_eq!(resource["process.pid"], json!(99));
}

#[test]
fn an_explained_fault_has_its_attributes() {
    let mut report = crash();
    report.explanation = Some(Explanation {
        headline: "Null pointer: read of 4 bytes at null + 0x10 (rax is null)".into(),
        kind: FaultKind::NullPointer,
        certainty: Certainty::Certain,
        operand: Some(BadOperand { register: Some("rax".into()), displacement: Some(16), ..BadOperand::default() }),
        ..Explanation::default()
    });
    let all = sent(&report, &Labels::default()).attributes();
    for (name, value) in [
        ("exception.message", json!("Null pointer: read of 4 bytes at null + 0x10 (rax is null)")),
        ("coroner.fault.kind", json!("null_pointer")),
        ("coroner.fault.certainty", json!("certain")),
        ("coroner.fault.register", json!("rax")),
        ("coroner.fault.offset", json!(16)),
    ] {
        assert_eq!(all[name], value, "{name}");
    }
}

#[test]
fn the_apps_and_the_environments_attributes_come_first() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let labels = Labels {
        service_name: Some("atelier".into()),
        environment: Some("production".into()),
        resource: vec![pair("service.name", "other"), pair("host.arch", "amd64 of mine"), pair("team", "ink")],
        only_reported_thread: true,
    };
    let sent = sent(&crash(), &labels);
    let resource = sent.resource();
    assert_eq!((&resource["service.name"], &resource["team"]), (&json!("atelier"), &json!("ink")));
    assert_eq!(resource["deployment.environment.name"], json!("production"));
    assert_eq!(resource["host.arch"], json!("amd64 of mine"));
    assert_eq!(sent.attributes().get("coroner.threads"), None);
}

#[test]
fn a_crash_before_an_update_has_the_crashed_version() {
    let of_sender = [("service.version", "9"), ("service.instance.id", "of-the-sender"), ("process.pid", "1")];
    let resource = of_sender.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let sent = sent(&crash(), &Labels { resource, ..Labels::default() });
    let resource = sent.resource();
    assert_eq!((&resource["service.version"], &resource["process.pid"]), (&json!("2.1.0"), &json!(99)));
    assert_eq!(resource["service.instance.id"], json!("02020202-0202-0202-0202-020202020202"));
    assert_eq!(sent.attributes()["service.version"], json!("2.1.0"), "in the record, too");
}

#[test]
fn a_handled_error_is_an_exception() {
    let mut report = crash();
    let crash = report.crash.as_mut().unwrap();
    (crash.monitor, crash.signal, crash.address) = (Monitor::USER, None, None);
    crash.flags = vec![CrashFlag::NotFatal];
    let exception = |kind: Option<&str>, message: &str| Exception {
        language: Language::CPP,
        type_name: kind.map(ToOwned::to_owned),
        message: Some(message.into()),
        ..Exception::default()
    };
    report.exceptions = vec![exception(Some("paint::Dry"), "no ink"), exception(None, "it was sold")];
    let sent_one = sent(&report, &Labels::default());
    let (record, all) = (sent_one.record(), sent_one.attributes());
    assert_eq!((record.event_name.as_str(), record.severity_number), ("exception", 17));
    assert_eq!((&all["exception.type"], &all["exception.message"]), (&json!("paint::Dry"), &json!("no ink")));
    assert_eq!((&all["coroner.handled"], all.get("app.crash.id")), (&json!(true), None));
    let stack = all["exception.stacktrace"].as_str().unwrap();
    assert!(stack.starts_with("paint::Dry: no ink\nCaused by: C++ exception: it was sold\nThread:\n"), "{stack}");

    report.run.as_mut().unwrap().level = Some(Level::WARNING);
    let record = sent(&report, &Labels::default()).record().clone();
    assert_eq!((record.severity_number, record.severity_text.as_str()), (13, "WARN"));
}

#[test]
fn a_hang_is_not_a_crash() {
    let mut report = crash();
    let crash = report.crash.as_mut().unwrap();
    (crash.monitor, crash.signal, crash.address) = (Monitor::HANG, None, None);
    crash.hang = Some(Hang { duration_ns: Some(2_500_000_000), ..Hang::default() });
    let record = sent(&report, &Labels::default()).record().clone();
    assert_eq!((record.event_name.as_str(), record.severity_text.as_str()), ("coroner.hang", "FATAL"));
    report.crash.as_mut().unwrap().flags = vec![CrashFlag::NotFatal];
    let sent = sent(&report, &Labels::default());
    assert_eq!(sent.record().severity_text, "ERROR");
    let all = sent.attributes();
    assert_eq!((&all["exception.type"], &all["coroner.hang.duration"]), (&json!("App Hanging"), &json!(2.5)));
    assert_eq!(all["exception.message"], json!("the app did not respond for 2.5 s"));
}

#[test]
fn minimal_and_oversized_reports_have_a_record() {
    let sent_one = sent(&Report::default(), &Labels::default());
    assert_eq!(sent_one.record().event_name, "app.crash");
    assert_eq!(sent_one.resource()["service.name"], json!("unknown_service"));
    assert!(sent_one.attributes()["exception.message"].as_str().unwrap().contains("truncated"));

    let mut report = crash();
    report.run.as_mut().unwrap().contexts.insert("trace".into(), map(&[("trace_id", "00"), ("span_id", "zz")]));
    let name = "f".repeat(10_000);
    let frame = Frame { function: Some(name), ..Frame::default() };
    report.threads.extend((10..100).map(|tid| Thread { tid, frames: vec![frame.clone()], ..Thread::default() }));
    let sent = sent(&report, &Labels::default());
    let threads = sent.attributes()["coroner.threads"].as_str().unwrap().to_owned();
    assert!(threads.len() < MAX_OTHER_STACKS + 100 && threads.ends_with("more threads omitted\n"));
    assert_eq!((sent.record().trace_id.len(), sent.record().span_id.len()), (0, 0));
}

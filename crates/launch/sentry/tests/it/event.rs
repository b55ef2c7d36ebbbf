//! Events in the form that servers take.

use coroner_report::model::{Frame, Image, LockWait, OwnerIs, RunFacts, Thread, Timestamp, Value, WaitKind};
use coroner_report::run_state::Level;
use coroner_report::wire::{Access, Monitor};
use coroner_report::{Report, model};
use coroner_sentry::event::{Event, EventOptions, InAppRules};
use coroner_sentry::protocol::{self, Level as EventLevel};
use serde_json::json;

/// The first frame of an event of one thread with this frame, in a program at that path.
fn frame(program: &str, rules: &InAppRules, package: &str, function: &str) -> protocol::Frame {
    let image = Image { path: program.to_owned(), is_main: true, build_id: vec![7].into(), ..Image::default() };
    let module = Some(package.to_owned());
    let frame = Frame { module, function: Some(function.to_owned()), ..Frame::default() };
    let thread = Thread { tid: 1, frames: vec![frame], ..Thread::default() };
    let report = Report { images: vec![image], threads: vec![thread], ..Report::default() };
    let options = EventOptions { in_app: rules.clone(), send_default_pii: true, ..EventOptions::default() };
    let mut event = Event::from_report(&report, &options);
    event.threads.values.remove(0).stacktrace.unwrap().frames.remove(0)
}

fn event_of_run(run: RunFacts) -> Event {
    Event::from_report(&Report { run: Some(run), ..Report::default() }, &EventOptions::default())
}

#[test]
fn the_apps_own_code_is_in_app_by_default() {
    let rules = InAppRules::default();
    let own = |package, function| frame("/opt/paint/bin/paint", &rules, package, function).in_app.unwrap();
    assert!(own("/opt/paint/bin/paint", "paint::fill"));
    assert!(own("/opt/paint/bin/libbrush.so", "brush"));
    assert!(own("/opt/paint/bin/paint", "<paint::Picture as core::fmt::Display>::fmt"));
    assert!(!own("/opt/paint/bin/paint", "core::panicking::panic"));
    assert!(!own("/opt/paint/bin/paint", "<alloc::vec::Vec<T> as core::ops::Index>::index"));
    assert!(!own("/opt/paint/bin/paint", "_start"));
    assert!(!own("/opt/paint/bin/paint", "coroner::report_exception"));
    assert!(!own("/usr/lib/libc.so.6", "abort"));
    let mac = "/Applications/Paint.app/Contents/MacOS/Paint";
    let own = |package| frame(mac, &rules, package, "f").in_app.unwrap();
    assert!(own(mac) && own("/Applications/Paint.app/Contents/Frameworks/Brush.framework/Brush"));
    assert!(!own("/System/Library/Frameworks/AppKit.framework/AppKit") && !own("/Applications/Other.app/x"));
    assert_eq!(frame("/usr/bin/paint", &rules, "/usr/bin/other", "f").in_app, Some(false));
}

#[test]
fn in_app_lists_include_and_exclude() {
    let rules = InAppRules::default().include("libours.so").include("/srv/ours/").exclude("libvendor.so");
    let own = |package| frame("/opt/app/app", &rules, package, "f").in_app.unwrap();
    assert!(own("/usr/lib/libours.so") && own("/srv/ours/lib/x.so") && own("/opt/app/app"));
    assert!(!own("/opt/app/libvendor.so") && !own("/usr/lib/libother.so"));
}

#[test]
fn a_stack_overflow_is_grouped_by_its_recursion() {
    let path = "/opt/paint/paint".to_owned();
    let image = Image { path: path.clone(), is_main: true, ..Image::default() };
    // The last of them stands in another line.
    let line = |index| if index == 0 { 3 } else { 7 };
    let frame = |index| Frame {
        module: Some(path.clone()),
        function: Some("paint::fill".to_owned()),
        line: Some(line(index)),
        ..Frame::default()
    };
    let thread = Thread { tid: 1, crashed: true, frames: (0..9).map(frame).collect(), ..Thread::default() };
    let crash = model::Crash { tid: 1, flags: vec![model::CrashFlag::StackOverflow], ..model::Crash::default() };
    let mut report = Report { images: vec![image], threads: vec![thread], crash: Some(crash), ..Report::default() };
    let of = |report: &Report| Event::from_report(report, &EventOptions::default()).fingerprint.to_vec();
    assert_eq!(of(&report), ["stack overflow", "paint::fill"]);
    report.run = Some(RunFacts { fingerprint: vec!["the app's own".to_owned()], ..RunFacts::default() });
    assert_eq!(of(&report), ["the app's own"]);
    report.run = None;
    report.crash.as_mut().unwrap().flags.clear();
    assert_eq!(of(&report), ["{{ default }}"]);
}

#[test]
fn tags_are_limited_to_what_servers_accept() {
    let mut run = RunFacts::default();
    let (long_key, long_value) = ("k".repeat(300), "ü".repeat(300));
    run.tags = [("a key", "two\nlines "), ("key", " "), (&long_key, &long_value)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    let expected = [("a_key".to_owned(), "two lines".to_owned()), ("k".repeat(200), "ü".repeat(200))];
    assert_eq!(event_of_run(run).tags, expected.into());
}

#[test]
fn users_are_limited_to_what_servers_accept() {
    let map = |pairs: &[(&str, Value)]| {
        Value::Map(pairs.iter().map(|(key, value)| (Value::from(*key), value.clone())).collect())
    };
    let user = map(&[
        ("id", Value::Unsigned(5)),
        ("username", "Ada".into()),
        ("email", "".into()),
        ("plan", "pro".into()),
        ("data", map(&[("seats", Value::Unsigned(3))])),
        ("x", Value::Null),
    ]);
    let event = event_of_run(RunFacts { user: Some(user), ..RunFacts::default() });
    let expected = json!({"id": "5", "username": "Ada", "data": {"email": "", "plan": "pro", "seats": 3}});
    assert_eq!(json!(event.user), expected);
}

#[test]
fn times_have_microseconds() {
    for (time, seconds) in
        [(1_000_000_000_123_456_789, json!(1_000_000_000.123_456)), (1_000_000_000_000_000_000, json!(1_000_000_000))]
    {
        let crash = model::Crash { time: Timestamp(time), ..model::Crash::default() };
        let report = Report { crash: Some(crash), ..Report::default() };
        assert_eq!(Event::from_report(&report, &EventOptions::default()).to_value()["timestamp"], seconds);
    }
}

#[test]
fn an_event_without_an_id_has_the_runs_id() {
    let run = RunFacts { run_id: model::Id([7; 16]), ..RunFacts::default() };
    assert_eq!(event_of_run(run).to_value()["event_id"], "07".repeat(16));
}

#[test]
fn the_home_directory_is_hidden() {
    for (path, hidden) in [
        ("/home/ada/bin/app", "~/bin/app"),
        ("/Users/ada/Applications/A.app/A", "~/Applications/A.app/A"),
        ("/root/.cargo/registry/src/lib.rs", "~/.cargo/registry/src/lib.rs"),
        ("/rooted/app", "/rooted/app"),
        ("/home/app", "/home/app"),
        ("/usr/lib/libc.so.6", "/usr/lib/libc.so.6"),
    ] {
        let image = Image { path: path.to_owned(), build_id: vec![7].into(), ..Image::default() };
        let report = Report { images: vec![image], ..Report::default() };
        let event = Event::from_report(&report, &EventOptions::default());
        assert_eq!(event.to_value()["debug_meta"]["images"][0]["code_file"], hidden);
    }
}

#[test]
fn texts_are_truncated_at_characters() {
    let image = Image { path: format!("/{}/lib.so", "ä".repeat(300)), build_id: vec![7].into(), ..Image::default() };
    let thread = |length| Thread { tid: length as u64, name: Some("ä".repeat(length)), ..Thread::default() };
    let report = Report { images: vec![image], threads: vec![thread(128), thread(129)], ..Report::default() };
    let event = Event::from_report(&report, &EventOptions::default()).to_value();
    let names = [0, 1].map(|thread| event["threads"]["values"][thread]["name"].as_str().unwrap());
    assert_eq!(names, ["ä".repeat(128), format!("{}…", "ä".repeat(127))]);
    assert_eq!(event["debug_meta"]["images"][0]["code_file"], format!("…{}/lib.so", "ä".repeat(248)));
}

#[test]
fn names_are_limited_to_what_servers_accept() {
    let event = |release: &str, environment: &str| {
        let (release, environment) = (Some(release.to_owned()), Some(environment.to_owned()));
        let event =
            Event::from_report(&Report::default(), &EventOptions { release, environment, ..Default::default() });
        (event.protocol.release, event.protocol.environment)
    };
    assert_eq!(event("app@1/2\n", "a b/c"), (Some("app@1-2".into()), Some("a b-c".into())));
    assert_eq!(event("latest", "None"), (None, None));
    assert_eq!(event(&"x".repeat(300), "").0.unwrap().len(), 200);
}

#[test]
fn an_oversized_value_loses_texts_then_keys() {
    let mut run = RunFacts::default();
    let context = |key: &str, value: Value| Value::Map(vec![("short".into(), "z".into()), (key.into(), value)]);
    run.contexts.insert("texts".to_owned(), context("long", Value::Text("y".repeat(9000))));
    run.contexts.insert("lists".to_owned(), context("list", Value::Array(vec![Value::Unsigned(1); 5000])));
    let contexts = &event_of_run(run).to_value()["contexts"];
    let long = contexts["texts"]["long"].as_str().map(|text| text.chars().count());
    assert_eq!((&contexts["texts"]["short"], long), (&json!("z"), Some(4096)));
    assert_eq!(contexts["lists"], json!({ "short": "z" }));
}

#[test]
fn the_least_important_data_is_dropped_first_and_listed() {
    let frame = |number: usize| Frame {
        address: model::Address(0x1010),
        function: Some(format!("function_{number}_{}", "x".repeat(400))),
        ..Frame::default()
    };
    let frames = || (0..20).map(frame).collect();
    let mut threads = vec![Thread { tid: 0, crashed: true, frames: frames(), ..Thread::default() }];
    threads.extend((1..200).map(|tid| Thread { tid, frames: frames(), ..Thread::default() }));
    let image = |at| {
        let load_address = model::Address(at);
        Image { load_address, size: 0x100, build_id: vec![7].into(), path: "/a".to_owned(), ..Image::default() }
    };
    let mut run = RunFacts::default();
    run.extra.insert("kept".to_owned(), "yes".into());
    let crash = Some(model::Crash::default());
    let images = vec![image(0x1000), image(0x2000)];
    let report = Report { crash, threads, images, run: Some(run), ..Report::default() };
    let json = Event::from_report(&report, &EventOptions::default()).to_json();
    assert!(json.len() <= 1_000_000, "{}", json.len());
    let event: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let length = |path: &str| event.pointer(path).unwrap().as_array().unwrap().len();
    assert_eq!(length("/exception/values/0/stacktrace/frames"), 20);
    assert_eq!(length("/threads/values"), 200, "the threads are still named");
    let stack = |thread: usize| &event["threads"]["values"][thread]["stacktrace"];
    assert!(stack(1).is_object() && stack(199).is_null());
    assert_eq!(length("/debug_meta/images"), 1);
    assert_eq!(event["extra"]["kept"], "yes");
    let dropped = event["contexts"]["coroner"]["dropped_for_size"].to_string();
    assert!(dropped.contains("stacks of the last threads") && !dropped.contains("extra"), "{dropped}");
}

#[test]
fn an_abort_has_the_c_librarys_message() {
    use coroner_report::model::{Annotation, Crash, Signal};
    let value = |signal: &'static str, code_name: &'static str| {
        let signal = Signal { name: Some(signal), code_name: Some(code_name), ..Signal::default() };
        let crash = Crash { signal: Some(signal), ..Crash::default() };
        let printed = Annotation {
            source: "libc.so.6".into(),
            text: "free(): invalid pointer\n".into(),
            ..Annotation::default()
        };
        let report = Report { crash: Some(crash), annotations: vec![printed], ..Report::default() };
        Event::from_report(&report, &EventOptions::default()).exception.values[0].value.clone()
    };
    assert_eq!(value("SIGABRT", "SI_TKILL").as_deref(), Some("free(): invalid pointer"));
    assert_eq!(value("SIGSEGV", "SEGV_MAPERR").as_deref(), Some("SEGV_MAPERR"));
}

#[test]
fn a_faults_explanation_follows_the_programs_message() {
    use model::{Address, BadOperand, Certainty, Explanation, FaultKind, MemoryAccess};
    let explained = |kind, printed: &str| {
        event_of_crash(Monitor::SIGNAL, false, |report| {
            report.crash.as_mut().unwrap().message = Some(printed.to_owned()).filter(|printed| !printed.is_empty());
            report.explanation = Some(Explanation {
                headline: "Null pointer: write of 4 bytes at null + 0x10 (rdi is null) in fill (main.c:22)".to_owned(),
                kind,
                certainty: Certainty::Certain,
                access: Some(MemoryAccess { kind: Some(Access::WRITE), width: Some(4), address: Some(Address(0x10)) }),
                operand: Some(BadOperand {
                    register: Some("rdi".to_owned()),
                    value: Some(Address(0)),
                    displacement: Some(16),
                    ..BadOperand::default()
                }),
                function: Some("fill".to_owned()),
                ..Explanation::default()
            });
        })
    };
    let event = explained(FaultKind::NullPointer, "");
    let exception = &event.exception.values[0];
    assert!(exception.value.as_deref().unwrap().starts_with("Null pointer: write of 4 bytes"), "{exception:?}");
    let data = &exception.mechanism.as_ref().unwrap().data;
    assert_eq!(
        (&data["fault"], &data["register"], &data["access"]),
        (&json!("null_pointer"), &json!("rdi"), &json!("write"))
    );
    let fault = json!({
        "type": "fault", "kind": "null_pointer", "certainty": "certain", "access": "write", "width": 4, "address": "0x10",
        "register": "rdi", "value": "0x0", "offset": 16, "function": "fill",
    });
    assert_eq!(event.to_value()["contexts"]["fault"], fault);

    let value = explained(FaultKind::NullPointer, "no picture").exception.values[0].value.clone().unwrap();
    assert!(value.starts_with("no picture: Null pointer: "), "{value}");
    // A report that the program requested is not a fault.
    let event = explained(FaultKind::Requested, "out of bread");
    assert_eq!(event.exception.values[0].value.as_deref(), Some("out of bread"));
    assert!(!event.contexts.contains_key("fault"));
}

/// The event of what that monitor noticed, which the process went on after or not.
fn event_of_crash(monitor: Monitor, survived: bool, change: impl FnOnce(&mut Report)) -> Event {
    let flags = if survived { vec![model::CrashFlag::NotFatal] } else { Vec::new() };
    let crash = model::Crash { monitor, tid: 1, flags, ..model::Crash::default() };
    let frame = Frame { address: model::Address(0x1010), ..Frame::default() };
    let thread = Thread { tid: 1, crashed: true, frames: vec![frame], ..Thread::default() };
    let mut report = Report { crash: Some(crash), threads: vec![thread], ..Report::default() };
    change(&mut report);
    Event::from_report(&report, &EventOptions::default())
}

fn thrown(kind: &str) -> model::Exception {
    model::Exception { type_name: Some(kind.to_owned()), message: Some("why".to_owned()), ..Default::default() }
}

#[test]
fn a_fatal_crash_is_fatal_whatever_the_apps_level() {
    let warning = |report: &mut Report| {
        report.run = Some(RunFacts { level: Some(Level::WARNING), ..RunFacts::default() });
    };
    assert_eq!(event_of_crash(Monitor::SIGNAL, false, warning).level, EventLevel::Fatal);
    assert_eq!(event_of_crash(Monitor::USER, true, warning).level, EventLevel::Warning);
    assert_eq!(event_of_crash(Monitor::USER, true, |_| ()).level, EventLevel::Error);
}

#[test]
fn a_handled_error_is_marked_and_a_panic_that_ends_a_thread_is_not() {
    let handled = |event: &Event| {
        let mechanisms = event.exception.values.iter().filter_map(|exception| exception.mechanism.clone());
        mechanisms.map(|mechanism| (mechanism.ty, mechanism.handled)).collect::<Vec<_>>()
    };
    let error =
        event_of_crash(Monitor::USER, true, |report| report.exceptions = vec![thrown("Error"), thrown("cause")]);
    assert_eq!(handled(&error), [("chained".to_owned(), Some(true)), ("generic".to_owned(), Some(true))]);
    let of_panic = |kind: &str, survived| {
        handled(&event_of_crash(Monitor::PANIC, survived, |report| report.exceptions = vec![thrown(kind)]))
    };
    assert_eq!(of_panic("panic that ended its thread", true), [("panic".to_owned(), Some(false))]);
    assert_eq!(of_panic("caught panic", true), [("panic".to_owned(), Some(true))]);
    assert_eq!(of_panic("panic", false), [("panic".to_owned(), Some(false))]);
}

#[test]
fn a_librarys_abort_message_comes_first() {
    let event = event_of_crash(Monitor::SIGNAL, false, |report| {
        let crash = report.crash.as_mut().unwrap();
        let code_name = Some("SEGV_MAPERR");
        crash.signal = Some(model::Signal { number: 11, name: Some("SIGSEGV"), code_name, ..Default::default() });
        crash.address = Some(model::Address(0x10));
        let text = "assertion failed: the document is open".to_owned();
        report.annotations = vec![model::Annotation { text, ..Default::default() }];
    });
    let value = event.exception.values[0].value.clone().unwrap();
    assert!(value.starts_with("assertion failed: the document is open"), "{value}");
}

#[test]
fn a_hang_is_not_grouped_with_a_crash_at_the_same_place() {
    let event = event_of_crash(Monitor::HANG, true, |_| ());
    let exception = &event.exception.values[0];
    let mechanism = exception.mechanism.as_ref().unwrap();
    assert_eq!((exception.ty.as_str(), mechanism.ty.as_str(), mechanism.synthetic), ("App Hanging", "AppHang", None));
    assert_eq!(event.to_value()["exception"]["values"][0]["stacktrace"]["snapshot"], true);
    let crash = event_of_crash(Monitor::SIGNAL, false, |_| ());
    assert_eq!(crash.exception.values[0].mechanism.as_ref().unwrap().synthetic, Some(true));
}

#[test]
fn app_and_coroner_share_a_context_and_a_transaction_is_not_a_tag() {
    let map = |key: &str, value: &str| Value::Map(vec![(key.into(), value.into())]);
    let mut run = RunFacts::default();
    run.os.version = Some("12".into());
    run.contexts = [("os".to_owned(), map("theme", "dark")), ("gpu".to_owned(), map("name", "A"))].into();
    run.tags.insert("transaction".to_owned(), "editor".to_owned());
    let event = event_of_run(run);
    let contexts = &event.to_value()["contexts"];
    assert_eq!(contexts["os"], json!({"type": "os", "version": "12", "theme": "dark"}));
    assert_eq!(contexts["gpu"], json!({"name": "A"}));
    assert_eq!((event.transaction.as_deref(), event.tags.len()), (Some("editor"), 0));
}

#[test]
fn sources_of_dependencies_are_not_in_app() {
    let rules = InAppRules::default();
    let image = Image { path: "/opt/paint/paint".to_owned(), is_main: true, ..Image::default() };
    let own = |file: &str| {
        let frame = Frame {
            module: Some("/opt/paint/paint".to_owned()),
            function: Some("write_volatile".to_owned()),
            file: Some(file.to_owned()),
            ..Frame::default()
        };
        let thread = Thread { tid: 1, frames: vec![frame], ..Thread::default() };
        let report = Report { images: vec![image.clone()], threads: vec![thread], ..Report::default() };
        let event = Event::from_report(&report, &EventOptions { in_app: rules.clone(), ..EventOptions::default() });
        event.threads.values[0].stacktrace.as_ref().unwrap().frames[0].in_app.unwrap()
    };
    assert!(own("/home/ada/paint/src/main.rs"));
    assert!(!own("/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/core/src/ptr/mod.rs"));
    assert!(!own("/home/ada/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/serde-1.0.0/src/lib.rs"));
}

#[test]
fn threads_have_the_locks_they_wait_for() {
    let wait = |tid, owner, kind, address| LockWait {
        tid,
        kind,
        library: Some("glibc".to_owned()),
        address: model::Address(address),
        owner,
        owner_is: if owner.is_some() { OwnerIs::InReport } else { OwnerIs::Unknown },
        ..LockWait::default()
    };
    let waits = vec![
        wait(1, Some(2), WaitKind::Mutex, 0x20),
        wait(2, Some(1), WaitKind::Mutex, 0x10),
        wait(3, None, WaitKind::Condition, 0x30),
        wait(4, Some(3), WaitKind::ThreadEnd, 0x40),
    ];
    let explanation = Some(model::Explanation { waits, ..model::Explanation::default() });
    let threads = (1..=4).map(|tid| Thread { tid, ..Thread::default() }).collect();
    let event = Event::from_report(&Report { explanation, threads, ..Report::default() }, &EventOptions::default());
    let event = event.to_value();
    let threads = event["threads"]["values"].as_array().unwrap();
    let locks: Vec<_> = threads.iter().map(|thread| thread["held_locks"].clone()).collect();
    let mutex =
        |reason, address| json!({"type": reason, "address": address, "package_name": "glibc", "class_name": "mutex"});
    let waited = |address, thread: u64| {
        let mut lock = mutex(8, address);
        lock["thread_id"] = thread.into();
        lock
    };
    assert_eq!(locks[0], json!({"0x10": mutex(1, "0x10"), "0x20": waited("0x20", 2)}));
    assert_eq!(locks[1], json!({"0x10": waited("0x10", 1), "0x20": mutex(1, "0x20")}));
    assert_eq!((&locks[2]["0x30"]["type"], &locks[3]["0x40"]["type"]), (&json!(2), &json!(8)));
    assert_eq!(locks[2].as_object().unwrap().len(), 1, "no thread has the end of another");
}

/// A report of a thread with these frames of images and functions, with the program's image.
fn report_of(frames: &[(&str, Option<&str>, u64)]) -> Report {
    let image = Image { path: "/opt/paint/paint".to_owned(), is_main: true, ..Image::default() };
    let frames = frames.iter().map(|(module, function, offset)| Frame {
        module: Some((*module).to_owned()),
        function: function.map(ToOwned::to_owned),
        module_offset: Some(model::RelativeAddress(*offset)),
        ..Frame::default()
    });
    let thread = Thread { tid: 1, crashed: true, frames: frames.collect(), ..Thread::default() };
    let signal = model::Signal { number: 11, name: Some("SIGSEGV"), ..model::Signal::default() };
    let crash = model::Crash { tid: 1, signal: Some(signal), ..model::Crash::default() };
    Report { images: vec![image], threads: vec![thread], crash: Some(crash), ..Report::default() }
}

#[test]
fn unnamed_code_of_others_is_grouped_and_titled_by_its_place() {
    let event = |frames: &[_]| Event::from_report(&report_of(frames), &EventOptions::default());
    let (gpu, libc) = ("/usr/lib/libgpu.so.1", "/usr/lib/libc.so.6");
    let places = [[0x1139, 0x1100], [0x1200, 0x1100]].map(|[inner, outer]| {
        let event = event(&[
            (libc, Some("__pthread_kill_implementation"), 1),
            (libc, Some("raise"), 2),
            (gpu, None, inner),
            (gpu, None, outer),
            (libc, Some("start_thread"), 3),
        ]);
        let exception = event.exception.values.last().unwrap();
        let place = format!("libgpu.so.1 + {inner:#x}");
        assert!(exception.value.as_deref().is_some_and(|value| value.ends_with(&place)), "{exception:?}");
        assert_eq!(exception.mechanism.as_ref().unwrap().synthetic, None, "the title is type and value");
        assert_eq!(event.fingerprint.to_vec(), ["bad access", &place]);
        event.protocol.fingerprint
    });
    assert_ne!(places[0], places[1]);
    // With a name, or with a frame of the app, a server groups by functions.
    let named = [(libc, Some("raise"), 2), (gpu, Some("gpu_draw"), 0x1139)];
    let own = [(gpu, None, 0x1139), ("/opt/paint/paint", None, 0x2000)];
    for frames in [&named[..], &own] {
        let event = event(frames);
        assert_eq!(event.fingerprint.to_vec(), ["{{ default }}"], "{frames:?}");
        assert_eq!(event.exception.values[0].mechanism.as_ref().unwrap().synthetic, Some(true), "{frames:?}");
    }
}

#[test]
fn a_panics_stack_begins_at_the_call_that_panicked() {
    let paint = "/opt/paint/paint";
    let mut report = report_of(&[
        (paint, Some("std::panicking::panic_with_hook"), 1),
        (paint, Some("__rustc::rust_begin_unwind"), 2),
        (paint, Some("core::panicking::panic_fmt"), 3),
        (paint, Some("core::result::unwrap_failed"), 4),
        (paint, Some("paint::load"), 5),
        (paint, Some("core::panicking::panic_fmt"), 6),
        (paint, Some("paint::main"), 7),
    ]);
    let crash = report.crash.as_mut().unwrap();
    (crash.monitor, crash.signal) = (Monitor::PANIC, None);
    let frames = std::mem::take(&mut report.threads[0].frames);
    report.exceptions = vec![model::Exception { frames, tid: 1, ..model::Exception::default() }];
    let functions = |report: &Report| {
        let event = Event::from_report(report, &EventOptions::default());
        let frames = event.exception.values[0].stacktrace.clone().unwrap().frames;
        frames.into_iter().rev().map(|frame| frame.function.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(functions(&report), ["paint::load", "core::panicking::panic_fmt", "paint::main"]);
    // If there is nothing else, it is better than nothing.
    report.exceptions[0].frames.truncate(2);
    assert_eq!(functions(&report).len(), 2);
}

#[test]
fn every_event_of_a_run_has_a_trace() {
    let mut run = RunFacts { run_id: model::Id([7; 16]), ..RunFacts::default() };
    let trace = |run: &RunFacts| event_of_run(run.clone()).to_value()["contexts"]["trace"].clone();
    let own = trace(&run);
    assert_eq!((&own["trace_id"], &own["span_id"]), (&json!("07".repeat(16)), &json!("07".repeat(8))));
    let set = json!({"trace_id": "ab".repeat(16), "span_id": "cd".repeat(8), "type": "trace"});
    let fields = [("trace_id", "ab".repeat(16)), ("span_id", "cd".repeat(8)), ("type", "trace".to_owned())];
    let fields = fields.map(|(key, value)| (Value::from(key), Value::Text(value)));
    run.contexts.insert("trace".to_owned(), Value::Map(fields.into()));
    assert_eq!(trace(&run), set);
}

#[test]
fn sentry_types_reads_every_event_without_its_extensions_and_returns_it_unchanged() {
    let odd = |key: &str, value: Value| Value::Map(vec![(key.into(), value)]);
    for (name, mut report) in crate::specimens::specimens() {
        if let Some(run) = &mut report.run {
            // What the app may set, and these types refuse or cut.
            run.contexts.extend([
                ("gpu".to_owned(), odd("memory_size", Value::Text("8 GB".to_owned()))),
                ("trace".to_owned(), odd("trace_id", "no".into())),
                ("device".to_owned(), odd("orientation", "sideways".into())),
                ("app".to_owned(), odd("type", "own".into())),
                ("typed".to_owned(), odd("type", "own".into())),
            ]);
            let user = [("ip_address", "not an address"), ("name", "Ada"), ("plan", "pro")];
            run.user = Some(Value::Map(user.map(|(key, value)| (key.into(), value.into())).into()));
        }
        let mut event = Event::from_report(&report, &EventOptions::default()).to_value();
        let types = ["gpu", "trace", "device", "app", "typed"].map(|name| event["contexts"][name]["type"].clone());
        if report.run.is_some() {
            assert_eq!(types, [json!(null), json!(null), json!("device"), json!("app"), json!("own")], "{name}");
        }
        coroner_sentry::extensions::remove_all(&mut event);
        let read: protocol::Event =
            serde_json::from_value(event.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(json!(read), event, "{name}");
    }
}

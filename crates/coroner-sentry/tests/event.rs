//! Events in the form that servers take.

use coroner_report::model::{Frame, Image, RunFacts, Thread, Timestamp, Value};
use coroner_report::{Report, model};
use coroner_sentry::event::{Event, EventOptions, InAppRules};
use serde_json::json;

/// The first frame of an event of one thread with this frame, in a program at that path.
fn frame(program: &str, rules: &InAppRules, package: &str, function: &str) -> coroner_sentry::event::Frame {
    let image = Image { path: program.to_owned(), is_main: true, build_id: vec![7].into(), ..Image::default() };
    let module = Some(package.to_owned());
    let frame = Frame { module, function: Some(function.to_owned()), ..Frame::default() };
    let thread = Thread { tid: 1, frames: vec![frame], ..Thread::default() };
    let report = Report { images: vec![image], threads: vec![thread], ..Report::default() };
    let options = EventOptions { in_app: rules.clone(), send_default_pii: true, ..EventOptions::default() };
    let mut event = Event::from_report(&report, &options);
    event.threads.values.remove(0).stacktrace.unwrap().frames.remove(0)
}

fn of_run(run: RunFacts) -> Event {
    Event::from_report(&Report { run: Some(run), ..Report::default() }, &EventOptions::default())
}

#[test]
fn the_apps_own_by_default() {
    let rules = InAppRules::default();
    let own = |package, function| frame("/opt/paint/bin/paint", &rules, package, function).in_app;
    assert!(own("/opt/paint/bin/paint", "paint::fill"));
    assert!(own("/opt/paint/bin/libbrush.so", "brush"));
    assert!(own("/opt/paint/bin/paint", "<paint::Picture as core::fmt::Display>::fmt"));
    assert!(!own("/opt/paint/bin/paint", "core::panicking::panic"));
    assert!(!own("/opt/paint/bin/paint", "<alloc::vec::Vec<T> as core::ops::Index>::index"));
    assert!(!own("/opt/paint/bin/paint", "_start"));
    assert!(!own("/opt/paint/bin/paint", "coroner::report_exception"));
    assert!(!own("/usr/lib/libc.so.6", "abort"));
    let mac = "/Applications/Paint.app/Contents/MacOS/Paint";
    let own = |package| frame(mac, &rules, package, "f").in_app;
    assert!(own(mac) && own("/Applications/Paint.app/Contents/Frameworks/Brush.framework/Brush"));
    assert!(!own("/System/Library/Frameworks/AppKit.framework/AppKit") && !own("/Applications/Other.app/x"));
    assert!(!frame("/usr/bin/paint", &rules, "/usr/bin/other", "f").in_app);
}

#[test]
fn lists_include_and_exclude() {
    let rules = InAppRules::default().include("libours.so").include("/srv/ours/").exclude("libvendor.so");
    let own = |package| frame("/opt/app/app", &rules, package, "f").in_app;
    assert!(own("/usr/lib/libours.so") && own("/srv/ours/lib/x.so") && own("/opt/app/app"));
    assert!(!own("/opt/app/libvendor.so") && !own("/usr/lib/libother.so"));
}

#[test]
fn tags_are_what_servers_take() {
    let mut run = RunFacts::default();
    let (long_key, long_value) = ("k".repeat(300), "ü".repeat(300));
    run.tags = [("a key", "two\nlines "), ("key", " "), (&long_key, &long_value)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    let expected = [("a_key".to_owned(), "two lines".to_owned()), ("k".repeat(200), "ü".repeat(200))];
    assert_eq!(of_run(run).tags, expected.into());
}

#[test]
fn users_are_what_servers_take() {
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
    let event = of_run(RunFacts { user: Some(user), ..RunFacts::default() });
    let expected = json!({"id": "5", "username": "Ada", "data": {"email": "", "plan": "pro", "seats": 3}});
    assert_eq!(json!(event.user), expected);
}

#[test]
fn times_have_microseconds() {
    for (time, text) in [
        (1_000_000_000_123_456_789, "2001-09-09T01:46:40.123456Z"),
        (1_000_000_000_000_000_000, "2001-09-09T01:46:40.000000Z"),
    ] {
        let crash = model::Crash { time: Timestamp(time), ..model::Crash::default() };
        let report = Report { crash: Some(crash), ..Report::default() };
        assert_eq!(Event::from_report(&report, &EventOptions::default()).timestamp, text);
    }
}

#[test]
fn an_event_without_an_id_has_its_runs() {
    let run = RunFacts { run_id: model::Id([7; 16]), ..RunFacts::default() };
    assert_eq!(of_run(run).event_id, "07".repeat(16));
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
        assert_eq!(event.debug_meta.unwrap().images[0].code_file, hidden);
    }
}

//! The text form and JSON.

use crate::common::full_report;
use coroner_report::Report;
use coroner_report::model::{CrashFlag, InlinedFrame, RunFacts, Value};
use coroner_report::run_state::{Breadcrumb, Fact, Kind, Level, Limits, ProcessIdentity, RunState, Scalar};
use coroner_report::text::{Sink, Style, TextOptions, ThreadFilter};
use coroner_report::wire::{Monitor, SectionKind};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

fn report() -> Report {
    let mut report = Report::read(&full_report().bytes).expect("whole");
    let frame = &mut report.threads[0].frames[0];
    frame.function = Some("victim::main".into());
    frame.named_in_process = false;
    frame.file = Some("src/main.rs".into());
    frame.line = Some(12);
    frame.column = Some(5);
    frame.inlined = vec![InlinedFrame {
        function: Some("victim::crash".into()),
        file: Some("src/crash.rs".into()),
        line: Some(3),
        ..Default::default()
    }];
    let mut run = RunFacts::default();
    run.app.name = Some("Victim".into());
    run.app.version = Some("1.2.3".into());
    run.tags.insert("language".into(), "de".into());
    run.contexts.insert("game".into(), Value::Map(vec![(Value::from("level"), Value::Unsigned(7))]));
    run.breadcrumbs.push(coroner_report::model::Breadcrumb {
        message: Some("opened".into()),
        category: Some("ui".into()),
        ..Default::default()
    });
    report.run = Some(run);
    report
}

#[test]
fn the_text_form_is_as_expected() {
    let text = report().to_text(&TextOptions::default());
    let expected = include_str!("../expected/report.txt");
    assert!(text == expected, "tests/expected/report.txt should be:\n{text}");
}

#[test]
fn the_json_form_is_as_expected() {
    let json = report().to_json() + "\n";
    let expected = include_str!("../expected/report.json");
    assert!(json == expected, "tests/expected/report.json should be:\n{json}");
}

#[test]
fn the_json_form_is_read_back() {
    let report = report();
    let again = Report::from_json(&report.to_json()).expect("its own JSON");
    assert_eq!(again.to_json(), report.to_json());
    assert_eq!(again.to_text(&TextOptions::default()), report.to_text(&TextOptions::default()));
    for other in ["{}", "[]", "{\"header\": {}}", "{\"event_id\": \"1cf2590872a5491e9ffbd98d82f81d1d\"}", "no JSON"] {
        assert!(Report::from_json(other).is_err(), "{other}");
    }
}

#[test]
fn thread_filters_select_threads() {
    let mut report = report();
    let of = |filter: &str| filter.parse::<ThreadFilter>().expect("a filter");
    let count = |filter: &str| of(filter).threads(&report).len();
    assert_eq!((count("all"), count("crashed"), count("4321"), count("0"), count("9")), (3, 1, 1, 1, 0));
    assert!("crush".parse::<ThreadFilter>().expect_err("invalid").contains("expected a thread number"));
    let options = TextOptions { threads: of("4321"), images: false, ..TextOptions::default() };
    let text = report.to_text(&options);
    assert!(text.contains("Thread 1: 4321 (main)") && text.contains("2 of 3 threads not shown"), "{text}");
    assert!(text.contains("Registers of thread 1") && text.contains("pstate") && !text.contains("Thread 0 crashed:"));
    assert!(!text.contains("Loaded images"));
    assert!(!report.retain_threads(&of("9")));
    assert_eq!(report.threads.len(), 3);
    assert!(report.retain_threads(&of("1")));
    assert_eq!(report.threads[0].tid, 4321);
}

#[test]
fn missing_data_is_mentioned_in_the_text() {
    let file = full_report();
    let report = Report::read(&file.bytes[..file.ends[3].0 + 30]).expect("readable");
    let text = report.to_text(&TextOptions::default());
    assert!(text.contains("Missing or damaged"), "{text}");
    assert!(text.contains("section images at byte") && text.contains("section end at byte"), "{text}");
    assert!(report.to_json().contains("\"complete\": false"));
}

/// Returns run facts with all facts and scalars set.
fn full_run() -> RunFacts {
    let limits = Limits::default();
    let words: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
    let state = RunState::create(&words, &limits, [1; 16], &ProcessIdentity::default()).expect("large enough");
    for (scalar, _) in Scalar::ALL {
        state.set_scalar(*scalar, 1);
    }
    let mut buffer = [0; 4096];
    let set = state.set_facts_with(&mut buffer, |facts| {
        for (fact, _) in Fact::ALL {
            match *fact {
                Fact::PID
                | Fact::PROCESS_START
                | Fact::INSTALLED
                | Fact::APP_WATCHDOG
                | Fact::DEVICE_PROCESSOR_COUNT
                | Fact::DEVICE_MEMORY_SIZE
                | Fact::DEVICE_BOOT_TIME => facts.uint(*fact, 7),
                Fact::OS_ROOTED | Fact::DEVICE_SIMULATOR => facts.bool(*fact, true),
                fact => facts.text(fact, "text"),
            }
        }
    });
    set.expect("they fit");
    for (kind, _) in Kind::ALL {
        let text = |text: &str| Value::Text(text.to_owned());
        let set = match *kind {
            Kind::TAG => state.set_text(*kind, "", "").map(drop),
            Kind::CHANGED_FACT => state.set_text(*kind, "release", "text").map(drop),
            Kind::ATTACHMENT => {
                let declared = [(text("path"), text("/log")), (text("content_type"), text("text/plain"))];
                state.set_cbor(*kind, "log", &Value::Map(declared.to_vec()).to_cbor())
            }
            _ => state.set_cbor(*kind, "", &Value::Array(vec![text("value")]).to_cbor()),
        };
        set.expect("fits");
    }
    state.breadcrumb(&Breadcrumb {
        time_ns: 1,
        level: Level::INFO,
        kind: "http",
        category: "net",
        message: "GET",
        data: Some(&[0xA0]),
    });
    let facts = RunFacts::read(&state.to_bytes()).expect("whole");
    assert!(facts.problems.is_empty() && facts.unknown_facts.is_empty() && facts.unknown_values.is_empty());
    facts
}

#[test]
fn every_name_in_the_json_is_documented() {
    const FREE: &[&str] = &["tags", "contexts", "extra", "user", "data", "registers"];
    fn names(value: &serde_json::Value, into: &mut BTreeSet<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    into.insert(name.clone());
                    if !FREE.contains(&name.as_str()) {
                        names(value, into);
                    }
                }
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| names(item, into)),
            _ => {}
        }
    }
    let mut report = report();
    report.run = Some(full_run());
    report.problems.push(coroner_report::model::Problem {
        section: Some(SectionKind::END),
        offset: 1,
        what: "x".into(),
    });
    let mut found = BTreeSet::new();
    names(&serde_json::from_str(&report.to_json()).expect("JSON"), &mut found);
    assert!(found.len() > 130, "{}", found.len());
    let document = include_str!("../../../../../docs/report-format.md");
    let json = &document[document.find("## JSON").expect("a chapter")..];
    let words: BTreeSet<&str> = json.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    let missing: Vec<_> = found.iter().filter(|name| !words.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "not in docs/report-format.md: {missing:?}");
}

/// Collects the styled pieces.
#[derive(Default)]
struct Styled(Vec<(Style, String)>);

impl Sink for Styled {
    fn piece(&mut self, style: Style, text: &str) -> std::fmt::Result {
        self.0.push((style, text.to_owned()));
        Ok(())
    }
}

#[test]
fn pieces_have_styles() {
    let report = report();
    let mut styled = Styled::default();
    report.write_text(&mut styled, &TextOptions::default()).expect("taken");
    let all: String = styled.0.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(all, report.to_text(&TextOptions::default()));
    for (style, text) in [
        (Style::Function, "victim::main"),
        (Style::Source, " (src/main.rs:12:5)"),
        (Style::Alarm, "Thread 0 crashed"),
        (Style::Address, "0x0000555500001234"),
        (Style::Heading, "What happened"),
    ] {
        assert!(styled.0.iter().any(|(s, t)| *s == style && t == text), "{text}");
    }
    let multiline = styled.0.iter().filter(|(style, text)| text.contains('\n') && *style == Style::Function).count();
    assert_eq!(multiline, 0);
}

#[test]
fn only_the_first_rounds_of_a_recursion_are_shown() {
    let mut report = report();
    let thread = &mut report.threads[0];
    let one = thread.frames[0].clone();
    let at = |address: u64| {
        let mut frame = one.clone();
        frame.address.0 = address;
        frame.inlined.clear();
        frame.function = Some(format!("f{address:x}"));
        frame
    };
    // f1, then 100 rounds of f2 and f3 with a gap among them, then six of f4, then four of f5,
    // which are too few to fold.
    let rounds = (0..100).flat_map(|_| [at(0x22), at(0x33)]);
    thread.frames = [at(0x11)].into_iter().chain(rounds).collect();
    thread.frames.extend((0..6).map(|_| at(0x44)).chain((0..4).map(|_| at(0x55))));
    thread.skipped = vec![coroner_report::model::Skipped { after: 101, count: 1000 }];
    let options = TextOptions { threads: "crashed".parse().unwrap(), registers: false, ..TextOptions::default() };
    let text = report.to_text(&options);
    let body = text.split("Thread 0 crashed").nth(1).unwrap();
    let lines: Vec<String> = body
        .lines()
        .filter(|line| line.contains("more times") || line.contains("left out") || line.contains(" f"))
        .map(|line| line.split_whitespace().filter(|word| !word.starts_with("0x")).collect::<Vec<_>>().join(" "))
        .collect();
    let counts: Vec<&str> = lines.iter().filter(|line| line.starts_with('…')).map(String::as_str).collect();
    assert_eq!(
        counts,
        [
            "… these 2 frames 48 more times …",
            "… 1000 frames left out …",
            "… these 2 frames 48 more times …",
            "… this frame 4 more times …"
        ]
    );
    // Frames keep their numbers: 1 + 200 + 1000 + 6 come before the first of f5.
    let last: Vec<&String> = lines.iter().filter(|line| line.contains("f55")).collect();
    assert_eq!(last.len(), 4);
    assert!(last[0].starts_with("1207 "), "{last:?}");
}

#[test]
fn terminate_without_an_exception_throws_nothing() {
    let mut report = report();
    report.exceptions.truncate(1);
    let exception = &mut report.exceptions[0];
    exception.type_name = None;
    exception.message = Some("terminate called without an active exception".to_owned());
    exception.frames.clear();
    let text = report.to_text(&TextOptions::default());
    assert!(text.contains("\nterminate called without an active exception\n") && !text.contains("Thrown"), "{text}");
}

#[test]
fn single_frames_are_counted_in_the_singular() {
    let mut report = report();
    report.threads[0].skipped = vec![coroner_report::model::Skipped { after: 1, count: 1 }];
    let text = report.to_text(&TextOptions::default());
    assert!(text.contains("… 1 frame left out …"), "{text}");
}

#[test]
fn only_crashed_threads_are_labeled_crashed() {
    let mut report = report();
    let read_heading = |report: &Report| {
        let text = report.to_text(&TextOptions::default());
        text.lines().find(|line| line.starts_with("Thread 0")).unwrap().split(':').next().unwrap().to_owned()
    };
    assert_eq!(read_heading(&report), "Thread 0 crashed");
    let crash = report.crash.as_mut().unwrap();
    crash.flags.push(CrashFlag::NotFatal);
    assert_eq!(read_heading(&report), "Thread 0 crashed", "by a signal, which a handler repaired");
    let crash = report.crash.as_mut().unwrap();
    (crash.signal, crash.mach, crash.monitor) = (None, None, Monitor::CPP_EXCEPTION);
    assert_eq!(read_heading(&report), "Thread 0 reported");
    report.crash.as_mut().unwrap().monitor = Monitor::HANG;
    assert_eq!(read_heading(&report), "Thread 0 hung");
}

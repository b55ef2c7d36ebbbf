use super::*;
use crate::ForeignFrame;
use crate::last_run::{LastRun, PastCrash};
use crate::outcome::Outcome;
use crate::system_report::{SystemEnd, SystemReport};

/// What serde writes of it is what is written, and reads as it was.
fn is_as_serde_has_it<T>(written: &T)
where
    T: Json + serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let text = String::from_utf8(written.to_json()).unwrap();
    assert_eq!(text, serde_json::to_string(written).unwrap());
    assert_eq!(T::of_json(text.as_bytes()).as_ref(), Some(written), "{text}");
    assert_eq!(serde_json::from_str::<T>(&text).unwrap(), *written);
}

fn termination() -> Termination {
    Termination {
        reason: TerminationReason::OutOfMemory,
        certainty: TerminationCertainty::Likely,
        evidence: vec!["a \"counter\"\\ moved\n\u{1}\u{8}\u{c}\r\t".into(), "é𝄞".into()],
    }
}

#[test]
fn the_text_is_that_of_serde() {
    let last_run = LastRun {
        outcome: Outcome::Crashed,
        run: Some(Id([7; 16])),
        began: Some(UNIX_EPOCH + Duration::new(1_700_000_000, 999_999_999)),
        ran_for: Some(Duration::from_millis(1_500)),
        signal: Some(-1),
        termination: Some(termination()),
        signals_taken: Some(String::new()),
        crashes: vec![
            PastCrash { ran_for_ms: Some(u64::MAX), signature: Some("1:ab".into()) },
            PastCrash { ran_for_ms: None, signature: None },
        ],
        ..LastRun::FIRST_LAUNCH
    };
    is_as_serde_has_it(&last_run);
    is_as_serde_has_it(&LastRun::FIRST_LAUNCH);
    is_as_serde_has_it(&termination());
    is_as_serde_has_it(&Termination::default());
    for outcome in [
        Outcome::FirstLaunch,
        Outcome::CleanExit,
        Outcome::Terminated,
        Outcome::Crashed,
        Outcome::Hung,
        Outcome::Uninstalled,
        Outcome::OutOfMemory,
        Outcome::EndedByUser,
        Outcome::EndedBySystem,
        Outcome::EndedBySignal,
        Outcome::SystemRestart,
        Outcome::CpuLimit,
        Outcome::Debugged,
        Outcome::Unknown,
    ] {
        is_as_serde_has_it(&outcome);
    }
    for reason in [
        TerminationReason::Unknown,
        TerminationReason::OutOfMemory,
        TerminationReason::SystemRestart,
        TerminationReason::CpuLimit,
        TerminationReason::Debugger,
        TerminationReason::AppUpdate,
        TerminationReason::Signal,
        TerminationReason::StopTimeout,
        TerminationReason::Replaced,
    ] {
        is_as_serde_has_it(&reason);
    }
    for certainty in [TerminationCertainty::Possible, TerminationCertainty::Likely, TerminationCertainty::Certain] {
        is_as_serde_has_it(&certainty);
    }
    for end in [
        SystemEnd::Exited,
        SystemEnd::Terminated,
        SystemEnd::Crashed,
        SystemEnd::Hung,
        SystemEnd::OutOfMemory,
        SystemEnd::EndedByUser,
        SystemEnd::EndedBySystem,
        SystemEnd::Survived,
        SystemEnd::Unknown,
    ] {
        is_as_serde_has_it(&end);
    }
    is_as_serde_has_it(&BTreeMap::from([("a".to_owned(), 1_u64), ("b".to_owned(), 2)]));
}

#[test]
fn what_the_system_said_and_frames_of_other_languages_are_as_serde_has_them() {
    for run_id in [None, Some(Id([1; 16]))] {
        let report = SystemReport {
            source: "ApplicationExitInfo".into(),
            pid: 7,
            run_id,
            time: UNIX_EPOCH + Duration::new(1, 2),
            end: SystemEnd::Hung,
            details: BTreeMap::from([("reason".into(), "ANR".into())]),
            trace: b"\n\0trace".to_vec(),
        };
        let bytes = report.to_bytes();
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap();
        assert_eq!(std::str::from_utf8(line).unwrap(), serde_json::to_string(&report).unwrap());
        assert_eq!(SystemReport::read(&bytes), Some(report));
    }
    let frame = ForeignFrame { function: "f", file: Some("a\\b"), line: Some(1), column: None, in_app: true };
    assert_eq!(text(&frame.to_value()), serde_json::to_string(&frame).unwrap());
}

#[test]
fn text_reads_as_json_does() {
    let texts = [
        r#" { "a" : [ 1 , -1 , true , false , null , "" ] , "b" : { } } "#,
        r#""\"\\\/\b\f\n\r\t\u00e9\ud834\udd1e é""#,
        "-9223372036854775808",
        "18446744073709551615",
    ];
    for json in texts {
        let read: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(parse(json.as_bytes()).map(|value| value.to_json()), Some(read), "{json}");
    }
    let damaged = [
        "",
        "{",
        "[",
        "\"",
        "[1",
        "[1,]",
        "{\"a\"}",
        "{\"a\":1,}",
        "{a:1}",
        "1 2",
        "nul",
        "1.5",
        "1e3",
        "-",
        "--1",
        "18446744073709551616",
        r#""\ud834""#,
        r#""\ud834\u0041""#,
        r#""\u12""#,
        r#""\u+041""#,
        r#""\"#,
        "\u{7f}",
    ];
    for json in damaged {
        assert_eq!(parse(json.as_bytes()), None, "{json}");
    }
    assert_eq!(parse(b"\"\xff\""), None);
    assert!(parse(format!("{}{}", "[".repeat(31), "]".repeat(31)).as_bytes()).is_some());
    assert_eq!(parse("[".repeat(100_000).as_bytes()), None);
}

#[test]
fn what_is_missing_is_nothing_and_what_is_of_another_type_is_damaged() {
    assert_eq!(u32::of_json(b"null"), Some(0));
    assert_eq!(Vec::<u64>::of_json(b"null"), Some(Vec::new()));
    assert_eq!(BTreeMap::<String, u64>::of_json(b"null"), Some(BTreeMap::new()));
    assert_eq!(u32::of_json(b"4294967296"), None);
    assert_eq!(bool::of_json(b"0"), None);
    assert_eq!(Option::<Id>::of_json(b"\"no id\""), None);
    assert_eq!(LastRun::of_json(b"{}"), None);
    assert_eq!(LastRun::of_json(b"[]"), None);
    assert_eq!(LastRun::of_json(br#"{"outcome":"of a later version"}"#), None);
    assert_eq!(Duration::of_json(br#"{"secs":1,"nanos":1000000000}"#), None);
}

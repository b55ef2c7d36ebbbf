use super::*;

#[test]
fn a_record_is_read_again_and_a_damaged_one_means_first_launch() {
    let folder = tempfile::tempdir().unwrap();
    let store = Directory::open(folder.path()).unwrap();
    assert_eq!(LastRun::read(&store, 7), LastRun::FIRST_LAUNCH);
    assert_eq!(LastRun::read_latest(&store), LastRun::FIRST_LAUNCH);
    let last = LastRun {
        outcome: Outcome::Crashed,
        run: Some(Id([9; 16])),
        event_id: Some(Id([0xab; 16])),
        began: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
        ran_for: Some(Duration::from_millis(1500)),
        signal: Some(1),
        termination: Some(Termination { evidence: vec!["a word".to_owned()], ..Termination::default() }),
        signals_taken: Some("signal 11 is now handled by /usr/bin/redis-server".to_owned()),
        crashes: vec![
            PastCrash { ran_for_ms: Some(1500), signature: Some("0123456789abcdef".to_owned()) };
            MAX_CRASHES
        ],
    };
    last.write(&store, 7).unwrap();
    assert_eq!(LastRun::read(&store, 7), last);
    // Another app that shares the store has its own record.
    assert_eq!(LastRun::read(&store, 8), LastRun::FIRST_LAUNCH);
    LastRun { began: Some(SystemTime::UNIX_EPOCH), ..LastRun::FIRST_LAUNCH }.write(&store, 8).unwrap();
    assert_eq!(LastRun::read_latest(&store), last);
    store.write_atomically(&record_file_name(7), b"{\"outcome\":").unwrap();
    assert_eq!(LastRun::read(&store, 7), LastRun::FIRST_LAUNCH);
}

/// Evidence is only shown for an end with unknown cause.
#[test]
fn a_hang_takes_precedence_over_evidence_in_the_text() {
    let evidence = Termination { evidence: vec!["no core dump".to_owned()], ..Termination::default() };
    let last = |outcome| LastRun { outcome, termination: Some(evidence.clone()), ..LastRun::FIRST_LAUNCH };
    assert_eq!(last(Outcome::Hung).to_string(), Outcome::Hung.describe());
    assert!(last(Outcome::Unknown).to_string().contains("no core dump"));
}

/// Returns a crash of run `run` with this signature.
pub(super) fn crash(run: u8, signature: Option<&str>, ran_for_ms: u64) -> LastRun {
    LastRun {
        outcome: Outcome::Crashed,
        run: Some(Id([run; 16])),
        began: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(run.into())),
        crashes: vec![PastCrash { ran_for_ms: Some(ran_for_ms), signature: signature.map(ToOwned::to_owned) }],
        ..LastRun::FIRST_LAUNCH
    }
}

#[test]
fn crashes_are_counted_until_a_run_without_one() {
    assert_eq!(LastRun::FIRST_LAUNCH.consecutive_crashes(), 0);
    let mut last = crash(1, Some("b"), 5);
    for (run, signature) in [(2, "a"), (3, "a")] {
        last = crash(run, Some(signature), 5).following(&last);
    }
    assert_eq!((last.consecutive_crashes(), last.same_crashes()), (3, 2));
    // The same run, processed twice.
    let again = crash(3, Some("a"), 5).following(&last);
    assert_eq!(again, last);
    let clean =
        LastRun { outcome: Outcome::CleanExit, run: Some(Id([4; 16])), ..LastRun::FIRST_LAUNCH }.following(&last);
    assert_eq!(clean.consecutive_crashes(), 0);
    assert_eq!(crash(5, None, 5).following(&clean).consecutive_crashes(), 1);
    // A crash without a report can't be compared with others.
    assert_eq!(crash(6, None, 5).following(&crash(5, None, 5)).same_crashes(), 0);
    for run in 10..30 {
        last = crash(run, Some("a"), 5).following(&last);
    }
    assert_eq!(last.consecutive_crashes() as usize, MAX_CRASHES);
}

#[test]
fn records_of_earlier_builds_are_read() {
    let note = concat!(
        r#"{"outcome":"crashed","run":"07070707070707070707070707070707","event_id":null,"#,
        r#""began":{"secs_since_epoch":1700000000,"nanos_since_epoch":999999999},"ran_for":{"secs":1,"nanos":500000000},"#,
        r#""signal":-1,"termination":{"reason":"out_of_memory","certainty":"likely","evidence":["a \"counter\" moved\u0001"]},"#,
        r#""signals_taken":"","crashes":[{"ms":18446744073709551615,"of":"1:ab"},{"ms":null,"of":null}]}"#,
    );
    let last: LastRun = serde_json::from_str(note).unwrap();
    assert_eq!((last.outcome, last.run), (Outcome::Crashed, Some(Id([7; 16]))));
    assert_eq!(last.ran_for, Some(Duration::from_millis(1500)));
    assert_eq!(last.crashes[0].ran_for_ms, Some(u64::MAX));
    assert_eq!(serde_json::to_string(&last).unwrap(), note);
    // A record written before further fields were added.
    let short: LastRun = serde_json::from_str(r#"{"outcome":"end"}"#).unwrap_or(LastRun::FIRST_LAUNCH);
    assert_eq!(short, LastRun::FIRST_LAUNCH);
    let short: LastRun = serde_json::from_str(r#"{"outcome":"clean_exit"}  "#).unwrap();
    assert_eq!(short, LastRun { outcome: Outcome::CleanExit, ..LastRun::FIRST_LAUNCH });
}

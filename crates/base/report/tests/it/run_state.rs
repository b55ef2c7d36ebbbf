//! The run state: written data is there, whenever the process terminated.

use crate::common::{ONE_OF, Random};
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use coroner_process::{file_mirror::FileMirror, signals::SignalAction};
use coroner_report::model::{Address, AppFacts, Breadcrumb as Crumb, CrashFlag, Id, Timestamp, Value};
use coroner_report::run_state::{
    Breadcrumb, CrashRecord, CreateError, ExitKind, FIXED_BYTES, Fact, Foreground, Kind, Level, Limits, MAGIC, MAX_KEY,
    ProcessIdentity, Refused, RunState, RunStateError, Scalar, SessionStatus, Stored,
};
use coroner_report::wire::Monitor;
use coroner_report::{Report, RunFacts};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const SMALL: Limits = Limits {
    facts_bytes: 256,
    small_slots: 4,
    small_bytes: 64,
    large_slots: 3,
    large_bytes: 256,
    breadcrumbs: 4,
    breadcrumb_bytes: 128,
};

fn region(limits: &Limits) -> Vec<AtomicU64> {
    (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect()
}

fn crumb(time_ns: u64, message: &str) -> Breadcrumb<'_> {
    Breadcrumb { time_ns, level: Level::INFO, category: "test", message, ..Breadcrumb::default() }
}

#[test]
fn everything_written_is_read_back() {
    let limits = Limits::default();
    let words = region(&limits);
    let state = RunState::create(&words, &limits, [0xAB; 16], &ProcessIdentity::default()).expect("large enough");
    let mut buffer = [0; 1024];
    state
        .set_facts_with(&mut buffer, |facts| {
            facts.text(Fact::APP_ID, "com.example.app");
            facts.text(Fact::APP_VERSION, "1.2.3");
            facts.text(Fact::APP_BUILD, "");
            facts.uint(Fact::PID, 77);
            facts.uint(Fact::PROCESS_START, 5);
            facts.text(Fact::OS_NAME, "Linux");
            facts.bool(Fact::OS_ROOTED, false);
            facts.uint(Fact::DEVICE_MEMORY_SIZE, 1 << 34);
            facts.text(Fact(900), "of a later version");
        })
        .expect("they fit");
    let user = Value::Map(vec![(Value::from("id"), Value::from("u1")), (Value::from("age"), Value::Negative(0))]);
    assert_eq!(state.set_text(Kind::TAG, "language", "de"), Ok(Stored::Whole));
    assert_eq!(state.set_text(Kind::TAG, "", ""), Ok(Stored::Whole));
    state.set_cbor(Kind::USER, "", &user.to_cbor()).expect("fits");
    state.set_cbor(Kind::CONTEXT, "game", &Value::Array(vec![Value::Float(1.5), Value::Null]).to_cbor()).expect("fits");
    state.set_text(Kind::EXTRA, "note", "text is a value too").expect("fits");
    let fingerprint = Value::Array(vec![Value::from("{{ default }}"), Value::from("mine")]);
    state.set_cbor(Kind::FINGERPRINT, "", &fingerprint.to_cbor()).expect("fits");
    state.set_text(Kind(99), "later", "kind").expect("fits");
    let data = Value::Map(vec![(Value::from("url"), Value::from("https://example.org"))]).to_cbor();
    state.breadcrumb(&Breadcrumb {
        time_ns: 1_000_000_000,
        level: Level::WARNING,
        kind: "http",
        category: "net",
        message: "GET",
        data: Some(&data),
    });
    for (scalar, value) in [
        (Scalar::EXIT, u64::from(ExitKind::SIGTERM.0)),
        (Scalar::EXIT_TIME, 9),
        (Scalar::FOREGROUND, u64::from(Foreground::BACKGROUND.0)),
        (Scalar::LEVEL, u64::from(Level::ERROR.0)),
        (Scalar::SESSION_ID_HIGH, 0x0102_0304_0506_0708),
        (Scalar::SESSION_ID_LOW, 0x090A_0B0C_0D0E_0F10),
        (Scalar::SESSION_STARTED, 6),
        (Scalar::SESSION_STATUS, u64::from(SessionStatus::CRASHED.0)),
        (Scalar::LAST_ALIVE, 7),
        (Scalar::hang_duration(0).expect("a word"), 31),
        (Scalar::hang_duration(15).expect("a word"), 32),
    ] {
        state.set_scalar(scalar, value);
    }
    assert_eq!(Scalar::hang_duration(16), None);
    state.set_scalar(Scalar(200), 1); // Beyond the existing words: no effect.
    assert_eq!((state.add_scalar(Scalar::SESSION_ERRORS, 2), state.scalar(Scalar::SESSION_ERRORS)), (0, 2));

    let facts = RunFacts::read(&state.to_bytes()).expect("whole");
    assert_eq!(facts.problems, []);
    assert_eq!(facts.run_id, Id([0xAB; 16]));
    assert_eq!((facts.app.id.as_deref(), facts.app.version.as_deref()), (Some("com.example.app"), Some("1.2.3")));
    assert_eq!((facts.app.build, facts.app.pid, facts.app.process_start), (None, Some(77), Some(Timestamp(5))));
    assert_eq!((facts.os.name.as_deref(), facts.os.rooted), (Some("Linux"), Some(false)));
    assert_eq!(facts.device.memory_size, Some(1 << 34));
    assert_eq!(facts.unknown_facts[&900], Value::from("of a later version"));
    assert_eq!(facts.tags, BTreeMap::from([("language".into(), "de".into()), (String::new(), String::new())]));
    assert_eq!(facts.user, Some(user));
    assert_eq!(facts.contexts["game"], Value::Array(vec![Value::Float(1.5), Value::Null]));
    assert_eq!(facts.extra["note"], Value::from("text is a value too"));
    assert_eq!(facts.fingerprint, ["{{ default }}", "mine"]);
    assert_eq!(facts.unknown_values[&99], Value::Map(vec![(Value::from("later"), Value::from("kind"))]));
    let [breadcrumb] = facts.breadcrumbs.as_slice() else { panic!("one") };
    assert_eq!((breadcrumb.time, breadcrumb.level), (Timestamp(1_000_000_000), Level::WARNING));
    assert_eq!((breadcrumb.kind.as_deref(), breadcrumb.category.as_deref()), (Some("http"), Some("net")));
    assert_eq!(breadcrumb.message.as_deref(), Some("GET"));
    assert_eq!(breadcrumb.data.as_ref().map(Value::to_cbor), Some(data));
    let lifecycle = &facts.lifecycle;
    assert_eq!((lifecycle.exit, lifecycle.exit_time), (ExitKind::SIGTERM, Some(Timestamp(9))));
    assert_eq!((lifecycle.crashed_by, lifecycle.crash_time), (None, None));
    assert_eq!((lifecycle.foreground, lifecycle.last_alive), (Foreground::BACKGROUND, Some(Timestamp(7))));
    assert_eq!((facts.level, lifecycle.hang_since), (Some(Level::ERROR), None));
    assert_eq!(lifecycle.hang_durations_ns, BTreeMap::from([(0, 31), (15, 32)]));
    let session = facts.session.expect("there");
    assert_eq!(session.id.to_string(), "0102030405060708090a0b0c0d0e0f10");
    assert_eq!((session.started, session.errors, session.status), (Timestamp(6), 2, SessionStatus::CRASHED));

    assert_eq!(state.set_facts_with(&mut buffer, |facts| facts.uint(Fact::PID, 1)), Err(Refused::AlreadySet));
}

#[test]
fn a_child_has_its_own_process_id_and_its_parents_facts() {
    let words = region(&SMALL);
    let process = ProcessIdentity { pid: 78, ..ProcessIdentity::default() };
    let state = RunState::create(&words, &SMALL, [1; 16], &process).expect("large enough");
    let mut buffer = [0; 128];
    state
        .set_facts_with(&mut buffer, |facts| {
            facts.text(Fact::APP_ID, "app");
            facts.uint(Fact::PID, 77);
        })
        .expect("fits");
    let app = RunFacts::read(&state.to_bytes()).expect("whole").app;
    assert_eq!((app.id.as_deref(), app.pid), (Some("app"), Some(78)));
}

#[test]
fn unused_space_is_zero() {
    let limits = Limits::default();
    let words = region(&limits);
    let state = RunState::create(&words, &limits, [1; 16], &ProcessIdentity::default()).expect("large enough");
    state.set_text(Kind::TAG, "tag", "value").expect("fits");
    state.set_text(Kind::CONTEXT, "context", "value").expect("fits");
    state.breadcrumb(&crumb(1, "one"));
    let mut bytes = state.to_bytes();
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    assert!(used < bytes.len() / 2, "{used} of {}", bytes.len());
    let whole = serde_json::to_string(&RunFacts::read(&bytes).expect("whole")).expect("JSON");
    bytes.truncate(used);
    assert_eq!(serde_json::to_string(&RunFacts::read(&bytes).expect("whole")).expect("JSON"), whole);
}

#[test]
fn a_key_can_be_replaced_removed_and_set_again() {
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &ProcessIdentity::default()).expect("large enough");
    let tags = || RunFacts::read(&state.to_bytes()).expect("whole").tags;
    for i in 0..10 {
        state.set_text(Kind::TAG, "key", &format!("value {i}")).expect("fits");
        assert_eq!(tags()["key"], format!("value {i}"));
    }
    state.remove(Kind::TAG, "key").expect("not contended");
    state.remove(Kind::TAG, "never there").expect("no error");
    assert!(tags().is_empty());
    state.set_text(Kind::TAG, "key", "again").expect("fits");
    assert_eq!(tags()["key"], "again");
    state.set_text(Kind::EXTRA, "key", "another kind").expect("fits");
    state.remove(Kind::TAG, "key").expect("not contended");
    assert!(tags().is_empty());
    assert_eq!(RunFacts::read(&state.to_bytes()).expect("whole").extra.len(), 1);
}

#[test]
fn limits_are_enforced_and_reported() {
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &ProcessIdentity::default()).expect("large enough");
    for i in 0..4 {
        state.set_text(Kind::TAG, &format!("key {i}"), "v").expect("fits");
    }
    assert_eq!(state.set_text(Kind::TAG, "key 4", "v"), Err(Refused::Full));
    assert_eq!(state.set_text(Kind::TAG, "key 3", "w"), Ok(Stored::Whole));
    // The slot of a removed key serves a new one.
    state.remove(Kind::TAG, "key 1").expect("not contended");
    state.set_text(Kind::TAG, "key 4", "v").expect("room again");
    assert_eq!(state.set_text(Kind::TAG, "key 1", "v"), Err(Refused::Full));
    let tags = RunFacts::read(&state.to_bytes()).expect("whole").tags;
    assert_eq!(tags.keys().map(String::as_str).collect::<Vec<_>>(), ["key 0", "key 2", "key 3", "key 4"]);

    // 64 bytes: a key of 5 takes 8, leaving 56. 'ü' has two bytes, of which a cut leaves both or
    // none.
    assert_eq!(state.set_text(Kind::TAG, "key 0", &"ü".repeat(28)), Ok(Stored::Whole));
    assert_eq!(state.set_text(Kind::TAG, "key 0", &format!("x{}", "ü".repeat(28))), Ok(Stored::Cut));
    assert_eq!(RunFacts::read(&state.to_bytes()).expect("whole").tags["key 0"], format!("x{}", "ü".repeat(27)));
    assert_eq!(state.set_text(Kind::TAG, &"k".repeat(64), "v"), Err(Refused::Full));
    assert_eq!(state.set_text(Kind::TAG, &"k".repeat(65), "v"), Err(Refused::KeyTooLong));
    assert_eq!(state.set_text(Kind::EXTRA, &"k".repeat(MAX_KEY + 1), "v"), Err(Refused::KeyTooLong));
    assert_eq!(state.set_cbor(Kind::EXTRA, "k", &[0; 249]), Err(Refused::TooLarge));
    assert_eq!(state.set_cbor(Kind::EXTRA, "k", &Value::from("x".repeat(200).as_str()).to_cbor()), Ok(()));

    let mut buffer = [0; 4096];
    let too_long = "x".repeat(300);
    let refused = state.set_facts_with(&mut buffer, |facts| facts.text(Fact::APP_ID, &too_long));
    assert_eq!(refused, Err(Refused::TooLarge));
    let mut narrow = [0; 20];
    let mut left_out = 0;
    let set = state.set_facts_with(&mut narrow, |facts| {
        facts.text(Fact::APP_NAME, "far too long for twenty bytes");
        facts.text(Fact::APP_ID, "fits");
        left_out = facts.left_out();
    });
    assert_eq!((set, left_out), (Ok(()), 1));
    assert_eq!(RunFacts::read(&state.to_bytes()).expect("whole").app.id.as_deref(), Some("fits"));

    assert_eq!(
        RunState::create(&words[1..], &SMALL, [1; 16], &ProcessIdentity::default()).err(),
        Some(CreateError::TooSmall { needed: SMALL.size() })
    );
    let greedy = Limits { small_slots: u32::MAX, large_bytes: u32::MAX, ..SMALL };
    assert_eq!((greedy.allowed().small_slots, greedy.allowed().large_bytes), (1024, 64 << 10));
    let none = Limits {
        facts_bytes: 0,
        small_slots: 0,
        small_bytes: 0,
        large_slots: 0,
        large_bytes: 0,
        breadcrumbs: 0,
        breadcrumb_bytes: 0,
    };
    let words = region(&none);
    let state = RunState::create(&words, &none, [1; 16], &ProcessIdentity::default()).expect("large enough");
    assert_eq!(state.set_text(Kind::TAG, "", "v"), Err(Refused::Full));
    state.breadcrumb(&crumb(1, "nowhere"));
    assert_eq!(RunFacts::read(&state.to_bytes()).expect("whole").breadcrumbs, []);
}

#[test]
fn new_breadcrumbs_replace_the_oldest() {
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &ProcessIdentity::default()).expect("large enough");
    let read = || RunFacts::read(&state.to_bytes()).expect("whole");
    let messages = || read().breadcrumbs.into_iter().filter_map(|breadcrumb| breadcrumb.message).collect::<Vec<_>>();
    for i in 0..10 {
        state.breadcrumb(&crumb(i, &format!("{i}")));
    }
    assert_eq!(messages(), ["6", "7", "8", "9"]);
    assert_eq!(read().breadcrumbs_overwritten, 6);
    state.clear_breadcrumbs();
    assert_eq!(messages(), [""; 0]);
    assert_eq!(read().breadcrumbs_overwritten, 0);
    state.breadcrumb(&crumb(10, &"é".repeat(500)));
    let [long] = messages().try_into().expect("one");
    assert!(long.chars().all(|c| c == 'é') && (90..128).contains(&long.len()), "{long}");
    let huge = vec![0; 2000];
    state.breadcrumb(&Breadcrumb { data: Some(&huge), message: "without its data", ..Breadcrumb::default() });
    assert_eq!(messages()[1], "without its data");
}

#[test]
fn a_storm_of_one_message_is_one_breadcrumb_with_a_count() {
    let limits = Limits { breadcrumbs: 24, ..SMALL };
    let words = region(&limits);
    let state = RunState::create(&words, &limits, [1; 16], &ProcessIdentity::default()).expect("large enough");
    let time = 1_800_000_000_000_000_000;
    let leave = |offset: u64, message: &str| state.breadcrumb(&crumb(time + offset, message));
    leave(1, "start");
    for offset in 0..70_000 {
        leave(2 + offset, "retry");
    }
    let read = || RunFacts::read(&state.to_bytes()).expect("whole");
    let counted = || {
        let crumbs = read().breadcrumbs.into_iter();
        crumbs.map(|crumb| (crumb.message.unwrap_or_default(), crumb.repetitions)).collect::<Vec<_>>()
    };
    assert_eq!(counted(), [("start".into(), 0), ("retry".into(), 65_535)]);
    assert_eq!(read().breadcrumbs[1].last, Some(Timestamp(time + 70_001)));
    leave(80_000, "other");
    leave(80_001, "retry");
    leave(80_002, "retry");
    assert_eq!(counted()[2..], [("other".into(), 0), ("retry".into(), 1)]);
    assert_eq!((read().breadcrumbs_overwritten, read().problems), (0, vec![]));
    assert_eq!(read().breadcrumbs[1].last, None, "of the newest only");
    state.clear_breadcrumbs();
    leave(80_003, "retry");
    assert_eq!(counted(), [("retry".into(), 0)]);
    // Another level, or other data, is another breadcrumb.
    state.breadcrumb(&Breadcrumb { level: Level::ERROR, ..crumb(time + 80_004, "retry") });
    assert_eq!(counted().len(), 2);
}

#[test]
fn the_first_breadcrumbs_and_warnings_outlive_a_storm() {
    let limits = Limits { breadcrumbs: 24, ..SMALL };
    let words = region(&limits);
    let state = RunState::create(&words, &limits, [1; 16], &ProcessIdentity::default()).expect("large enough");
    let messages = || {
        let facts = RunFacts::read(&state.to_bytes()).expect("whole");
        assert_eq!(facts.problems, []);
        let overwritten = facts.breadcrumbs_overwritten;
        (facts.breadcrumbs.into_iter().filter_map(|crumb| crumb.message).collect::<Vec<_>>(), overwritten)
    };
    for number in 0..200_u64 {
        let level = if number % 20 == 19 { Level::WARNING } else { Level::INFO };
        state.breadcrumb(&Breadcrumb { level, ..crumb(number, &format!("{number}")) });
    }
    let (left, overwritten) = messages();
    let number = |text: &String| text.parse::<u64>().unwrap();
    let mut expected: Vec<u64> = vec![0, 1, 139, 159, 179, 199];
    expected.extend((0..200).rev().filter(|number| number % 20 != 19).take(18));
    expected.sort_unstable();
    assert_eq!(left.iter().map(number).collect::<Vec<_>>(), expected, "2 first, 4 warnings, 18 others");
    assert_eq!(overwritten, 176);
}

/// The values of one tag that a reader may see at any moment of an update.
fn tag_of(bytes: &[u8]) -> Option<String> {
    let facts = RunFacts::read(bytes).expect("readable");
    assert_eq!(facts.problems, []);
    assert!(facts.tags.len() <= 1);
    facts.tags.get("key").cloned()
}

#[test]
fn a_partially_written_value_is_not_read() {
    // Like after a power loss: the words of an update reached the disk in any order.
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &ProcessIdentity::default()).expect("large enough");
    let values = ["first", "the second, which is longer", "third"];
    let mut before = state.to_bytes();
    let mut previous = None;
    for value in values {
        state.set_text(Kind::TAG, "key", value).expect("fits");
        let after = state.to_bytes();
        let changed: Vec<usize> =
            (0..after.len()).step_by(8).filter(|at| before[*at..*at + 8] != after[*at..*at + 8]).collect();
        assert!(changed.len() >= 4, "at least sequence number, checksum, data and the counter");
        for missing in &changed {
            let mut torn = after.clone();
            torn[*missing..*missing + 8].copy_from_slice(&before[*missing..*missing + 8]);
            let facts = RunFacts::read(&torn).expect("readable");
            let seen = facts.tags.get("key").cloned();
            assert!(seen == previous || seen.as_deref() == Some(value), "{seen:?}");
        }
        // And any selection of them.
        let mut random = Random(7);
        for _ in 0..2000 {
            let mut torn = before.clone();
            for at in changed.iter().filter(|_| random.below(2) == 0) {
                torn[*at..*at + 8].copy_from_slice(&after[*at..*at + 8]);
            }
            let seen = RunFacts::read(&torn).expect("readable").tags.get("key").cloned();
            assert!(seen == previous || seen.as_deref() == Some(value), "{seen:?}");
        }
        previous = Some(value.to_owned());
        before = after;
    }
}

#[test]
fn damage_is_reported_and_loses_only_what_it_hit() {
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &ProcessIdentity::default()).expect("large enough");
    let mut buffer = [0; 200];
    state.set_facts_with(&mut buffer, |facts| facts.text(Fact::APP_ID, "app")).expect("fits");
    state.set_text(Kind::TAG, "a", "1").expect("fits");
    state.set_text(Kind::TAG, "b", "2").expect("fits");
    state.breadcrumb(&crumb(1, "one"));
    let good = state.to_bytes();
    let whole = RunFacts::read(&good).expect("whole");
    let mut unnoticed = 0;
    for offset in (0..good.len()).step_by(ONE_OF) {
        let mut bytes = good.clone();
        bytes[offset] ^= 0x10;
        match RunFacts::read(&bytes) {
            Ok(facts) if facts.problems.is_empty() => {
                // Meaningless bytes (padding, unused slots, counters), or a scalar, which may be
                // any number.
                let app = AppFacts { process_start: whole.app.process_start, ..facts.app.clone() };
                assert_eq!((&facts.tags, &app), (&whole.tags, &whole.app), "byte {offset}");
                let uncounted = |crumb: Crumb| Crumb { repetitions: 0, last: None, ..crumb };
                let crumbs: Vec<_> = facts.breadcrumbs.into_iter().map(uncounted).collect();
                assert_eq!(crumbs, whole.breadcrumbs, "byte {offset}");
                unnoticed += 1;
            }
            Ok(facts) => {
                let lost = (whole.tags.len() - facts.tags.len())
                    + (whole.breadcrumbs.len() - facts.breadcrumbs.len())
                    + usize::from(facts.app != whole.app);
                assert!(lost <= 1, "byte {offset}: {:?}", facts.problems);
            }
            Err(error) => assert!(offset < 80, "byte {offset}: {error}"),
        }
    }
    assert!(unnoticed > 0);
    // Truncated anywhere: read as far as it goes.
    for len in (0..good.len()).step_by(ONE_OF) {
        match RunFacts::read(&good[..len]) {
            Ok(facts) => assert!(facts.tags.iter().all(|(key, value)| whole.tags.get(key) == Some(value))),
            Err(RunStateError::Empty) => assert_eq!(len, 0),
            Err(RunStateError::NotARunState) => assert!(len < 8),
            Err(RunStateError::Damaged { .. }) => assert!(len < 128),
            Err(error) => panic!("cut at {len}: {error}"),
        }
    }
}

#[test]
fn files_that_are_not_run_states_are_rejected() {
    let words = region(&SMALL);
    assert!(matches!(RunFacts::read(&[]), Err(RunStateError::Empty)));
    assert!(matches!(RunFacts::read(&[0; 5000]), Err(RunStateError::Unwritten)));
    assert!(matches!(RunFacts::read(b"something else altogether"), Err(RunStateError::NotARunState)));
    let state = RunState::create(&words, &SMALL, [1; 16], &ProcessIdentity::default()).expect("large enough");
    let mut later = state.to_bytes();
    later[8] = 3;
    assert!(matches!(RunFacts::read(&later), Err(RunStateError::OtherVersion { version: 3 })));
    let mut random = Random(99);
    for _ in 0..5000 / ONE_OF {
        let len = random.below(3000);
        let mut bytes = [&MAGIC[..], &random.bytes(len)].concat();
        assert!(RunFacts::read(&bytes).is_err());
        // With a valid header.
        let good = state.to_bytes();
        let len = bytes.len();
        bytes[..len.min(128)].copy_from_slice(&good[..len.min(128)]);
        if let Ok(facts) = RunFacts::read(&bytes) {
            let _ = serde_json::to_string(&facts).expect("JSON");
        }
    }
    let directory = tempfile::tempdir().expect("a directory");
    assert!(matches!(RunFacts::read_file(directory.path()), Err(RunStateError::File(_))));
}

const PROCESS: ProcessIdentity =
    ProcessIdentity { pid: 4711, start: 123_456, boot_id: [0xB0; 16], pid_namespace: 4_026_531_836 };

#[test]
fn the_process_identity_is_read_back() {
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &PROCESS).expect("large enough");
    let bytes = state.to_bytes();
    let process = RunFacts::read(&bytes).expect("whole").process.expect("there");
    assert_eq!((process.pid, process.start), (PROCESS.pid, PROCESS.start));
    assert_eq!((process.boot_id, process.pid_namespace), (Id(PROCESS.boot_id), PROCESS.pid_namespace));
    // The start of the file is enough.
    assert_eq!(RunFacts::read(&bytes[..FIXED_BYTES as usize]).expect("whole").process, Some(process));
    // Any damage makes it unknown, and never another process.
    let at = bytes.windows(8).position(|window| window == 4711_u64.to_le_bytes()).expect("the process id");
    for bit in 0..6 * 64 {
        let mut bytes = bytes.clone();
        bytes[at + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(RunFacts::read(&bytes).expect("readable").process, None, "bit {bit}");
    }
    let unknown =
        RunState::create(&region(&SMALL), &SMALL, [1; 16], &ProcessIdentity::default()).map(|state| state.to_bytes());
    assert_eq!(RunFacts::read(&unknown.expect("large enough")).expect("whole").process, None);
}

fn crash(tid: u64) -> CrashRecord {
    CrashRecord {
        monitor: Monitor::SIGNAL,
        signal: -11,
        code: i64::MIN,
        errno: -1,
        address: Some(0),
        tid,
        time_ns: 1000 + tid,
        pc: u64::MAX,
        sp: 0x7FFF_0000,
    }
}

fn crash_of(state: &RunState<'_>) -> (ExitKind, Option<coroner_report::model::CrashRecord>) {
    let facts = RunFacts::read(&state.to_bytes()).expect("readable");
    assert_eq!(facts.problems, []);
    (facts.lifecycle.exit, facts.crash)
}

#[test]
fn a_crash_record_is_read_back_and_a_later_one_replaces_it() {
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &PROCESS).expect("large enough");
    assert_eq!(crash_of(&state), (ExitKind::RUNNING, None));
    let first = state.set_crash(&crash(7));
    let (exit, record) = crash_of(&state);
    let record = record.expect("there");
    assert_eq!(exit, ExitKind::CRASHED);
    assert_eq!((record.monitor, record.signal, record.code, record.errno), (Monitor::SIGNAL, -11, i64::MIN, -1));
    assert_eq!((record.address, record.tid, record.time), (Some(Address(0)), 7, Timestamp(1007)));
    assert_eq!((record.pc, record.sp, record.not_fatal), (Address(u64::MAX), Address(0x7FFF_0000), false));
    let lifecycle = RunFacts::read(&state.to_bytes()).expect("whole").lifecycle;
    assert_eq!((lifecycle.crashed_by, lifecycle.crash_time), (Some(Monitor::SIGNAL), Some(Timestamp(1007))));
    // The start of the file is enough for that, too.
    let start = RunFacts::read(&state.to_bytes()[..FIXED_BYTES as usize]).expect("whole");
    assert_eq!((start.crash, start.lifecycle), (Some(record), lifecycle));

    // The process continued, and crashed again, repeatedly.
    state.set_crash_not_fatal(first);
    let (exit, record) = crash_of(&state);
    assert!(exit == ExitKind::RUNNING && record.is_some_and(|record| record.not_fatal && record.tid == 7));
    for tid in 8..20 {
        let number = state.set_crash(&CrashRecord { address: None, ..crash(tid) });
        let (exit, record) = crash_of(&state);
        let record = record.expect("there");
        assert_eq!((exit, record.tid, record.not_fatal, record.address), (ExitKind::CRASHED, tid, false, None));
        state.set_crash_not_fatal(number);
    }
    // A record that has been replaced can't be marked any more.
    let last = state.set_crash(&crash(20));
    state.set_crash_not_fatal(last - 2);
    assert!(crash_of(&state).1.is_some_and(|record| record.tid == 20 && !record.not_fatal));
    // The app's own exit after a crash is kept: its handler continued to `exit`.
    state.set_scalar(Scalar::EXIT, ExitKind::CLEAN.0.into());
    assert_eq!(crash_of(&state).0, ExitKind::CLEAN);
    state.set_crash_not_fatal(last);
    assert_eq!(crash_of(&state).0, ExitKind::CLEAN);
}

#[test]
fn the_fatal_one_of_concurrent_crashes_counts() {
    for fatal in [0, 1] {
        let words = region(&SMALL);
        let state = RunState::create(&words, &SMALL, [1; 16], &PROCESS).expect("large enough");
        let numbers = [state.set_crash(&crash(0)), state.set_crash(&crash(1))];
        state.set_crash_not_fatal(numbers[1 - fatal]);
        let (exit, record) = crash_of(&state);
        assert_eq!((exit, record.map(|record| record.tid)), (ExitKind::CRASHED, Some(fatal as u64)));
    }
}

#[test]
fn a_partially_written_crash_record_is_not_read() {
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &PROCESS).expect("large enough");
    let mut before = state.to_bytes();
    for tid in 1..5 {
        state.set_crash(&crash(tid));
        let after = state.to_bytes();
        let changed: Vec<usize> =
            (0..after.len()).step_by(8).filter(|at| before[*at..*at + 8] != after[*at..*at + 8]).collect();
        let mut random = Random(tid);
        for _ in 0..2000 {
            let mut torn = before.clone();
            for at in changed.iter().filter(|_| random.below(2) == 0) {
                torn[*at..*at + 8].copy_from_slice(&after[*at..*at + 8]);
            }
            let seen = RunFacts::read(&torn).expect("readable").crash;
            // Both slots are not torn at once.
            let seen = seen.map(|record| record.tid);
            assert!(seen == Some(tid) || seen == tid.checked_sub(1).filter(|tid| *tid > 0), "{seen:?} while {tid}");
        }
        before = after;
    }
}

#[test]
fn crash_records_of_concurrent_threads_stay_whole() {
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &PROCESS).expect("large enough");
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for round in 0..2000 {
                    let tid = thread << 32 | round;
                    let record = CrashRecord { time_ns: tid, pc: tid, sp: tid, ..crash(tid) };
                    let number = state.set_crash(&record);
                    if round % 3 != 0 {
                        state.set_crash_not_fatal(number);
                    }
                }
            });
        }
        for _ in 0..2000 {
            let Some(record) = RunFacts::read(&state.to_bytes()).expect("readable").crash else { continue };
            assert_eq!((record.time.0, record.pc.0, record.sp.0), (record.tid, record.tid, record.tid));
        }
    });
    state.set_crash(&crash(5));
    let facts = RunFacts::read(&state.to_bytes()).expect("readable");
    assert_eq!((facts.lifecycle.exit, facts.crash.map(|record| record.tid)), (ExitKind::CRASHED, Some(5)));
}

#[test]
fn a_report_from_a_crash_record_has_its_content() {
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &PROCESS).expect("large enough");
    let facts = || RunFacts::read(&state.to_bytes()).expect("whole");
    assert!(facts().report_of_record(Id([1; 16])).is_none());
    let bad_access = CrashRecord { monitor: Monitor::MACH, signal: 1, code: 1, address: Some(8), ..crash(7) };
    let number = state.set_crash(&bad_access);
    let mut report = Report::read(&facts().report_of_record(Id([1; 16])).expect("there")).expect("whole");
    assert!(report.crash.is_none());
    report.stitch(facts());
    assert_eq!((report.header.event_id, report.header.pid), (Id([1; 16]), PROCESS.pid));
    let crash = report.crash.as_ref().expect("there");
    let mach = crash.mach.as_ref().expect("there");
    assert_eq!((mach.name, mach.code_name, mach.subcode), (Some("EXC_BAD_ACCESS"), Some("KERN_INVALID_ADDRESS"), 8));
    assert!(crash.signal.is_none() && crash.flags.is_empty());
    assert_eq!(report.crashed_thread().map(|thread| (thread.tid, thread.frames.len())), Some((7, 1)));
    // In the directory of a run other than that of the state: a child's, which copied its parent's.
    let mut report = Report::read(&facts().report_of_record(Id([2; 16])).expect("there")).expect("whole");
    report.stitch(facts());
    assert_eq!(report.header.event_id, Id([2; 16]));
    assert!(report.crash.is_some_and(|crash| crash.has(CrashFlag::ForkChild)));
    state.set_crash_not_fatal(number);
    assert!(facts().report_of_record(Id([1; 16])).is_none());
}

#[test]
fn values_of_concurrent_threads_stay_whole() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 3000;
    let limits = Limits { small_slots: THREADS as u32 + 4, large_slots: 4, breadcrumbs: 16, ..Limits::default() };
    let words = region(&limits);
    let state = RunState::create(&words, &limits, [1; 16], &ProcessIdentity::default()).expect("large enough");
    // A value that shows whether it is whole: its thread and round, repeated to a length that
    // depends on them.
    let value = |thread: usize, round: usize| format!("{thread}.{round};").repeat(1 + (thread + round) % 20);
    let whole = |text: &str| {
        let (part, _) = text.split_once(';').expect("a whole part");
        let (thread, round) = part.split_once('.').expect("two numbers");
        let (thread, round): (usize, usize) = (thread.parse().expect("a number"), round.parse().expect("a number"));
        assert_eq!(text, value(thread, round));
        thread
    };
    let running = AtomicU64::new(THREADS as u64);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let running = &running;
            scope.spawn(move || {
                let own = format!("own {thread}");
                for round in 0..ROUNDS {
                    let value = value(thread, round);
                    // A thread's own key is never overtaken.
                    assert_eq!(state.set_text(Kind::TAG, &own, &value), Ok(Stored::Whole));
                    for key in ["shared", "also shared", "sometimes"] {
                        let set = state.set_text(Kind::TAG, key, &value);
                        assert!(matches!(set, Ok(Stored::Whole) | Err(Refused::Overtaken)), "{set:?}");
                    }
                    if round % 7 == thread % 7 {
                        assert!(matches!(state.remove(Kind::TAG, "sometimes"), Ok(()) | Err(Refused::Overtaken)));
                    }
                    let _ = state.set_text(Kind::CONTEXT, "shared", &value);
                    state.breadcrumb(&crumb(round as u64, &value));
                    state.add_scalar(Scalar::SESSION_ERRORS, 1);
                }
                running.fetch_sub(1, Relaxed);
            });
        }
        // Concurrent reads: a value that is being written may be missing, but every value is whole.
        while running.load(Relaxed) > 0 {
            let facts = RunFacts::read(&state.to_bytes()).expect("readable");
            for (key, text) in &facts.tags {
                let thread = whole(text);
                assert!(!key.starts_with("own") || *key == format!("own {thread}"));
            }
            facts.contexts.values().filter_map(Value::as_str).for_each(|text| assert!(whole(text) < THREADS));
            facts
                .breadcrumbs
                .iter()
                .filter_map(|crumb| crumb.message.as_deref())
                .for_each(|text| assert!(whole(text) < THREADS));
        }
    });
    let facts = RunFacts::read(&state.to_bytes()).expect("readable");
    let damaged: Vec<_> = facts.problems.iter().filter(|problem| !problem.what.starts_with("breadcrumb")).collect();
    assert!(damaged.is_empty(), "{damaged:?}");
    for thread in 0..THREADS {
        assert_eq!(facts.tags[&format!("own {thread}")], value(thread, ROUNDS - 1));
    }
    assert!(facts.tags.contains_key("shared") && facts.contexts.contains_key("shared"));
    assert_eq!(facts.session, None);
    assert_eq!(state.scalar(Scalar::SESSION_ERRORS), (THREADS * ROUNDS) as u64);
    // A breadcrumb is lost only if a thread was delayed for a whole round of the ring.
    // None is a warning, for which two slots are kept.
    assert!(facts.breadcrumbs.len() + facts.problems.len() <= 14);
    assert_eq!(facts.breadcrumbs_overwritten, (THREADS * ROUNDS - 14) as u64);
}

/// Threads that set one key simultaneously leave one of their values, and never the earlier one.
#[test]
fn one_of_several_concurrent_values_is_kept() {
    const THREADS: usize = 2;
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &ProcessIdentity::default()).expect("large enough");
    let barrier = std::sync::Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let barrier = &barrier;
            scope.spawn(move || {
                for round in 0..3000 {
                    let value = format!("{round} by {thread}, {}", "x".repeat(30));
                    barrier.wait();
                    for _ in 0..4 {
                        let set = state.set_text(Kind::TAG, "key", &value);
                        assert!(matches!(set, Ok(Stored::Whole) | Err(Refused::Overtaken)), "{set:?}");
                    }
                    barrier.wait();
                }
            });
        }
        for round in 0..3000 {
            barrier.wait();
            barrier.wait();
            // Nobody writes until the next round begins.
            let tag = tag_of(&state.to_bytes()).expect("set");
            assert!(tag.starts_with(&format!("{round} by ")), "{tag} in round {round}");
        }
    });
}

/// Keys that come and go in a full table, from several threads.
#[test]
fn slots_are_reused_by_other_keys() {
    let limits = Limits { small_slots: 3, ..SMALL };
    let words = region(&limits);
    let state = RunState::create(&words, &limits, [1; 16], &ProcessIdentity::default()).expect("large enough");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                for _ in 0..20_000 {
                    let key = format!("key {}", random.below(6));
                    if random.below(2) == 0 {
                        let _ = state.set_text(Kind::TAG, &key, &key);
                    } else {
                        let _ = state.remove(Kind::TAG, &key);
                    }
                }
            });
        }
        for _ in 0..200 {
            let facts = RunFacts::read(&state.to_bytes()).expect("readable");
            assert!(facts.tags.iter().all(|(key, value)| key == value), "{:?}", facts.tags);
        }
    });
    // No more writers: everything can be removed, and there is room for three.
    for key in 0..6 {
        state.remove(Kind::TAG, &format!("key {key}")).expect("not contended");
    }
    assert!(RunFacts::read(&state.to_bytes()).expect("readable").tags.is_empty());
    for key in ["x", "y", "z"] {
        state.set_text(Kind::TAG, key, key).expect("room for three");
    }
    assert_eq!(RunFacts::read(&state.to_bytes()).expect("readable").tags.len(), 3);
}

/// A mapping that a child shares.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn shared_region(limits: &Limits) -> &'static [AtomicU64] {
    let (size, access) = (limits.size(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new anonymous mapping.
    let address =
        unsafe { libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED);
    // SAFETY: just mapped, and never unmapped.
    unsafe { coroner_report::run_state::words_of_mapping(address.cast(), size) }.expect("aligned")
}

/// States of a writer, each with the file's state that a reader finds: a mapping, and memory whose
/// changes are copied to a mapping by stores and by the kernel.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn writers() -> [[RunState<'static>; 2]; 3] {
    let create = |words| RunState::create(words, &SMALL, [1; 16], &ProcessIdentity::default()).expect("large enough");
    let mapped = create(shared_region(&SMALL));
    let mirrored = |handler| {
        let file = shared_region(&SMALL);
        let mirror: &'static FileMirror = Box::leak(Box::default());
        // SAFETY: mapped for as many bytes, and never unmapped, so there are no lost pages.
        unsafe {
            mirror.open(file.as_ptr() as usize);
            mirror.set_handler(handler);
        }
        let state = create(region(&SMALL).leak()).mirrored(mirror);
        state.copy_to_file(SMALL.size());
        [state, RunState::reopen(file, &SMALL)]
    };
    let handler = SignalAction::of(libc::SIGBUS).expect("a signal").handler;
    assert_ne!(handler, 0, "the standard library handles SIGBUS");
    [[mapped, mapped], mirrored(handler), mirrored(0)]
}

/// Starts a child that stops itself, then does `work` and exits.
///
/// `work` must be async-signal-safe.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn traced_child(work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child calls nothing but async-signal-safe functions and the code under test,
    // which is.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
        }
        work();
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    child
}

/// Waits until the child has stopped. `false` if it has exited.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn stopped(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSTOPPED(status) || libc::WIFEXITED(status));
    libc::WIFSTOPPED(status)
}

/// Resumes a stopped child, for one instruction or permanently.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn resume(child: libc::pid_t, request: libc::c_uint) {
    // SAFETY: our own child, which is stopped.
    assert_eq!(unsafe { libc::ptrace(request, child, 0, 0) }, 0);
}

/// A writer is stopped at some instruction while another sets the same key: one value remains.
fn tags_of(state: &RunState<'_>) -> BTreeMap<String, String> {
    let facts = RunFacts::read(&state.to_bytes()).expect("readable");
    assert!(facts.problems.is_empty(), "{:?}", facts.problems);
    facts.tags
}

#[test]
fn a_change_of_several_keys_counts_as_a_whole() {
    let tags = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let words = region(&SMALL);
    let state = RunState::create(&words, &SMALL, [1; 16], &ProcessIdentity::default()).expect("large enough");
    state.set_text(Kind::TAG, "user", "1").expect("fits");
    state.set_text(Kind::TAG, "plan", "free").expect("fits");
    let change = state.together();
    // The second update of a key must not take the place of the value that counts.
    for value in ["2", "3"] {
        change.set_text(Kind::TAG, "user", value).expect("fits");
    }
    change.remove(Kind::TAG, "plan").expect("it is there");
    change.set_text(Kind::TAG, "new", "yes").expect("fits");
    assert_eq!(tags_of(&state), tags(&[("user", "1"), ("plan", "free")]));
    // A value set by another thread meanwhile counts at once; a key whose removal doesn't count yet
    // keeps its slot.
    state.set_text(Kind::TAG, "other", "a").expect("fits");
    assert_eq!(state.set_text(Kind::TAG, "fifth", "no room"), Err(Refused::Full));
    assert_eq!(tags_of(&state), tags(&[("user", "1"), ("plan", "free"), ("other", "a")]));
    change.commit();
    assert_eq!(tags_of(&state), tags(&[("user", "3"), ("new", "yes"), ("other", "a")]));
    state.set_text(Kind::TAG, "fifth", "has the slot of `plan`").expect("fits");
    // A change that is never committed, and a later change of the same key that counts.
    let lost = state.together();
    lost.set_text(Kind::TAG, "user", "4").expect("fits");
    lost.set_text(Kind::TAG, "new", "no").expect("fits");
    state.set_text(Kind::TAG, "new", "still").expect("fits");
    let seen = tags_of(&state);
    assert_eq!((seen["user"].as_str(), seen["new"].as_str()), ("3", "still"));
}

/// Threads that change the same words leave the same in memory and in the file.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn concurrent_changes_are_all_in_the_file() {
    for [state, file] in writers() {
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                scope.spawn(move || {
                    for number in 0..2000 {
                        state.set_scalar(Scalar::EXIT_TIME, thread << 32 | number);
                        state.add_scalar(Scalar::SESSION_ERRORS, 1);
                        // Another thread may be setting the key.
                        let _ = state.set_text(Kind::TAG, "key", &format!("{thread} {number}"));
                        state.breadcrumb(&crumb(number, "one of many"));
                    }
                });
            }
        });
        assert_eq!(file.scalar(Scalar::SESSION_ERRORS), 8000);
        assert_eq!(file.scalar(Scalar::EXIT_TIME), state.scalar(Scalar::EXIT_TIME));
        assert_eq!(tags_of(&file), tags_of(&state));
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn a_writer_stopped_anywhere_damages_nothing() {
    let (mut taken, mut overtaken) = (0, 0);
    for hold_at in (0..).step_by(7) {
        let words = shared_region(&SMALL);
        let state = RunState::create(words, &SMALL, [1; 16], &ProcessIdentity::default()).expect("large enough");
        state.set_text(Kind::TAG, "key", "old").expect("fits");
        let child = traced_child(|| assert!(state.set_text(Kind::TAG, "key", "the child's").is_ok()));
        let held = stopped(child)
            && (0..hold_at).all(|_| {
                resume(child, libc::PTRACE_SINGLESTEP);
                stopped(child)
            });
        if !held {
            break;
        }
        match state.set_text(Kind::TAG, "key", "ours, and longer") {
            Ok(Stored::Whole) => taken += 1,
            Err(Refused::Overtaken) => overtaken += 1,
            other => panic!("{other:?}"),
        }
        resume(child, libc::PTRACE_CONT);
        assert!(!stopped(child));
        let tag = tag_of(&state.to_bytes());
        assert!(matches!(tag.as_deref(), Some("the child's" | "ours, and longer")), "held at {hold_at}: {tag:?}");
    }
    assert!(taken > 10 && overtaken > 10, "{taken} taken, {overtaken} overtaken");
}

/// A child is stopped after every single instruction of its updates.
///
/// Its shared memory then has the contents that a `SIGKILL` at that instruction would leave.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn a_kill_at_any_instruction_leaves_whole_values() {
    writers().into_iter().for_each(kill_at_any_instruction);
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn kill_at_any_instruction([state, file]: [RunState<'static>; 2]) {
    state.set_text(Kind::TAG, "key", "old").expect("fits");
    state.breadcrumb(&crumb(1, "one"));
    let child = traced_child(|| {
        let _ = state.set_text(Kind::TAG, "key", "new, and longer than it was");
        state.breadcrumb(&crumb(2, "two"));
        let _ = state.remove(Kind::TAG, "key");
        let number = state.set_crash(&crash(1));
        state.set_crash(&crash(2));
        state.set_crash_not_fatal(number);
    });
    let stages = [Some("old".to_owned()), Some("new, and longer than it was".to_owned()), None];
    let (mut stage, mut crumbs, mut crashes, mut steps) = (0, 1, 0, 0u64);
    while stopped(child) {
        let bytes = file.to_bytes();
        let seen = tag_of(&bytes);
        if seen != stages[stage] {
            stage += 1;
            assert_eq!(Some(&seen), stages.get(stage), "after {steps} instructions");
        }
        let messages: Vec<String> = RunFacts::read(&bytes)
            .expect("readable")
            .breadcrumbs
            .into_iter()
            .filter_map(|crumb| crumb.message)
            .collect();
        assert!(messages == ["one"] || messages == ["one", "two"], "{messages:?}");
        assert!(messages.len() >= crumbs, "a breadcrumb went");
        crumbs = messages.len();
        let (exit, crash) = crash_of(&file);
        let crash = crash.map_or(0, |record| record.tid);
        assert!(crash >= crashes && (exit == ExitKind::CRASHED) == (crash > 0), "{exit} {crash} after {crashes}");
        crashes = crash;
        steps += 1;
        resume(child, libc::PTRACE_SINGLESTEP);
    }
    assert_eq!((stage, crumbs, crashes), (2, 2, 2), "after {steps} instructions");
    assert!(steps > 1000, "only {steps} instructions were looked at");
    println!("looked after each of {steps} instructions");
}

/// A killed change of three keys takes effect wholly or not at all, after each instruction.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn a_change_killed_at_any_instruction_is_all_or_nothing() {
    writers().into_iter().for_each(change_killed_at_any_instruction);
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn change_killed_at_any_instruction([state, file]: [RunState<'static>; 2]) {
    state.set_text(Kind::TAG, "user", "1").expect("fits");
    state.set_text(Kind::TAG, "plan", "free").expect("fits");
    let before = tags_of(&file);
    let child = traced_child(|| {
        let change = state.together();
        let _ = change.set_text(Kind::TAG, "user", "2");
        let _ = change.set_text(Kind::TAG, "user", "3");
        let _ = change.remove(Kind::TAG, "plan");
        let _ = change.set_text(Kind::TAG, "new", "yes");
        change.commit();
    });
    let (mut committed, mut steps) = (None, 0_u64);
    while stopped(child) {
        let seen = tags_of(&file);
        if seen != before {
            let first = committed.get_or_insert_with(|| (steps, seen.clone()));
            assert_eq!(first.1, seen, "after {steps} instructions");
        }
        steps += 1;
        resume(child, libc::PTRACE_SINGLESTEP);
    }
    let (at, after) = committed.expect("the change was committed");
    assert!(at > 300, "it was seen after {at} of {steps} instructions");
    let values: Vec<_> = after.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(values, [("new", "yes"), ("user", "3")]);
}

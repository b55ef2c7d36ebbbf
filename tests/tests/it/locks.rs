//! Threads on Apple's systems that wait for each other's locks: real processes, and the reported
//! owner of each lock.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// Runs the program on this system, as simulated by darwin-host.
fn run(store: &Path, act: &str, system: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lock_program"));
    command.arg(store).arg(act).env("DARWIN_HOST_SYSTEM", system);
    command.output().expect("it runs")
}

/// Returns the only report of the act, as the next launch delivered it.
fn report_of(act: &str, system: &str) -> Value {
    let store = tempfile::tempdir().expect("a folder");
    let ended = run(store.path(), act, system);
    assert_eq!(ended.status.success(), act == "hang", "{ended:?}");
    let flushed = run(store.path(), "flush", system);
    assert!(flushed.status.success(), "{flushed:?}");
    let entries = std::fs::read_dir(store.path().join("reports")).expect("reports").flatten().map(|entry| entry.path());
    let json: Vec<_> = entries.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
    let [json] = json.as_slice() else { panic!("{} reports", json.len()) };
    serde_json::from_slice(&std::fs::read(json).expect("a report")).expect("JSON")
}

/// Returns the numbers of the report's threads by name, the main thread's as `main`.
fn threads(report: &Value) -> BTreeMap<&str, u64> {
    let threads = report["threads"].as_array().expect("threads").iter();
    let named = threads.filter_map(|thread| {
        let name = if thread["main"] == true { Some("main") } else { thread["name"].as_str() };
        Some((name?, thread["tid"].as_u64()?))
    });
    named.collect()
}

/// Returns the name, kind, owner and time limit of each wait.
fn waits(report: &Value) -> BTreeMap<&str, (&str, Option<&str>, bool)> {
    let by_name = threads(report);
    let named = |tid: &Value| by_name.iter().find(|(_, other)| tid == **other).map(|(name, _)| *name);
    let waits = report["explanation"]["waits"].as_array().expect("waits").iter();
    let named = waits.map(|wait| {
        assert_eq!(wait["owner_is"], if wait["owner"].is_null() { "unknown" } else { "in_report" }, "{wait}");
        let kind = wait["kind"].as_str().expect("a kind");
        (named(&wait["tid"]).expect("a thread"), (kind, named(&wait["owner"]), wait["timed"] == true))
    });
    named.collect()
}

fn crash(system: &str, call: &str) {
    let report = report_of("crash", system);
    let expected = [
        ("condition", ("condition", None, false)),
        ("joins mutex-1", ("thread_end", Some("mutex-1"), false)),
        ("mutex of an ended thread", ("mutex", None, false)),
        ("mutex of main", ("mutex", Some("main"), false)),
        ("mutex-1", ("mutex", Some("mutex-2"), false)),
        ("mutex-2", ("mutex", Some("mutex-1"), false)),
        ("reads what main writes", ("read_lock", Some("main"), false)),
        ("timed condition", ("condition", None, true)),
        ("unfair of main", ("unfair_lock", Some("main"), false)),
        ("unfair that changed", ("unfair_lock", None, false)),
        ("unfair-1", ("unfair_lock", Some("unfair-2"), false)),
        ("unfair-2", ("unfair_lock", Some("unfair-1"), false)),
        ("writes what main reads", ("write_lock", None, false)),
    ];
    assert_eq!(waits(&report), BTreeMap::from(expected), "{}", report["explanation"]);

    let by_name = threads(&report);
    let mut circles: Vec<Vec<u64>> =
        serde_json::from_value(report["explanation"]["deadlocks"].clone()).expect("circles");
    circles.iter_mut().for_each(|circle| circle.sort_unstable());
    circles.sort_unstable();
    let circle = |names: [&str; 2]| {
        let mut tids = names.map(|name| by_name[name]).to_vec();
        tids.sort_unstable();
        tids
    };
    let mut both = vec![circle(["unfair-1", "unfair-2"]), circle(["mutex-1", "mutex-2"])];
    both.sort_unstable();
    assert_eq!(circles, both);
    let printed = report["explanation"]["facts"].as_array().expect("facts");
    let deadlocks: Vec<_> =
        printed.iter().filter(|fact| fact.as_str().is_some_and(|fact| fact.starts_with("deadlock: "))).collect();
    assert_eq!(deadlocks.len(), 2, "{printed:?}");

    // The functions of Apple's libraries, and the system call at their end. Under full emulation,
    // no time is left to find names during the crash.
    let is_named = std::env::var_os("CORONER_TEST_EMULATED").is_none();
    let all = report["threads"].as_array().expect("threads");
    let begins = |name, syscall: &str, functions: &[[&str; 2]]| {
        let thread = all.iter().find(|thread| thread["name"] == name).expect("a thread");
        assert_eq!((&thread["syscall_name"], &thread["state"]), (&syscall.into(), &"blocked".into()), "{thread}");
        for (frame, [library, function]) in thread["frames"].as_array().expect("frames").iter().zip(functions) {
            assert_eq!(frame["module"], format!("/usr/lib/system/libsystem_{library}.dylib"), "{thread}");
            assert!(frame["function"] == *function || !is_named, "{thread}");
        }
    };
    let stub = format!("__{call}");
    let unfair = [["kernel", &stub], ["platform", "_os_unfair_lock_lock_slow"], ["platform", "os_unfair_lock_lock"]];
    begins("unfair-1", call, &unfair);
    begins(
        "mutex-1",
        "psynch_mutexwait",
        &[
            ["kernel", "__psynch_mutexwait"],
            ["pthread", "_pthread_mutex_firstfit_lock_wait"],
            ["pthread", "_pthread_mutex_firstfit_lock_slow"],
            ["pthread", "pthread_mutex_lock"],
        ],
    );
    let condition =
        [["kernel", "__psynch_cvwait"], ["pthread", "_pthread_cond_wait"], ["pthread", "pthread_cond_wait"]];
    begins("condition", "psynch_cvwait", &condition);
    assert!(all.iter().all(|thread| thread["port"].is_u64()), "each thread has its port");
}

#[test]
fn a_crash_report_has_lock_waits_and_deadlocks() {
    crash("11", "ulock_wait");
}

#[test]
fn on_a_later_system() {
    crash("14", "ulock_wait2");
}

#[test]
fn a_deadlock_is_reported_as_a_hang() {
    let report = report_of("hang", "11");
    let by_name = threads(&report);
    let (main, partner) = (by_name["main"], by_name["partner"]);
    assert_eq!(report["explanation"]["deadlocks"], json!([[main, partner]]), "{}", report["explanation"]);
    let printed = report["explanation"]["waits_for"].as_str().unwrap_or_default();
    assert!(
        printed.starts_with(&format!("deadlock: thread {main} ("))
            || printed.starts_with(&format!("deadlock: thread {main} waits")),
        "{printed}"
    );
    assert!(
        printed.contains(&format!("waits for thread {partner} (partner), which waits for thread {main}")),
        "{printed}"
    );
    assert!(
        report["explanation"]["headline"].as_str().is_some_and(|line| line.ends_with(printed)),
        "{}",
        report["explanation"]
    );
}

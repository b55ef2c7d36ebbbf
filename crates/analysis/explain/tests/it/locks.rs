//! Waits and deadlocks of real C programs.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use coroner_explain::{Explanation, LockWait, NoCode, OwnerIs, WaitKind, explain};
use coroner_report::Report;
use coroner_symbols::{Options, Symbolizer};

use crate::common::copy_library_to;

// Builds the library that the programs are linked with.
use coroner_ffi as _;

/// Expected waits: thread, kind and owner.
type Waits = &'static [(usize, WaitKind, Has)];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Has {
    /// A thread of the program.
    Thread(usize),
    /// An unknown owner.
    Unknown,
    /// A thread that has exited.
    Gone(usize),
    /// A thread of another process.
    Elsewhere,
}

use Has::{Elsewhere, Gone, Thread, Unknown};
use WaitKind::{Condition, Mutex, ReadLock, Semaphore, ThreadEnd, WriteLock};

/// Each case with its waits and the threads of its deadlock.
const ACTS: &[(&str, Waits, &[usize])] = &[
    ("two-mutexes", &[(0, Mutex, Thread(1)), (1, Mutex, Thread(0))], &[0, 1]),
    ("recursive", &[(0, Mutex, Thread(1)), (1, Mutex, Thread(0))], &[0, 1]),
    ("errorcheck", &[(0, Mutex, Thread(1)), (1, Mutex, Thread(0))], &[0, 1]),
    // The wait has a timeout.
    ("timed", &[(0, Mutex, Thread(1)), (1, Mutex, Thread(0))], &[]),
    ("contended", &[(1, Mutex, Thread(0))], &[]),
    ("self", &[(0, Mutex, Thread(0))], &[0]),
    ("pi-contended", &[(1, Mutex, Thread(0))], &[]),
    ("dead-owner", &[(1, Mutex, Gone(0))], &[]),
    ("robust-owner", &[(1, Mutex, Thread(2)), (2, Mutex, Thread(1))], &[1, 2]),
    ("rwlocks-read", &[(0, ReadLock, Thread(1)), (1, ReadLock, Thread(0))], &[0, 1]),
    ("rwlocks-write", &[(0, WriteLock, Thread(1)), (1, WriteLock, Thread(0))], &[0, 1]),
    ("rwlock-readers", &[(1, WriteLock, Unknown)], &[]),
    ("join", &[(0, ThreadEnd, Thread(1)), (1, Mutex, Thread(0))], &[0, 1]),
    ("conditions", &[(0, Condition, Unknown), (1, Condition, Unknown)], &[]),
    ("condition-mutex", &[(0, Mutex, Thread(1)), (1, Mutex, Thread(0))], &[0, 1]),
    ("semaphore", &[(0, Semaphore, Unknown)], &[]),
    ("another-process", &[(0, Mutex, Elsewhere)], &[]),
];

fn build(folder: &Path) -> PathBuf {
    let program = folder.join("locks");
    let mut command = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    command.args(["-O1", "-g", "-pthread", "-o"]).arg(&program).arg("tests/locks.c");
    command.args(["-I", "../../bindings/ffi/include"]).arg(copy_library_to(folder));
    command.arg(format!("-Wl,-rpath,{}", folder.display()));
    let built = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(built.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&built.stderr));
    program
}

/// A running program, which is killed when this is dropped, because it may wait forever.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the program, and returns its thread ids by number and its report.
fn run(program: &Path, store: &Path, act: &str, end: &str) -> (BTreeMap<usize, u64>, Report) {
    let mut command = Command::new("sh");
    // Cargo's value starts with the folder of an earlier build.
    command.env_remove("LD_LIBRARY_PATH");
    command.args(["-c", "ulimit -c 0; exec \"$@\"", "sh"]).arg(program).arg(store).args([act, end]);
    let mut running = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut tids = BTreeMap::new();
    let report = store.join("runs");
    let of_run = || Some(std::fs::read_dir(&report).ok()?.next()?.ok()?.path());
    let output = BufReader::new(running.0.stdout.take().unwrap());
    let lines = std::thread::spawn(move || output.lines().map_while(Result::ok).collect::<Vec<_>>());
    let until = Instant::now() + Duration::from_mins(1);
    let name = if end == "hang" { "report-9" } else { "report" };
    let report = loop {
        assert!(Instant::now() < until, "{act} {end}: no report");
        let read = of_run().and_then(|run| Report::read_file(run.join(name)).ok());
        match read {
            Some(report) if report.end.is_some() => break report,
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    drop(running);
    for line in lines.join().unwrap() {
        let mut words = line.split(' ').map(str::parse);
        if let (Some(Ok(number)), Some(Ok(tid))) = (words.next(), words.next()) {
            tids.insert(number as usize, tid);
        }
    }
    (tids, report)
}

/// Returns the threads whose waiting functions have no name, so that the waits' kinds are unknown.
///
/// In these cases, glibc's exported functions jump to local functions, whose names only glibc's
/// debug file contains (Debian's libc6-dbg).
fn find_unnamed(act: &str, report: &Report) -> Vec<u64> {
    // Coroner's own `pthread_create` module is also on each thread's stack.
    let is_wait = |name: &str| (name.contains("pthread_") || name.contains("sem_")) && !name.contains("::");
    let is_named = |thread: &coroner_report::model::Thread| {
        thread.frames.iter().filter_map(|frame| frame.function.as_deref()).any(is_wait)
    };
    let unnamed = report.threads.iter().filter(|thread| !is_named(thread)).map(|thread| thread.tid);
    if ["timed", "robust-owner", "join", "semaphore"].contains(&act) { unnamed.collect() } else { Vec::new() }
}

fn check(
    act: &str,
    waits: Waits,
    circle: &[usize],
    tids: &BTreeMap<usize, u64>,
    explanation: &Explanation,
    unnamed: &[u64],
) {
    let context =
        || format!("{act}: {tids:?}\n{:#?}\n{:?}\n{:?}", explanation.waits, explanation.deadlocks, explanation.facts);
    for number in tids.keys() {
        let found: Vec<&LockWait> = explanation.waits.iter().filter(|wait| wait.tid == tids[number]).collect();
        let expected = waits.iter().find(|(thread, ..)| thread == number);
        let Some((_, kind, has)) = expected else {
            assert!(found.is_empty(), "thread {number} must not wait. {}", context());
            continue;
        };
        let [wait] = found.as_slice() else { panic!("thread {number} must wait. {}", context()) };
        let is_known = !unnamed.contains(&tids[number]);
        let (kind, has) = if is_known { (*kind, has) } else { (WaitKind::Futex, &Unknown) };
        let (owner, owner_is) = match has {
            Thread(other) => (Some(tids[other]), OwnerIs::InReport),
            Unknown => (None, OwnerIs::Unknown),
            Gone(other) => (Some(tids[other]), OwnerIs::Gone),
            Elsewhere => (wait.owner.filter(|owner| !tids.values().any(|tid| tid == owner)), OwnerIs::Elsewhere),
        };
        assert_eq!((wait.kind, wait.owner, wait.owner_is), (kind, owner, owner_is), "{}", context());
        assert_eq!(wait.owner.is_some(), *has != Unknown, "{}", context());
        assert_eq!(wait.timed, act == "timed" || (act == "conditions" && *number == 1), "{}", context());
    }
    let mut circles: Vec<Vec<u64>> = explanation.deadlocks.clone();
    circles.iter_mut().for_each(|circle| circle.sort_unstable());
    let mut expected: Vec<u64> = circle.iter().map(|number| tids[number]).collect();
    expected.sort_unstable();
    assert_eq!(circles, Vec::from_iter((!expected.is_empty()).then_some(expected)), "{}", context());
}

#[test]
fn waits_and_deadlocks_of_real_programs_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path());
    let mut symbolizer = Symbolizer::new(Options::default());
    let mut run_and_explain = |act: &str, end: &str| {
        let (tids, mut report) = run(&program, &folder.path().join(format!("{act}-{end}")), act, end);
        symbolizer.symbolicate_report(&mut report);
        let explanation = explain(&report, &NoCode);
        println!("{act} {end}: {}; {:?}", explanation.headline, explanation.facts);
        let unnamed = find_unnamed(act, &report);
        (tids, explanation, unnamed)
    };
    for (act, waits, circle) in ACTS {
        let (tids, explanation, unnamed) = run_and_explain(act, "crash");
        let circle = if circle.iter().any(|number| unnamed.contains(&tids[number])) { &[] } else { *circle };
        check(act, waits, circle, &tids, &explanation, &unnamed);
        assert!(
            explanation.waits_for.is_none() && !explanation.headline.contains("wait"),
            "{act}: {}",
            explanation.headline
        );
        let has_deadlock = explanation.facts.iter().any(|fact| fact.starts_with("deadlock: thread "));
        assert_eq!(has_deadlock, !circle.is_empty(), "{act}: {:?}", explanation.facts);
    }
    for end in ["abort", "hang"] {
        for (act, waits, circle) in ACTS.iter().filter(|(act, ..)| ["two-mutexes", "contended", "join"].contains(act)) {
            let (tids, explanation, unnamed) = run_and_explain(act, end);
            if circle.iter().any(|number| unnamed.contains(&tids[number])) {
                check(act, waits, &[], &tids, &explanation, &unnamed);
                continue;
            }
            check(act, waits, circle, &tids, &explanation, &unnamed);
            let first = tids[&0];
            match *act {
                "contended" => assert_eq!(explanation.waits_for, None, "the first thread has the mutex"),
                _ => {
                    let waits_for = explanation.waits_for.clone().unwrap();
                    assert!(waits_for.starts_with(&format!("deadlock: thread {first} (")), "{waits_for}");
                    assert!(waits_for.contains(&format!(", which waits for thread {first} (")), "{waits_for}");
                    assert!(explanation.headline.contains(&waits_for), "{}", explanation.headline);
                    assert_eq!(explanation.deadlocks, [[first, tids[&1]]]);
                }
            }
        }
    }
}

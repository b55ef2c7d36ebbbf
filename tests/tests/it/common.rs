//! Shared code of the crash session tests: a separate store, scenarios of `session_program`, and
//! waiting for children.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::BufReader;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use coroner_tests::process::{Ended, Run};
use serde_json::Value;

pub(crate) const SESSION: &str = env!("CARGO_BIN_EXE_session_program");
pub(crate) const CRASH: &str = env!("CARGO_BIN_EXE_crash_program");

/// Returns the number of repetitions of a test.
pub(crate) fn repetitions(few: u64) -> u64 {
    std::env::var("CORONER_REPETITIONS").ok().map_or(few, |text| text.parse().expect("CORONER_REPETITIONS is a number"))
}

/// Returns the `n`-th of a number of delays from `least` to `most`.
pub(crate) fn sweep(count: u64, least: u64, most: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |n| least + (most - least) * n / count.max(1))
}

/// A separate store.
pub(crate) struct Store {
    folder: tempfile::TempDir,
}

impl Store {
    pub(crate) fn new() -> Self {
        Store { folder: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Runs a scenario to its end with this store.
    pub(crate) fn run(&self, scenario: &str, number: u64) -> Ended {
        run(Some(&self.path()), scenario, number)
    }

    /// Starts the next launch; returns its line about the last run.
    pub(crate) fn next_launch(&self) -> String {
        let run =
            Run { program: Path::new(CRASH), fault: "deliver", threads: 0, conditions: &[], first_process: false };
        let ended = run.run(Some(&self.path())).expect("the next launch ends");
        assert!(ended.status.success(), "the next launch ends with {}: {}", ended.status, ended.output);
        ended.output.trim().to_owned()
    }

    /// Returns the reports that the next launches have delivered.
    pub(crate) fn delivered(&self) -> Vec<Value> {
        let entries = std::fs::read_dir(self.path().join("reports")).into_iter().flatten().flatten();
        let json = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|kind| kind == "json"));
        json.map(|path| serde_json::from_slice(&std::fs::read(path).expect("a report")).expect("JSON")).collect()
    }

    /// Returns the only fatal crash report, once it has been delivered.
    pub(crate) fn delivered_crash(&self) -> Value {
        let mut fatal = self.delivered();
        fatal.retain(|report| !has_flag(report, "not_fatal"));
        assert_eq!(fatal.len(), 1, "one death, one report");
        fatal.remove(0)
    }
}

pub(crate) fn has_flag(report: &Value, flag: &str) -> bool {
    report["crash"]["flags"].as_array().is_some_and(|flags| flags.iter().any(|other| other == flag))
}

pub(crate) fn run(store: Option<&Path>, scenario: &str, number: u64) -> Ended {
    let run = Run {
        program: Path::new(SESSION),
        fault: scenario,
        threads: number as usize,
        conditions: &[],
        first_process: false,
    };
    run.run(store).unwrap_or_else(|error| panic!("{scenario} {number}: {error:#}"))
}

/// Returns the number that a scenario printed under this name.
pub(crate) fn printed_number(output: &str, name: &str) -> u64 {
    let mut lines = output.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let value = lines.next().unwrap_or_else(|| panic!("{name:?} was not printed: {output:?}"));
    value.parse().expect("a number")
}

/// Returns the exit code and the signal of a process that has ended.
pub(crate) fn ending(status: ExitStatus) -> (Option<i32>, Option<i32>) {
    (status.code(), status.signal())
}

/// Waits for a child. Kills it at the time limit, and then returns `None`.
pub(crate) fn wait(child: &mut Child) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("its status") {
            return Some(status);
        }
        if begun.elapsed() > Duration::from_secs(20) {
            child.kill().expect("it can be killed");
            child.wait().expect("its status");
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn spawn(store: Option<&Path>, scenario: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new(SESSION);
    command.arg(store.unwrap_or(Path::new("-"))).args([scenario, "0"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a child");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    (child, output)
}

pub(crate) fn line(output: &mut impl std::io::BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    line
}

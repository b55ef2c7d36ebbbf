//! Runs the examples and checks their output.
#![cfg(any(target_os = "linux", target_os = "android"))]

use std::path::PathBuf;
use std::process::Command;

/// Returns the path of an example, which `cargo test` builds beside the tests.
fn program(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let path = this.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is missing; run `cargo build -p coroner-unwind --examples`", path.display());
    path
}

/// Returns an example's output lines.
fn output(name: &str) -> Vec<String> {
    let runner = std::env::var("CORONER_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let mut command = match words.next() {
        Some(emulator) => {
            let mut command = Command::new(emulator);
            command.args(words).arg(program(name));
            command
        }
        None => Command::new(program(name)),
    };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Returns the last word of a line: how a frame was found.
fn found(line: &str) -> &str {
    line.rsplit("  ").next().unwrap().split_once(' ').map_or("", |(_, found)| found)
}

#[test]
fn current_thread_prints_the_same_frames_twice() {
    let lines = output("current_thread");
    let warm = lines.iter().position(|line| line == "warm:").unwrap();
    assert_eq!(lines[0], "cold:");
    let (cold, warm) = (&lines[1..warm], &lines[warm + 1..]);
    assert_eq!(cold[..cold.len() - 1], warm[..warm.len() - 1], "the same frames");
    assert!(cold.len() > 6, "{lines:#?}");
    let reads = |walk: &[String]| -> u32 {
        let line = walk.last().unwrap();
        assert!(line.contains("EndOfStack"), "{line}");
        line.split_whitespace().rev().nth(1).unwrap().parse().unwrap()
    };
    assert!(reads(warm) < reads(cold), "the rules were cached: {lines:#?}");
}

#[test]
fn another_thread_prints_frames() {
    let lines = output("another_thread");
    assert!(lines.last().unwrap().contains("EndOfStack"), "{lines:#?}");
    assert!(lines[0].starts_with("0x") && found(&lines[0]).contains("context"), "{lines:#?}");
    // The thread's innermost function, and its callers in the program, the standard library and the
    // C library.
    assert!(lines.iter().filter(|line| line.starts_with("0x")).count() >= 8, "{lines:#?}");
}

#[test]
fn snapshot_walks_to_the_end() {
    let lines = output("snapshot");
    assert_eq!(lines.last().unwrap(), "Some(EndOfStack), None");
    assert!(lines.len() > 6, "{lines:#?}");
}

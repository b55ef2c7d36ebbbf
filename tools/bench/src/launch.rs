//! `bench launch`: measures a crash reporter's whole cost per launch of a small tool.
//!
//! It measures processor time, wall time, system calls and resident memory.
//!
//! Coroner, crash-handler with minidumper, `sentry`, `human-panic` and no reporter take turns in
//! every round; each is set up as its own README describes, in the same program (`launch-bench`).
//! For Coroner it also measures the first launch, which creates the store, the launch after a
//! crash, and whether 1,000 launches of two milliseconds deliver the report of one crash.
//!
//! Processor time is that of the process and of its children that it waits for, as accounted by the
//! kernel; minidumper's server is not fully included, because nothing waits for it. System calls
//! are counted by a tracer in a separate launch. Memory is read by the program itself at its end,
//! in two kinds: its own, written pages; and pages of files (code and constants), which all
//! processes share and which the kernel maps 16 at a time and drops when it needs memory. Coroner's
//! include 32 KiB of the run's files.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::Serialize;

use super::capture::median;
use toolbox::system_calls::system_calls;
use toolbox::tools;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Run this many rounds and take the median; a first one is discarded
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Leave out the peers
    #[arg(long)]
    alone: bool,
}

/// No reporter comes first: the other costs are relative to it.
const REPORTERS: [&str; 5] = ["none", "coroner", "minidumper", "sentry", "human-panic"];

/// A kind of launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Launch {
    First,
    Later,
    /// With a report waiting for delivery.
    AfterCrash,
}

const LAUNCHES: [Launch; 3] = [Launch::First, Launch::Later, Launch::AfterCrash];

/// One launch.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    /// Processor time in nanoseconds.
    processor: u64,
    wall: u64,
}

/// One reporter's launches of one kind: the cost above the program without a reporter.
#[derive(Serialize)]
struct Row {
    reporter: &'static str,
    launch: Launch,
    /// Milliseconds, medians.
    processor_ms: f64,
    wall_ms: f64,
    system_calls: i64,
    memory_kib: i64,
    /// The part of the memory that is the process's own.
    own_kib: i64,
}

/// Runs the benchmark.
///
/// # Errors
/// An error if a program can't be built or run, or a report is lost.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    ensure!(arguments.rounds > 0, "nothing to measure");
    let reporters = if arguments.alone { &REPORTERS[..2] } else { &REPORTERS[..] };
    let programs: Vec<PathBuf> = reporters.iter().map(|reporter| build(reporter)).collect::<anyhow::Result<_>>()?;
    let mut samples: Vec<[Vec<Sample>; 3]> = reporters.iter().map(|_| Default::default()).collect();
    for round in 0..=arguments.rounds {
        for (program, samples) in programs.iter().zip(&mut samples) {
            for (launch, samples) in LAUNCHES.into_iter().zip(samples) {
                let folder = prepared(program, launch)?;
                let sample = timed(program, folder.path())?;
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    println!(
        "{:<13} {:<12} {:>14} {:>10} {:>13} {:>12} {:>13} {:>13}",
        "reporter", "launch", "processor, ms", "wall, ms", "system calls", "memory, KiB", "own, KiB", "of files, KiB"
    );
    let mut none = [(0.0, 0.0, 0, (0, 0)); 3];
    for ((reporter, program), samples) in reporters.iter().zip(&programs).zip(&samples) {
        for (index, launch) in LAUNCHES.into_iter().enumerate() {
            let of = |part: fn(&Sample) -> u64| milliseconds(median(samples[index].iter().map(part)));
            let calls = system_calls(command(program, prepared(program, launch)?.path(), "run"), &mut |_| ())?;
            let memory = memory(program, prepared(program, launch)?.path())?;
            let all = (of(|sample| sample.processor), of(|sample| sample.wall), calls, memory);
            if *reporter == "none" {
                none[index] = all;
            }
            let base = if *reporter == "none" { (0.0, 0.0, 0, (0, 0)) } else { none[index] };
            let row = Row {
                reporter,
                launch,
                processor_ms: all.0 - base.0,
                wall_ms: all.1 - base.1,
                system_calls: all.2 - base.2,
                memory_kib: all.3.0 - base.3.0,
                own_kib: all.3.1 - base.3.1,
            };
            println!(
                "{:<13} {:<12} {:>14.2} {:>10.2} {:>13} {:>12} {:>13} {:>13}",
                row.reporter,
                format!("{launch:?}"),
                row.processor_ms,
                row.wall_ms,
                row.system_calls,
                row.memory_kib,
                row.own_kib,
                row.memory_kib - row.own_kib
            );
            rows.push(row);
        }
    }
    println!("(`none` in all; the others above it)");
    let first = after_one_crash(&programs[1])?;
    println!("1,000 launches of 2 ms after one crash: the report is there after launch {first}, and once at the end");
    if arguments.json {
        println!(
            "{}",
            serde_json::json!({ "tool": "bench", "bench": "launch", "rows": rows, "report_after_launch": first })
        );
    }
    Ok(())
}

/// Builds the program with a reporter.
fn build(reporter: &str) -> anyhow::Result<PathBuf> {
    let manifest = tools::workspace_root().join("tools/bench/launch-bench/Cargo.toml");
    let target = tools::target_dir().join("launch-bench").join(reporter);
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--locked", "--quiet", "--manifest-path"]).arg(manifest);
    command.arg("--target-dir").arg(&target);
    if reporter != "none" {
        command.args(["--features", reporter]);
    }
    let status = command.status().context("running cargo")?;
    ensure!(status.success(), "can't build launch-bench with {reporter}");
    Ok(target.join("release/launch-bench"))
}

/// Prepares a folder in which the next launch is of this kind.
fn prepared(program: &Path, launch: Launch) -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    match launch {
        Launch::First => {}
        Launch::Later => {
            timed(program, folder.path())?;
        }
        Launch::AfterCrash => {
            let status = command(program, folder.path(), "crash").stderr(Stdio::null()).status()?;
            ensure!(status.signal().is_some(), "{} did not crash", program.display());
        }
    }
    Ok(folder)
}

fn command(program: &Path, folder: &Path, what: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(folder).arg(what).stdout(Stdio::null());
    command
}

/// Times one launch from outside.
fn timed(program: &Path, folder: &Path) -> anyhow::Result<Sample> {
    let began = Instant::now();
    let child = command(program, folder, "run").spawn().with_context(|| format!("starting {}", program.display()))?;
    let (mut status, mut usage) = (0, empty_usage());
    // SAFETY: both are written by the kernel, for a child that only this function waits for.
    let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &raw mut status, 0, &raw mut usage) };
    let wall = began.elapsed().as_nanos() as u64;
    ensure!(waited > 0 && status == 0, "{} ended with {status:#x}", program.display());
    let nanoseconds = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    Ok(Sample { processor: nanoseconds(usage.ru_utime) + nanoseconds(usage.ru_stime), wall })
}

fn empty_usage() -> libc::rusage {
    // SAFETY: all zero is a valid `rusage`.
    unsafe { std::mem::zeroed() }
}

/// Returns the program's resident memory at its end, and its own part of it, in KiB.
fn memory(program: &Path, folder: &Path) -> anyhow::Result<(i64, i64)> {
    let output = command(program, folder, "memory").stdout(Stdio::piped()).stderr(Stdio::null()).output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let parsed = printed.trim().split_once(' ').and_then(|(all, own)| Some((all.parse().ok()?, own.parse().ok()?)));
    parsed.filter(|(all, _)| *all > 0).with_context(|| format!("{} said {printed:?}", program.display()))
}

/// Returns how many of 1,000 launches of two milliseconds it takes to deliver one crash's report.
///
/// At the end it must have been delivered exactly once.
fn after_one_crash(program: &Path) -> anyhow::Result<usize> {
    let folder = prepared(program, Launch::AfterCrash)?;
    let reports = folder.path().join("store/reports");
    let count = || {
        let names = std::fs::read_dir(&reports).into_iter().flatten().flatten().map(|entry| entry.path());
        names.filter(|path| path.extension().is_some_and(|extension| extension == "json")).count()
    };
    let mut first = None;
    for launch in 1..=1000 {
        let status = command(program, folder.path(), "sleep").status()?;
        ensure!(status.success(), "launch {launch} failed with {status}");
        if first.is_none() && count() > 0 {
            first = Some(launch);
        }
    }
    ensure!(count() == 1, "{} reports for one crash", count());
    first.context("no report")
}

fn milliseconds(nanoseconds: u64) -> f64 {
    std::time::Duration::from_nanos(nanoseconds).as_secs_f64() * 1e3
}

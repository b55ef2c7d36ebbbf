//! Crashes programs in environments and next to runtimes that Coroner doesn't control.
//!
//! [`rows::ROWS`] is the matrix: fault × environment ([`environment`]) × neighbour ([`neighbour`]).
//! See the package's `README.md`.

mod environment;
mod neighbour;
mod rows;
mod system_service;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser as _;
use coroner_report::model::{CrashFlag, Report};
use serde::Serialize;

use environment::Environment;
use neighbour::Hosts;
use rows::{Expected, ROWS, Row};
use toolbox::tools;

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Print one JSON object, a row per crash, as the last line
    #[arg(long)]
    json: bool,
    /// Run only rows whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Run only rows without a foreign runtime
    #[arg(long)]
    short: bool,
    /// Enter this environment and execute the command that follows
    #[arg(long, hide = true)]
    inside: Option<Environment>,
    #[arg(last = true, hide = true)]
    command: Vec<OsString>,
}

/// Time limit of a process; the slowest runtime starts in a second.
const LIMIT: Duration = Duration::from_mins(1);

/// A row's outcome.
#[derive(Debug, Serialize)]
struct Outcome {
    name: &'static str,
    environment: String,
    neighbour: String,
    expected: String,
    seen: String,
    /// `ok`, `failed`, `skipped`.
    verdict: &'static str,
    seconds: f64,
}

/// Runs the rows.
///
/// # Errors
/// An error if a row fails, or the programs can't be built.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(environment) = arguments.inside {
        return environment.enter(&arguments.command);
    }
    let only = arguments.only.as_deref().unwrap_or_default();
    let wanted = |row: &&Row| row.name.contains(only) && !(arguments.short && row.neighbour.is_runtime());
    let rows: Vec<&Row> = ROWS.iter().filter(wanted).collect();
    tools::build_workspace()?;
    environment::own_mounts()?;
    let mut hosts = Hosts::new()?;
    let mut outcomes = Vec::new();
    for row in rows {
        let began = Instant::now();
        let (seen, verdict) = match show(row, &mut hosts) {
            Ok(Shown::Seen(seen)) => {
                let verdict = if row.expected.is_met_by(&seen) { "ok" } else { "failed" };
                (seen.to_string(), verdict)
            }
            Ok(Shown::Skipped(why)) => (why, "skipped"),
            Err(error) => (format!("{error:#}"), "failed"),
        };
        let seconds = began.elapsed().as_secs_f64();
        println!("{:<32} {verdict:<8} {seconds:>6.1} s", row.name);
        if verdict != "ok" {
            println!("    expected: {}\n    seen:     {seen}", row.expected);
        }
        outcomes.push(Outcome {
            name: row.name,
            environment: format!("{:?}", row.environment),
            neighbour: format!("{:?}", row.neighbour),
            expected: row.expected.to_string(),
            seen,
            verdict,
            seconds,
        });
    }
    let count = |verdict| outcomes.iter().filter(|outcome| outcome.verdict == verdict).count();
    let failed = count("failed");
    println!("\n{} ok, {failed} failed, {} skipped", count("ok"), count("skipped"));
    for version in hosts.versions() {
        println!("beside {version}");
    }
    if arguments.json {
        let json = serde_json::json!({
            "tool": "worst-minute", "pass": failed == 0, "rows": outcomes, "versions": hosts.versions(),
        });
        println!("{json}");
    }
    if failed > 0 {
        bail!("{failed} of {} rows failed", outcomes.len());
    }
    Ok(())
}

fn crash_program() -> PathBuf {
    tools::target_dir().join("debug/crash_program")
}

/// A process's exit code or signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exit(i32),
    Signal(i32),
    Hang,
}

/// The exit, reports and outcome of a row's process.
#[derive(Debug)]
struct Seen {
    end: End,
    /// For each readable report: its signal, whether it is complete, and whether it is non-fatal.
    reports: Vec<(Option<i32>, bool, bool)>,
    /// The next launch's output about the last run.
    outcome: String,
    /// The end of its output.
    output: String,
}

impl std::fmt::Display for Seen {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.end {
            End::Exit(code) => write!(out, "exit {code}")?,
            End::Signal(signal) => write!(out, "signal {signal}")?,
            End::Hang => write!(out, "a hang")?,
        }
        write!(out, ", {} reports", self.reports.len())?;
        for (signal, complete, nonfatal) in &self.reports {
            let signal = signal.map_or_else(|| "no signal".to_owned(), |number| format!("signal {number}"));
            let complete = if *complete { "complete" } else { "cut" };
            write!(out, " [{signal}, {complete}{}]", if *nonfatal { ", went on" } else { "" })?;
        }
        write!(out, "; {}", self.outcome)?;
        if !self.output.is_empty() {
            write!(out, "; output: {:?}", self.output)?;
        }
        Ok(())
    }
}

enum Shown {
    Seen(Seen),
    Skipped(String),
}

/// Runs one row.
fn show(row: &Row, hosts: &mut Hosts) -> anyhow::Result<Shown> {
    if row.environment != Environment::Plain && !nix::unistd::getuid().is_root() {
        return Ok(Shown::Skipped("not root".to_owned()));
    }
    let folder = tempfile::tempdir()?;
    // Any user of the environment must have access.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let store = folder.path().join("store");
    let _disk = row.environment.prepare(&store)?;
    let mut program = crash_program();
    if row.environment.is_nobodys() {
        // The workspace may be in a folder that only its owner may enter.
        program = folder.path().join("crash_program");
        std::fs::copy(crash_program(), &program).context("can't copy the program")?;
    }
    let command = match hosts.command(row.neighbour, row.fault, &program, &store, folder.path()) {
        Ok(command) => command,
        Err(error) => return Ok(Shown::Skipped(format!("{error:#}"))),
    };
    let mut inside = Command::new(tools::this_program()?);
    inside.args(["--inside", &row.environment.to_string(), "--"]).args(command);
    inside.env("CORONER_CRASH_HANDLER", tools::built_library("libcrash_handler_library.so"));
    inside.env("CORONER_STORE", &store).env("RUST_BACKTRACE", "0").current_dir(folder.path());
    let (end, output) = run_to_end(&mut inside)?;
    let reports = reports(&store);
    // As the same user, because a store belongs to its owner.
    let mut next = Command::new(tools::this_program()?);
    next.args(["--inside", &row.environment.for_next_launch().to_string(), "--"]).arg(&program);
    next.arg(&store).args(["deliver", "0"]).env("RUST_BACKTRACE", "0").current_dir(folder.path());
    row.environment.make_room(&store);
    let outcome = match run_to_end(&mut next)? {
        (End::Exit(0), printed) => printed.trim().to_owned(),
        (end, printed) => format!("the next launch ended with {end:?}: {printed:?}"),
    };
    Ok(Shown::Seen(Seen { end, reports, outcome, output }))
}

/// Runs a command; returns its exit and the last 300 characters of its output.
fn run_to_end(command: &mut Command) -> anyhow::Result<(End, String)> {
    let (mut reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("starting {}", command.get_program().display()))?;
    // Drops its copies of the pipe's end.
    *command = Command::new("true");
    let printed = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = std::io::Read::read_to_end(&mut reader, &mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let began = Instant::now();
    let end = loop {
        if let Some(status) = child.try_wait()? {
            break status.signal().map_or_else(|| End::Exit(status.code().unwrap_or(-1)), End::Signal);
        }
        if began.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            break End::Hang;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    // Processes left behind by a hang may keep the pipe open.
    while !printed.is_finished() && end != End::Hang && began.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(2));
    }
    let printed = if printed.is_finished() { printed.join().unwrap_or_default() } else { String::new() };
    let start = printed.char_indices().rev().nth(299).map_or(0, |(at, _)| at);
    Ok((end, printed.get(start..).unwrap_or_default().to_owned()))
}

/// Returns a store's complete reports, sorted by path.
fn reports(store: &Path) -> Vec<(Option<i32>, bool, bool)> {
    let runs = std::fs::read_dir(store.join("runs")).into_iter().flatten().flatten();
    let files = runs.flat_map(|run| std::fs::read_dir(run.path()).into_iter().flatten().flatten());
    let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
    files.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("report")));
    files.sort();
    let read = files.iter().filter_map(|path| {
        let bytes = std::fs::read(path).ok()?;
        let report = bytes.iter().any(|byte| *byte != 0).then(|| Report::read(&bytes).ok())??;
        let crash = report.crash.as_ref();
        let signal = crash.and_then(|crash| crash.signal.as_ref()).map(|signal| signal.number);
        Some((signal, report.complete, crash.is_some_and(|crash| crash.has(CrashFlag::NotFatal))))
    });
    read.collect()
}

impl Seen {
    /// Whether the next launch reports a crash.
    fn crashed(&self) -> bool {
        self.outcome.lines().next() == Some("the last run crashed")
    }
}

impl Expected {
    fn is_met_by(self, seen: &Seen) -> bool {
        let fatal = || seen.reports.iter().filter(|report| !report.2);
        match self {
            Expected::Crash { ends, signal } => {
                let [only] = fatal().collect::<Vec<_>>()[..] else { return false };
                seen.end == ends && *only == (Some(signal), true, false) && seen.crashed()
            }
            Expected::LastCrash { ends, signal } => {
                let is_last = fatal().next_back() == Some(&(Some(signal), true, false));
                seen.end == ends && is_last && seen.crashed()
            }
            Expected::Recorded(ends) => seen.end == ends && seen.crashed(),
            Expected::Unreported(ends, words) => {
                seen.end == ends && fatal().count() == 0 && seen.outcome.contains(words)
            }
            Expected::NoCrash => {
                seen.end == End::Exit(0) && fatal().count() == 0 && seen.outcome == "the last run exited normally"
            }
        }
    }
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

//! Checks the `coroner` command on reports and core dumps.
//!
//! It checks pages in a real browser, a folder with 100,000 reports, groups of crashes with known
//! causes, core dumps against gdb, and minidumps against Breakpad. See the package's `README.md`.

mod accessibility;
mod collect;
mod cores;
mod crashes;
mod given_minidumps;
mod grouping;
mod large_core;
mod lists;
mod minidumps;
mod pages;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Parser as _;
use serde::Serialize;

use toolbox::tools;

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Print one JSON object, a row per check, as the last line
    #[arg(long)]
    json: bool,
    /// Run only parts whose name contains this: pages, accessibility, lists,
    /// large-core, cores, minidumps, given-minidumps, grouping, collect
    #[arg(long)]
    only: Option<String>,
    /// Run a few cases of pages, lists, cores and grouping; don't judge times
    #[arg(long, conflicts_with_all = ["reports", "seconds"])]
    short: bool,
    /// Check this coroner command instead of building one; libcoroner_ffi.so
    /// must be next to it or in `deps`
    #[arg(long, value_name = "PATH")]
    coroner: Option<PathBuf>,
    /// List a folder with this many reports
    #[arg(long, default_value_t = 100_000)]
    reports: u32,
    /// Change this machine's `kernel.core_pattern` for some seconds (part
    /// `collect`; needs root and affects every process)
    #[arg(long)]
    change_core_pattern: bool,
    /// Minidumps, or folders of them, for the part `given-minidumps`
    #[arg(long, value_name = "PATH")]
    minidumps: Vec<PathBuf>,
    /// Folder with their symbol files, as a symbol server stores them
    #[arg(long, value_name = "DIR")]
    symbols: Option<PathBuf>,
    /// Spend at most this many seconds each on crashes, cores and minidumps
    #[arg(long, default_value_t = 600)]
    seconds: u64,
}

/// A check: expected and actual value.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    part: &'static str,
    what: String,
    expected: String,
    seen: String,
    passed: bool,
}

impl Row {
    pub(crate) fn new(
        part: &'static str,
        what: &str,
        expected: impl Into<String>,
        seen: impl Into<String>,
        passed: bool,
    ) -> Self {
        Self { part, what: what.to_owned(), expected: expected.into(), seen: seen.into(), passed }
    }

    /// A duration with its limit.
    pub(crate) fn time(desk: &Desk, part: &'static str, what: &str, limit: Duration, seen: Duration) -> Self {
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        if desk.short {
            return Self::new(part, what, "not judged", seconds(seen), true);
        }
        Self::new(part, what, format!("at most {}", seconds(limit)), seconds(seen), seen <= limit)
    }
}

/// The command under test, with its own folder.
pub(crate) struct Desk {
    coroner: PathBuf,
    folder: tempfile::TempDir,
    time: Duration,
    reports: u32,
    change_core_pattern: bool,
    short: bool,
    minidumps: Vec<PathBuf>,
    symbols: Option<PathBuf>,
}

impl Desk {
    /// The number of cases to run: `all`, or [`FEW`] in a short run.
    pub(crate) fn cases(&self, all: usize) -> usize {
        if self.short { FEW } else { all }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.coroner);
        command.args(arguments).current_dir(self.folder.path());
        command.env("HOME", self.folder.path());
        for variable in ["CORONER_STORE", "XDG_CACHE_HOME", "DEBUGINFOD_URLS", "COLUMNS", "SENTRY_DSN"] {
            command.env_remove(variable);
        }
        command
    }

    /// Runs the command and returns its output.
    pub(crate) fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command(arguments).output().context("running coroner")?;
        ensure!(output.status.success(), "coroner {arguments:?}: {}", failure_text(&output));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

pub(crate) fn failure_text(output: &Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())
}

/// Number of a part's cases in a short run.
const FEW: usize = 2;
/// Number of reports in the folder in a short run.
const FEW_REPORTS: u32 = 2000;

type Part = fn(&Desk) -> anyhow::Result<Vec<Row>>;

/// The parts by name.
const PARTS: [(&str, Part); 9] = [
    ("pages", pages::examine),
    ("accessibility", accessibility::examine),
    ("lists", lists::examine),
    ("large-core", large_core::examine),
    ("cores", cores::examine),
    ("minidumps", minidumps::examine),
    ("given-minidumps", given_minidumps::examine),
    ("grouping", grouping::examine),
    ("collect", collect::examine),
];

/// The parts without a short form.
const LONG: [&str; 3] = ["accessibility", "large-core", "minidumps"];

/// Runs each part, and prints a line for each row.
///
/// # Errors
/// An error if a build or a program fails, or a row fails.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let coroner = match &arguments.coroner {
        Some(path) => path.canonicalize().with_context(|| format!("finding {}", path.display()))?,
        None => build(arguments.short)?,
    };
    let folder = tempfile::tempdir()?;
    let time = Duration::from_secs(arguments.seconds);
    let Arguments { change_core_pattern, short, .. } = *arguments;
    let absolute = |path: &PathBuf| path.canonicalize().with_context(|| format!("finding {}", path.display()));
    let minidumps = arguments.minidumps.iter().map(absolute).collect::<anyhow::Result<_>>()?;
    let symbols = arguments.symbols.as_ref().map(absolute).transpose()?;
    let reports = if short { FEW_REPORTS } else { arguments.reports };
    let desk = Desk { coroner, folder, time, reports, change_core_pattern, short, minidumps, symbols };
    let mut rows = Vec::new();
    for (name, examine) in PARTS {
        let is_long = arguments.short && LONG.contains(&name);
        if is_long || arguments.only.as_deref().is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let examined = examine(&desk).with_context(|| format!("examining {name}"))?;
        for row in &examined {
            let grade = if row.passed { "ok  " } else { "FAIL" };
            println!("{grade} {:<13} {:<58} expected {:<22} seen {}", row.part, row.what, row.expected, row.seen);
        }
        rows.extend(examined);
    }
    let failed = rows.iter().filter(|row| !row.passed).count();
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "desk-check", "pass": failed == 0, "rows": rows }));
    }
    if failed > 0 {
        bail!("{failed} of {} rows failed", rows.len());
    }
    Ok(())
}

/// Builds the command: optimized, or as for the tests.
fn build(is_short: bool) -> anyhow::Result<PathBuf> {
    if is_short {
        tools::build_workspace()?;
        return Ok(tools::target_dir().join("debug/coroner"));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--release", "-p", "coroner-cli"])
        .current_dir(tools::workspace_root())
        .status()
        .context("running cargo")?;
    ensure!(status.success(), "can't build the command");
    Ok(tools::target_dir().join("release/coroner"))
}

pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

//! Runs crash-time code under Miri on a fake kernel.
//!
//! Miri checks aliasing, lifetimes and data races. See the package's `README.md`.

use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::Parser as _;

use toolbox::{deadline, tools};

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Print one JSON object, a row per test, as the last line
    #[arg(long)]
    json: bool,
    /// Run only tests whose name contains this
    #[arg(long)]
    only: Option<String>,
}

/// Miri's options: addresses are numbers to a kernel, and an install's mappings are never unmapped.
const FLAGS: &str = "-Zmiri-permissive-provenance -Zmiri-ignore-leaks";

const PACKAGE: [&str; 5] = ["-p", "coroner-capture", "--no-default-features", "--features", "fault-injection"];

/// Unit tests of data that threads share.
const UNITS: [&str; 2] = ["report_lock", "concurrent_crashes"];

/// Runs the tests.
///
/// # Errors
/// An error if a test fails; Miri's output is printed.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Err(error) = find() {
        println!("skipped: {error:#}");
        if arguments.json {
            let skipped = format!("{error:#}");
            println!("{}", serde_json::json!({ "tool": "miri", "pass": true, "skipped": skipped, "rows": [] }));
        }
        return Ok(());
    }
    let is_wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut jobs: Vec<Vec<String>> = list()?.into_iter().map(|name| vec![name]).collect();
    ensure!(!jobs.is_empty(), "no tests found");
    jobs.push(UNITS.map(String::from).to_vec());
    jobs.retain(|job| job.iter().any(|name| is_wanted(name)));
    let (jobs, rows) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(job) = { jobs.lock().expect("no panic").pop() } {
                    let began = Instant::now();
                    let outcome = test(&job).map_err(|error| format!("{error:#}"));
                    let (name, seconds) = (job.join(" "), began.elapsed().as_secs_f64());
                    println!("{} {name:<60} {seconds:>6.1} s", if outcome.is_ok() { "ok  " } else { "FAIL" });
                    rows.lock().expect("no panic").push((name, seconds, outcome.err()));
                }
            });
        }
    });
    let rows = rows.into_inner().expect("no panic");
    let failed: Vec<_> = rows.iter().filter_map(|(name, _, error)| Some((name, error.as_ref()?))).collect();
    for (name, error) in &failed {
        println!("\n{name}: {error}");
    }
    if arguments.json {
        let rows = rows.iter().map(
            |(name, seconds, error)| serde_json::json!({ "test": name, "ok": error.is_none(), "seconds": seconds }),
        );
        let rows: Vec<_> = rows.collect();
        println!("{}", serde_json::json!({ "tool": "miri", "pass": failed.is_empty(), "rows": rows }));
    }
    ensure!(failed.is_empty(), "{} of {} tests failed", failed.len(), rows.len());
    Ok(())
}

/// Returns a command for the nightly toolchain's cargo, in the workspace.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", tools::NIGHTLY, "cargo", "miri"]).args(arguments);
    command.env("MIRIFLAGS", FLAGS).current_dir(tools::workspace_root());
    command
}

/// Finds Miri, or has rustup install it, and builds its standard library.
fn find() -> anyhow::Result<()> {
    let has_miri = || cargo(&["--version"]).output().is_ok_and(|output| output.status.success());
    if !has_miri() {
        let mut add = Command::new("rustup");
        add.args(["toolchain", "install", tools::NIGHTLY, "--profile", "minimal", "--component", "miri,rust-src"]);
        let added = add.output().context("can't run rustup to install Miri")?;
        let shown = String::from_utf8_lossy(&added.stderr);
        ensure!(added.status.success(), "rustup can't install Miri: {}", shown.lines().last().unwrap_or_default());
    }
    let made = cargo(&["setup"]).output().context("running Miri")?;
    ensure!(made.status.success(), "cargo miri setup failed: {}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}

/// Returns the names of the tests on the fake kernel.
fn list() -> anyhow::Result<Vec<String>> {
    let arguments = [&["test"], &PACKAGE[..], &["--lib", "--", "miri::", "--list", "--format", "terse"]].concat();
    let output = cargo(&arguments).stderr(Stdio::inherit()).output().context("running Miri")?;
    ensure!(output.status.success(), "can't compile the tests for Miri");
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(String::from).collect())
}

/// Runs the tests whose names contain one of the filters.
fn test(filters: &[String]) -> anyhow::Result<()> {
    let mut arguments = [&["test"], &PACKAGE[..], &["--lib", "--"]].concat();
    arguments.extend(filters.iter().map(String::as_str));
    let log = tools::target_dir().join(format!("miri-{}.log", filters.join("-")));
    let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let status = deadline::status(cargo(&arguments).stdout(file.try_clone()?).stderr(file)).context("running Miri")?;
    if !status.success() {
        bail!("{}", std::fs::read_to_string(&log)?);
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

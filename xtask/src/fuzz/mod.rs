//! `cargo xtask fuzz`: runs every fuzz target of `fuzz/` for its share of the time, with coverage guidance on stable
//! Rust (`-Cinstrument-coverage`), overflow checks and debug assertions on. Any panic, hang or death of a target fails.
//!
//! `--collect` makes `fuzz/corpus` anew out of the oracle's programs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::tools;

mod corpus;
mod reports;
mod texts;

/// What to do.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object with the rows as the last line.
    #[arg(long)]
    json: bool,
    /// Seconds in all; the targets share them (two at a time on two cores).
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Only targets whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// The seed of chance. The same seed, time aside, gives the same inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Make the corpus out of the oracle's programs instead.
    #[arg(long)]
    collect: bool,
}

/// What the driver prints of a target.
#[derive(Deserialize, Serialize)]
struct Row {
    target: String,
    runs: u64,
    seconds: f64,
    seeds: usize,
    /// Inputs that reached something new.
    kept: usize,
    /// Pairs of a coverage counter and its magnitude that were reached; 0 without instrumentation.
    reached: usize,
    failures: usize,
}

/// Runs the chore.
///
/// # Errors
/// Where the driver can't be built, or a target fails.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = tools::workspace_root();
    let corpus = root.join("fuzz/corpus");
    if arguments.collect {
        reports::collect(&corpus)?;
        texts::collect(&corpus)?;
        return corpus::collect(&corpus);
    }
    let driver = build(&root, arguments.seconds <= SHORT_SECONDS)?;
    let mut targets: Vec<String> = fs::read_dir(&corpus)
        .with_context(|| format!("reading {}", corpus.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.contains('.') && name.contains(arguments.only.as_deref().unwrap_or("")))
        .collect();
    targets.sort();
    ensure!(!targets.is_empty(), "no target of that name has a corpus in {}", corpus.display());

    let threads = thread::available_parallelism().map_or(1, usize::from).min(targets.len());
    #[expect(clippy::cast_precision_loss, reason = "a handful of targets")]
    let seconds = arguments.seconds * threads as f64 / targets.len() as f64;
    let artifacts = tools::target_dir().join("fuzz/artifacts");
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = fuzz(&driver, &corpus, &artifacts, seconds, arguments.seed, target);
                    results.lock().expect("no thread panics with the lock").push((target, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no thread panics with the lock");
    results.sort_by_key(|(target, _)| *target);

    println!(
        "{:<18} {:>10} {:>9} {:>6} {:>6} {:>8} {:>8}",
        "target", "runs", "runs/s", "seeds", "kept", "reached", "failures"
    );
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for (target, result) in results {
        match result {
            Ok(row) => {
                #[expect(clippy::cast_precision_loss, reason = "counts of runs are far below 2^52")]
                let rate = row.runs as f64 / row.seconds.max(0.001);
                println!(
                    "{target:<18} {:>10} {rate:>9.0} {:>6} {:>6} {:>8} {:>8}",
                    row.runs, row.seeds, row.kept, row.reached, row.failures
                );
                if row.failures > 0 {
                    failed.push(target.as_str());
                }
                rows.push(row);
            }
            Err(error) => {
                println!("{target:<18} {error:#}");
                failed.push(target.as_str());
            }
        }
    }
    if arguments.json {
        println!("{}", serde_json::json!({ "chore": "fuzz", "pass": failed.is_empty(), "rows": rows }));
    }
    if !failed.is_empty() {
        bail!("failing targets: {} (inputs in {})", failed.join(", "), artifacts.display());
    }
    Ok(())
}

/// Runs of at most so many seconds in all take less time than an optimised build.
const SHORT_SECONDS: f64 = 60.0;

fn build(root: &Path, is_short: bool) -> anyhow::Result<PathBuf> {
    let folder = tools::target_dir().join(if is_short { "fuzz/short" } else { "fuzz" });
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--package", "coroner-fuzz", "--target-dir"]).arg(&folder);
    command.env("RUSTFLAGS", "-Cinstrument-coverage").env("CORONER_FUZZ_COVERAGE", "1");
    // Build scripts are instrumented too; what they would leave behind is not wanted.
    command.env("LLVM_PROFILE_FILE", "/dev/null");
    command.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true").env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");
    if is_short {
        command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1").env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    }
    let status = command.current_dir(root).status().context("running cargo")?;
    ensure!(status.success(), "the fuzz targets could not be built");
    Ok(folder.join("release/coroner-fuzz"))
}

fn fuzz(driver: &Path, corpus: &Path, artifacts: &Path, seconds: f64, seed: u64, target: &str) -> anyhow::Result<Row> {
    let output = Command::new(driver)
        .arg(corpus)
        .arg(artifacts)
        .args([seconds.to_string(), seed.to_string(), target.to_owned()])
        .env("LLVM_PROFILE_FILE", "/dev/null")
        .output()
        .with_context(|| format!("running {}", driver.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !said.is_empty() {
        eprint!("{said}");
    }
    if let Some(line) = String::from_utf8_lossy(&output.stdout).lines().last() {
        return serde_json::from_str(line).with_context(|| format!("what the driver prints: {line}"));
    }
    // It died: the input is what the driver had last written down.
    let current = artifacts.join(format!("{target}.current"));
    let bytes = fs::read(&current)?;
    let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let input = bytes.get(8..8 + length).unwrap_or_default();
    let kept = artifacts.join(format!("{target}-died"));
    fs::write(&kept, input)?;
    bail!("ended with {}; the input is kept in {}", output.status, kept.display())
}

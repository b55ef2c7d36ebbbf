//! `cargo xtask fuzz-run`: runs every target under libFuzzer for its share of the time.
//!
//! The targets are in `fuzz/fuzz_targets`. Sets up what that needs: the nightly toolchain of
//! `fuzz/rust-toolchain.toml`, and cargo-fuzz. Without them it is skipped, except in CI. A panic, a
//! crash, an input that takes longer than [`libfuzzer::TIMEOUT_SECONDS`], and too much memory fail;
//! debug assertions, overflow checks and AddressSanitizer are on. See `fuzz/README.md`.
//!
//! `--collect` recreates the corpus from the oracle's programs and from the types that write
//! reports.

mod libfuzzer;
mod report_seeds;
mod setup;
mod text_seeds;
mod unwind_seeds;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{bail, ensure};
use clap::Parser as _;
use toolbox::tools;

/// Command-line arguments.
#[derive(Debug, clap::Parser)]
#[command(name = "fuzz-run", about = "Run every fuzz target under libFuzzer")]
struct Arguments {
    /// Print one JSON object with a row per target as the last line
    #[arg(long)]
    json: bool,
    /// Seconds of wall time, shared by the targets
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Maximum executions per target
    #[arg(long)]
    runs: Option<u64>,
    /// Only targets whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Seed of libFuzzer's random numbers
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Recreate the corpus instead
    #[arg(long, conflicts_with_all = ["json", "runs", "only"])]
    collect: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if arguments.collect {
        let corpus = tools::workspace_root().join("fuzz/corpus");
        report_seeds::collect(&corpus)?;
        text_seeds::collect(&corpus)?;
        return unwind_seeds::collect(&corpus);
    }
    let toolchain = match setup::find() {
        Ok(toolchain) => toolchain,
        Err(error) => return skip(&error, arguments.json),
    };
    let targets = setup::targets(arguments.only.as_deref().unwrap_or_default())?;
    let programs = toolchain.build(&targets)?;

    let threads = thread::available_parallelism().map_or(1, usize::from).min(targets.len());
    #[expect(clippy::cast_precision_loss, reason = "a handful of targets")]
    let seconds = arguments.seconds * threads as f64 / targets.len() as f64;
    let budget = libfuzzer::Budget { seconds, runs: arguments.runs, seed: arguments.seed };
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = libfuzzer::run(&programs.join(target), target, &budget);
                    rows.lock().expect("no thread panics with the lock").push((target, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().expect("no thread panics with the lock");
    rows.sort_by_key(|(target, _)| *target);
    report(rows, arguments.json)
}

/// Prints why the targets can't be run here.
///
/// # Errors
/// Returns `error` in CI, where nothing may be skipped.
fn skip(error: &anyhow::Error, json: bool) -> anyhow::Result<()> {
    ensure!(std::env::var_os("CI").is_none(), "fuzz: {error:#}");
    eprintln!("{error:#}");
    println!("skipped: fuzz: {error}");
    if json {
        println!(
            "{}",
            serde_json::json!({ "tool": "fuzz-run", "pass": true, "skipped": format!("{error:#}"), "rows": [] })
        );
    }
    Ok(())
}

/// Prints the table.
///
/// # Errors
/// An error if a target failed.
fn report(results: Vec<(&String, anyhow::Result<libfuzzer::Row>)>, json: bool) -> anyhow::Result<()> {
    println!(
        "{:<18} {:>9} {:>7} {:>8} {:>5} {:>5} {:>6} {:>7} {:>7} failure",
        "target", "runs", "s", "runs/s", "seeds", "kept", "edges", "slowest", "MiB"
    );
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for (target, result) in results {
        let row = match result {
            Ok(row) => row,
            Err(error) => {
                println!("{target:<18} {error:#}");
                failed.push(target.as_str());
                continue;
            }
        };
        #[expect(clippy::cast_precision_loss, reason = "run counts are far below 2^52")]
        let rate = row.runs as f64 / row.seconds.max(0.001);
        println!(
            "{target:<18} {:>9} {:>7.1} {rate:>8.0} {:>5} {:>5} {:>6} {:>5} s {:>7} {}",
            row.runs,
            row.seconds,
            row.seeds,
            row.kept,
            row.edges,
            row.slowest_seconds,
            row.peak_mib,
            row.failure.as_deref().unwrap_or("-")
        );
        if row.failure.is_some() {
            failed.push(target.as_str());
        }
        rows.push(row);
    }
    if json {
        println!("{}", serde_json::json!({ "tool": "fuzz-run", "pass": failed.is_empty(), "rows": rows }));
    }
    if !failed.is_empty() {
        bail!("failing targets: {}; their inputs are in fuzz/artifacts", failed.join(", "));
    }
    Ok(())
}

//! `bench install`: measures the cost of installing, inside a starting process.
//!
//! It compares Coroner as an app adds it (store, run state, facts, scope, capture), its crash time
//! alone, and crash-handler's `attach` with a file for the minidump, which prepares less: no run,
//! no state, no reserved report.
//!
//! Each start is a new process; all take turns in every round. The first launch creates the store;
//! a later one finds the previous run, which exited cleanly, and starts a thread for it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Serialize;

use super::capture::{build, median};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Run this many rounds and take the median; a first one is discarded
    #[arg(long, default_value_t = 31)]
    rounds: usize,
}

/// The program's features, one per reporter; the peer is last.
const REPORTERS: [&str; 3] = ["sdk", "coroner", "minidump-writer"];

/// One kind of start.
#[derive(Serialize)]
struct Row {
    name: String,
    /// Milliseconds: median, minimum and maximum.
    ours: f64,
    ours_range: [f64; 2],
    peer: f64,
    unit: &'static str,
}

/// Runs the benchmark.
///
/// # Errors
/// An error if a program can't be built or run, or can't install.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    ensure!(arguments.rounds > 0, "nothing to measure");
    let programs = [build(REPORTERS[0])?, build(REPORTERS[1])?, build(REPORTERS[2])?];
    let mut samples: [[Vec<u64>; 2]; 3] = Default::default();
    for round in 0..=arguments.rounds {
        for (program, samples) in programs.iter().zip(&mut samples) {
            let folder = tempfile::tempdir()?;
            for launch in samples {
                let nanoseconds = install(program, folder.path())?;
                if round > 0 {
                    launch.push(nanoseconds);
                }
            }
        }
    }
    let mut rows = Vec::new();
    println!("{:<46} {:>26} {:>15}", "install, ms", "ours", "crash-handler");
    for (which, reporter) in REPORTERS[..2].iter().enumerate() {
        for (launch, launch_name) in ["first launch", "later launch"].into_iter().enumerate() {
            let ours = &samples[which][launch];
            let peer = milliseconds(median(samples[2][launch].iter().copied()));
            let range = [ours.iter().min(), ours.iter().max()].map(|end| milliseconds(end.copied().unwrap_or(0)));
            let row = Row {
                name: format!(
                    "{} {launch_name}",
                    if *reporter == "sdk" { "the SDK," } else { "its crash time alone," }
                ),
                ours: milliseconds(median(ours.iter().copied())),
                ours_range: range,
                peer,
                unit: "ms",
            };
            let times = format!("{:.3} [{:.3}..{:.3}]", row.ours, range[0], range[1]);
            println!("{:<46} {times:>26} {peer:>15.3}", row.name);
            rows.push(row);
        }
    }
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "bench", "bench": "install", "rows": rows }));
    }
    Ok(())
}

/// Runs one process and returns the nanoseconds that it prints.
fn install(program: &Path, folder: &Path) -> anyhow::Result<u64> {
    let output = Command::new(program).arg(folder).arg("install").output();
    let output = output.with_context(|| format!("starting {}", program.display()))?;
    ensure!(output.status.success(), "{} ended with {}", program.display(), output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    printed.trim().parse().with_context(|| format!("{} said {printed:?}", program.display()))
}

fn milliseconds(nanoseconds: u64) -> f64 {
    std::time::Duration::from_nanos(nanoseconds).as_secs_f64() * 1e3
}

//! `bench handled-faults`: measures the added cost of a fault that another handler handles.
//!
//! The cost is the crash record, the decision whose fault it is, and the call of the handler.
//!
//! Each process has a thousand faults of one kind, with and without Coroner in turn; no report is
//! written. The figure is the lower quartile of the rounds. Fails if a process exits unexpectedly.

use std::process::Command;

use anyhow::{Context, ensure};
use serde::Serialize;

use toolbox::tools;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Run this many rounds; a first one is discarded
    #[arg(long, default_value_t = 16)]
    rounds: usize,
}

/// Conditions of `crash_program`.
///
/// A JIT's null check, a page that is made writable, a jump out of the handler, a sandbox's broker.
const FAULTS: [&[&str]; 4] =
    [&["jit-faults"], &["repaired-faults", "chain-first"], &["left-faults", "chain-first"], &["seccomp-broker"]];

/// A comparison, in nanoseconds per fault.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    ours: u64,
    none: u64,
    added: u64,
}

/// Runs the benchmark.
///
/// # Errors
/// An error if the program can't be built or run, or does not exit normally.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    ensure!(arguments.rounds > 0, "nothing to measure");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(tools::workspace_root());
    cargo.args(["build", "--quiet", "--release", "-p", "coroner-tests", "--bin", "crash_program"]);
    ensure!(toolbox::deadline::status(&mut cargo)?.success(), "can't build crash_program");
    println!("{:>16} {:>10} {:>10} {:>10}   ns a fault", "", "coroner", "none", "added");
    let mut rows = Vec::new();
    for conditions in FAULTS {
        let name = *conditions.first().context("a condition")?;
        let (mut ours, mut none) = (Vec::new(), Vec::new());
        for round in 0..=arguments.rounds {
            let (with, without) = (cost(conditions, true)?, cost(conditions, false)?);
            if round > 0 {
                ours.push(with);
                none.push(without);
            }
        }
        let (ours, none) = (lower_quartile(&mut ours), lower_quartile(&mut none));
        let row = Row { name, ours, none, added: ours.saturating_sub(none) };
        println!("{name:>16} {ours:>10} {none:>10} {:>10}", row.added);
        rows.push(row);
    }
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "bench", "bench": "handled-faults", "unit": "ns", "rows": rows }));
    }
    Ok(())
}

/// Measures the nanoseconds of one fault.
fn cost(conditions: &[&str], is_installed: bool) -> anyhow::Result<u64> {
    let store = tempfile::tempdir()?;
    let mut program = Command::new(tools::target_dir().join("release/crash_program"));
    if is_installed {
        program.arg(store.path());
    } else {
        program.arg("-");
    }
    program.args(["exit", "0"]).args(conditions).env("CORONER_TEST_COSTS", "1");
    let output = program.output().context("running crash_program")?;
    ensure!(output.status.success(), "{conditions:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().context("a cost")
}

fn lower_quartile(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 4).copied().unwrap_or_default()
}

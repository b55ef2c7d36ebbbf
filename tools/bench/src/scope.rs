//! `bench scope`: measures the cost of setting a tag, a breadcrumb, a user and a context.
//!
//! Peers are the `sentry` crate's scope, which does not outlive the process, and a plain store of
//! the value's bytes, like Crashpad's annotations.
//!
//! Builds `scope-bench` and runs it in several fresh processes; each figure is the median over
//! processes of the minimum over rounds. Goals: 500 ns for a tag, 1 µs for a breadcrumb.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use toolbox::tools;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Run this many interleaved rounds in each process
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// Start this many processes
    #[arg(long, default_value_t = 5)]
    processes: usize,
}

/// The program's output.
#[derive(Deserialize)]
struct Printed {
    what: String,
    who: String,
    ns: f64,
}

/// A comparison.
#[derive(Serialize)]
struct Row {
    name: String,
    ours: f64,
    peer: f64,
    unit: &'static str,
    /// The peer's value divided by ours.
    ratio: f64,
    /// The upper limit of ours.
    goal: Option<f64>,
}

/// Ours: from Rust, and from C.
const OURS: [&str; 2] = ["coroner", "coroner from C"];

/// Returns a call's goal in nanoseconds.
fn goal(what: &str) -> Option<f64> {
    match what {
        "tag" => Some(500.0),
        "breadcrumb" => Some(1000.0),
        _ => None,
    }
}

/// Runs the benchmark.
///
/// # Errors
/// An error if the program can't be built or run, or rejects a value.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let folder = tools::target_dir().join("bench");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--package", "scope-bench", "--target-dir"]);
    let status = command.arg(&folder).current_dir(tools::workspace_root()).status().context("running cargo")?;
    ensure!(status.success(), "can't build scope-bench");
    let program = folder.join("release/scope-bench");

    let mut all: BTreeMap<String, BTreeMap<String, Vec<f64>>> = BTreeMap::new();
    for _ in 0..arguments.processes.max(1) {
        let output = Command::new(&program).arg(arguments.rounds.to_string()).output().context("scope-bench")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "scope-bench failed with {}: {errors}", output.status);
        for line in String::from_utf8(output.stdout)?.lines() {
            let printed: Printed =
                serde_json::from_str(line).with_context(|| format!("can't parse the output: {line}"))?;
            all.entry(printed.what).or_default().entry(printed.who).or_default().push(printed.ns);
        }
    }
    ensure!(!all.is_empty(), "scope-bench printed nothing");
    let mut rows = Vec::new();
    println!("one call (least round; median of {} processes)", arguments.processes.max(1));
    println!("{:<44} {:>9} {:>9} {:>7} {:>9}", "ours: peer", "ours ns", "peer ns", "ratio", "goal ns");
    for (what, of_all) in &all {
        let medians: BTreeMap<&str, f64> = of_all.iter().map(|(who, times)| (who.as_str(), median(times))).collect();
        for (us, ours) in medians.iter().filter(|(who, _)| OURS.contains(*who)) {
            for (peer, time) in medians.iter().filter(|(who, _)| !OURS.contains(*who)) {
                let name = format!("{what}, {us}: {peer}");
                let row = Row { name, ours: *ours, peer: *time, unit: "ns", ratio: time / ours, goal: goal(what) };
                let goal = row.goal.map_or_else(String::new, |goal| goal.to_string());
                println!("{:<44} {:>9.1} {:>9.1} {:>6.2}x {goal:>9}", row.name, row.ours, row.peer, row.ratio);
                rows.push(row);
            }
        }
    }
    if arguments.json {
        println!(
            "{}",
            serde_json::json!({ "tool": "bench", "bench": "scope", "pass": true, "unit": "ns", "rows": rows })
        );
    }
    Ok(())
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

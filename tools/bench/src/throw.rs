//! `bench throw`: measures a C++ throw and its catch.
//!
//! They are 10 and 50 frames apart, on one and on eight threads. The benchmark compares Coroner's
//! capture of the stack, glibc's `backtrace()` in its place, and neither.
//!
//! All take turns in every round; times are the threads' processor times, so the number of
//! processors doesn't matter. The stack is the same at each throw, as in most programs that throw
//! often; or up to six frames deeper each time (`varied`); or different each time from its outer
//! frames on (`moved`), the worst case for a capture that reuses the previous throw. The figure is
//! the lower quartile of the rounds: other load makes times longer, never shorter. Fails if a throw
//! was not captured.

use std::path::{Path, PathBuf};
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
    /// Throw this often per thread and round
    #[arg(long, default_value_t = 2000)]
    throws: u64,
}

const WAYS: [&str; 3] = ["coroner", "backtrace", "none"];
const DEPTHS: [u32; 2] = [10, 50];
const THREADS: [u64; 2] = [1, 8];
const STACKS: [&str; 3] = ["same", "varied", "moved"];

/// A comparison.
#[derive(Serialize)]
struct Row {
    name: String,
    stacks: &'static str,
    depth: u32,
    threads: u64,
    /// Nanoseconds of a throw and catch: with Coroner's capture, with `backtrace()`, without.
    ours: f64,
    peer: f64,
    none: f64,
    unit: &'static str,
    /// Ours and the peer's, as multiples of a throw without capture.
    ours_to_none: f64,
    peer_to_none: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// An error if a program can't be built or run, or a throw was not captured.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    ensure!(arguments.rounds > 0 && arguments.throws > 0, "nothing to measure");
    let programs = [build("coroner")?, build("backtrace")?, build("none")?];
    let mut rows = Vec::new();
    println!(
        "{:>7} {:>6} {:>8} {:>12} {:>12} {:>12}   of none",
        "stacks", "depth", "threads", WAYS[0], WAYS[1], WAYS[2]
    );
    let cells = STACKS.iter().flat_map(|stacks| DEPTHS.iter().map(move |depth| (*stacks, *depth)));
    for (stacks, depth) in cells {
        for threads in THREADS {
            let mut samples: [Vec<f64>; 3] = Default::default();
            for round in 0..=arguments.rounds {
                for ((way, program), samples) in WAYS.iter().zip(&programs).zip(&mut samples) {
                    let time = throw(program, way, (depth, threads, arguments.throws, stacks))
                        .with_context(|| format!("{way}, {depth} frames, {threads} threads"))?;
                    if round > 0 {
                        samples.push(time);
                    }
                }
            }
            let [ours, peer, none] = samples.map(lower_quartile);
            println!(
                "{stacks:>7} {depth:>6} {threads:>8} {ours:>9.0} ns {peer:>9.0} ns {none:>9.0} ns   {:.3} {:.3}",
                ours / none,
                peer / none
            );
            rows.push(Row {
                name: format!("throw and catch, {stacks} stacks, {depth} frames, {threads} threads: coroner / none"),
                stacks,
                depth,
                threads,
                ours,
                peer,
                none,
                unit: "ns",
                ours_to_none: ours / none,
                peer_to_none: peer / none,
            });
        }
    }
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "bench", "bench": "throw", "rows": rows }));
    }
    Ok(())
}

fn lower_quartile(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 4).copied().unwrap_or(0.0)
}

/// Builds the program with one way to capture the stack.
fn build(way: &str) -> anyhow::Result<PathBuf> {
    let folder = tools::target_dir().join("bench-throw").join(way);
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--target-dir"]).arg(&folder).arg("--manifest-path");
    command.arg(tools::workspace_root().join("tools/bench/throw-bench/Cargo.toml"));
    if way != "none" {
        command.args(["--features", way]);
    }
    let status = command.status().context("running cargo")?;
    ensure!(status.success(), "can't build throw-bench with {way}");
    Ok(folder.join("release/throw-bench"))
}

/// Measures the nanoseconds of one throw and its catch.
///
/// The parameters are the depth, threads, throws per thread, and kind of stacks.
fn throw(program: &Path, way: &str, (depth, threads, throws, stacks): (u32, u64, u64, &str)) -> anyhow::Result<f64> {
    let store = tempfile::tempdir()?;
    let output = Command::new(program)
        .arg(store.path().join("store"))
        .args([depth.to_string(), threads.to_string(), throws.to_string(), stacks.to_owned()])
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    ensure!(output.status.success(), "it ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stdout);
    let (time, captured) = printed.trim_end().split_once(' ').with_context(|| format!("it said {printed:?}"))?;
    if way == "coroner" {
        // Each thread makes 200 throws before the timed ones.
        let all = threads * (throws + 200);
        ensure!(captured.parse() == Ok(all), "captured {captured} of {all} throws");
    }
    Ok(time.parse()?)
}

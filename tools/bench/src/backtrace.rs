//! `bench backtrace`: compares live backtraces with those of other implementations.
//!
//! These are the `backtrace` crate, `std::backtrace` and glibc. Builds `backtrace-bench` and runs
//! it in several fresh processes; each figure is the median over processes of the minimum over
//! rounds.

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
    /// Run this many rounds in each process
    #[arg(long, default_value_t = 30)]
    rounds: u32,
    /// Start this many processes
    #[arg(long, default_value_t = 5)]
    processes: usize,
}

/// The program's output.
#[derive(Deserialize)]
struct Printed {
    name: String,
    ns: f64,
    frames: usize,
    /// Captures of another thread, with both threads bound to processors.
    floor: Option<Floor>,
    /// glibc's `backtrace` in a handler of the thread, for captures of another thread.
    peer: Option<f64>,
}

/// A signal whose handler stores a word: nanoseconds since it was sent.
#[derive(Clone, Copy, Deserialize, Serialize)]
struct Floor {
    /// Time at which the sending call returned.
    sent: f64,
    /// Time at which the handler started.
    began: f64,
    /// Time at which the asker saw the word.
    seen: f64,
}

/// Median times of capturing another thread in one process, in nanoseconds.
struct OtherThread {
    ours: f64,
    floor: Option<Floor>,
    peer: f64,
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
}

/// Ours, and the peers that do the same.
const PAIRS: [(&str, &[&str]); 2] = [
    ("ours: capture", &["glibc backtrace: capture", "backtrace crate: capture", "std::backtrace: capture"]),
    (
        "ours: capture and names (hit)",
        &[
            "glibc backtrace_symbols: names",
            "backtrace crate: capture and names (warm)",
            "std::backtrace: capture and names (warm)",
        ],
    ),
];

/// Runs the benchmark.
///
/// # Errors
/// An error if the program can't be built or run, or a capture misses frames.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let folder = tools::target_dir().join("bench");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--package", "backtrace-bench", "--target-dir"]);
    let status = command.arg(&folder).current_dir(tools::workspace_root()).status().context("running cargo")?;
    ensure!(status.success(), "can't build backtrace-bench");
    let program = folder.join("release/backtrace-bench");

    let mut all: BTreeMap<String, (Vec<f64>, usize)> = BTreeMap::new();
    let mut others: BTreeMap<String, Vec<OtherThread>> = BTreeMap::new();
    for _ in 0..arguments.processes.max(1) {
        let output = Command::new(&program).arg(arguments.rounds.to_string()).output().context("backtrace-bench")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "backtrace-bench failed with {}: {errors}", output.status);
        for line in String::from_utf8(output.stdout)?.lines() {
            let printed: Printed =
                serde_json::from_str(line).with_context(|| format!("can't parse the output: {line}"))?;
            ensure!(printed.frames == 64, "{}: {} frames instead of 64", printed.name, printed.frames);
            match printed.peer {
                Some(peer) => {
                    let other = OtherThread { ours: printed.ns, floor: printed.floor, peer };
                    others.entry(printed.name).or_default().push(other);
                }
                None => all.entry(printed.name).or_default().0.push(printed.ns),
            }
        }
    }
    let medians: BTreeMap<&str, f64> = all
        .iter_mut()
        .map(|(name, (times, _))| {
            times.sort_by(f64::total_cmp);
            (name.as_str(), times[times.len() / 2])
        })
        .collect();
    println!("64 frames (least round; median of {} processes)", arguments.processes.max(1));
    for (name, time) in &medians {
        println!("    {name:<46} {time:>12.0} ns  {:>9.2} ns/frame", time / 64.0);
    }
    let mut rows = Vec::new();
    println!("\n{:<80} {:>10} {:>12} {:>8}", "ours: peer", "ours ns", "peer ns", "ratio");
    for (ours, peers) in PAIRS {
        for peer in peers {
            let (Some(our), Some(time)) = (medians.get(ours), medians.get(peer)) else { continue };
            let row = Row { name: format!("{ours}: {peer}"), ours: *our, peer: *time, unit: "ns", ratio: time / our };
            println!("{:<80} {:>10.0} {:>12.0} {:>7.1}x", row.name, row.ours, row.peer, row.ratio);
            rows.push(row);
        }
    }
    let walk = medians.get("ours: capture").copied().unwrap_or_default();
    let bare_signals = print_other_threads(&others, walk, &mut rows);
    if arguments.json {
        let figures: serde_json::Map<String, serde_json::Value> =
            medians.iter().map(|(name, time)| ((*name).to_owned(), serde_json::json!(time))).collect();
        println!(
            "{}",
            serde_json::json!({
                "tool": "bench", "bench": "backtrace", "pass": true, "unit": "ns", "rows": rows, "figures": figures,
                "another_thread_bare_signals": bare_signals,
            })
        );
    }
    Ok(())
}

/// Prints the times of capturing another thread next to the system's minimum; adds the rows.
fn print_other_threads(
    others: &BTreeMap<String, Vec<OtherThread>>,
    walk: f64,
    rows: &mut Vec<Row>,
) -> serde_json::Map<String, serde_json::Value> {
    println!("\nof another thread, us; floor: a bare signal is sent, its handler begins, the asker sees it");
    println!(
        "{:<28} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12} {:>18}",
        "the thread", "sent", "begins", "seen", "ours", "walk", "what is left", "glibc in a handler"
    );
    let mut bare_signals = serde_json::Map::new();
    for (name, all) in others {
        let median = |value: &dyn Fn(&OtherThread) -> Option<f64>| {
            let mut values: Vec<f64> = all.iter().filter_map(value).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let of_floor = |value: &dyn Fn(&Floor) -> f64| median(&|one| one.floor.as_ref().map(value));
        let floor = || {
            let (sent, began) = (of_floor(&|floor| floor.sent)?, of_floor(&|floor| floor.began)?);
            Some(Floor { sent, began, seen: of_floor(&|floor| floor.seen)? })
        };
        let (floor, ours, peer) = (floor(), median(&|one| Some(one.ours)), median(&|one| Some(one.peer)));
        let us = |nanoseconds: Option<f64>| nanoseconds.map_or("-".to_owned(), |ns| format!("{:.1}", ns / 1e3));
        println!(
            "{name:<28} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12} {:>18}",
            us(floor.map(|floor| floor.sent)),
            us(floor.map(|floor| floor.began)),
            us(floor.map(|floor| floor.seen)),
            us(ours),
            us(Some(walk)),
            us(floor.zip(ours).map(|(floor, ours)| ours - floor.seen - walk)),
            us(peer),
        );
        let mut add = |what: &str, peer: Option<f64>| {
            let Some((ours, peer)) = ours.zip(peer) else { return };
            let name = format!("of a thread that {name}: {what}");
            rows.push(Row { name, ours, peer, unit: "ns", ratio: peer / ours });
        };
        add("a bare signal", floor.map(|floor| floor.seen));
        add("glibc backtrace in a handler", peer);
        if let Some(floor) = floor {
            bare_signals.insert(name.clone(), serde_json::json!(floor));
        }
    }
    bare_signals
}

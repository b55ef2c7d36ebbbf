//! `bench unwind`: compares stack walks with those of other unwinders.
//!
//! These are libgcc, glibc, libunwind, `backtrace`, framehop and frame pointers. Builds
//! `unwind-bench` twice in release mode, without and with frame pointers, and runs it in fresh
//! processes: for interleaved rounds of all unwinders on the same stack, for the first walk of a
//! process, and for a recursion. Times are the median over processes of each process's minimum over
//! rounds.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use toolbox::tools;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Run this many interleaved rounds in each process
    #[arg(long, default_value_t = 30)]
    rounds: u32,
    /// Start this many processes, each with its own address layout
    #[arg(long, default_value_t = 8)]
    processes: usize,
    /// Start this many processes per unwinder for the first walk
    #[arg(long, default_value_t = 20)]
    first: usize,
    /// Recurse this deep
    #[arg(long, default_value_t = 100_000)]
    depth: u32,
}

/// The program's output.
#[derive(Deserialize)]
struct Printed {
    name: String,
    frames: u64,
    min: Option<f64>,
    median: Option<f64>,
    us: Option<f64>,
    faults: Option<i64>,
    allocations: Option<u64>,
    ms: Option<f64>,
    right: Option<bool>,
}

/// A comparison.
#[derive(Serialize)]
struct Row {
    /// The measurement and the peer.
    name: String,
    ours: f64,
    peer: f64,
    unit: &'static str,
    /// The peer's value divided by ours.
    ratio: f64,
    /// Allocations by ours and by the peer, if they are relevant.
    #[serde(skip_serializing_if = "Option::is_none")]
    allocations: Option<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minor_faults: Option<[i64; 2]>,
}

/// Unwinders that don't need frame pointers, in the order of the tables.
const PEERS: [&str; 8] = [
    "libgcc _Unwind_Backtrace",
    "glibc backtrace",
    "libunwind unw_backtrace",
    "libunwind unw_step",
    "backtrace crate",
    "framehop warm",
    "framehop cold",
    "plain frame pointers",
];

/// Runs the benchmark.
///
/// # Errors
/// An error if the program can't be built or run, or an unwinder misses frames.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if !has_libunwind()
        && let Err(error) = tools::install_debian_package("libunwind8")
    {
        println!("skipped: libunwind: {error:#}");
    }
    let (plain, with_frame_pointers) = (build(false)?, build(true)?);
    for program in [&plain, &with_frame_pointers] {
        for printed in output(program, &["check"])? {
            ensure!(
                printed.right == Some(true),
                "{} doesn't find the expected stack of {} frames in {}",
                printed.name,
                printed.frames,
                program.display()
            );
        }
    }
    let mut rows = Vec::new();
    let rounds = arguments.rounds.to_string();
    let cfi = medians(&plain, &["rounds", &rounds], arguments.processes)?;
    let frame_pointers = medians(&with_frame_pointers, &["rounds", &rounds], arguments.processes)?;

    println!("walks of 64 functions and the frames below them, ns a frame (least round; median over processes)");
    for times in [&cfi, &frame_pointers] {
        let build = if times.contains_key("plain frame pointers") { "frame pointers" } else { "no frame pointers" };
        println!("  built with {build}");
        for (name, time) in times {
            println!(
                "    {name:<30} {:>9.2}  median round {:>9.2}  {:>3} frames",
                time.least, time.median, time.frames
            );
        }
    }
    for (ours, times) in [("ours cfi warm", &cfi), ("ours cfi cold", &cfi), ("ours frame pointers", &frame_pointers)] {
        let Some(our) = times.get(ours) else { continue };
        for peer in PEERS {
            // Warm is compared with warm and cold with cold, and each with unwinders that cache
            // nothing.
            let other: &[&str] = match ours {
                "ours cfi cold" => &["framehop warm", "libunwind unw_backtrace"],
                _ => &["framehop cold"],
            };
            if let Some(time) = times.get(peer).filter(|_| !other.contains(&peer)) {
                rows.push(Row::new(format!("{ours}: {peer}"), our.least, time.least, "ns/frame"));
            }
        }
    }

    for launched in [false, true] {
        let what = if launched {
            "first walk of a deep stack after one at launch, of main's own, as `coroner::install` makes one"
        } else {
            "first walk of a fresh process, in which nobody has walked before"
        };
        println!("{what}, µs (median of {} processes)", arguments.first);
        for (program, ours) in [(&plain, "ours cfi warm"), (&with_frame_pointers, "ours frame pointers")] {
            let mut firsts: BTreeMap<&str, First> = BTreeMap::new();
            for name in [ours].into_iter().chain(PEERS).filter(|name| *name != "framehop cold") {
                if let Some(first) = first(program, name, launched, arguments.first)? {
                    println!(
                        "    {name:<30} {:>8.2}  {:>3} minor faults  {:>2} allocations  {:>3} frames",
                        first.us, first.faults, first.allocations, first.frames
                    );
                    firsts.insert(name, first);
                }
            }
            let Some(our) = firsts.get(ours) else { continue };
            for (name, peer) in firsts.iter().filter(|(name, _)| **name != ours) {
                let when = if launched { "first walk after one at launch" } else { "first walk" };
                let (label, name) = (ours.trim_end_matches(" warm"), name.trim_end_matches(" warm"));
                let mut row = Row::new(format!("{when}, {label}: {name}"), our.us, peer.us, "µs");
                row.allocations = Some([our.allocations, peer.allocations]);
                row.minor_faults = Some([our.faults, peer.faults]);
                rows.push(row);
            }
        }
    }

    println!("a recursion of {} frames, ms", arguments.depth);
    let depth = arguments.depth.to_string();
    for (program, ours) in [(&plain, "ours cfi warm"), (&with_frame_pointers, "ours frame pointers")] {
        let walks = output(program, &["recursion", &depth])?;
        let Some(our) = walks.iter().find(|walk| walk.name == ours).and_then(|walk| walk.ms) else { continue };
        for walk in &walks {
            let time = walk.ms.unwrap_or(0.0);
            println!("    {:<30} {time:>9.3}  {:>6} frames", walk.name, walk.frames);
            if PEERS.contains(&walk.name.as_str())
                && walk.name != "framehop cold"
                && walk.frames >= u64::from(arguments.depth)
            {
                rows.push(Row::new(format!("recursion, {ours}: {}", walk.name), our, time, "ms"));
            }
        }
    }

    println!("cold walks of 64 frames in images of many functions, ns a frame (least walk)");
    let large = output(&plain, &["large", "10"])?;
    for [our, peer] in large.as_chunks::<2>().0 {
        ensure!(our.right == Some(true), "{}: {} frames", our.name, our.frames);
        let (ours, peers) = (our.min.unwrap_or(0.0), peer.min.unwrap_or(0.0));
        println!("    {:<40} {ours:>8.2}    {:<40} {peers:>8.2}", our.name, peer.name);
        rows.push(Row::new(format!("{}: framehop cold", our.name), ours, peers, "ns/frame"));
    }

    println!("\n{:<72} {:>10} {:>10} {:>7}", "ours: peer", "ours", "peer", "ratio");
    for row in &rows {
        println!("{:<72} {:>10.2} {:>10.2} {:>6.2}x {}", row.name, row.ours, row.peer, row.ratio, row.unit);
    }
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "bench", "bench": "unwind", "pass": true, "rows": rows }));
    }
    Ok(())
}

impl Row {
    fn new(name: String, ours: f64, peer: f64, unit: &'static str) -> Row {
        Row { name, ours, peer, unit, ratio: peer / ours, allocations: None, minor_faults: None }
    }
}

fn has_libunwind() -> bool {
    // SAFETY: libunwind's constructors only fill tables.
    unsafe { libloading::Library::new("libunwind.so.8") }.is_ok()
}

/// Builds the program, with or without frame pointers in all of its own code.
///
/// The standard library is used as shipped.
fn build(frame_pointers: bool) -> anyhow::Result<PathBuf> {
    let name = if frame_pointers { "bench-fp" } else { "bench" };
    let folder = tools::target_dir().join(name);
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--package", "unwind-bench", "--target-dir"]);
    command.arg(&folder).current_dir(tools::workspace_root());
    if frame_pointers {
        command.env("RUSTFLAGS", "-Cforce-frame-pointers=yes").env("CORONER_BENCH_FRAME_POINTERS", "1");
    }
    let status = command.status().context("running cargo")?;
    ensure!(status.success(), "can't build unwind-bench");
    Ok(folder.join("release/unwind-bench"))
}

fn output(program: &Path, arguments: &[&str]) -> anyhow::Result<Vec<Printed>> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| format!("running {}", program.display()))?;
    ensure!(
        output.status.success() || arguments == ["check"],
        "unwind-bench {arguments:?} failed with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    text.lines()
        .map(|line| {
            serde_json::from_str(line).with_context(|| format!("can't parse the output of unwind-bench: {line}"))
        })
        .collect()
}

struct Time {
    least: f64,
    median: f64,
    frames: u64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns each unwinder's times, over a number of processes.
fn medians(program: &Path, arguments: &[&str], processes: usize) -> anyhow::Result<BTreeMap<String, Time>> {
    let mut all: BTreeMap<String, (Vec<f64>, Vec<f64>, u64)> = BTreeMap::new();
    for _ in 0..processes {
        for printed in output(program, arguments)? {
            let entry = all.entry(printed.name).or_default();
            entry.0.extend(printed.min);
            entry.1.extend(printed.median);
            entry.2 = printed.frames;
        }
    }
    Ok(all
        .into_iter()
        .map(|(name, (least, middle, frames))| (name, Time { least: median(least), median: median(middle), frames }))
        .collect())
}

struct First {
    us: f64,
    faults: i64,
    allocations: u64,
    frames: u64,
}

/// Measures a process's first walk, or the first walk of a deep stack after one at launch.
///
/// `None` if this build lacks the unwinder.
fn first(program: &Path, unwinder: &str, launched: bool, processes: usize) -> anyhow::Result<Option<First>> {
    let arguments = ["first", unwinder, "launch"];
    let arguments = if launched { &arguments[..] } else { &arguments[..2] };
    let mut walks = Vec::new();
    for _ in 0..processes {
        walks.extend(output(program, arguments)?);
    }
    let Some(last) = walks.last() else { return Ok(None) };
    let frames = last.frames;
    walks.sort_by(|a, b| a.us.unwrap_or(0.0).total_cmp(&b.us.unwrap_or(0.0)));
    let middle = &walks[walks.len() / 2];
    let mut faults: Vec<i64> = walks.iter().filter_map(|walk| walk.faults).collect();
    faults.sort_unstable();
    let allocations = walks.iter().filter_map(|walk| walk.allocations).max().unwrap_or(0);
    let faults = faults.get(faults.len() / 2).copied().unwrap_or(0);
    Ok(Some(First { us: middle.us.unwrap_or(0.0), faults, allocations, frames }))
}

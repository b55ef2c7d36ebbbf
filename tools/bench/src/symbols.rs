//! `bench symbols`: measures symbolication, cold and in the steady state.
//!
//! It symbolicates 64 addresses of one report. Cold starts use a large symbol table, and DWARF; the
//! steady state is measured per lookup.
//!
//! Builds `symbols-bench`, a separate package because its peers bring a hundred dependencies, in
//! release mode. The large table is that of the compiler's own library, which every machine with a
//! Rust toolchain has.

use std::{
    fs,
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
    /// Read this ELF file instead of the compiler's librustc_driver
    #[arg(long)]
    file: Option<PathBuf>,
    /// Run this many interleaved rounds, each with its own addresses
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// Look up this many addresses in the steady state
    #[arg(long, default_value_t = 500_000)]
    lookups: u32,
}

/// The program's output for each namer; the first line has only `functions`.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Printed {
    functions: Option<u64>,
    name: String,
    /// Cold: the minimum over the rounds.
    ms: Option<f64>,
    median: f64,
    allocations: Option<u64>,
    peak: u64,
    right: Option<u64>,
    of: u64,
    /// Steady state.
    build_ms: Option<f64>,
    ns: Option<f64>,
    live: Option<u64>,
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
    /// Allocations by ours and by the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    allocations: Option<[u64; 2]>,
    /// Peak heap in bytes, ours and the peer's.
    heap_bytes: [u64; 2],
}

/// Runs the benchmark.
///
/// # Errors
/// An error if the program can't be built or run, or a name of ours is wrong.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let program = build()?;
    let file = match &arguments.file {
        Some(file) => file.clone(),
        None => compiler_library()?,
    };
    let (rounds, lookups) = (arguments.rounds.to_string(), arguments.lookups.to_string());
    let mut rows = Vec::new();

    println!("64 addresses of {} from nothing, by symbol tables:", file.display());
    let first = output(&program, "first", &file, &rounds)?;
    print_first(&first);
    compare(&mut rows, "64 names from nothing", &first, "coroner scan", "ms");

    println!("64 addresses of {} from nothing, with file, line and inlined calls:", program.display());
    let lines = output(&program, "lines", &program, &rounds)?;
    print_first(&lines);
    compare(&mut rows, "64 addresses with lines from nothing", &lines, "coroner symbolizer", "ms");

    println!("one lookup of {}, everything built, the name read:", file.display());
    let steady = output(&program, "steady", &file, &lookups)?;
    for printed in &steady {
        println!(
            "  {:<30} {:>9.1} ns  median {:>9.1}  built in {:>7.1} ms  {:>6.1} MB live",
            printed.name,
            printed.ns.unwrap_or(f64::NAN),
            printed.median,
            printed.build_ms.unwrap_or(f64::NAN),
            megabytes(printed.live.unwrap_or(0)),
        );
    }
    compare(&mut rows, "one lookup", &steady, "coroner index", "ns");

    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "bench", "bench": "symbols", "rows": rows }));
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss)] // For people to read.
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn print_first(all: &[Printed]) {
    for printed in all {
        println!(
            "  {:<30} {:>9.3} ms  median {:>9.3}  {:>8} allocations  {:>6.1} MB heap  {} of {} right",
            printed.name,
            printed.ms.unwrap_or(f64::NAN),
            printed.median,
            printed.allocations.unwrap_or(0),
            megabytes(printed.peak),
            printed.right.unwrap_or(0),
            printed.of,
        );
    }
}

fn compare(rows: &mut Vec<Row>, what: &str, all: &[Printed], ours: &str, unit: &'static str) {
    let value = |printed: &Printed| printed.ms.or(printed.ns).unwrap_or(f64::NAN);
    let Some(our) = all.iter().find(|printed| printed.name == ours) else { return };
    for peer in all.iter().filter(|printed| !printed.name.starts_with("coroner")) {
        rows.push(Row {
            name: format!("{what}: {ours} / {}", peer.name),
            ours: value(our),
            peer: value(peer),
            unit,
            ratio: value(peer) / value(our),
            allocations: our.allocations.zip(peer.allocations).map(|(ours, theirs)| [ours, theirs]),
            // The scan itself allocates nothing; its heap was used to check the answers.
            heap_bytes: [if our.allocations == Some(0) { 0 } else { our.peak }, peer.peak],
        });
    }
}

fn build() -> anyhow::Result<PathBuf> {
    let folder = tools::target_dir().join("bench-symbols");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--release", "--locked", "--target-dir"])
        .arg(&folder)
        .arg("--manifest-path")
        .arg(tools::workspace_root().join("tools/bench/symbols-bench/Cargo.toml"))
        .status()
        .context("running cargo")?;
    ensure!(status.success(), "can't build symbols-bench");
    Ok(folder.join("release/symbols-bench"))
}

/// Returns the path of the compiler's own library: 150 MB, with at least 165,000 symbols.
fn compiler_library() -> anyhow::Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().context("running rustc")?;
    let folder = Path::new(String::from_utf8(output.stdout)?.trim()).join("lib");
    let files = fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
    files
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("librustc_driver-"))
        })
        .with_context(|| format!("no librustc_driver in {}; name a file with --file", folder.display()))
}

fn output(program: &Path, mode: &str, file: &Path, count: &str) -> anyhow::Result<Vec<Printed>> {
    let output = Command::new(program)
        .arg(mode)
        .arg(file)
        .arg(count)
        .output()
        .with_context(|| format!("running {}", program.display()))?;
    ensure!(
        output.status.success(),
        "symbols-bench {mode} failed with {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    );
    let mut all = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let printed: Printed =
            serde_json::from_str(line).with_context(|| format!("can't parse the output of symbols-bench: {line}"))?;
        match printed.functions {
            Some(functions) => println!("  ({functions} functions that overlap no other to choose from)"),
            None => all.push(printed),
        }
    }
    Ok(all)
}

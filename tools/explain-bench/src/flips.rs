//! Crashes with one flipped bit, in a pointer or in code, and crashes without.
//!
//! `flips.c` takes a pointer to a local variable, a static or constant one, the heap, a large
//! allocation or code, or some code that it then runs, and flips any one bit. Most flips of low
//! bits and some of code don't crash; those leave no report and are not counted. **Named**: the
//! explanation names the bit and the good address, or the byte of code. **Accused**: the
//! explanation of a clean crash names a flipped bit or a changed byte.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};
use coroner_explain::{CodeChangeKind, Explanation, ImageFiles, explain};
use coroner_report::Report;
use coroner_symbols::{Options, Symbolizer};
use serde::Serialize;

use super::{Bench, succeed};

/// Minimum percentage of flips that must be named.
const WANTED: usize = 90;
/// Maximum number of runs per wanted crash.
const RUNS: u64 = 12;
/// The lowest bit that is named.
///
/// Lower bits lead to nearby memory, as a wrong index does: they are not named, and counted
/// separately.
const LOWEST: u32 = 24;
/// The largest offset of an access within an object.
const OBJECT: u64 = 4096;

/// The location of a flipped bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Pointer,
    Code,
    Clean,
}

/// A crash.
#[derive(Debug)]
struct Flip {
    bit: u32,
    /// For code: whether the report contains the byte.
    ///
    /// A program may continue with wrong values and crash elsewhere.
    is_in_report: bool,
    is_named: bool,
    is_accused: bool,
    line: String,
}

/// Counts of crashes in one mode.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Count {
    mode: String,
    crashes: usize,
    named: usize,
    accused: usize,
}

/// Makes `crashes` crashes of each kind, and four times as many without a flipped bit.
///
/// # Errors
/// An error if fewer than required are named, or a clean crash is accused.
pub(super) fn run(bench: &Bench, crashes: usize, first_seed: u64, is_verbose: bool) -> anyhow::Result<Vec<Count>> {
    let program = bench.folder.path().join("flips");
    let mut command = Command::new("cc");
    command.args(["-O2", "-g", "-w", "-fno-optimize-sibling-calls", "-fno-inline-functions", "-Wl,--build-id"]);
    command.arg("-I").arg(&bench.include).arg(bench.sources.join("flips.c"));
    command.arg(bench.folder.path().join(dist::soname()));
    command.arg(format!("-Wl,-rpath,{}", bench.folder.path().display()));
    succeed(command.arg("-o").arg(&program))?;
    let mut counts = Vec::new();
    for (mode, wanted) in [(Mode::Pointer, crashes), (Mode::Code, crashes), (Mode::Clean, 4 * crashes)] {
        let found = crashes_of(bench, &program, mode, wanted, first_seed)?;
        if is_verbose {
            let shown = found.iter().filter(|flip| flip.is_accused || !(flip.is_named || mode == Mode::Clean));
            shown.for_each(|flip| println!("{mode:?}: {}", flip.line));
        }
        let mut count = |name: &str, of: &[&Flip]| {
            let (named, accused) =
                (of.iter().filter(|flip| flip.is_named).count(), of.iter().filter(|flip| flip.is_accused).count());
            println!("{name}: {} crashes, {named} named, {accused} accused", of.len());
            counts.push(Count { mode: name.to_owned(), crashes: of.len(), named, accused });
        };
        match mode {
            Mode::Pointer => {
                count("pointers", &found.iter().filter(|flip| flip.bit >= LOWEST).collect::<Vec<_>>());
                count("pointers, low bits", &found.iter().filter(|flip| flip.bit < LOWEST).collect::<Vec<_>>());
            }
            Mode::Code => {
                count("code", &found.iter().filter(|flip| flip.is_in_report).collect::<Vec<_>>());
                count("code, far from the crash", &found.iter().filter(|flip| !flip.is_in_report).collect::<Vec<_>>());
            }
            Mode::Clean => count("clean", &found.iter().collect::<Vec<_>>()),
        }
    }
    let of = |name: &str| counts.iter().find(|count| count.mode == name);
    for count in ["pointers", "code"].iter().filter_map(|name| of(name)) {
        ensure!(count.named * 100 >= count.crashes * WANTED, "too few flips are named: {count:?}");
    }
    ensure!(of("clean").is_some_and(|clean| clean.accused == 0), "a clean crash is reported as changed");
    Ok(counts)
}

/// Collects `wanted` crashes of a mode, or fewer if the runs don't yield as many.
fn crashes_of(bench: &Bench, program: &Path, mode: Mode, wanted: usize, first_seed: u64) -> anyhow::Result<Vec<Flip>> {
    let next = AtomicU64::new(first_seed);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..std::thread::available_parallelism().map_or(1, usize::from))
            .map(|_| {
                scope.spawn(|| {
                    let mut symbolizer = Symbolizer::new(Options::default());
                    while locked(&found).len() < wanted {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed - first_seed >= RUNS * wanted as u64 {
                            break;
                        }
                        let flip = crash(bench, program, mode, seed, &mut symbolizer)?;
                        locked(&found).extend(flip);
                    }
                    Ok(())
                })
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
    })?;
    let mut found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    ensure!(
        found.len() >= wanted.div_ceil(2),
        "only {} crashes of {mode:?} within {RUNS} times as many runs",
        found.len()
    );
    found.truncate(wanted);
    Ok(found)
}

fn locked<T>(found: &Mutex<Vec<T>>) -> std::sync::MutexGuard<'_, Vec<T>> {
    found.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Makes one run. `None` if it did not crash, or left no report.
fn crash(
    bench: &Bench,
    program: &Path,
    mode: Mode,
    seed: u64,
    symbolizer: &mut Symbolizer,
) -> anyhow::Result<Option<Flip>> {
    let store = bench.folder.path().join(format!("flips-{mode:?}-{seed}"));
    let mode_name = format!("{mode:?}").to_lowercase();
    let died = Command::new("sh")
        .args(["-c", "ulimit -c 0; exec \"$@\"", "sh"])
        .arg(program)
        .arg(&store)
        .args([&mode_name, &seed.to_string()])
        .output()?;
    let runs = fs::read_dir(store.join("runs")).with_context(|| format!("{died:?}"))?;
    let reports = runs.filter_map(|run| Some(run.ok()?.path().join("report"))).filter(|path| path.is_file());
    let report = reports.filter_map(|path| Report::read_file(path).ok()).find(|report| report.crash.is_some());
    fs::remove_dir_all(&store)?;
    let Some(report) = report.filter(|_| died.status.signal().is_some()) else { return Ok(None) };
    let text = String::from_utf8_lossy(&died.stdout).into_owned();
    let mut words = text.split_whitespace();
    let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok()).context("no address")?;
    let bit: u32 = words.next().and_then(|word| word.parse().ok()).context("no bit")?;
    let printed = explain(&report, &ImageFiles::for_report(&report, symbolizer));
    let line = format!("seed {seed}, bit {bit} at {address:#x}: {}", printed.headline);
    let has = |piece: &coroner_report::model::Code| {
        address.checked_sub(piece.address.0).is_some_and(|at| at < piece.bytes.0.len() as u64)
    };
    Ok(Some(Flip {
        bit,
        is_in_report: report.code.iter().any(has),
        is_named: is_named(mode, &printed, address, bit),
        is_accused: mode == Mode::Clean && (printed.code_change.is_some() || !printed.bit_flips.is_empty()),
        line,
    }))
}

fn is_named(mode: Mode, printed: &Explanation, address: u64, bit: u32) -> bool {
    match mode {
        Mode::Pointer => {
            printed.bit_flips.iter().any(|flip| flip.bit == bit && flip.address.0.wrapping_sub(address) < OBJECT)
        }
        Mode::Code => printed
            .code_change
            .as_ref()
            .is_some_and(|change| change.address.0 == address && change.kind == CodeChangeKind::OneBit),
        Mode::Clean => false,
    }
}

//! Compares symbolication with two versions of llvm-symbolizer.
//!
//! It compares names, files, lines and inlined calls of random addresses in 46 files, and measures
//! time and memory of all [`answers::namers`]. [`compare::Class::is_equal`] decides which
//! differences count. See the package's `README.md`.

mod answers;
mod compare;
mod subjects;

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, ensure};
use clap::Parser as _;
use object::{Object, ObjectSection, SectionKind};
use serde::Serialize;

use answers::{Answer, Cost};
use compare::{Places, Tally};
use subjects::{SUBJECTS, Subject};
use toolbox::tools;

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Print one JSON object, a row per file and peer, as the last line
    #[arg(long)]
    json: bool,
    /// Compare only the files with these names
    #[arg(long)]
    only: Vec<String>,
    /// Compare this many addresses per file
    #[arg(long, default_value_t = 2500)]
    addresses: usize,
    /// Print this many examples per kind of disagreement
    #[arg(long, default_value_t = 1)]
    examples: usize,
    /// Fail if a file can't be made because a compiler or package is missing
    #[arg(long)]
    all: bool,
    /// Compare answers only; don't measure time and memory
    #[arg(long)]
    untimed: bool,
}

/// The versions of llvm-symbolizer to install if they are missing.
const VERSIONS: [&str; 2] = ["llvm-14", "llvm-19"];

/// The share of answers that must exist and be equal, in units of 1/10,000.
const WANTED: usize = 9990;

/// Time limit of a peer.
const LIMIT: Duration = Duration::from_mins(3);

/// A file, and one version of llvm-symbolizer.
#[derive(Serialize)]
struct Row {
    file: &'static str,
    bytes: u64,
    peer: String,
    /// Addresses that the peer answers.
    answered: usize,
    /// The number of those addresses that ours answers.
    answered_by_ours: usize,
    /// The number of those with equal answers.
    equal: usize,
    /// Disagreements by kind, including those that the other version settles.
    classes: Vec<(&'static str, usize)>,
    ok: bool,
}

/// A namer's time and memory for a file. `None` if it timed out or failed.
#[derive(Serialize)]
struct CostRow {
    file: &'static str,
    namer: String,
    seconds: Option<f64>,
    peak_megabytes: Option<f64>,
}

impl CostRow {
    fn new(file: &'static str, namer: &str, cost: Option<Cost>) -> Self {
        let seconds = cost.map(|cost| cost.seconds);
        Self { file, namer: namer.into(), seconds, peak_megabytes: cost.map(|cost| megabytes(cost.peak_bytes)) }
    }

    fn words(&self) -> String {
        match (self.seconds, self.peak_megabytes) {
            (Some(seconds), Some(megabytes)) => format!("{}: {seconds:.3} s, {megabytes:.0} MB", self.namer),
            _ => format!("{}: none", self.namer),
        }
    }
}

/// Runs the comparison.
///
/// # Errors
/// An error if a row fails, or nothing could be compared.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    for version in VERSIONS {
        if !Path::new("/usr/lib").join(version).join("bin/llvm-symbolizer").exists() {
            tools::install_debian_package(version)?;
        }
    }
    if !Path::new("/usr/bin/time").exists() {
        tools::install_debian_package("time")?;
    }
    let program = subjects::build(&subjects::SYMBOLIZE)?;
    let libraries = if arguments.untimed { None } else { Some(subjects::build_peers()?) };
    let folder = tools::target_dir().join("symbols-truth");
    let (mut rows, mut costs, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for subject in SUBJECTS {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|name| name == subject.name) {
            continue;
        }
        match subject.file(&folder) {
            Ok(file) => {
                let (of_file, took) =
                    compare_file(arguments, (&program, libraries.as_deref()), subject, &file, &folder)?;
                rows.extend(of_file);
                costs.extend(took);
            }
            Err(error) => {
                println!("{:<20} skipped: {error:#}", subject.name);
                missing.push(subject.name);
            }
        }
    }
    let failed = rows.iter().filter(|row| !row.ok).count();
    println!("{} rows, {failed} failed; {} files skipped: {}", rows.len(), missing.len(), missing.join(", "));
    print_costs(&costs);
    if arguments.json {
        let all = serde_json::json!({ "tool": "symbols-truth", "pass": failed == 0, "rows": rows, "costs": costs, "missing": missing });
        println!("{all}");
    }
    ensure!(!rows.is_empty(), "no files were compared");
    ensure!(failed == 0, "{failed} rows failed");
    ensure!(!arguments.all || missing.is_empty(), "files are missing: {}", missing.join(", "));
    Ok(())
}

fn compare_file(
    arguments: &Arguments,
    (program, libraries): (&Path, Option<&Path>),
    subject: &Subject,
    file: &Path,
    folder: &Path,
) -> anyhow::Result<(Vec<Row>, Vec<CostRow>)> {
    let addresses = random_addresses(file, arguments.addresses)?;
    // Read the file first, so that it is in the system's cache for all namers.
    let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?.len() as u64;
    let ours = answers::ours(program, file, &addresses, folder)?;
    let mut peers: Vec<(String, Vec<Answer>)> = Vec::new();
    for (version, peer) in answers::llvm_symbolizers()? {
        match answers::llvm(&peer, file, &addresses, folder, LIMIT) {
            Ok(Some(answers)) => peers.push((version, answers)),
            Ok(None) => println!("{}: {version} timed out after {} s", subject.name, LIMIT.as_secs()),
            Err(error) => println!("{}: {version}: {error:#}", subject.name),
        }
    }
    let mut costs = Vec::new();
    if let Some(libraries) = libraries {
        let namers = answers::namers(program, libraries, file)?;
        let took = answers::costs(&namers, &addresses, folder, LIMIT);
        costs.extend(namers.iter().zip(took).map(|(namer, cost)| CostRow::new(subject.name, &namer.name, cost)));
    }
    let places = Places::read(file)?;
    let mut rows = Vec::new();
    for (index, (version, answers)) in peers.iter().enumerate() {
        let others: Vec<&[Answer]> =
            peers.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, peer)| peer.1.as_slice()).collect();
        let tally = Tally::compare(&places, &addresses, &ours, answers, &others, arguments.examples);
        let row = row(subject, bytes, version, &tally);
        print_row(&row, &tally);
        rows.push(row);
    }
    if !costs.is_empty() {
        println!("{:<20} {}", "", costs.iter().map(CostRow::words).collect::<Vec<_>>().join(", "));
    }
    Ok((rows, costs))
}

/// Prints, for each namer, the number of files for which it took less time or memory than ours.
fn print_costs(costs: &[CostRow]) {
    let mut namers: Vec<&str> = costs.iter().map(|cost| cost.namer.as_str()).collect();
    namers.sort_unstable();
    namers.dedup();
    for namer in namers.into_iter().filter(|namer| *namer != "coroner") {
        let (mut of, mut less_time, mut less_memory) = (0, Vec::new(), Vec::new());
        for cost in costs.iter().filter(|cost| cost.namer == namer) {
            let ours = costs.iter().find(|ours| ours.namer == "coroner" && ours.file == cost.file);
            let Some(((time, memory), ours)) = cost.seconds.zip(cost.peak_megabytes).zip(ours) else { continue };
            of += 1;
            less_time.extend(ours.seconds.is_some_and(|ours| time < ours).then_some(cost.file));
            less_memory.extend(ours.peak_megabytes.is_some_and(|ours| memory < ours).then_some(cost.file));
        }
        println!("{namer} took less time than ours for {} of {of} files: {}", less_time.len(), less_time.join(", "));
        println!("{namer} took less memory for {} of {of}: {}", less_memory.len(), less_memory.join(", "));
    }
}

fn row(subject: &Subject, bytes: u64, version: &str, tally: &Tally) -> Row {
    let (answered, answered_by_ours, equal) = (tally.answered(), tally.answered_by_ours(), tally.equal());
    let enough = |count: usize, of: usize| count * 10_000 >= of * WANTED;
    Row {
        file: subject.name,
        bytes,
        peer: version.into(),
        answered,
        answered_by_ours,
        equal,
        classes: tally.disagreements().map(|(class, count)| (class.name(), count)).collect(),
        ok: enough(answered_by_ours, answered) && enough(equal, answered_by_ours),
    }
}

fn print_row(row: &Row, tally: &Tally) {
    #[allow(clippy::cast_precision_loss)] // For people to read.
    let percent = |count: usize, of: usize| if of == 0 { 100.0 } else { count as f64 * 100.0 / of as f64 };
    println!(
        "{:<20} {:<8} {} {:>6.1} MB  answered {:>4}, by ours {:>6.2} %, equal {:>6.2} %",
        row.file,
        row.peer,
        if row.ok { "ok    " } else { "FAILED" },
        megabytes(row.bytes),
        row.answered,
        percent(row.answered_by_ours, row.answered),
        percent(row.equal, row.answered_by_ours),
    );
    for (class, count) in tally.disagreements() {
        println!("{:<20} {count:>5} {}", "", class.name());
        for example in tally.examples.get(&class).into_iter().flatten() {
            println!("      {example}");
        }
    }
    if tally.settled > 0 {
        println!("{:<20} {:>5} of them equal to the other version", "", tally.settled);
    }
}

#[allow(clippy::cast_precision_loss)] // For people to read.
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Returns addresses in a file's code, the same in each run.
fn random_addresses(file: &Path, count: usize) -> anyhow::Result<Vec<u64>> {
    let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let parsed = object::File::parse(&*bytes)?;
    let sections: Vec<(u64, u64)> = parsed
        .sections()
        .filter(|section| section.kind() == SectionKind::Text || is_code_without_bytes(section))
        .map(|section| (section.address(), section.size()))
        .collect();
    let total: u64 = sections.iter().map(|section| section.1).sum();
    ensure!(total > 0, "{} has no code", file.display());
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut addresses = Vec::new();
    for _ in 0..count {
        let mut at = random() % total;
        for (start, size) in &sections {
            if at < *size {
                addresses.push(start + at);
                break;
            }
            at -= size;
        }
    }
    Ok(addresses)
}

/// Whether a section is code in a debug file, which doesn't contain the bytes.
fn is_code_without_bytes(section: &object::Section<'_, '_>) -> bool {
    let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { return false };
    sh_flags.contains(object::elf::SHF_EXECINSTR)
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

//! `cargo xtask symbols-truth`: names, files, lines and inlined calls of random addresses of 46 files, compared with llvm-symbolizer.
//!
//! Two versions of llvm-symbolizer are asked where Debian has two. An answer is right if it is that of one of them. What both versions say
//! otherwise is listed by [`compare::Class`], with examples. Time and memory are those of
//! all [`answers::namers`] for the same addresses, in turn, by runs of their own.
//!
//! A row fails if ours answers fewer than 99.9 % of what a version answers, or fewer than 99.9 % of the answers are the same.
//! `docs/symbols.md` says in what the tools differ, and why; [`compare::Class::is_equal`] has which of that counts as the same.

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

/// What to do.
#[derive(Debug, clap::Parser)]
#[command(name = "symbols-truth", about = "Compares names and lines with llvm-symbolizer")]
pub(crate) struct Arguments {
    /// Print one JSON object with the rows as the last line.
    #[arg(long)]
    json: bool,
    /// Only the files of these names.
    #[arg(long)]
    only: Vec<String>,
    /// Addresses of each file.
    #[arg(long, default_value_t = 2500)]
    addresses: usize,
    /// How many examples of each kind of disagreement are printed.
    #[arg(long, default_value_t = 1)]
    examples: usize,
    /// Also fail if a file can't be had here: a compiler, a package is missing.
    #[arg(long)]
    all: bool,
    /// Only answers are compared; no time or memory is taken.
    #[arg(long)]
    untimed: bool,
}

/// The versions of llvm-symbolizer that are installed if they are not there.
const VERSIONS: [&str; 2] = ["llvm-14", "llvm-19"];

/// Of ten thousand.
const WANTED: usize = 9990;

/// After this time a peer is given up.
const LIMIT: Duration = Duration::from_mins(3);

/// A file, and one version of llvm-symbolizer.
#[derive(Serialize)]
struct Row {
    file: &'static str,
    bytes: u64,
    peer: String,
    /// How many of the addresses the peer answers.
    answered: usize,
    /// How many of those ours answers.
    answered_by_ours: usize,
    /// How many of those are the same.
    equal: usize,
    /// Disagreements, by kind; those that the other version settles are among them.
    classes: Vec<(&'static str, usize)>,
    ok: bool,
}

/// What a namer took for a file. `None` if it took too long, or failed.
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

/// Compares.
///
/// # Errors
/// If a row fails, or nothing could be compared.
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
                println!("{:<20} not here: {error:#}", subject.name);
                missing.push(subject.name);
            }
        }
    }
    let failed = rows.iter().filter(|row| !row.ok).count();
    println!("{} rows, {failed} failed; {} files are not here: {}", rows.len(), missing.len(), missing.join(", "));
    print_costs(&costs);
    if arguments.json {
        let all = serde_json::json!({ "tool": "symbols-truth", "pass": failed == 0, "rows": rows, "costs": costs, "missing": missing });
        println!("{all}");
    }
    ensure!(!rows.is_empty(), "nothing was compared");
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
    // Once before, so that the file is in the system's cache for everybody.
    let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?.len() as u64;
    let ours = answers::ours(program, file, &addresses, folder)?;
    let mut peers: Vec<(String, Vec<Answer>)> = Vec::new();
    for (version, peer) in answers::llvm_symbolizers()? {
        match answers::llvm(&peer, file, &addresses, folder, LIMIT) {
            Ok(Some(answers)) => peers.push((version, answers)),
            Ok(None) => println!("{}: {version} has no answer after {} s", subject.name, LIMIT.as_secs()),
            Err(error) => println!("{}: {version}: {error:#}", subject.name),
        }
    }
    let mut costs = Vec::new();
    if let Some(libraries) = libraries {
        let namers = answers::namers(program, libraries, file)?;
        let took = answers::costs(&namers, &addresses, folder, LIMIT);
        costs.extend(namers.iter().zip(took).map(|(namer, cost)| CostRow::new(subject.name, &namer.name, cost)));
    }
    let places = Places::of(file)?;
    let mut rows = Vec::new();
    for (index, (version, answers)) in peers.iter().enumerate() {
        let others: Vec<&[Answer]> =
            peers.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, peer)| peer.1.as_slice()).collect();
        let tally = Tally::of(&places, &addresses, &ours, answers, &others, arguments.examples);
        let row = row(subject, bytes, version, &tally);
        print_row(&row, &tally);
        rows.push(row);
    }
    if !costs.is_empty() {
        println!("{:<20} {}", "", costs.iter().map(CostRow::words).collect::<Vec<_>>().join(", "));
    }
    Ok((rows, costs))
}

/// Of how many files each namer took less time or memory than ours.
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
        println!("{:<20} {:>5} of them as the other version says", "", tally.settled);
    }
}

#[allow(clippy::cast_precision_loss)] // For people to read.
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Addresses in the code of a file, the same in each run.
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

/// Code of a debug file, whose bytes are elsewhere.
fn is_code_without_bytes(section: &object::Section<'_, '_>) -> bool {
    let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { return false };
    sh_flags.contains(object::elf::SHF_EXECINSTR)
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

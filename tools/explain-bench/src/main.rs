//! Runs programs with one known fault each, and checks the explanations.
//!
//! The expected explanations are in [`table::ROWS`]. Each program is built without and with
//! optimization. See the package's `README.md` for the meaning of "right" and "wrong".

mod flips;
mod table;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, bail, ensure};
use clap::Parser as _;
use coroner_explain::{Certainty, CodeChangeKind, Explanation, ImageFiles, NoCode, explain};
use coroner_report::Report;
use coroner_report::model::{Address, FaultKind};
use coroner_symbols::{Options, Symbolizer};
use serde::Serialize;

use table::{Language, ROWS, Row};
use toolbox::tools;

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Print one JSON object, a row per program, as the last line
    #[arg(long)]
    json: bool,
    /// Run only programs with these names
    #[arg(long)]
    only: Vec<String>,
    /// Run every ninth program
    #[arg(long)]
    short: bool,
    /// Crash programs with a flipped bit instead: this many with the bit in a
    /// pointer, as many in code, and four times as many without
    #[arg(long, value_name = "CRASHES")]
    flips: Option<usize>,
    /// Seed the bit flips. Develop rules with seeds other than 1
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run arm64 programs under qemu-user instead
    #[arg(long)]
    arm64: bool,
}

/// Minimum percentage of programs that must be right.
const WANTED: usize = 98;
const ARM64: &str = "aarch64-unknown-linux-gnu";

/// The outcome of one program.
#[derive(Serialize)]
struct Outcome {
    program: String,
    language: String,
    optimised: bool,
    /// The explanation's first sentence.
    headline: String,
    kind: String,
    certainty: String,
    right: bool,
    /// Whether a claim is certain and false.
    wrong: bool,
    /// The reason the program is not right.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Outcome {
    /// Returns the outcome of a program that can't be built or left no report.
    fn failed(row: &Row, optimised: bool, error: &anyhow::Error) -> Self {
        Self {
            program: row.name.to_owned(),
            language: format!("{:?}", row.language),
            optimised,
            headline: String::new(),
            kind: String::new(),
            certainty: String::new(),
            right: false,
            wrong: false,
            why: Some(format!("{error:#}")),
        }
    }
}

/// Builds and crashes the programs, and checks the explanations.
///
/// # Errors
/// An error if fewer than [`WANTED`] percent are right, or one is wrong.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let bench = Bench::new(arguments.arm64)?;
    if let Some(crashes) = arguments.flips {
        let counts = flips::run(&bench, crashes, arguments.seed, !arguments.json)?;
        if arguments.json {
            println!("{}", serde_json::json!({ "tool": "explain-bench", "rows": counts }));
        }
        return Ok(());
    }
    let is_asked = |row: &Row| arguments.only.is_empty() || arguments.only.iter().any(|name| name == row.name);
    let rows = ROWS.iter().filter(|row| is_asked(row) && bench.has(row));
    let mut programs: Vec<(&Row, bool)> = rows.flat_map(|row| [(row, false), (row, true)]).collect();
    if arguments.short {
        programs = programs.into_iter().enumerate().filter(|(at, _)| at % 9 == 0).map(|(_, program)| program).collect();
    }
    let outcomes = bench.run_all(&programs);
    for outcome in &outcomes {
        let mark = match (outcome.right, outcome.wrong) {
            (true, _) => "right",
            (false, true) => "WRONG",
            (false, false) => "open",
        };
        let optimised = if outcome.optimised { "O2" } else { "O0" };
        println!("{mark:<6} {:<5} {optimised} {:<24} {}", outcome.language, outcome.program, outcome.headline);
        if let Some(why) = &outcome.why {
            println!("       {why}");
        }
    }
    let right = outcomes.iter().filter(|outcome| outcome.right).count();
    let wrong = outcomes.iter().filter(|outcome| outcome.wrong).count();
    let all = outcomes.len();
    println!("{all} programs: {right} right, {wrong} wrong, {} neither", all - right - wrong);
    let is_pass = wrong == 0 && right * 100 >= all * WANTED;
    if arguments.json {
        println!(
            "{}",
            serde_json::json!({
                "tool": "explain-bench", "pass": is_pass, "programs": all, "right": right, "wrong": wrong, "rows": outcomes,
            })
        );
    }
    ensure!(all > 0, "no programs match --only");
    ensure!(is_pass, "{right} of {all} right, {wrong} wrong; expected {WANTED} % right and none wrong");
    Ok(())
}

/// The programs' build folder and inputs.
struct Bench {
    folder: tempfile::TempDir,
    sources: PathBuf,
    include: PathBuf,
    is_arm64: bool,
}

impl Bench {
    fn new(is_arm64: bool) -> anyhow::Result<Self> {
        let root = tools::workspace_root();
        if is_arm64 {
            let mut command = Command::new(env!("CARGO"));
            command.current_dir(&root).args(["build", "--quiet"]);
            tools::rust_target(ARM64)?;
            tools::arm64_compiler()?;
            tools::arm64_emulator()?;
            command.args(["-p", "coroner-ffi", "--lib", "--target", ARM64]);
            command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
            succeed(&mut command)?;
        } else {
            for (library, package) in [("libjemalloc.so.2", "libjemalloc2"), ("libmimalloc.so.2", "libmimalloc2.0")] {
                if !Path::new("/usr/lib/x86_64-linux-gnu").join(library).exists() {
                    tools::install_debian_package(package)?;
                }
            }
            tools::build_workspace()?;
        }
        let folder = tempfile::tempdir()?;
        let of_arm64 = tools::target_dir().join(ARM64).join("debug/libcoroner_ffi.so");
        let built = if is_arm64 { of_arm64 } else { tools::built_library("libcoroner_ffi.so") };
        fs::copy(&built, folder.path().join(dist::soname())).with_context(|| built.display().to_string())?;
        // The linker looks for one name, the program for the other.
        std::os::unix::fs::symlink(dist::soname(), folder.path().join("libcoroner_ffi.so"))?;
        let sources = root.join("tools/explain-bench/src");
        Ok(Self { folder, sources, include: root.join("crates/bindings/ffi/include"), is_arm64 })
    }

    /// Whether the machine supports the fault and its language.
    fn has(&self, row: &Row) -> bool {
        // arm64 divides by zero without a fault, and lacks the x86_64 assembly. Debian's allocators
        // are installed for this machine.
        let divides = row.name.starts_with("divide") || row.name == "of_count";
        if self.is_arm64 { !row.is_x86 && !divides && row.environment.is_empty() } else { !row.is_arm64 }
    }

    /// Runs all programs, on as many threads as there are processors.
    fn run_all(&self, programs: &[(&Row, bool)]) -> Vec<Outcome> {
        let next = AtomicUsize::new(0);
        let found = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    let mut options = Options::default();
                    if self.is_arm64 {
                        // The emulator finds the libraries there.
                        options.search.push("/usr/aarch64-linux-gnu/lib".into());
                    }
                    let mut symbolizer = Symbolizer::new(options);
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some((row, is_optimised)) = programs.get(at) else { break };
                        let outcome = self.outcome(row, *is_optimised, &mut symbolizer);
                        let outcome = outcome.unwrap_or_else(|error| Outcome::failed(row, *is_optimised, &error));
                        found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, outcome));
                    }
                });
            }
        });
        let mut found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn outcome(&self, row: &Row, is_optimised: bool, symbolizer: &mut Symbolizer) -> anyhow::Result<Outcome> {
        let allocator = row.environment.first().map_or("", |(_, allocator)| allocator);
        let name = format!("{:?}-{}{allocator}-{}", row.language, row.name, if is_optimised { "O2" } else { "O0" });
        let program = self.folder.path().join(&name);
        self.build(row, is_optimised, &program)?;
        let store = self.folder.path().join(format!("{name}.store"));
        let mut report = self.crash(row, &program, &store)?;
        symbolizer.symbolicate_report(&mut report);
        let files = ImageFiles::for_report(&report, symbolizer);
        let printed = explain(&report, &files);
        let variable = variable(row, &printed);
        let why = not_right(row, is_optimised, &report, &printed)
            .or_else(|| variable.as_ref().map(|(why, _)| why.clone()))
            .or_else(|| beside(row, &report, &printed))
            .or_else(|| alone(&report, &printed))
            // Data is not compared with the file.
            .or_else(|| changed(&report, &files));
        let is_certain = printed.certainty == Certainty::Certain;
        let accused = beside(row, &report, &printed).is_some() && !row.is_flip;
        fs::remove_dir_all(&store)?;
        fs::remove_file(&program)?;
        Ok(Outcome {
            program: format!("{} {allocator}", row.name).trim_end().to_owned(),
            language: format!("{:?}", row.language),
            optimised: is_optimised,
            kind: printed.kind.name(),
            certainty: printed.certainty.name().to_owned(),
            right: why.is_none(),
            wrong: accused
                || variable.is_some_and(|(_, is_named)| is_named)
                || (is_certain && not_right(row, is_optimised, &report, &printed).is_some()),
            headline: printed.headline,
            why,
        })
    }

    fn build(&self, row: &Row, is_optimised: bool, program: &Path) -> anyhow::Result<()> {
        let libraries = format!("-Wl,-rpath,{}", self.folder.path().display());
        if row.language == Language::Rust {
            let mut command = Command::new("rustc");
            command.args(["--edition", "2024", "-g", "-C", "panic=abort", "-C", "link-arg=-Wl,--build-id"]);
            if self.is_arm64 {
                command.args(["--target", ARM64, "-C", "linker=aarch64-linux-gnu-gcc"]);
            }
            command.args(["-C", if is_optimised { "opt-level=2" } else { "opt-level=0" }, "-C"]);
            command.arg(format!("link-arg={libraries}")).arg("-L").arg(self.folder.path());
            command.args(["-l", "coroner_ffi", "-o"]).arg(program).arg(self.sources.join("program.rs"));
            return succeed(command.env("FAULT", row.name));
        }
        let compiler = match (row.language, self.is_arm64) {
            (Language::C, false) => "cc",
            (_, false) => "c++",
            (Language::C, true) => "aarch64-linux-gnu-gcc",
            (_, true) => "aarch64-linux-gnu-g++",
        };
        let mut command = Command::new(compiler);
        if row.language == Language::Cpp {
            command.args(["-x", "c++"]);
        }
        command.arg(if is_optimised { "-O2" } else { "-O0" }).arg(format!("-DFAULT={}", row.name));
        command.args(["-g", "-w", "-fno-optimize-sibling-calls", "-fstack-protector-all", "-U_FORTIFY_SOURCE"]);
        command.arg("-I").arg(&self.include).arg(self.sources.join("faults.c"));
        command.args(["-x", "none", "-Wl,--build-id"]).arg(self.folder.path().join(dist::soname()));
        succeed(command.arg(libraries).arg("-o").arg(program))
    }

    /// Crashes the program and returns its report.
    fn crash(&self, row: &Row, program: &Path, store: &Path) -> anyhow::Result<Report> {
        // No core files, and a small stack, so that an overflow's report contains all frames.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c 0; ulimit -s 512; exec \"$@\"", "sh"]);
        if self.is_arm64 {
            command.args(["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]);
        }
        command.envs(row.environment.iter().copied());
        let died = command.arg(program).arg(store).output()?;
        ensure!(died.status.signal().is_some(), "the program did not crash: {died:?}");
        let runs: Vec<PathBuf> =
            fs::read_dir(store.join("runs"))?.map(|run| Ok(run?.path())).collect::<std::io::Result<_>>()?;
        let [run] = runs.as_slice() else { bail!("expected one run, got {}", runs.len()) };
        Ok(Report::read_file(run.join("report"))?)
    }
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let done = command.output().with_context(|| format!("{command:?}"))?;
    let name = command.get_program().to_owned();
    let name = Path::new(&name).file_name().unwrap_or(OsStr::new("?")).to_string_lossy().into_owned();
    ensure!(done.status.success(), "{name} failed:\n{}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

/// Returns the first claim that differs from the table.
fn not_right(row: &Row, is_optimised: bool, report: &Report, printed: &Explanation) -> Option<String> {
    let kind = if is_optimised { row.kind } else { row.kind_unoptimised };
    if printed.kind != kind && printed.kind != row.kind {
        return Some(format!("unexpected kind: expected {}, got {}", kind.name(), printed.kind.name()));
    }
    if row.is_doubtful && printed.certainty == Certainty::Certain {
        return Some("unexpected certainty: expected possible or unknown, got certain".to_owned());
    }
    if !printed.headline.contains(row.says) {
        return Some(format!("the headline doesn't contain `{}`", row.says));
    }
    if kind == FaultKind::Abort {
        return None;
    }
    if row.is_nameless && operand_register(printed).is_some() {
        return Some(format!("unexpected register: {:?}", operand_register(printed)));
    }
    let access = printed.access.unwrap_or_default();
    if let Some((wanted, width)) = row.access
        && (access.kind, access.width) != (Some(wanted), Some(width))
    {
        return Some(format!("unexpected access: {:?} of {:?} bytes", access.kind, access.width));
    }
    let operand = printed.operand.as_ref();
    let unoptimised = if is_optimised { None } else { row.register_unoptimised };
    if let Some((value, offset)) = unoptimised.or(row.register) {
        let named = operand.and_then(|operand| Some((operand.register.as_ref()?, operand.value?.0)));
        let Some((_, found)) = named else { return Some("no register named".to_owned()) };
        let added = operand.and_then(|operand| operand.displacement).unwrap_or(0);
        // A compiler may fold the addition into the access even without optimization.
        if (found, added) != (value, offset) && Some((found, added)) != row.register {
            return Some(format!("unexpected operand: the register contains {found:#x}, plus {added:#x}"));
        }
    }
    // The named register must have held that value.
    let registers = report.crashed_thread().and_then(|thread| thread.registers.as_ref());
    let named = operand.and_then(|operand| Some((operand.register.as_deref()?, operand.value?.0)));
    let is_held = |(name, value): (&str, u64)| {
        let whole = whole_register(name);
        registers.is_some_and(|registers| {
            registers.named().any(|(known, held)| known == whole && held & mask(value) == value)
        })
    };
    named.filter(|named| !is_held(*named)).map(|(name, value)| format!("{name} did not contain {value:#x}"))
}

/// Returns how the variable differs from the table, and whether a wrong one is named.
fn variable(row: &Row, printed: &Explanation) -> Option<(String, bool)> {
    let found = printed.variable.as_ref().map(|named| (named.name.as_str(), named.accessed.as_deref()));
    // The programs hide values from the compiler in that variable.
    let is_allowed = match row.variable {
        _ if printed.kind == FaultKind::Abort => true,
        Some(_) => found == row.variable,
        None => matches!(found, None | Some(("hidden", _))) || found.map(|(name, _)| name) == row.may_name,
    };
    (!is_allowed).then(|| (format!("unexpected variable: {found:?}"), found.is_some_and(|(name, _)| name != "hidden")))
}

fn operand_register(printed: &Explanation) -> Option<&str> {
    printed.operand.as_ref().and_then(|operand| operand.register.as_deref())
}

/// Returns the register that contains a named part: `esi`, `sil`, `r9d`, `w3`.
fn whole_register(name: &str) -> String {
    let numbered =
        |name: &str| name.strip_prefix('r').is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()));
    match (name.strip_prefix('e'), name.strip_prefix('w'), name.strip_suffix(['d', 'w', 'b'])) {
        (_, _, Some(whole)) if numbered(whole) => whole.to_owned(),
        (Some(rest), ..) if rest.len() == 2 => format!("r{rest}"),
        (_, Some(number), _) if number.parse::<u8>().is_ok() => format!("x{number}"),
        _ => match name.strip_suffix('l') {
            Some(rest) if rest.len() == 2 => format!("r{rest}"),
            _ => name.to_owned(),
        },
    }
}

/// Masks the bits in which a part of a register equals the whole.
fn mask(value: u64) -> u64 {
    u64::MAX >> value.leading_zeros().min(32)
}

/// Checks the claims about flipped bits and changed code: correct if there is one, otherwise none.
fn beside(row: &Row, report: &Report, printed: &Explanation) -> Option<String> {
    // A breakpoint and a trap in assembly are in the file, too.
    if let Some(change) = &printed.code_change {
        return Some(format!("unchanged code reported as changed: {change:?}"));
    }
    let good = printed.operand.as_ref().and_then(|operand| operand.value).unwrap_or_default();
    let is_named = printed.bit_flips.iter().any(|flip| flip.address.0 ^ good.0 == 1 << flip.bit);
    match (row.is_flip, is_named) {
        (true, false) => Some("the flipped bit is not reported".to_owned()),
        (false, true) => {
            Some(format!("unflipped bit reported as flipped: {:?} ({})", printed.bit_flips, report.event_id()))
        }
        _ => None,
    }
}

/// Checks that the report alone gives the same explanation as with the program's file.
///
/// The report contains the code.
fn alone(report: &Report, printed: &Explanation) -> Option<String> {
    let blind = explain(report, &NoCode);
    let register = |printed: &Explanation| printed.operand.as_ref().and_then(|operand| operand.register.clone());
    // Without the callers' code it may know less about a call and its callee.
    let is_less = printed.call.is_some() && blind.call.is_none();
    let is_kind = blind.kind == printed.kind
        || (is_less && (printed.kind, blind.kind) == (FaultKind::PoisonedPointer, FaultKind::NonCanonical));
    let is_same = is_kind && (register(&blind) == register(printed) || is_less);
    (!is_same).then(|| format!("unexpected kind without the file: {}, {:?}", blind.kind.name(), register(&blind)))
}

/// Changes a bit of the report's code, which the explanation must name.
///
/// The program's file must exist.
fn changed(report: &Report, files: &ImageFiles<'_>) -> Option<String> {
    let mut changed = report.clone();
    let pc = report.crashed_thread()?.registers.as_ref()?.pc()?;
    // Only an image's code can be compared with a file.
    let segments = &report.image_at(pc)?.segments;
    segments
        .iter()
        .find(|segment| pc.0.wrapping_sub(segment.address.0) < segment.size && segment.protection & 1 != 0)?;
    let piece = changed.code.iter_mut().find(|piece| piece.address == pc)?;
    let bit = pc.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61;
    let place = (pc.0 >> 4) as usize % piece.bytes.0.len().min(16);
    *piece.bytes.0.get_mut(place)? ^= 1 << bit;
    let at = Address(pc.0 + place as u64);
    match explain(&changed, files).code_change {
        Some(change) if change.address == at && change.kind == CodeChangeKind::OneBit => None,
        other => Some(format!("bit {bit} at {at} was changed; reported: {other:?}")),
    }
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

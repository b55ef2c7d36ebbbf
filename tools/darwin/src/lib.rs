//! Builds Mach-O programs and runs them on Linux, on `darwin-host`.
//!
//! It runs the programs in `fixtures/darwin` ([`fixtures`]), the tests of Coroner's crates
//! ([`crates`]), and whole programs that crash ([`crashes`]). See the package's `README.md`.

mod crashes;
mod crates;
mod cxx;
mod fixtures;
mod kin;
mod kit;

use anyhow::{bail, ensure};

pub use crashes::program as crash_program;
pub use kit::{Arch, Kit, linker};

#[derive(Debug, clap::Parser)]
#[command(about)]
pub struct Arguments {
    /// Print one JSON object, a row per program, as the last line
    #[arg(long)]
    json: bool,
    /// Run only rows whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Run everything under the emulator, too (default: a part)
    #[arg(long)]
    all: bool,
    /// Run only this architecture
    #[arg(long, global = true)]
    arch: Option<Arch>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Run cargo with linkers and runners set, e.g. `cargo xtask darwin cargo test -p
    /// coroner-report`
    Cargo {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        arguments: Vec<String>,
    },
    /// Print the variables that `cargo` needs, as `export` lines
    Env,
    /// Check that Coroner compiles for visionOS, Mac Catalyst, tvOS and watchOS
    Kin,
}

/// A program's verdict.
#[derive(serde::Serialize)]
struct Row {
    program: String,
    arch: &'static str,
    passed: bool,
    /// The reason, if it failed.
    failure: Option<String>,
}

impl Row {
    /// Creates and prints a row.
    fn new(program: String, arch: Arch, attempt: impl Fn() -> anyhow::Result<()>) -> Row {
        let verdict = attempt().map_err(|error| format!("{error:#}"));
        let printed = verdict.as_ref().map_or_else(|error| format!("FAILED: {error}"), |()| "ok".into());
        println!("{:6} {program:30} {printed}", arch.name());
        Row { program, arch: arch.name(), passed: verdict.is_ok(), failure: verdict.err() }
    }
}

fn arches(arguments: &Arguments) -> Vec<Arch> {
    arguments.arch.map_or_else(|| Arch::ALL.to_vec(), |arch| vec![arch])
}

/// Runs the instrument.
///
/// # Errors
/// An error if setting up or building fails, or a row fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.action {
        None => table(arguments),
        Some(Action::Kin) => kin::run(),
        Some(Action::Env) => {
            for arch in arches(arguments) {
                for (name, value) in Kit::set_up(arch)?.environment() {
                    println!("export {name}='{value}'");
                }
            }
            Ok(())
        }
        Some(Action::Cargo { arguments: words }) => {
            let Some((subcommand, rest)) = words.split_first() else { bail!("no cargo command") };
            for arch in arches(arguments) {
                let kit = Kit::set_up(arch)?;
                println!("=== cargo {} --target {}", words.join(" "), arch.target());
                kit::succeed(kit.cargo(subcommand).args(rest))?;
            }
            Ok(())
        }
    }
}

fn table(arguments: &Arguments) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for arch in arches(arguments) {
        let (kit, only) = (Kit::set_up(arch)?, arguments.only.as_deref());
        rows.extend(fixtures::run(&kit, only)?);
        // Under an emulator tests take ten times as long, and everything is built again.
        let part = kit.arch.emulated() && !arguments.all && only.is_none();
        rows.extend(crates::run(&kit, only, part));
        if !part {
            rows.extend(crates::exceptions(&kit, only));
        }
        rows.extend(crashes::run(&kit, only, arguments.all, part));
    }
    let failed = rows.iter().filter(|row| !row.passed).count();
    println!("{} programs, {failed} failed", rows.len());
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "darwin", "rows": rows, "failed": failed }));
    }
    ensure!(!rows.is_empty(), "no programs match --only");
    ensure!(failed == 0, "{failed} of {} programs failed", rows.len());
    Ok(())
}

//! `cargo xtask darwin`: Mach-O programs, built and run without a Mac.
//!
//! Builds `darwin-host` for x86_64 and for arm64 (which runs under `qemu-aarch64-static`) and the unwinder's library that
//! macOS has in libSystem (LLVM's libunwind, from the sources in the `ziglang` package) ([`kit`]). Then it runs the
//! programs of `fixtures/darwin` and prints what each said and how it ended beside what it should have ([`fixtures`]), and
//! the tests of Coroner's own crates, built for Apple's targets ([`crates`]), and whole programs that die ([`crashes`]).
//!
//! `cargo xtask darwin cargo test -p coroner-report` runs cargo with linkers and runners set for both architectures'
//! targets; `--arch` chooses the target (both if absent). `cargo xtask darwin env` prints those variables for a shell.
//! `cargo xtask darwin kin` checks what else Coroner compiles for ([`kin`]).

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
#[command(name = "darwin", about = "Builds Mach-O programs and runs them on Linux, on darwin-host")]
pub struct Arguments {
    /// Print one JSON object with a row a program as the last line
    #[arg(long)]
    json: bool,
    /// Only programs and crates whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Where an emulator is needed all, too: otherwise the crates of the crash path, some behaviours and some next launches
    #[arg(long)]
    all: bool,
    /// Only this architecture
    #[arg(long, global = true)]
    arch: Option<Arch>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Run cargo with linkers and runners set, e.g. `cargo xtask darwin cargo test -p coroner-report`
    Cargo {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        arguments: Vec<String>,
    },
    /// Print the variables that `cargo` needs, as `export` lines
    Env,
    /// Check that Coroner compiles for visionOS, Mac Catalyst, tvOS and watchOS, together with Rust's standard library (adds rust-src)
    Kin,
}

/// One verdict.
#[derive(serde::Serialize)]
struct Row {
    program: String,
    arch: &'static str,
    passed: bool,
    /// What was wrong.
    failure: Option<String>,
}

impl Row {
    /// A row, which is also printed.
    fn new(program: String, arch: Arch, attempt: impl Fn() -> anyhow::Result<()>) -> Row {
        let verdict = attempt().map_err(|error| format!("{error:#}"));
        let said = verdict.as_ref().map_or_else(|error| format!("FAILED: {error}"), |()| "ok".into());
        println!("{:6} {program:30} {said}", arch.name());
        Row { program, arch: arch.name(), passed: verdict.is_ok(), failure: verdict.err() }
    }
}

fn arches(arguments: &Arguments) -> Vec<Arch> {
    arguments.arch.map_or_else(|| Arch::ALL.to_vec(), |arch| vec![arch])
}

/// Runs the chore.
///
/// # Errors
/// Where something can't be set up or built, or a program didn't do as it should.
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
        // Under an emulator tests take ten times as long, and all is built once more.
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
    ensure!(!rows.is_empty(), "no program has that name");
    ensure!(failed == 0, "{failed} programs did not do as they should");
    Ok(())
}

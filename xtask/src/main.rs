//! The project's chores as one command: `cargo xtask CHORE`.
//!
//! A chore that measures or checks takes `--json` and then prints one JSON object with its rows (ours, each peer, unit)
//! as its last line; its exit status says pass or fail. A new chore is one module and one line of [`Chore`].

mod bench;
mod darwin;
mod deadline;
mod fuzz;
mod header;
mod oracle;
mod sentry;
mod signal_safety;
mod test;
mod tools;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Coroner's chores")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Make the C header of `coroner-ffi` from its sources
    Header(header::Arguments),
    /// Build Mach-O programs and run them here: the test bed of the Apple side
    Darwin(darwin::Arguments),
    /// Is the unwinder right? Ask an emulator (needs PyPI, compilers, and a few minutes).
    Oracle(oracle::Arguments),
    /// Does the unwinder survive anything? Coverage-guided fuzzing of every format, on stable Rust.
    Fuzz(fuzz::Arguments),
    /// Is what we send what Sentry takes? Relay, Bugsink and sentry-cli answer (needs PyPI).
    Sentry(sentry::Arguments),
    /// Is everything that a crash can reach safe to run in a crash? The linked release artefact answers.
    SignalSafety(signal_safety::Arguments),
    /// Set up what the tests need, and run them all
    Test(test::Arguments),
    /// What does it cost, beside peers?
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().chore {
        Chore::Header(arguments) => header::run(&arguments),
        Chore::Darwin(arguments) => darwin::run(&arguments),
        Chore::Oracle(arguments) => oracle::run(&arguments),
        Chore::Fuzz(arguments) => fuzz::run(&arguments),
        Chore::Sentry(arguments) => sentry::run(&arguments),
        Chore::SignalSafety(arguments) => signal_safety::run(&arguments),
        Chore::Test(arguments) => test::run(&arguments),
        Chore::Bench(bench) => bench::run(&bench),
    }
}

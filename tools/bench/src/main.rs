//! Measures Coroner's costs, and peers' costs for the same work in the same run.
//!
//! A benchmark fails for wrong results, never for being slow. Each benchmark is one module and one
//! variant of [`Bench`]. See the package's `README.md`.

use clap::Parser as _;

mod backtrace;
mod capture;
mod handled_faults;
mod install;
mod launch;
mod scope;
mod size;
mod symbols;
mod throw;
mod unwind;

#[derive(clap::Parser)]
#[command(about)]
enum Bench {
    /// Measure live backtraces: capture and names
    Backtrace(backtrace::Arguments),
    /// Measure a crash, from the fault to the report on disk
    Capture(capture::Arguments),
    /// Measure faults that the app or a runtime handles
    HandledFaults(handled_faults::Arguments),
    /// Measure installing, at the first launch and later ones
    Install(install::Arguments),
    /// Measure whole launches: first, later, after a crash
    Launch(launch::Arguments),
    /// Measure setting a tag, breadcrumb, user and context
    Scope(scope::Arguments),
    /// Measure bytes and crates added to the smallest app
    Size(size::Arguments),
    /// Measure symbolication, cold and in the steady state
    Symbols(symbols::Arguments),
    /// Measure a C++ throw and catch, with and without capture
    Throw(throw::Arguments),
    /// Measure stack walks: cold, warm, first, deep
    Unwind(unwind::Arguments),
}

/// Runs one benchmark.
///
/// # Errors
/// An error if the benchmark can't be built or run, or its results are wrong.
fn run(bench: &Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Backtrace(arguments) => backtrace::run(arguments),
        Bench::Capture(arguments) => capture::run(arguments),
        Bench::HandledFaults(arguments) => handled_faults::run(arguments),
        Bench::Install(arguments) => install::run(arguments),
        Bench::Launch(arguments) => launch::run(arguments),
        Bench::Scope(arguments) => scope::run(arguments),
        Bench::Size(arguments) => size::run(arguments),
        Bench::Symbols(arguments) => symbols::run(arguments),
        Bench::Throw(arguments) => throw::run(arguments),
        Bench::Unwind(arguments) => unwind::run(arguments),
    }
}

fn main() -> anyhow::Result<()> {
    run(&Bench::parse())
}

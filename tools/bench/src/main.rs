//! `cargo xtask bench`: what things cost, beside what peers need for the same in the same run.
//!
//! Nothing here fails for being slow: machines differ, and only ratios within one run mean anything. What fails is a
//! result that is wrong, and with `size --check` one that is too large.

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

/// What is measured. A new benchmark is one module and one line here.
#[derive(clap::Parser)]
#[command(name = "bench", about = "Measures cost beside peers")]
enum Bench {
    /// Live backtraces: capture and names; beside `backtrace`, `std::backtrace`, glibc.
    Backtrace(backtrace::Arguments),
    /// A crash, from the fault to the report on disk, with up to 1,000 threads; beside minidump-writer.
    Capture(capture::Arguments),
    /// Faults that a handler of the app or a runtime deals with, with Coroner in between and without.
    HandledFaults(handled_faults::Arguments),
    /// Installing, at a first launch and at later ones; beside crash-handler.
    Install(install::Arguments),
    /// A small program's launches in all, first, later and after a crash; beside minidumper, `sentry`, human-panic.
    Launch(launch::Arguments),
    /// A tag, a breadcrumb, a user, a context, at each call; beside the `sentry` crate and a plain store.
    Scope(scope::Arguments),
    /// Bytes and crates that a reporter adds to the smallest app; beside crash-handler with minidumper and `sentry`.
    Size(size::Arguments),
    /// Naming addresses: 64 from nothing, with and without lines, and the steady state; beside object, addr2line, SymCache
    /// and blazesym.
    Symbols(symbols::Arguments),
    /// A C++ throw and its catch, with the throw's stack taken and without; beside glibc's `backtrace()` at each throw.
    Throw(throw::Arguments),
    /// Walking stacks: cold, warm, first, deep; beside libgcc, glibc, libunwind, `backtrace`, framehop, frame pointers.
    Unwind(unwind::Arguments),
}

/// Runs one benchmark.
///
/// # Errors
/// Where it can't be built or run, or its results are wrong.
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

//! The project's commands: `cargo xtask COMMAND`.
//!
//! A command that measures or checks takes `--json` and then prints one JSON object with its rows (ours, each peer, unit)
//! as its last line; its exit status says pass or fail. A new command is one module and one variant of [`Command`].

#[cfg(target_os = "linux")]
mod aar;
#[cfg(target_os = "linux")]
mod android;
mod bench;
mod darwin;
mod deadline;
#[cfg(target_os = "linux")]
mod desk;
#[cfg(target_os = "linux")]
mod dist;
#[cfg(target_os = "linux")]
mod explain;
#[cfg(target_os = "linux")]
mod front_door;
mod fuzz;
mod header;
#[cfg(target_os = "linux")]
mod launches;
mod miri;
mod oracle;
mod schema;
mod sentry;
mod signal_safety;
#[cfg(target_os = "linux")]
mod swift;
#[cfg(unix)]
mod symbols_truth;
mod test;
mod tools;
#[cfg(target_os = "linux")]
mod windows;
mod words;
#[cfg(target_os = "linux")]
mod worst_minute;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Coroner's checks, benches and build steps")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the C header of `coroner-ffi` from its sources
    Header(header::Arguments),
    /// Make the JSON Schema of reports from their model
    Schema(schema::Arguments),
    /// Build Mach-O programs and run them here: the test bed of the Apple side
    Darwin(darwin::Arguments),
    /// Build the Android library (AAR): the Java class, and the shared library for each processor
    #[cfg(target_os = "linux")]
    Aar(aar::Arguments),
    /// Make the archive that apps in C and C++ take: libraries, header, files for pkg-config and CMake
    #[cfg(target_os = "linux")]
    Dist(dist::Arguments),
    /// Seven apps by the documents' own words, of what is packaged: built, stripped, crashed, and their reports read (Linux)
    #[cfg(target_os = "linux")]
    FrontDoor(front_door::Arguments),
    /// Reports at a desk: pages in a browser, long lists, groups of known causes, core dumps beside gdb's stacks (Linux)
    #[cfg(target_os = "linux")]
    Desk(desk::Arguments),
    /// Run the tests as Android programs, on a device's bionic (Linux)
    #[cfg(target_os = "linux")]
    Android(android::Arguments),
    /// Compare the unwinder with an emulator, instruction by instruction (needs PyPI, compilers, and a few minutes)
    Oracle(oracle::Arguments),
    /// Fuzz every format that is read, guided by coverage, on stable Rust
    Fuzz(fuzz::Arguments),
    /// Check what is sent against Sentry's Relay, Bugsink and sentry-cli (needs PyPI)
    Sentry(sentry::Arguments),
    /// Check in the linked release artefact that everything that a crash can reach is safe to run in a crash
    SignalSafety(signal_safety::Arguments),
    /// Coroner's module for Swift, compiled and run with a real Swift in a Debian that has it (Linux, as root; 3.3 GB)
    #[cfg(target_os = "linux")]
    Swift(swift::Arguments),
    /// Names and lines of random addresses of 46 files beside two versions of llvm-symbolizer (needs Debian's compilers and packages)
    #[cfg(unix)]
    SymbolsTruth(symbols_truth::Arguments),
    /// Programs that each have one known fault, in C, C++ and Rust: is what is said of it right? (Linux)
    #[cfg(target_os = "linux")]
    Explain(explain::Arguments),
    /// Crashes in containers, sandboxes and beside runtimes: what is expected, and what is seen (Linux)
    #[cfg(target_os = "linux")]
    WorstMinute(worst_minute::Arguments),
    /// Kill launches at random moments, crash many at once: every report arrives, once (Linux)
    #[cfg(target_os = "linux")]
    Launches(launches::Arguments),
    /// Run crash time under Miri, on a fake kernel (needs a nightly toolchain)
    Miri(miri::Arguments),
    /// Check that names, comments and docs use the field's words, and that links of docs lead somewhere
    Words(words::Arguments),
    /// An app on Windows, by Wine: its launches, and what they leave read here (Linux)
    #[cfg(target_os = "linux")]
    Windows,
    /// Set up what the tests need, and run them all
    Test(test::Arguments),
    /// Measure what it costs, beside peers
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Header(arguments) => header::run(&arguments),
        Command::Schema(arguments) => schema::run(&arguments),
        Command::Darwin(arguments) => darwin::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Aar(arguments) => aar::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Dist(arguments) => dist::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::FrontDoor(arguments) => front_door::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Android(arguments) => android::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Desk(arguments) => desk::run(&arguments),
        Command::Oracle(arguments) => oracle::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Sentry(arguments) => sentry::run(&arguments),
        Command::SignalSafety(arguments) => signal_safety::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Swift(arguments) => swift::run(&arguments),
        #[cfg(unix)]
        Command::SymbolsTruth(arguments) => symbols_truth::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::WorstMinute(arguments) => worst_minute::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Launches(arguments) => launches::run(&arguments),
        Command::Miri(arguments) => miri::run(&arguments),
        Command::Words(arguments) => words::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Windows => windows::run(),
        Command::Test(arguments) => test::run(&arguments),
        Command::Bench(bench) => bench::run(&bench),
    }
}

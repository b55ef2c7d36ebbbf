//! `cargo xtask COMMAND`: the test command, and every instrument in `tools/` under its name.
//!
//! `cargo xtask oracle --json` is `cargo run -p oracle -- --json`. Measuring tools take `--json`
//! and print one JSON object as their last line; the exit status says pass or fail.

mod test;
mod tools;

use std::ffi::OsString;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Run the tests, or an instrument in tools/")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up what the tests need and run them
    Test(test::Arguments),
    /// List the instruments
    Tools,
    #[command(external_subcommand)]
    Tool(Vec<OsString>),
}

fn main() -> anyhow::Result<()> {
    forget_own_package();
    match Arguments::parse().command {
        Command::Test(arguments) => test::run(&arguments),
        Command::Tools => {
            for tool in tools::all()? {
                println!("{:<16} {}", tool.name, tool.description);
            }
            Ok(())
        }
        Command::Tool(words) => tools::run(&words),
    }
}

/// Removes the variables in which cargo describes the package that it runs, which is this one.
/// Build scripts that read them (ring's) would run again in every cargo that is started from here,
/// and everything above would be built again.
fn forget_own_package() {
    let is_of_package = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_package) {
            // SAFETY: this program has one thread.
            unsafe { std::env::remove_var(name) };
        }
    }
}

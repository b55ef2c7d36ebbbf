//! `cargo xtask COMMAND`: the test command, and every instrument in `tools/` under its name.
//!
//! `cargo xtask oracle --json` is `cargo run -p oracle -- --json`. Measuring tools take `--json` and print one JSON object as
//! their last line; the exit status says pass or fail.

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

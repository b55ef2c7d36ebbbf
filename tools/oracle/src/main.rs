//! The program; see the library.

use clap::Parser as _;

fn main() -> anyhow::Result<()> {
    oracle::run(&oracle::Arguments::parse())
}

//! The program; see the library.

use clap::Parser as _;

fn main() -> anyhow::Result<()> {
    dist::run(&dist::Arguments::parse())
}

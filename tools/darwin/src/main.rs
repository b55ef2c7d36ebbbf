//! The program; see the library.

use clap::Parser as _;

fn main() -> anyhow::Result<()> {
    darwin::run(&darwin::Arguments::parse())
}

//! What others say of Android programs: llvm-symbolizer of their names and lines, the oracle of their stacks.

use std::path::Path;

use crate::{oracle, symbols_truth};

type Check = fn(&Path) -> anyhow::Result<()>;

/// The checks, each a row.
pub(super) const CHECKS: &[(&str, Check)] = &[("symbols", symbols), ("stacks by the oracle", stacks)];

/// Names, lines and inlined calls of programs of both processors, beside llvm-symbolizer.
fn symbols(_: &Path) -> anyhow::Result<()> {
    symbols_truth::run(&symbols_truth::Arguments::of(&[
        "android-rust-x86_64",
        "android-rust-arm64",
        "android-c++-x86_64",
        "android-c++-arm64",
    ]))
}

/// Stacks of programs of both processors at each instruction.
fn stacks(_: &Path) -> anyhow::Result<()> {
    oracle::run(&oracle::Arguments::android())
}

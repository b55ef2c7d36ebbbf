//! What others say of Android programs: llvm-symbolizer of their names and lines, the oracle of their stacks, Breakpad of their
//! minidumps.

use std::path::Path;

use anyhow::ensure;

use crate::sentry::{self, minidump};
use crate::{oracle, symbols_truth};

type Check = fn(&Path) -> anyhow::Result<()>;

/// The checks, each a row.
pub(super) const CHECKS: &[(&str, Check)] =
    &[("symbols", symbols), ("stacks by the oracle", stacks), ("minidumps by Breakpad", minidumps)];

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

/// Minidumps of the deaths of a program on the device's C library, walked by Breakpad's processor.
fn minidumps(bed: &Path) -> anyhow::Result<()> {
    let system = bed.join("device/x86_64/system");
    let program = super::test_program(bed, "crash_program")?;
    let words = |fault: &str| [fault, "2", "stack-memory"].map(str::to_owned).to_vec();
    let files = vec![program.with_file_name(""), system.join("lib64"), system.join("bin")];
    let victim = minidump::Victim { program, words, device: Some(&system), files };
    let rows = minidump::check_victim(&sentry::Bench::set_up()?, &victim)?;
    for row in &rows {
        println!("        {}: {}", row.what, if row.problems.is_empty() { "ok" } else { "FAIL" });
    }
    let problems: Vec<String> = rows.into_iter().flat_map(|row| row.problems).collect();
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(())
}

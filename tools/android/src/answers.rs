//! Other instruments, run on Android programs.
//!
//! They compare symbols with llvm-symbolizer, stacks with the emulator, and minidumps with
//! Breakpad's processor.

use std::process::Command;

use anyhow::{Context, ensure};
use toolbox::{deadline, tools};

/// The instruments, one per row: name, package, arguments.
pub(super) const CHECKS: &[(&str, &str, &[&str])] = &[
    (
        "symbols",
        "symbols-truth",
        &[
            "--all",
            "--untimed",
            "--only",
            "android-rust-x86_64",
            "--only",
            "android-rust-arm64",
            "--only",
            "android-c++-x86_64",
            "--only",
            "android-c++-arm64",
        ],
    ),
    ("stacks by the oracle", "oracle", &["--android"]),
    ("minidumps by Breakpad", "sentry-check", &["--only", "minidump-android"]),
];

/// Runs an instrument in a separate process.
///
/// # Errors
/// An error if the instrument failed; its own output contains the reason.
pub(super) fn run(package: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root()).args(["run", "--quiet", "--package", package, "--"]).args(arguments);
    let status = deadline::status(&mut command).with_context(|| format!("running {package}"))?;
    ensure!(status.success(), "{package} failed: {status}");
    Ok(())
}

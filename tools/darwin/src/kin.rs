//! Checks that Coroner compiles for visionOS, Mac Catalyst, tvOS and watchOS.
//!
//! rustup doesn't have the standard library for all of them, so it is compiled from its sources,
//! too.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::kit::succeed;
use toolbox::tools;

/// The targets.
///
/// On the last two systems crashes can't be reported: an app compiles, and `install` returns an
/// error.
const TARGETS: [&str; 4] =
    ["aarch64-apple-visionos", "aarch64-apple-ios-macabi", "aarch64-apple-tvos", "aarch64-apple-watchos"];

/// The upper crates, which include those that they depend on.
const PACKAGES: [&str; 3] = ["coroner", "coroner-ffi", "coroner-formats"];

/// Checks all targets.
///
/// # Errors
/// An error if the sources are not available, or something does not compile.
pub(super) fn run() -> anyhow::Result<()> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().context("running rustc")?;
    let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let sources = Path::new(&sysroot).join("lib/rustlib/src/rust/library");
    if !sources.is_dir() {
        let added = Command::new("rustup").args(["component", "add", "rust-src"]).status().context("running rustup")?;
        ensure!(added.success(), "rustup could not add rust-src");
    }
    for target in TARGETS {
        let mut command = Command::new("cargo");
        command.args(["check", "--quiet", "-Zbuild-std=std,panic_unwind", "--target", target, "--target-dir"]);
        command.arg(tools::target_dir().join("kin")).args(PACKAGES.iter().flat_map(|package| ["-p", package]));
        // `-Z` on a stable toolchain, for a check of code that is never shipped.
        succeed(command.env("RUSTC_BOOTSTRAP", "1").current_dir(tools::workspace_root()))?;
        println!("{target}: {}", PACKAGES.join(", "));
    }
    Ok(())
}

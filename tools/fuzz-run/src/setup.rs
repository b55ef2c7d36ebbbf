//! The nightly toolchain, cargo-fuzz, and the build of the targets.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, iter};

use anyhow::{Context, bail, ensure};
use toolbox::{deadline, tools};

/// The version of cargo-fuzz.
const CARGO_FUZZ: &str = "0.13.2";

/// A toolchain with cargo-fuzz.
pub(crate) struct Toolchain {
    /// The toolchain's name for rustup.
    channel: String,
    /// The folder of cargo-fuzz.
    cargo_fuzz: PathBuf,
    /// The target triple of this machine.
    host: String,
}

/// Finds the toolchain and cargo-fuzz, or installs them.
///
/// # Errors
/// An error if they can't be installed. The outermost message is suitable for reporting a skipped
/// step.
pub(crate) fn find() -> anyhow::Result<Toolchain> {
    let channel = channel()?;
    let version = || rustup_run(&channel).args(["rustc", "-vV"]).output();
    if !version().is_ok_and(|output| output.status.success()) {
        install(&channel).context("no nightly toolchain")?;
    }
    let output = version().context("no nightly toolchain")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).context("no nightly toolchain")?.to_owned();
    let cargo_fuzz = tools::cargo_tool("cargo-fuzz", CARGO_FUZZ).context("no cargo-fuzz")?;
    Ok(Toolchain { channel, cargo_fuzz, host })
}

/// Returns the channel in `fuzz/rust-toolchain.toml`.
fn channel() -> anyhow::Result<String> {
    let file = tools::workspace_root().join("fuzz/rust-toolchain.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("can't read {}", file.display()))?;
    let value = text.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'));
    Ok(value.with_context(|| format!("missing channel in {}", file.display()))?.to_owned())
}

fn install(channel: &str) -> anyhow::Result<()> {
    let mut command = Command::new("rustup");
    command.args(["toolchain", "install", channel, "--profile", "minimal"]);
    let output = command.output().context("can't run rustup")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "can't install {channel}: {}", stderr.lines().last().unwrap_or_default());
    Ok(())
}

fn rustup_run(channel: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", channel]).current_dir(tools::workspace_root().join("fuzz"));
    // cargo sets these for the program that it runs. Some select the stable toolchain; others cause
    // build scripts to run again.
    const BY_CARGO: [&str; 7] =
        ["CARGO_BIN_", "CARGO_CRATE_", "CARGO_MANIFEST_", "CARGO_PKG_", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"];
    for (variable, _) in env::vars_os() {
        let name = variable.to_string_lossy();
        if name == "CARGO" || BY_CARGO.iter().any(|start| name.starts_with(start)) {
            command.env_remove(&variable);
        }
    }
    command
}

impl Toolchain {
    /// Builds the targets; returns the folder of their programs.
    ///
    /// # Errors
    /// An error if they don't compile. cargo's output is printed.
    pub(crate) fn build(&self, targets: &[String]) -> anyhow::Result<PathBuf> {
        let folder = env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| tools::workspace_root().join("fuzz/target"), |folder| tools::workspace_root().join(folder));
        let path = env::var_os("PATH").unwrap_or_default();
        let path: OsString = env::join_paths(iter::once(self.cargo_fuzz.clone()).chain(env::split_paths(&path)))?;
        let mut command = rustup_run(&self.channel);
        command.env("PATH", path).args(["cargo", "fuzz", "build", "--target", &self.host, "--target-dir"]).arg(&folder);
        if let [target] = targets {
            command.arg(target);
        }
        let status = deadline::status(&mut command).context("can't run cargo fuzz")?;
        ensure!(status.success(), "can't build the fuzz targets: cargo fuzz build exited with {status}");
        Ok(folder.join(&self.host).join("release"))
    }
}

/// Returns the names of the targets that contain `only`, sorted.
///
/// # Errors
/// An error if there is none, or the folder can't be read.
pub(crate) fn targets(only: &str) -> anyhow::Result<Vec<String>> {
    let folder = tools::workspace_root().join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("can't read {}", folder.display()))? {
        let file = entry?.path();
        let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if name.contains(only) {
            names.push(name.to_owned());
        }
    }
    if names.is_empty() {
        bail!("no fuzz target's name contains `{only}`");
    }
    names.sort();
    Ok(names)
}

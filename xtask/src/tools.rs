//! The instruments in `tools/`, and how they are built and started.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use toolbox::tools;

/// An instrument: a package below `tools/` with a program of the same name.
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: String,
}

/// All instruments, by name.
///
/// # Errors
/// Cargo can't read the workspace.
pub(crate) fn all() -> anyhow::Result<Vec<Tool>> {
    let output =
        cargo(&["metadata", "--no-deps", "--format-version", "1"]).output().context("running cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let (name, manifest) = (&package["name"], package["manifest_path"].as_str().unwrap_or_default());
        let Some(name) = name.as_str() else { continue };
        let programs = package["targets"].as_array().into_iter().flatten().filter(|target| target["kind"][0] == "bin");
        let has_program = programs.filter(|target| target["name"] == name).count() > 0;
        if has_program && manifest.ends_with(&format!("tools/{name}/Cargo.toml")) {
            let description = package["description"].as_str().unwrap_or_default().to_owned();
            found.push(Tool { name: name.to_owned(), description });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Builds and runs the instrument that `words` begin with, with the other words as its arguments.
///
/// # Errors
/// There is no such instrument, or it failed.
pub(crate) fn run(words: &[OsString]) -> anyhow::Result<()> {
    let Some((name, arguments)) = words.split_first() else { bail!("missing instrument") };
    let name = name.to_string_lossy();
    if !tools::workspace_root().join("tools").join(&*name).join("src/main.rs").is_file() {
        bail!("no instrument named `{name}`; `cargo xtask tools` lists them");
    }
    let status = command(&name)?.args(arguments).status().with_context(|| format!("running {name}"))?;
    // The instrument has printed why.
    std::process::exit(status.code().unwrap_or(1));
}

/// An instrument's program, which is built here; `cargo run` would describe its package in
/// variables (see `forget_own_package`).
///
/// # Errors
/// The build fails; cargo has printed why.
pub(crate) fn command(name: &str) -> anyhow::Result<Command> {
    let status = cargo(&["build", "--quiet", "--package", name]).status().context("running cargo")?;
    ensure!(status.success(), "{name} can't be built");
    let mut command = Command::new(tools::target_dir().join("debug").join(name));
    command.current_dir(tools::workspace_root());
    Ok(command)
}

/// Cargo in the workspace's root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root()).args(arguments);
    command
}

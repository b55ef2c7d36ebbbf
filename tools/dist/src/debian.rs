//! Builds the command's Debian package and its SBOM.
//!
//! The SBOM is `coroner-VERSION.cdx.json` (CycloneDX, by cargo-cyclonedx). The package contains the
//! command, the shared library, manual pages and completions; `dpkg-shlibdeps` finds its
//! dependencies. To test it, it is unpacked, and a program is run and crashed with the
//! unpacked files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::Arguments;
use toolbox::{deadline, tools};

const CARGO_DEB: (&str, &str) = ("cargo-deb", "3.8.0");
const CARGO_CYCLONEDX: (&str, &str) = ("cargo-cyclonedx", "0.5.9");

/// Builds and tests the package; returns its path.
///
/// # Errors
/// An error if a build fails, or the unpacked command doesn't work.
pub(super) fn make(arguments: &Arguments) -> anyhow::Result<PathBuf> {
    tools::debian_package("dpkg-dev", "dpkg-shlibdeps")?;
    let place = tools::target_dir().join("dist");
    fs::create_dir_all(&place)?;
    let profile = if arguments.profile == "dev" { "debug" } else { &arguments.profile };
    // cargo-deb finds files below the profile's folder wherever the target folder is.
    let parts = tools::target_dir().join(profile).join("debian");
    if parts.is_dir() {
        fs::remove_dir_all(&parts)?;
    }
    fs::create_dir_all(&parts)?;
    succeed(cargo().args([
        "build",
        "--quiet",
        "-p",
        "coroner-cli",
        "-p",
        "coroner-ffi",
        "--profile",
        &arguments.profile,
    ]))?;
    let command = tools::target_dir().join(profile).join("coroner");
    succeed(Command::new(&command).arg("man").arg(parts.join("man")))?;
    for shell in ["bash", "fish", "zsh"] {
        let script = Command::new(&command).args(["completions", shell]).output()?;
        ensure!(script.status.success(), "completions for {shell} failed: {}", script.status);
        fs::write(parts.join(format!("coroner.{shell}")), script.stdout)?;
    }
    let package = place.join(format!("coroner-{}.deb", env!("CARGO_PKG_VERSION")));
    let mut deb = with_tool(CARGO_DEB)?;
    deb.args(["deb", "--quiet", "-p", "coroner-cli", "--no-build", "--profile", &arguments.profile, "--output"]);
    succeed(deb.arg(&package))?;
    check(&package).context("checking the unpacked package")?;
    println!("{:>10} {}", package.metadata()?.len(), package.display());
    let list = list(&place)?;
    println!("{:>10} {}", list.metadata()?.len(), list.display());
    Ok(package)
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root());
    command
}

/// Returns a cargo command with this subcommand on its path.
fn with_tool((name, version): (&str, &str)) -> anyhow::Result<Command> {
    let folder = tools::cargo_tool(name, version)?;
    let before = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&before)))?;
    let mut command = cargo();
    command.env("PATH", path);
    Ok(command)
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let status = deadline::status(command).with_context(|| format!("{}", command.get_program().display()))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

/// Runs and crashes a program with the package's files, and checks for the other files.
fn check(package: &Path) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let root = scratch.path().join("root");
    succeed(Command::new("dpkg-deb").arg("-x").arg(package).arg(&root))?;
    for file in [
        "usr/share/man/man1/coroner.1.gz",
        "usr/share/man/man1/coroner-show.1.gz",
        "usr/share/bash-completion/completions/coroner",
        "usr/share/fish/vendor_completions.d/coroner.fish",
        "usr/share/zsh/vendor-completions/_coroner",
        "usr/share/doc/coroner/copyright",
    ] {
        ensure!(root.join(file).is_file(), "missing file: {file}");
    }
    let store = scratch.path().join("store");
    let mut run = Command::new(root.join("usr/bin/coroner"));
    run.args(["run", "--store"]).arg(&store).args([
        "--",
        "sh",
        "-c",
        "ulimit -c 0; exec python3 -c 'import ctypes; ctypes.string_at(0)'",
    ]);
    let died = run.output()?;
    let printed = String::from_utf8_lossy(&died.stderr);
    ensure!(printed.contains("Null pointer") || printed.contains("SIGSEGV"), "missing report of the crash: {printed}");
    Ok(())
}

/// Lists the command's components.
///
/// The tool writes a list beside the manifest of each workspace member.
fn list(place: &Path) -> anyhow::Result<PathBuf> {
    let name = format!("coroner-{}.cdx", env!("CARGO_PKG_VERSION"));
    let root = tools::workspace_root();
    let mut command = with_tool(CARGO_CYCLONEDX)?;
    command.args(["cyclonedx", "--quiet", "--format", "json", "--override-filename", &name, "--manifest-path"]);
    // Makes the list reproducible.
    let listed = succeed(command.arg(root.join("crates/desk/cli/Cargo.toml")).env("SOURCE_DATE_EPOCH", "0"));
    let file = format!("{name}.json");
    let list = place.join(&file);
    let copied = fs::copy(root.join("crates/desk/cli").join(&file), &list);
    for member in members()? {
        _ = fs::remove_file(member.with_file_name(&file));
    }
    listed?;
    copied?;
    let value: serde_json::Value = serde_json::from_slice(&fs::read(&list)?)?;
    let components = value["components"].as_array().map_or(0, Vec::len);
    ensure!(value["bomFormat"] == "CycloneDX" && components > 20, "{components} components are listed");
    Ok(list)
}

/// Returns the manifests of the workspace's members.
fn members() -> anyhow::Result<Vec<PathBuf>> {
    let metadata = cargo().args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    Ok(packages.iter().filter_map(|package| Some(PathBuf::from(package["manifest_path"].as_str()?))).collect())
}

//! The crates as packaged by `cargo package`, unpacked for the sample apps.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use toolbox::{deadline, tools};

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root());
    command
}

/// Packages all crates to be published, and unpacks them below `folder`.
///
/// Returns their folders by name.
///
/// # Errors
/// An error if one can't be packaged, which would also stop `cargo publish`.
pub(super) fn unpacked(folder: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let output = cargo().args(["metadata", "--no-deps", "--format-version", "1"]).output().context("running cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo printed no packages")?;
    let (private, public): (Vec<&Value>, Vec<&Value>) =
        packages.iter().partition(|package| package["publish"].as_array().is_some_and(Vec::is_empty));

    let target = folder.join("target");
    let mut command = cargo();
    // Each is built below, by the apps that use it.
    command.args(["package", "--quiet", "--workspace", "--no-verify", "--allow-dirty", "--target-dir"]).arg(&target);
    for package in private {
        command.args(["--exclude", package["name"].as_str().unwrap_or_default()]);
    }
    ensure!(deadline::status(&mut command)?.success(), "cargo package failed");
    let mut folders = Vec::new();
    for package in public {
        let name = package["name"].as_str().unwrap_or_default();
        let full = format!("{name}-{}", package["version"].as_str().unwrap_or_default());
        unpack(&target.join("package").join(format!("{full}.crate")), folder)?;
        folders.push((name.to_owned(), folder.join(full)));
    }
    Ok(folders)
}

/// Unpacks a package. Unchanged files are not rewritten, because cargo checks their times.
fn unpack(package: &Path, into: &Path) -> anyhow::Result<()> {
    let file = fs::File::open(package).with_context(|| package.display().to_string())?;
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut kept = BTreeSet::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = into.join(entry.path()?);
        // Contains the commit.
        if path.ends_with(".cargo_vcs_info.json") {
            continue;
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        if fs::read(&path).ok().as_ref() != Some(&content) {
            fs::create_dir_all(path.parent().unwrap_or(into))?;
            fs::write(&path, content)?;
        }
        kept.insert(path);
    }
    let root = kept.first().and_then(|path| path.strip_prefix(into).ok()?.iter().next()).map(|name| into.join(name));
    let mut folders = vec![root.with_context(|| format!("{} is empty", package.display()))?];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if !kept.contains(&path) {
                fs::remove_file(path)?;
            }
        }
    }
    Ok(())
}

/// Makes cargo use the packages instead of a registry's, in `folder` and below.
///
/// # Errors
/// An error if the file can't be written.
pub(super) fn patch(packages: &[(String, PathBuf)], folder: &Path) -> anyhow::Result<()> {
    let mut text = String::from("[patch.crates-io]\n");
    for (name, path) in packages {
        writeln!(text, "{name} = {{ path = \"{}\" }}", path.display())?;
    }
    fs::create_dir_all(folder.join(".cargo"))?;
    fs::write(folder.join(".cargo/config.toml"), text)?;
    Ok(())
}

/// Builds the command from its package below `root`, as the documents describe.
///
/// # Errors
/// An error if the command can't be built.
pub(super) fn command(packages: &[(String, PathBuf)], root: &Path, target: &Path) -> anyhow::Result<PathBuf> {
    let (_, package) =
        packages.iter().find(|(name, _)| name == "coroner-cli").context("missing package: coroner-cli")?;
    // The lock file has the registry's packages: the workspace's file, without packages that the
    // command doesn't need.
    fs::copy(tools::workspace_root().join("Cargo.lock"), package.join("Cargo.lock"))?;
    let run = |arguments: &[&str]| {
        let mut command = cargo();
        command.current_dir(root).args(arguments).stdout(std::process::Stdio::null());
        let status = deadline::status(&mut command)?;
        ensure!(status.success(), "cargo {} failed: {status}", arguments.join(" "));
        anyhow::Ok(())
    };
    let manifest = package.join("Cargo.toml");
    run(&["metadata", "--format-version", "1", "--manifest-path", &manifest.to_string_lossy()])?;
    let (path, place, target) = (package.to_string_lossy(), root.to_string_lossy(), target.to_string_lossy());
    run(&["install", "--quiet", "--locked", "--path", &path, "--root", &place, "--target-dir", &target])?;
    Ok(root.join("bin"))
}

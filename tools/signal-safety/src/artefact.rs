//! Builds the artefacts that apps ship: the crash path, linked as in a release.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

use toolbox::android_bed as android;
use toolbox::tools;

/// The release profile: cross-crate optimization removes everything that no entry point needs.
const PROFILE: &str = "ship";

/// Builds the smallest Rust app that installs crash-time code, for each target.
const APP: [&str; 5] = ["build", "--package", "smallest-app", "--bin", "crash"];
/// Builds the shared library for C apps, only for this machine.
///
/// It is position-independent and accesses thread-locals, if any, through `__tls_get_addr`.
const LIBRARY: [&str; 6] = ["rustc", "--package", "coroner-ffi", "--lib", "--crate-type", "cdylib"];

/// Builds the lean shared library, which has its own profile.
const LEAN_LIBRARY: [&str; 9] = [
    "rustc",
    "--package",
    "coroner-ffi",
    "--lib",
    "--crate-type",
    "cdylib",
    "--no-default-features",
    "--features",
    dist::LEAN,
];

/// Builds a target's artefacts and returns their paths.
///
/// # Errors
/// An error if cargo fails, which prints the reason.
pub(super) fn build(target: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = build_app(target)?;
    if target.starts_with(std::env::consts::ARCH) && !target.contains("-apple-") {
        found.extend(cargo(target, PROFILE, &LIBRARY)?);
        found.extend(cargo(target, dist::LEAN_PROFILE, &LEAN_LIBRARY)?);
    }
    Ok(found)
}

/// Builds the smallest Rust app for a target.
///
/// # Errors
/// An error if the build fails; cargo prints the reason.
pub(super) fn build_app(target: &str) -> anyhow::Result<Vec<PathBuf>> {
    cargo(target, PROFILE, &APP)
}

/// Runs cargo and returns the linked programs and shared libraries that it built.
fn cargo(target: &str, profile: &str, what: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(what)
        .args(["--quiet", "--profile", profile, "--target", target, "--message-format=json-render-diagnostics"])
        .envs(environment(target)?)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("running cargo")?;
    ensure!(output.status.success(), "cargo could not {} for {target}", what.join(" "));
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if let Some(executable) = message["executable"].as_str() {
            found.push(PathBuf::from(executable));
        } else if message["reason"] == "compiler-artifact" {
            let shared = message["target"]["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == "cdylib"));
            let files = message["filenames"].as_array().into_iter().flatten().filter_map(|file| file.as_str());
            found.extend(files.filter(|file| shared && file.ends_with(".so")).map(PathBuf::from));
        }
    }
    ensure!(!found.is_empty(), "cargo linked no artefact of {} for {target}", what.join(" "));
    Ok(found)
}

/// Returns cargo's environment variable for a target: the linker, if the target is foreign.
fn environment(target: &str) -> anyhow::Result<Option<(String, String)>> {
    let name = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
    Ok(linker(target)?.map(|linker| (name, linker)))
}

/// Returns the linker of a foreign target.
///
/// It is Debian's cross compiler, Zig for Mach-O, or the Android bed's.
///
/// # Errors
/// An error if the linker is not available.
pub(super) fn linker(target: &str) -> anyhow::Result<Option<String>> {
    if let Some(arch) = darwin::Arch::ALL.into_iter().find(|arch| arch.target() == target) {
        return darwin::linker(arch).map(|path| Some(path.to_string_lossy().into_owned()));
    }
    if let Some(arch) = android::Arch::ALL.into_iter().find(|arch| arch.target() == target) {
        let bed = android::unpacked_bed()?.map_err(|why| anyhow::anyhow!("{why}"))?;
        return Ok(Some(android::compiler(&bed, arch).to_string_lossy().into_owned()));
    }
    let foreign = target == "aarch64-unknown-linux-gnu" && !cfg!(target_arch = "aarch64");
    if !foreign {
        return Ok(None);
    }
    tools::rust_target(target)?;
    tools::arm64_compiler()?;
    Ok(Some("aarch64-linux-gnu-gcc".to_owned()))
}

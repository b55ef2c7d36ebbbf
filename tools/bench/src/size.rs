//! `bench size`: measures the bytes and crates that a crash reporter adds to the smallest app.
//!
//! The app (`size-bench`) is built and stripped without a reporter, with Coroner's feature sets and
//! with its peers, in Cargo's release profile and in the profile `small` (for size, LTO,
//! `panic = "abort"`).
//!
//! Bytes are the program's file size above that without a reporter. Crates are those of
//! `cargo tree` for this target including the reporter: all, and those linked into the program
//! (without procedural macros and their dependencies). Each program with Coroner is crashed, and
//! its next launch must leave the report.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde::Serialize;

use toolbox::tools;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Fail if a size limit is exceeded; skip peers and the default profile
    #[arg(long)]
    check: bool,
    /// Leave out the C libraries
    #[arg(long)]
    without_library: bool,
}

/// A program's limits: the last measurement plus 5 %, so that growth is noticed.
///
/// The goals are 0.5, 1.5 and 3 MB, and 20, 45 and 110 crates.
#[derive(Clone, Copy)]
struct Limits {
    /// Maximum bytes added in the profile `small`.
    bytes: u64,
    /// Maximum number of linked crates.
    crates: usize,
}

/// A program, with limits for Coroner's.
struct Program {
    /// The feature of `size-bench`; none for the program without a reporter.
    feature: Option<&'static str>,
    limits: Option<Limits>,
    /// The extension of the file that the launch after a crash writes.
    leaves: Option<&'static str>,
}

const PROGRAMS: [Program; 6] = [
    Program { feature: None, limits: None, leaves: None },
    Program {
        feature: Some("coroner-raw"),
        limits: Some(Limits { bytes: 775_000, crates: 20 }),
        leaves: Some("coroner"),
    },
    Program { feature: Some("coroner"), limits: Some(Limits { bytes: 1_500_000, crates: 42 }), leaves: Some("json") },
    Program { feature: Some("coroner-sentry"), limits: Some(Limits { bytes: 3_740_000, crates: 106 }), leaves: None },
    Program { feature: Some("minidumper"), limits: None, leaves: None },
    Program { feature: Some("sentry"), limits: None, leaves: None },
];

/// The C libraries with their profiles, features and maximum stripped size in bytes.
///
/// No features means the default ones. The lean one's limit is the goal, the full one's is set by
/// the same rule as above.
const LIBRARIES: [(&str, &str, Option<&str>, u64); 2] = [
    ("libcoroner_ffi.so", "ship", None, 2_990_000),
    ("coroner-lean .so", dist::LEAN_PROFILE, Some(dist::LEAN), 1_500_000),
];

/// The profiles, with their folders below `target`.
const PROFILES: [&str; 2] = ["release", "small"];

#[derive(Serialize)]
struct Row {
    what: &'static str,
    profile: &'static str,
    /// The file size.
    bytes: u64,
    /// The bytes above the program without a reporter.
    added: u64,
    /// The numbers of all crates, and of linked ones.
    crates: usize,
    linked: usize,
}

/// Runs the benchmark.
///
/// # Errors
/// An error if a program can't be built, leaves no report of its crash, or, with `--check`, exceeds
/// a limit.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut rows: Vec<Row> = Vec::new();
    let mut passed: Vec<String> = Vec::new();
    println!("{:<17} {:<9} {:>12} {:>12} {:>8} {:>8}", "reporter", "profile", "bytes", "added", "crates", "linked");
    for profile in PROFILES.into_iter().filter(|profile| !arguments.check || *profile == "small") {
        let mut none = 0;
        for program in &PROGRAMS {
            let is_ours = program.limits.is_some() || program.feature.is_none();
            if arguments.check && !is_ours {
                continue;
            }
            let path = build(program.feature, profile)?;
            let bytes = path.metadata().with_context(|| path.display().to_string())?.len();
            if let Some(form) = program.leaves {
                check_report(&path, form).with_context(|| path.display().to_string())?;
            }
            none = if program.feature.is_none() { bytes } else { none };
            let what = program.feature.unwrap_or("none");
            let (crates, linked) =
                (crates(program.feature, "normal")?, crates(program.feature, "no-proc-macro,normal")?);
            let row = Row { what, profile, bytes, added: bytes.saturating_sub(none), crates, linked };
            print(&row);
            if let Some(limits) = program.limits.filter(|_| profile == "small") {
                if row.added > limits.bytes {
                    passed.push(format!("{what} adds {} bytes: more than {}", row.added, limits.bytes));
                }
                if linked > limits.crates {
                    passed.push(format!("{what} links {linked} crates: more than {}", limits.crates));
                }
            }
            rows.push(row);
        }
    }
    if !arguments.without_library {
        for (what, profile, features, limit) in LIBRARIES {
            let bytes = library(profile, features)?;
            let row = Row { what, profile, bytes, added: bytes, crates: 0, linked: 0 };
            print(&row);
            if bytes > limit {
                passed.push(format!("the C library ({what}) has {bytes} bytes: more than {limit}"));
            }
            rows.push(row);
        }
    }
    passed.iter().for_each(|limit| println!("{limit}"));
    if arguments.json {
        println!(
            "{}",
            serde_json::json!({ "tool": "bench", "bench": "size", "pass": passed.is_empty(), "rows": rows, "passed": passed })
        );
    }
    if arguments.check && !passed.is_empty() {
        bail!("{} limits exceeded", passed.len());
    }
    Ok(())
}

fn print(row: &Row) {
    let Row { what, profile, bytes, added, crates, linked } = row;
    println!("{what:<17} {profile:<9} {bytes:>12} {added:>12} {crates:>8} {linked:>8}");
}

fn manifest() -> PathBuf {
    tools::workspace_root().join("tools/bench/size-bench/Cargo.toml")
}

/// Builds the program with or without a reporter.
fn build(feature: Option<&str>, profile: &'static str) -> anyhow::Result<PathBuf> {
    let target = tools::target_dir().join("size-bench");
    let mut command = Command::new("cargo");
    command.args(["build", "--locked", "--quiet", "--profile", profile, "--manifest-path"]).arg(manifest());
    command.arg("--target-dir").arg(&target);
    command.args(["--features", feature.unwrap_or_default()]);
    let status = command.status().context("running cargo")?;
    let what = feature.unwrap_or("no reporter");
    ensure!(status.success(), "can't build size-bench with {what}");
    // The next program has the same name.
    let program = target.join(profile).join(format!("size-bench-{what}"));
    std::fs::copy(target.join(profile).join("size-bench"), &program)?;
    Ok(program)
}

/// Counts a program's crates other than its own.
///
/// `edges` are the kinds of dependencies (`--edges` of `cargo tree`).
fn crates(feature: Option<&str>, edges: &str) -> anyhow::Result<usize> {
    let mut command = Command::new("cargo");
    command.args(["tree", "--locked", "--quiet", "--prefix", "none", "--edges", edges, "--format", "{p}"]);
    command.arg("--manifest-path").arg(manifest()).args(["--features", feature.unwrap_or_default()]);
    let output = command.stderr(Stdio::inherit()).output().context("running cargo")?;
    ensure!(output.status.success(), "cargo tree failed with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let names = text.lines().filter(|line| !line.is_empty() && !line.starts_with("size-bench "));
    let names: std::collections::BTreeSet<&str> = names.map(|line| line.trim_end_matches(" (*)")).collect();
    Ok(names.len())
}

/// Crashes a program and launches it again: the report must be in the default folder.
fn check_report(program: &Path, form: &str) -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let launch = |what: &str| {
        let mut command = Command::new(program);
        command.arg(what).env("HOME", home.path()).env("XDG_STATE_HOME", home.path().join("state"));
        command.env_remove("STATE_DIRECTORY").stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    ensure!(!launch("crash")?.success(), "it did not crash");
    ensure!(launch("")?.success(), "the launch after a crash failed");
    let mut folders = vec![home.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.parent().is_some_and(|parent| parent.ends_with("reports"))
                && path.extension().is_some_and(|extension| extension == form)
            {
                return Ok(());
            }
        }
    }
    bail!("missing report")
}

/// Returns the C library's size in bytes, stripped as by `cargo xtask dist`.
///
/// It has only these features, or the default ones.
fn library(profile: &str, features: Option<&str>) -> anyhow::Result<u64> {
    let mut command = Command::new("cargo");
    command.current_dir(tools::workspace_root());
    command.args(["rustc", "--quiet", "-p", "coroner-ffi", "--lib", "--crate-type", "cdylib", "--profile", profile]);
    if let Some(features) = features {
        command.args(["--no-default-features", "--features", features]);
    }
    ensure!(command.status().context("running cargo")?.success(), "can't build coroner-ffi");
    let built = tools::target_dir().join(profile).join("libcoroner_ffi.so");
    let folder = tempfile::tempdir()?;
    let stripped = folder.path().join("libcoroner_ffi.so");
    let status = Command::new("strip").arg("--strip-unneeded").arg("-o").arg(&stripped).arg(&built).status();
    ensure!(status.context("running strip")?.success(), "{} was not stripped", built.display());
    Ok(stripped.metadata()?.len())
}

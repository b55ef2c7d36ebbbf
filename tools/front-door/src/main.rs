//! Builds, ships and crashes seven apps made of the documents' own code blocks.
//!
//! It works outside the workspace, and reads the apps' reports. See the package's `README.md`.

mod apps;
mod documents;
mod packages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::Parser as _;

use apps::{APPS, App, Kind};
use toolbox::{deadline, tools};

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Print one JSON object, a row per step, as the last line
    #[arg(long)]
    json: bool,
    /// Run only the app with this name
    #[arg(long)]
    only: Option<String>,
    /// Run only the C, C++ and Python apps, with debug libraries
    #[arg(long)]
    short: bool,
    /// List the apps and exit
    #[arg(long)]
    list: bool,
    /// Build the apps in this folder and keep them
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// Meson and its build program, as pip requirements.
const MESON: &str = "meson==1.12.1\nninja==1.13.2\n";

/// Paths that the apps use.
struct Places {
    /// Outside the workspace: the apps, and their user's folder.
    scratch: PathBuf,
    /// Folders of programs, in addition to the system's.
    path: Vec<PathBuf>,
    /// The unpacked archive for C.
    archive: PathBuf,
    /// Cargo's target folder for the Rust apps.
    target: PathBuf,
}

impl Places {
    /// Returns a command as run by the app's developer or user, whose home is the app's own folder.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>, app: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new(program);
        let home = PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?);
        for (variable, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            if std::env::var_os(variable).is_none() {
                command.env(variable, home.join(folder));
            }
        }
        for variable in [
            "CARGO_TARGET_DIR",
            "CORONER_STORE",
            "DEBUGINFOD_URLS",
            // Set by cargo for the programs that it runs.
            "LD_LIBRARY_PATH",
            "RUSTFLAGS",
            "STATE_DIRECTORY",
            "XDG_CACHE_HOME",
            "XDG_STATE_HOME",
        ] {
            command.env_remove(variable);
        }
        let system = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(self.path.iter().cloned().chain(std::env::split_paths(&system)))?;
        command.current_dir(app).env("HOME", app.join("home")).env("PATH", path).env("CORONER", &self.archive);
        Ok(command)
    }
}

/// A line of the result.
struct Row {
    app: &'static str,
    step: String,
    seconds: f64,
    error: Option<String>,
}

/// Runs the instrument.
///
/// # Errors
/// An error if a package can't be built, or an app fails.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let wanted = |app: &App| {
        let kind = !arguments.short || app.kind == Kind::Native;
        kind && arguments.only.as_ref().is_none_or(|only| only == app.name)
    };
    let apps: Vec<&App> = APPS.iter().filter(|app| wanted(app)).collect();
    if arguments.list {
        for app in &apps {
            println!("{}", app.name);
        }
        return Ok(());
    }
    ensure!(!apps.is_empty(), "no app has that name; run with --list for the names");
    let temporary = tempfile::tempdir()?;
    let scratch = match &arguments.keep {
        Some(folder) => {
            fs::create_dir_all(folder)?;
            folder.canonicalize()?
        }
        None => temporary.path().canonicalize()?,
    };
    let mut rows = Vec::new();
    let mut places = Places { target: scratch.join("target"), archive: PathBuf::new(), path: vec![], scratch };
    timed(&mut rows, "", "what the apps need", || prepare(&mut places, &apps, arguments.short))?;
    for app in apps {
        let folder = places.scratch.join(app.name);
        if timed(&mut rows, app.name, "built and stripped", || app.build(&places, &folder)).is_err() {
            continue;
        }
        for crash in app.crashes {
            let _ = timed(&mut rows, app.name, crash.what, || crash.check(app, &places, &folder));
        }
    }
    let failed = rows.iter().filter(|row| row.error.is_some()).count();
    println!("{} steps, {failed} failed", rows.len());
    if arguments.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                let Row { app, step, seconds, error } = row;
                serde_json::json!({ "app": app, "step": step, "seconds": seconds, "ok": error.is_none(), "error": error })
            })
            .collect();
        println!("{}", serde_json::json!({ "tool": "front-door", "pass": failed == 0, "rows": rows }));
    }
    if failed > 0 {
        bail!("{failed} steps failed");
    }
    Ok(())
}

/// Runs a step, and records its outcome.
fn timed(
    rows: &mut Vec<Row>,
    app: &'static str,
    step: &str,
    run: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let outcome = run();
    let (seconds, error) = (began.elapsed().as_secs_f64(), outcome.as_ref().err().map(|error| format!("{error:#}")));
    let is = if error.is_some() { "FAIL" } else { "ok  " };
    println!(
        "{is} {app:<17} {step} ({seconds:.1} s){}",
        error.as_ref().map(|error| format!(": {error}")).unwrap_or_default()
    );
    rows.push(Row { app, step: step.to_owned(), seconds, error });
    outcome
}

/// Prepares the packages, the archive for C, Meson and the command.
fn prepare(places: &mut Places, apps: &[&App], short: bool) -> anyhow::Result<()> {
    let tools_of_meson = tools::python_environment("meson", MESON)?.join("bin");
    for (package, program) in [("cmake", "cmake"), ("pkg-config", "pkg-config")] {
        tools::debian_package(package, program)?;
    }
    let is_native = apps.iter().any(|app| app.kind == Kind::Native);
    let command = if short {
        tools::build_workspace()?;
        places.archive = places.scratch.join("lib").join(dist::name(&dist::host()?));
        dist::lay_out(&places.archive, &tools::target_dir().join("debug/deps"), &dist::host()?, None)?;
        tools::target_dir().join("debug")
    } else {
        if is_native {
            places.archive = dist::unpacked(&places.scratch.join("lib"))?;
        }
        let packages = packages::unpacked(&places.scratch.join("packages"))?;
        packages::patch(&packages, &places.scratch)?;
        packages::command(&packages, &places.scratch, &places.target)?
    };
    places.path = vec![tools_of_meson, command];
    Ok(())
}

/// A process's output and exit status.
struct Ended {
    status: std::process::ExitStatus,
    stdout: String,
    stderr: String,
}

/// Runs a process to its end.
fn ended(command: &mut Command, folder: &Path) -> anyhow::Result<Ended> {
    let files = [folder.join("stdout"), folder.join("stderr")];
    command.stdin(Stdio::null()).stdout(fs::File::create(&files[0])?).stderr(fs::File::create(&files[1])?);
    let status = deadline::status(command).with_context(|| format!("{command:?}"))?;
    let read = |path| anyhow::Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned());
    Ok(Ended { status, stdout: read(&files[0])?, stderr: read(&files[1])? })
}

/// Runs a shell script until a command fails; returns its output.
fn script(places: &Places, folder: &Path, text: &str) -> anyhow::Result<String> {
    let Ended { status, stdout, stderr } = ended(places.command("sh", folder)?.args(["-eu", "-c", text]), folder)?;
    ensure!(status.success(), "{text:?} failed: {status}: {stderr}{stdout}");
    Ok(stdout)
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

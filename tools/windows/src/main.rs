//! Runs Windows apps under Wine, and reads their reports with this system's `coroner show`.
//!
//! The apps are `crates/launch/coroner/tests/portable.rs`,
//! `crates/launch/coroner/tests/windows_crashes.rs`, and the C programs of [`c`]. See the package's
//! `README.md`.

mod c;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Parser as _;
use serde_json::Value;

use toolbox::{deadline, tools};

/// The target.
const TARGET: &str = "x86_64-pc-windows-gnu";
const LINKER: &str = "x86_64-w64-mingw32-gcc";
/// Crates that the workspace also optimizes in tests.
const UNOPTIMIZED: [&str; 6] =
    ["coroner-process", "coroner-report", "coroner-symbols", "coroner-unwind", "gimli", "object"];
const STRIP: &str = "x86_64-w64-mingw32-strip";
/// A library that Wine 8 lacks; see its source for why.
const LIBRARY: &str = "bcryptprimitives";

#[derive(Debug, clap::Parser)]
#[command(about)]
struct Arguments {
    /// Run only launches and panics: no native crashes, no C programs
    #[arg(long)]
    short: bool,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// Runs the instrument.
///
/// # Errors
/// An error if a tool is missing, or a check fails.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    tools::rust_target(TARGET)?;
    tools::debian_package("gcc-mingw-w64-x86-64", LINKER)?;
    if !tools::on_path("wine") {
        tools::install_debian_package("wine64")?;
        tools::debian_package("wine", "wine")?;
    }
    let folder = tools::target_dir().join("windows");
    let prefix = prefix(&folder)?;
    let stores = folder.join("stores");
    let _ = std::fs::remove_dir_all(&stores);
    std::fs::create_dir_all(&stores)?;
    let mut test = cargo(&prefix);
    test.args(["test", "--quiet", "-p", "coroner", "--target", TARGET, "--no-default-features"]);
    test.args(["--features", "json,panics", "--test", "portable"]);
    // These tests don't need an optimized crash path; without optimization the build takes a third
    // of the time.
    for package in UNOPTIMIZED {
        test.arg("--config").arg(format!("profile.dev.package.{package}.opt-level=0"));
    }
    // Wine has this system's files on its drive Z.
    test.env("PORTABLE_KEEP", format!("Z:{}", stores.display())).env("PORTABLE_WINE", "1");
    succeed(&mut test)?;
    read_here(&stores)?;
    if arguments.short {
        return Ok(());
    }
    crashes(&folder, &prefix, &stores.join("crashes"))?;
    c::programs(&folder, &prefix, &stores)
}

/// Tests native crashes (`crates/launch/coroner/tests/windows_crashes.rs`).
///
/// Wine 8's dbghelp.dll, which names frames, faults on the DWARF of a Rust program: minidumps are
/// made from a copy without DWARF.
fn crashes(folder: &Path, prefix: &Path, stores: &Path) -> anyhow::Result<()> {
    let mut build = cargo(prefix);
    build.args(["test", "--no-run", "-p", "coroner", "--target", TARGET, "--no-default-features"]);
    build.args(["--features", "json,panics,symbolicate,windows-crashes", "--test", "windows_crashes"]);
    let output = build.args(["--message-format", "json"]).stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{build:?} failed: {}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let printed = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = printed.filter_map(|line| line["executable"].as_str().map(PathBuf::from)).next_back();
    let program = program.context("cargo built no program")?;
    let stripped = folder.join("windows_crashes_stripped.exe");
    succeed(Command::new(STRIP).arg("-o").arg(&stripped).arg(&program))?;
    for (program, is_stripped) in [(&program, false), (&stripped, true)] {
        let mut test = Command::new("wine");
        test.arg(program).env("WINEPREFIX", prefix).env("WINEDEBUG", "-all");
        // Don't start a debugger for crashes.
        test.env("WINEDLLOVERRIDES", "winedbg.exe=d");
        test.env("CRASHES_KEEP", format!("Z:{}", stores.display())).env("CRASHES_WINE", "1");
        if is_stripped {
            test.env("CRASHES_STRIPPED", "1");
        }
        succeed(&mut test)?;
    }
    let waiting = entries(&stores.join("waiting crash/runs"))?.into_iter().next().context("no run waits")?;
    let text = show(&waiting)?;
    for expected in [
        "Null pointer: ",
        "write of 4 bytes",
        "is null)",
        "EXCEPTION_ACCESS_VIOLATION (0xc0000005)",
        "0x0 (write)",
        "ntdll.dll",
        "Windows",
        "crashed",
    ] {
        ensure!(text.contains(expected), "the waiting run's report doesn't contain `{expected}`:\n{text}");
    }
    println!("unexpected run of a crash: {}", waiting.display());
    for act in ["read", "abort", "thread"] {
        let reports = entries(&stores.join(format!("minidump {act}/reports")))?;
        let find = |end: &str| reports.iter().find(|path| path.to_string_lossy().ends_with(end));
        let dump = find("minidump.dmp").with_context(|| format!("missing minidump of {act}"))?;
        let report = find(".json").with_context(|| format!("missing report of {act}"))?;
        let report: Value = serde_json::from_slice(&std::fs::read(report)?)?;
        check_minidump(dump, &report).with_context(|| format!("{}", dump.display()))?;
        check_walk(dump, &report, &stripped, prefix).with_context(|| format!("{}", dump.display()))?;
        println!("the minidump of {act} is not truncated: {}", dump.display());
    }
    Ok(())
}

/// Checks that a minidump has the report's thread and images, and the stacks of all threads.
fn check_minidump(path: &Path, report: &Value) -> anyhow::Result<()> {
    use minidump::{Minidump, MinidumpException, MinidumpModuleList, MinidumpThreadList, Module};
    let dump = Minidump::read_path(path)?;
    let exception = dump.get_stream::<MinidumpException>()?;
    let tid = u64::from(exception.thread_id);
    ensure!(report["crash"]["tid"].as_u64() == Some(tid), "unexpected thread {tid} of the exception");
    let threads = dump.get_stream::<MinidumpThreadList>()?;
    ensure!(threads.threads.len() > 2, "{} threads", threads.threads.len());
    ensure!(threads.get_thread(exception.thread_id).is_some(), "missing thread {tid}");
    let modules = dump.get_stream::<MinidumpModuleList>()?;
    let images = report["images"].as_array().context("no images")?;
    for image in images {
        let address = image["load_address"].as_str().and_then(|text| u64::from_str_radix(&text[2..], 16).ok());
        let is_there = modules.iter().any(|module| Some(module.base_address()) == address);
        ensure!(is_there, "missing module for {image}");
    }
    Ok(())
}

/// Checks that the command walks the minidump to the frames of the system's own unwinder.
///
/// That unwinder ran at the crash.
fn check_walk(dump: &Path, report: &Value, program: &Path, prefix: &Path) -> anyhow::Result<()> {
    let system = prefix.join("drive_c/windows/system32");
    let libraries = ["ntdll", "kernel32", "kernelbase", "msvcrt"].map(|name| system.join(format!("{name}.dll")));
    let folder = tempfile::tempdir()?;
    let mut command = coroner();
    command.arg("import").arg(dump).args(["--no-cache", "--no-debuginfod"]).arg("--output").arg(folder.path());
    for file in libraries.iter().map(PathBuf::as_path).chain([program]) {
        command.arg("--symbols").arg(file);
    }
    succeed(command.stdout(std::process::Stdio::null()))?;
    let read = entries(folder.path())?.into_iter().next().context("nothing was imported")?;
    let read: Value = serde_json::from_slice(&std::fs::read(read)?)?;
    let crash = |report: &Value| {
        let crash = &report["crash"];
        (crash["tid"].clone(), crash["address"].clone(), crash["access"].clone())
    };
    ensure!(crash(&read) == crash(report), "unexpected crash: {:#}", read["crash"]);
    let addresses = |report: &Value| {
        let frames = report["threads"][0]["frames"].as_array().map(Vec::as_slice).unwrap_or_default();
        frames.iter().map(|frame| frame["address"].to_string()).collect::<Vec<_>>()
    };
    let (found, expected) = (addresses(&read), addresses(report));
    ensure!(found == expected && found.len() > 4, "unexpected frames: expected {expected:?}, got {found:?}");
    let threads = read["threads"].as_array().context("no threads")?;
    for thread in threads {
        ensure!(thread["walk_end"] == "root", "incomplete stack: {thread:#}");
    }
    Ok(())
}

/// Returns a cargo command whose Windows programs run under Wine.
fn cargo(prefix: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root()).env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", "wine");
    command.env("WINEPREFIX", prefix).env("WINEDEBUG", "-all");
    command
}

/// Creates Wine's own Windows folder, with the missing library.
fn prefix(folder: &Path) -> anyhow::Result<PathBuf> {
    let prefix = folder.join("prefix");
    let system = prefix.join("drive_c/windows/system32");
    let library = system.join(format!("{LIBRARY}.dll"));
    if !library.is_file() {
        std::fs::create_dir_all(folder)?;
        let mut boot = Command::new("wine");
        boot.args(["wineboot", "--init"]).env("WINEPREFIX", &prefix).env("WINEDEBUG", "-all");
        // Its standard error mentions a 32-bit Wine, which is not needed.
        boot.stderr(std::process::Stdio::null());
        succeed(&mut boot)?;
        // The services started by the boot run a moment longer; a program started meanwhile may
        // fail silently.
        succeed(Command::new("wineserver").arg("--wait").env("WINEPREFIX", &prefix))?;
        ensure!(system.is_dir(), "wineboot didn't create {}", system.display());
        let source = tools::workspace_root().join("fixtures/windows").join(format!("{LIBRARY}.c"));
        succeed(Command::new(LINKER).arg("-shared").arg("-o").arg(&library).arg(source).arg("-ladvapi32"))?;
    }
    Ok(prefix)
}

/// Returns a command for `coroner`.
fn coroner() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root()).args(["run", "--quiet", "-p", "coroner-cli", "--"]);
    command
}

/// Returns the output of `coroner show` for a report.
fn show(path: &Path) -> anyhow::Result<String> {
    let mut command = coroner();
    command.arg("show").arg(path);
    let output = command.output().context("running coroner show")?;
    let (printed, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "coroner show {}: {error}", path.display());
    Ok(printed.into_owned())
}

fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    Ok(std::fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect())
}

/// Reads Windows reports with the command: a delivered one, and a run that waits for delivery.
fn read_here(stores: &Path) -> anyhow::Result<()> {
    let entries = |folder: &str| entries(&stores.join(folder));
    let is_json = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    let delivered = entries("panic/reports")?.into_iter().find(is_json);
    let waiting = entries("waits/runs")?.into_iter().next();
    for (path, what) in [(delivered, "the delivered report"), (waiting, "the waiting run")] {
        let path = path.with_context(|| format!("missing {what}"))?;
        let text = show(&path)?;
        for expected in
            ["there is no canvas", "portable::portable::paint", "portable.rs:", "Windows", "opens a picture"]
        {
            ensure!(text.contains(expected), "{what} doesn't contain `{expected}`:\n{text}");
        }
        println!("unexpected {what}: {}", path.display());
    }
    Ok(())
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let printed = command.get_program().to_string_lossy().into_owned();
    let status = deadline::status(command).with_context(|| format!("running {printed}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let outcome = run(&arguments);
    if arguments.json {
        let error = outcome.as_ref().err().map(|error| format!("{error:#}"));
        println!("{}", serde_json::json!({ "tool": "windows", "pass": outcome.is_ok(), "error": error }));
    }
    outcome
}

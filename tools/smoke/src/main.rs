//! Crashes the smallest program that installs crash time on each foreign target.
//!
//! The program is `tests/smallest-app`. Its report is read with this machine's `coroner show`. See
//! the package's `README.md`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, bail, ensure};
use clap::Parser as _;
use serde_json::Value;
use toolbox::android_bed::{self, on_device};
use toolbox::{deadline, tools};

#[derive(Debug, clap::Parser)]
#[command(about)]
struct Arguments {
    /// Print one JSON object, a row per target, as the last line
    #[arg(long)]
    json: bool,
    /// Run only these Rust targets (default: all)
    targets: Vec<String>,
}

/// Number of the program's threads besides the main one.
const THREADS: usize = 3;

const ARM64_LINUX: &str = "aarch64-unknown-linux-gnu";

/// The foreign targets.
const TARGETS: [&str; 5] =
    [ARM64_LINUX, "x86_64-apple-darwin", "aarch64-apple-darwin", "x86_64-linux-android", "aarch64-linux-android"];

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let all = || TARGETS.iter().map(|&target| target.to_owned()).collect();
    let targets = if arguments.targets.is_empty() { all() } else { arguments.targets };
    tools::build_workspace()?;
    let mut rows = Vec::new();
    for target in &targets {
        let problem = check(target).err().map(|error| format!("{error:#}"));
        println!("{target}: {}", problem.as_deref().unwrap_or("ok"));
        rows.push(serde_json::json!({ "target": target, "ok": problem.is_none(), "problem": problem }));
    }
    let failed = rows.iter().filter(|row| row["ok"] == false).count();
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "smoke", "pass": failed == 0, "rows": rows }));
    }
    ensure!(failed == 0, "{failed} of {} targets failed", rows.len());
    Ok(())
}

fn check(target: &str) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let store = folder.path().join("store");
    crash(target, &store).context("running the program")?;
    let run = fs::read_dir(store.join("runs"))?.next().context("missing run of the program")??.path();
    let mut show = Command::new(tools::target_dir().join("debug/coroner"));
    let shown = show.args(["show", "--format", "json", "--thread", "all"]).arg(&run).output()?;
    ensure!(shown.status.success(), "coroner show: {}", String::from_utf8_lossy(&shown.stderr).trim());
    judge(target, &serde_json::from_slice(&shown.stdout)?)
}

/// Builds the program, and crashes it with its report in `store`.
fn crash(target: &str, store: &Path) -> anyhow::Result<()> {
    // Optimisation would take longer than all else here.
    let quickly = "profile.dev.package.coroner-report.opt-level=0";
    let build = ["build", "--quiet", "--package", "smallest-app", "--config", quickly];
    let program = tools::target_dir().join(target).join("debug/crash");
    let words = [store.as_os_str().to_owned(), THREADS.to_string().into()];
    if target == ARM64_LINUX {
        tools::rust_target(target)?;
        tools::arm64_compiler()?;
        tools::arm64_emulator()?;
        let mut cargo = cargo();
        cargo.args(build).args(["--target", target]);
        succeed(cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"))?;
        let emulator = "qemu-aarch64-static";
        return dies(Command::new(emulator).args(["-L", "/usr/aarch64-linux-gnu"]).arg(&program).args(words));
    }
    if let Some(arch) = darwin::Arch::ALL.into_iter().find(|arch| arch.target() == target) {
        let kit = darwin::Kit::set_up(arch)?;
        succeed(kit.cargo(build[0]).args(&build[1..]))?;
        return dies(kit.run(&program).args(words));
    }
    if let Some(arch) = android_bed::Arch::ALL.into_iter().find(|arch| arch.target() == target) {
        let bed = android_bed::set_up()?.map_err(anyhow::Error::msg)?;
        let system = bed.join("device").join(arch.name()).join("system");
        on_device(&system, &mut android_bed::cargo(&bed, arch, &build))?;
        let mut run = match arch {
            android_bed::Arch::X86_64 => Command::new(&program),
            android_bed::Arch::Aarch64 => {
                let mut run = Command::new("qemu-aarch64-static");
                run.arg("-L").arg(bed.join("device/aarch64")).arg(&program);
                run
            }
        };
        android_bed::where_system_is(&system, &mut run);
        return dies(run.args(words).env("TMPDIR", env::temp_dir()));
    }
    bail!("unknown target; expected one of {}", TARGETS.join(", "))
}

fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| PathBuf::from("cargo").into()));
    command.current_dir(tools::workspace_root());
    command
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let status = deadline::status(command).context("running cargo")?;
    ensure!(status.success(), "can't build the program: {status}");
    Ok(())
}

fn dies(command: &mut Command) -> anyhow::Result<()> {
    let status = deadline::status(command)?;
    ensure!(!status.success(), "the program did not crash: {status}");
    Ok(())
}

/// Checks the report: the fault, every thread, and a stack that leads to `main`.
fn judge(target: &str, report: &Value) -> anyhow::Result<()> {
    let crash = &report["crash"];
    if target.contains("-apple-") {
        ensure!(crash["mach"]["name"] == "EXC_BAD_ACCESS", "expected EXC_BAD_ACCESS, got {crash}");
    } else {
        ensure!(crash["signal"]["name"] == "SIGSEGV", "expected SIGSEGV, got {crash}");
    }
    // QEMU has its own threads, without frames of the program.
    let is_own = |thread: &&Value| {
        !target.starts_with("aarch64") || thread["frames"].as_array().is_some_and(|frames| !frames.is_empty())
    };
    let threads: Vec<&Value> = report["threads"].as_array().context("no threads")?.iter().filter(is_own).collect();
    ensure!(threads.len() == THREADS + 1, "expected {} threads, got {}", THREADS + 1, threads.len());
    for thread in &threads {
        let frames = thread["frames"].as_array().context("a thread without frames")?;
        let is_crashed = thread["crashed"] == true;
        let wanted = if is_crashed { "crash::main" } else { "park" };
        let found = frames.iter().any(|frame| frame.to_string().contains(wanted));
        ensure!(found, "thread {} doesn't lead to {wanted}: {}", thread["tid"], thread["frames"]);
    }
    ensure!(threads.iter().filter(|thread| thread["crashed"] == true).count() == 1, "expected one crashed thread");
    Ok(())
}

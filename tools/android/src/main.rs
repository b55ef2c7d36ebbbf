//! Runs Coroner's tests as Android programs on a device's bionic.
//!
//! x86_64 programs run natively in a mount namespace, arm64 ones under qemu-user. See the package's
//! `README.md`.

mod answers;

use std::path::Path;
use std::process::Command;

use anyhow::{bail, ensure};
use clap::Parser as _;
use serde::Serialize;

use toolbox::android_bed::{Arch, cargo, on_device, set_up, test_program};

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Print one JSON object, a row per run, as the last line
    #[arg(long)]
    json: bool,
    /// Run only rows whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Install Coroner in this many processes, each with its own address layout
    #[arg(long, default_value_t = 500)]
    installs: usize,
    /// Skip emulated runs, overlapping runs and the installs
    #[arg(long)]
    short: bool,
}

/// Tests, as the arguments of `cargo test`.
struct Tests {
    /// Whether it is left out of a short run.
    whole: bool,
    name: &'static str,
    arch: Arch,
    arguments: &'static [&'static str],
}

const TESTS: &[Tests] = &[
    Tests {
        whole: false,
        name: "behaviours",
        arch: Arch::X86_64,
        arguments: &["-p", "coroner-tests", "--test", "behaviours"],
    },
    Tests {
        whole: true,
        name: "hangs, panics",
        arch: Arch::X86_64,
        arguments: &["-p", "coroner-tests", "--test", "it", "--", "hangs::", "panics::"],
    },
    // The next launch, the system's exit information, live backtraces, the store.
    Tests {
        whole: false,
        name: "coroner, tombstones",
        arch: Arch::X86_64,
        arguments: &["-p", "coroner", "-p", "coroner-formats"],
    },
    Tests {
        whole: false,
        name: "process, walk, capture, report",
        arch: Arch::X86_64,
        arguments: &[
            "-p",
            "coroner-process",
            "-p",
            "coroner-walk",
            "-p",
            "coroner-capture",
            "-p",
            "coroner-report",
            "--features",
            "coroner-capture/fault-injection",
        ],
    },
    Tests { whole: true, name: "unwind", arch: Arch::X86_64, arguments: &["-p", "coroner-unwind"] },
    Tests {
        whole: true,
        name: "C++ exceptions, the C interface",
        arch: Arch::X86_64,
        arguments: &["-p", "coroner-ffi", "--test", "it", "exceptions::"],
    },
    Tests {
        whole: true,
        name: "behaviours",
        arch: Arch::Aarch64,
        arguments: &["-p", "coroner-tests", "--test", "behaviours"],
    },
];

/// A run's outcome.
#[derive(Serialize)]
struct Row {
    arch: &'static str,
    name: &'static str,
    passed: bool,
    failure: Option<String>,
}

/// Runs the instrument.
///
/// # Errors
/// An error if setting up fails, or a run fails.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let outcome = match set_up()? {
        Ok(bed) => rows(&bed, arguments)?,
        Err(why) => {
            println!("skipped: {why}");
            if arguments.json {
                println!("{}", serde_json::json!({ "tool": "android", "skipped": why, "rows": [], "failed": 0 }));
            }
            return Ok(());
        }
    };
    let failed = outcome.iter().filter(|row| !row.passed).count();
    println!("{} runs, {failed} failed", outcome.len());
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "android", "rows": outcome, "failed": failed }));
    }
    ensure!(!outcome.is_empty(), "no runs match --only");
    ensure!(failed == 0, "{failed} runs failed");
    Ok(())
}

fn rows(bed: &Path, arguments: &Arguments) -> anyhow::Result<Vec<Row>> {
    let wanted = |name: &str| arguments.only.as_deref().is_none_or(|only| name.contains(only));
    let mut rows = Vec::new();
    let mut row = |arch: Arch, name: &'static str, verdict: anyhow::Result<()>| {
        let failure = verdict.err().map(|error| format!("{error:#}"));
        println!("{:7} {name:32} {}", arch.name(), failure.as_deref().unwrap_or("ok"));
        rows.push(Row { arch: arch.name(), name, passed: failure.is_none(), failure });
    };
    for arch in Arch::ALL {
        for tests in
            TESTS.iter().filter(|tests| tests.arch == arch && wanted(tests.name) && !(arguments.short && tests.whole))
        {
            row(arch, tests.name, run_tests(bed, tests));
        }
    }
    if wanted("installs") && !arguments.short {
        row(Arch::X86_64, "installs", install_often(bed, arguments.installs));
    }
    for (name, package, words) in answers::CHECKS {
        if wanted(name) && !arguments.short {
            row(Arch::X86_64, name, answers::run(package, words));
        }
    }
    Ok(rows)
}

fn run_tests(bed: &Path, tests: &Tests) -> anyhow::Result<()> {
    let arch = tests.arch;
    // Built first, because a cold build has its own time limit.
    for words in [["test", "--quiet", "--no-run"].as_slice(), &["test", "--quiet", "--no-fail-fast"]] {
        let mut command = cargo(bed, arch, words);
        command.args(tests.arguments);
        on_device(&bed.join("device").join(arch.name()).join("system"), &mut command)?;
    }
    Ok(())
}

/// Installs Coroner in many processes, each with its own address layout.
fn install_often(bed: &Path, count: usize) -> anyhow::Result<()> {
    let system = bed.join("device/x86_64/system");
    let program = test_program(bed, "crash_program")?;
    let stores = tempfile::tempdir()?;
    for number in 0..count {
        let mut command = Command::new(&program);
        command.arg(stores.path().join((number % 8).to_string())).args(["exit", "0"]);
        if let Err(error) = on_device(&system, command.env("TMPDIR", std::env::temp_dir())) {
            bail!("install {number} of {count}: {error:#}");
        }
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

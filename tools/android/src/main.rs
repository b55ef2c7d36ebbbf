//! `cargo xtask android`: Coroner's tests as Android programs, on the bionic of a device (linker64, libc, libm, libdl, libc++).
//!
//! On x86_64 they run natively, in a mount namespace in which `/system` is the device's; on arm64 under qemu-user, a part of them.
//! `shared/android-bed.md` says what the bed is; it lies beside the checkout (`../shared/android-bed.tar.xz`) or where
//! `CORONER_ANDROID_BED` says. Without it, or without the right to make a mount namespace, nothing runs and the command says so.
//!
//! What it is not: no ART, no debuggerd, no SELinux, no sandbox of an app, pages of 4 KiB.

mod answers;

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde::Serialize;

use crate::{deadline, tools};

/// What to do.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object with a row a run as the last line.
    #[arg(long)]
    json: bool,
    /// Only runs whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// How often a program installs Coroner and ends, each time with another layout of its addresses.
    #[arg(long, default_value_t = 500)]
    installs: usize,
    /// Without what an emulator runs, what other runs have in part, and the installs
    #[arg(long)]
    short: bool,
}

/// A processor, as its target, its compiler of the bed and its device are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

/// The bed's compiler for a processor, which links, too.
pub(crate) fn compiler(bed: &Path, arch: Arch) -> PathBuf {
    bed.join(format!("cc-{}", arch.name()))
}

impl Arch {
    pub(crate) const ALL: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }

    pub(crate) fn target(self) -> String {
        format!("{}-linux-android", self.name())
    }
}

/// The device's C++ library, which programs of C++ link with.
pub(crate) fn libcxx(bed: &Path, arch: Arch) -> PathBuf {
    bed.join("device").join(arch.name()).join("system/lib64/libc++.so")
}

/// Tests, as the words of a `cargo test`.
struct Tests {
    /// Left out of a short run.
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
        arguments: &["-p", "coroner-tests", "--test", "hangs", "--test", "panics"],
    },
    // The next launch, what the system says of deaths, live backtraces, the store.
    Tests {
        whole: false,
        name: "coroner, tombstones",
        arch: Arch::X86_64,
        arguments: &["-p", "coroner", "-p", "coroner-tombstone"],
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
        arguments: &["-p", "coroner-ffi", "--test", "exceptions"],
    },
    Tests {
        whole: true,
        name: "behaviours",
        arch: Arch::Aarch64,
        arguments: &["-p", "coroner-tests", "--test", "behaviours"],
    },
];

/// What became of a run.
#[derive(Serialize)]
struct Row {
    arch: &'static str,
    name: &'static str,
    passed: bool,
    failure: Option<String>,
}

/// Runs the chore.
///
/// # Errors
/// Where something can't be set up, or a run fails.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let outcome = match set_up()? {
        Ok(bed) => rows(&bed, arguments)?,
        Err(why) => {
            println!("skipped: {why}");
            if arguments.json {
                println!("{}", serde_json::json!({ "chore": "android", "skipped": why, "rows": [], "failed": 0 }));
            }
            return Ok(());
        }
    };
    let failed = outcome.iter().filter(|row| !row.passed).count();
    println!("{} runs, {failed} failed", outcome.len());
    if arguments.json {
        println!("{}", serde_json::json!({ "chore": "android", "rows": outcome, "failed": failed }));
    }
    ensure!(!outcome.is_empty(), "no run has that name");
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
    for (name, check) in answers::CHECKS {
        if wanted(name) && !arguments.short {
            row(Arch::X86_64, name, check(bed));
        }
    }
    Ok(rows)
}

/// The unpacked bed, where its programs can be run; or why they can't.
pub(crate) fn set_up() -> anyhow::Result<Result<PathBuf, String>> {
    if cfg!(not(target_arch = "x86_64")) {
        return Ok(Err("the bed's native programs are for x86_64".to_owned()));
    }
    // Programs name /system/bin/linker64 as their interpreter; the folder is what is mounted over.
    if !nix::unistd::geteuid().is_root() || fs::create_dir_all("/system").is_err() {
        return Ok(Err("only root can mount a device's /system".to_owned()));
    }
    if let Err(error) = on_device(Path::new("/"), &mut Command::new("true")) {
        return Ok(Err(format!("no mount namespace: {error:#}")));
    }
    tools::arm64_emulator()?;
    unpacked_bed()
}

/// The unpacked bed, with what building programs needs; or why there is none.
pub(crate) fn unpacked_bed() -> anyhow::Result<Result<PathBuf, String>> {
    let archive = std::env::var_os("CORONER_ANDROID_BED")
        .map_or_else(|| tools::workspace_root().join("../shared/android-bed.tar.xz"), PathBuf::from);
    if !archive.is_file() {
        return Ok(Err(format!("there is no Android bed at {}", archive.display())));
    }
    for package in ["clang", "lld"] {
        tools::debian_package(package, if package == "lld" { "ld.lld" } else { package })?;
    }
    tools::debian_package("xz-utils", "xz")?;
    for arch in Arch::ALL {
        tools::rust_target(&arch.target())?;
    }
    let folder = tools::tools_dir().join("android-bed");
    // Others may run programs of it: it is unpacked once for each archive, and appears whole.
    let archive_is = fs::metadata(&archive)?;
    let stamp = format!("{} {:?}", archive_is.len(), archive_is.modified()?);
    if fs::read_to_string(folder.join("archive")).is_ok_and(|of| of == stamp) {
        return Ok(Ok(folder));
    }
    fs::create_dir_all(tools::tools_dir())?;
    let fresh = tempfile::tempdir_in(tools::tools_dir())?;
    let status =
        Command::new("tar").arg("xf").arg(&archive).arg("-C").arg(fresh.path()).status().context("running tar")?;
    ensure!(status.success(), "{} can't be unpacked: {status}", archive.display());
    fs::write(fresh.path().join("android-bed/archive"), stamp)?;
    if folder.exists() {
        fs::rename(&folder, fresh.path().join("old"))?;
    }
    fs::rename(fresh.path().join("android-bed"), &folder)?;
    Ok(Ok(folder))
}

/// Mounts that folder over `/system` for the calling thread and the processes that it starts from here on, and for nobody else.
pub(crate) fn enter_device(system: &Path) -> std::io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    // What is mounted here is not to be seen by others.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(system), "/system", none, MsFlags::MS_BIND, none)?;
    Ok(())
}

/// Lets a command run where `/system` is that folder.
pub(crate) fn where_system_is(system: &Path, command: &mut Command) {
    let system = system.to_owned();
    let enter = move || enter_device(&system);
    // SAFETY: system calls alone, on strings that were made before the fork.
    unsafe { command.pre_exec(enter) };
}

/// Runs a command where `/system` is that folder.
pub(crate) fn on_device(system: &Path, command: &mut Command) -> anyhow::Result<()> {
    // What is mounted over: programs name /system/bin/linker64 as their interpreter.
    fs::create_dir_all("/system").context("making /system")?;
    where_system_is(system, command);
    let status = deadline::status(command).with_context(|| format!("{}", command.get_program().display()))?;
    ensure!(status.success(), "{} ended with {status}", command.get_program().display());
    Ok(())
}

/// A `cargo` for Android programs of that processor.
pub(crate) fn cargo(bed: &Path, arch: Arch, words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root()).args(words).args(["--target", &arch.target()]);
    let name = arch.target().replace('-', "_").to_uppercase();
    let compiler = compiler(bed, arch);
    command.env(format!("CARGO_TARGET_{name}_LINKER"), &compiler);
    command.env(format!("CC_{}", name.to_lowercase()), &compiler);
    // For tests that build programs of their own.
    command.env("CORONER_TEST_CXX", &compiler);
    command.env("CORONER_TEST_LIBCXX", libcxx(bed, arch));
    // Android programs look for it in /data/local/tmp.
    command.env("TMPDIR", std::env::temp_dir());
    if arch == Arch::Aarch64 {
        let emulator = format!("qemu-aarch64-static -L {}", bed.join("device/aarch64").display());
        command.env(format!("CARGO_TARGET_{name}_RUNNER"), &emulator).env("CORONER_TEST_RUNNER", emulator);
        command.env("CORONER_TEST_EMULATED", "1");
    }
    command
}

fn run_tests(bed: &Path, tests: &Tests) -> anyhow::Result<()> {
    let arch = tests.arch;
    // Built first: a cold build has a time limit of its own.
    for words in [["test", "--quiet", "--no-run"].as_slice(), &["test", "--quiet", "--no-fail-fast"]] {
        let mut command = cargo(bed, arch, words);
        command.args(tests.arguments);
        on_device(&bed.join("device").join(arch.name()).join("system"), &mut command)?;
    }
    Ok(())
}

/// Builds a program of the tests.
fn test_program(bed: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let mut build = cargo(bed, Arch::X86_64, &["build", "--quiet", "-p", "coroner-tests", "--bin", name]);
    on_device(&bed.join("device/x86_64/system"), &mut build)?;
    Ok(tools::target_dir().join(Arch::X86_64.target()).join("debug").join(name))
}

/// Installs, each in a process of its own with a layout of its own.
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

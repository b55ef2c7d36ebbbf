//! `cargo xtask test`: README's second command. Sets up what the tests need and runs them all.
//!
//! Steps are independent of each other and all of them run, unless `--stop` is given; the exit status says whether all
//! passed. Two cores are to come to the end within an hour: what takes long and seldom fails by itself (a second build of all
//! for one test, every test under an emulator) is left to `--whole`. What is set up: Rust targets (rustup), compilers, qemu-user and Wine (Debian's packages), Zig, cargo-zigbuild and
//! Unicorn (PyPI, under `target/tools`).

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::{deadline, tools};

/// What to do.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object with a row a step as the last line.
    #[arg(long)]
    json: bool,
    /// With what takes long, too: every lint, every target, every test under an emulator
    #[arg(long, conflicts_with = "quick")]
    whole: bool,
    /// What runs on this machine as it is: installs nothing, needs no root, changes no setting of the system
    #[arg(long)]
    quick: bool,
    /// Only steps whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Print the steps' names and end.
    #[arg(long)]
    list: bool,
    /// End at the first step that fails.
    #[arg(long)]
    stop: bool,
}

/// Runs commands that must succeed; given whether the run is a whole one.
type Step = fn(bool) -> anyhow::Result<()>;

/// When a step is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// With `--quick`, too.
    Quick,
    Always,
    /// With `--whole`.
    Whole,
}

use When::{Always, Quick, Whole};

impl When {
    /// Whether such a step is run.
    fn is_in(self, arguments: &Arguments) -> bool {
        match self {
            Quick => true,
            Always => !arguments.quick,
            Whole => arguments.whole,
        }
    }
}

/// The steps, cheap and telling ones first.
const STEPS: &[(&str, When, Step)] = &[
    ("words", Quick, |_| chore(&["words"])),
    ("format", Quick, |_| cargo(&["fmt", "--all", "--check"])),
    ("lints", Quick, lints),
    ("compiler of Java", Always, |_| java()),
    ("tests", Quick, |_| tests()),
    ("Swift names", Whole, |_| cargo(&["test", "-p", "coroner-symbols", "--features", "swift", "--lib", "demangle"])),
    ("C++ exceptions, static runtime", Whole, |_| static_cxx_runtime()),
    ("panics that abort", Always, panic_abort),
    ("worst minute", Always, |_| chore(&["worst-minute", "--short"])),
    ("faults of the crash path", Always, |_| {
        cargo(&["test", "-p", "coroner-capture", "--features", "fault-injection"])
    }),
    // What threads share, and one whole crash. All of them (`cargo xtask miri`) take Miri some minutes.
    ("Miri", Whole, |_| {
        ["report_lock", "run_state", "two_threads"].iter().try_for_each(|only| chore(&["miri", "--only", only]))
    }),
    ("tests on arm64", Always, arm64),
    // The apps in C, C++ and Python, by the documents' words. Those in Rust (`cargo xtask front-door`) are built once more from packages.
    ("front door", Always, |_| chore(&["front-door", "--short"])),
    ("archive for C", Whole, |_| chore(&["dist", "--profile", "dev", "--check"])),
    ("package for Apple's systems", Whole, |_| chore(&["dist", "--profile", "dev", "--apple"])),
    ("Debian package", Whole, |_| chore(&["dist", "--profile", "dev", "--debian"])),
    ("Android library", Always, |_| chore(&["aar", "--profile", "dev", "--run"])),
    ("Android", Always, |whole| chore(if whole { &["android"] } else { &["android", "--short"] })),
    ("documentation", Always, |_| documentation()),
    ("C header is current", Quick, |_| chore(&["header", "--check"])),
    ("JSON Schema is current", Quick, |_| chore(&["schema", "--check"])),
    ("other systems compile", Always, other_systems),
    ("other systems run: Windows", Always, |_| chore(&["windows"])),
    ("lock files of benches", Quick, |_| lock_files_of_benches()),
    ("features of `coroner`", Always, features),
    ("benches compile", Whole, |_| benches()),
    ("darwin", Always, |whole| chore(if whole { &["darwin", "--all"] } else { &["darwin"] })),
    ("signal safety", Always, signal_safety),
    ("signal safety can fail", Always, |_| chore(&["signal-safety", "--self-test"])),
    ("events through Relay", Always, |_| chore(&["sentry", "--only", "relay"])),
    ("events of macOS through Relay", Always, |_| chore(&["sentry", "--only", "relay-darwin"])),
    ("minidumps by Breakpad", Always, |_| chore(&["sentry", "--only", "minidump"])),
    ("delivery to Bugsink", Always, |_| chore(&["sentry", "--only", "bugsink"])),
    ("debug ids", Always, |_| chore(&["sentry", "--only", "debug-ids"])),
    ("explanations", Always, |whole| chore(if whole { &["explain"] } else { &["explain", "--short"] })),
    ("desk", Always, |_| chore(&["desk", "--short"])),
    ("launches", Always, |_| chore(&["launches", "--short"])),
    ("oracle", Always, |_| chore(&["oracle"])),
    ("fuzz", Always, |whole| chore(if whole { &["fuzz"] } else { &["fuzz", "--seconds", "30"] })),
];

/// Linux on arm64 has them all; these have tests whose programs qemu-user can run.
const ON_ARM64: [&str; 3] = ["coroner-process", "coroner-report", "coroner-capture"];

/// How `coroner-ffi` is built, and which of its tests, where the C++ runtime is linked into the program.
const STATIC_CXX_RUNTIME: &[&str] = &[
    "--no-default-features",
    "--features",
    "wrap-cxa-throw,interpose-pthread-create,json,symbolicate",
    "--test",
    "exceptions",
];

/// C++ programs of arm64 Linux.
const ARM64_CXX: &str = "aarch64-linux-gnu-g++";

const ARM64: &str = "aarch64-unknown-linux-gnu";

/// Runs a program of that target, with Debian's C library for it.
const QEMU: &str = "qemu-aarch64-static -L /usr/aarch64-linux-gnu";

/// Runs the steps.
///
/// # Errors
/// Where a step fails; the steps' own output says why.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let steps: Vec<_> = STEPS
        .iter()
        // One that is asked for by its name is run, too.
        .filter(|(name, when, _)| wanted(name) && (when.is_in(arguments) || arguments.only.is_some()))
        .collect();
    if arguments.list {
        for (name, ..) in &steps {
            println!("{name}");
        }
        return Ok(());
    }
    let mut rows: Vec<(&str, Duration, Result<(), String>)> = Vec::new();
    for (name, _, step) in &steps {
        println!("\n=== {name}");
        let (began, processor_before) = (Instant::now(), processor_time());
        let outcome = step(arguments.whole).map_err(|error| format!("{error:#}"));
        if let Err(error) = &outcome {
            println!("FAILED {name}: {error}");
        }
        let failed = outcome.is_err();
        let took = began.elapsed();
        // Now, too: a run that something ends from outside never comes to the table.
        let busy = processor_time().saturating_sub(processor_before);
        let (took_s, busy_s, free) = (took.as_secs_f64(), busy.as_secs_f64(), free_space());
        println!("--- {name}: {took_s:.1} s, {busy_s:.1} s of processor time, {free:.1} GB free");
        rows.push((name, took, outcome));
        if failed && arguments.stop {
            break;
        }
    }
    println!();
    for (name, time, outcome) in &rows {
        println!("{} {name:<28} {:>6.1} s", if outcome.is_ok() { "ok  " } else { "FAIL" }, time.as_secs_f64());
    }
    let failed = rows.iter().filter(|row| row.2.is_err()).count();
    println!("{} passed, {failed} failed", rows.len() - failed);
    if arguments.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(name, time, outcome)| {
                let (ok, error) = (outcome.is_ok(), outcome.as_ref().err());
                serde_json::json!({ "step": name, "ok": ok, "seconds": time.as_secs_f64(), "error": error })
            })
            .collect();
        println!("{}", serde_json::json!({ "chore": "test", "pass": failed == 0, "rows": rows }));
    }
    if failed > 0 {
        bail!("{failed} of {} steps failed", steps.len());
    }
    Ok(())
}

/// What processes that have ended, and that this one waited for, used of the processors.
fn processor_time() -> Duration {
    let Ok(usage) = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN) else {
        return Duration::ZERO;
    };
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| {
            Duration::from_secs(time.tv_sec().unsigned_abs()) + Duration::from_micros(time.tv_usec().unsigned_abs())
        })
        .sum()
}

/// The gigabytes that are free where the programs are built.
fn free_space() -> f64 {
    let found = nix::sys::statvfs::statvfs(&tools::target_dir());
    found.map_or(0.0, |found| found.blocks_available() as f64 * found.fragment_size() as f64 / 1e9)
}

/// Runs cargo in the workspace.
fn cargo(arguments: &[&str]) -> anyhow::Result<()> {
    succeed(command("cargo").args(arguments))
}

/// Runs another chore, as a process of its own.
fn chore(arguments: &[&str]) -> anyhow::Result<()> {
    succeed(Command::new(tools::this_program()?).args(arguments).current_dir(tools::workspace_root()))
}

fn command(program: &str) -> Command {
    let cargo = std::env::var_os("CARGO").filter(|_| program == "cargo");
    let mut command = Command::new(cargo.unwrap_or_else(|| program.into()));
    command.current_dir(tools::workspace_root());
    command
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let said = command.get_program().to_string_lossy().into_owned();
    let status = deadline::status(command).with_context(|| format!("running {said}"))?;
    if !status.success() {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        bail!("{} {} ended with {status}", command.get_program().to_string_lossy(), arguments.join(" "));
    }
    Ok(())
}

/// Lints that are errors by themselves (`clippy::correctness`) fail; the others are advice. In a short run those of the crates that
/// apps load: what the rest depends on would be checked beside being built.
fn lints(whole: bool) -> anyhow::Result<()> {
    if whole {
        return cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    }
    cargo(&[
        "clippy",
        "--quiet",
        "-p",
        "coroner",
        "-p",
        "coroner-capture",
        "-p",
        "coroner-exceptions",
        "-p",
        "coroner-ffi",
        "--",
        "-D",
        "warnings",
    ])
}

/// Without it the tests of the Java class say that they are skipped.
fn java() -> anyhow::Result<()> {
    if !tools::on_path("javac") && tools::on_path("apt-get") {
        tools::install_debian_package("default-jdk-headless")?;
    }
    Ok(())
}

/// All tests of this machine. Built first: a cold build has a time limit of its own.
fn tests() -> anyhow::Result<()> {
    cargo(&["test", "--quiet", "--workspace", "--no-run"])?;
    cargo(&["test", "--workspace", "--no-fail-fast"])
}

/// `coroner` with the fewest features, and the C interface with one that is no default, run; in a whole run also each feature by itself, and some together.
fn features(whole: bool) -> anyhow::Result<()> {
    cargo(&["test", "--quiet", "-p", "coroner", "--no-default-features", "--test", "least_features"])?;
    cargo(&["test", "--quiet", "-p", "coroner-ffi", "--features", "system-reports", "--test", "metric_kit"])?;
    const ALONE: [&str; 9] = [
        "exceptions",
        "interpose-pthread-create",
        "json",
        "minidebuginfo",
        "otlp",
        "panics",
        "sentry",
        "symbolicate",
        "system-reports",
    ];
    const TOGETHER: [&str; 3] = ["sentry,panics", "sentry-client,symbolicate", "json,symbolicate,system-reports"];
    for features in ALONE.iter().chain(&TOGETHER).filter(|_| whole) {
        cargo(&["check", "--quiet", "-p", "coroner", "--no-default-features", "--features", features])?;
        println!("{features}");
    }
    Ok(())
}

/// C++ exceptions where the C++ runtime is linked into the program, which needs another build of the library.
fn static_cxx_runtime() -> anyhow::Result<()> {
    libcxx()?;
    cargo(&[&["test", "-p", "coroner-ffi"], STATIC_CXX_RUNTIME].concat())
}

/// LLVM's C++ runtime, beside the compiler's own. Where it can't be had, its tests say that they are skipped.
fn libcxx() -> anyhow::Result<()> {
    for package in ["libc++-dev", "libc++abi-dev"] {
        let known = Command::new("dpkg").args(["-s", package]).output().is_ok_and(|output| output.status.success());
        if !known && tools::on_path("apt-get") {
            tools::install_debian_package(package)?;
        }
    }
    Ok(())
}

/// The tests of panics with a program that is built with `panic = "abort"`: in a whole run throughout, in a short one with the
/// crates as they were built for the other tests.
fn panic_abort(whole: bool) -> anyhow::Result<()> {
    if whole {
        let folder = tools::target_dir().join("panic-abort");
        let mut build = command("cargo");
        build.args(["build", "--quiet", "-p", "coroner-tests", "--bin", "panic_program", "--target-dir"]).arg(&folder);
        succeed(build.env("CARGO_PROFILE_DEV_PANIC", "abort"))?;
        let mut test = command("cargo");
        test.args(["test", "-p", "coroner-tests", "--test", "panics"]);
        return succeed(test.env("CORONER_PANIC_ABORT_PROGRAM", folder.join("debug/panic_program")));
    }
    let (tests, program) = panic_abort_program()?;
    let mut tests = Command::new(tests);
    tests.current_dir(tools::workspace_root().join("tests"));
    succeed(tests.env("CORONER_PANIC_ABORT_PROGRAM", program))
}

/// The tests of panics, and that program, of the crates that the other tests have: cargo can't give an option to one package with the
/// features of the whole workspace, so the compiler is called as cargo calls it, with one option more. And of the whole workspace with all
/// its tests: where cargo builds one of them alone, what that depends on has other features, and is built once more.
fn panic_abort_program() -> anyhow::Result<(PathBuf, PathBuf)> {
    // Of what is up to date cargo says nothing.
    let source = tools::workspace_root().join("tests/src/bin/panic_program.rs");
    std::fs::File::options().write(true).open(&source)?.set_modified(std::time::SystemTime::now())?;
    let mut build = command("cargo");
    build.args(["test", "--workspace", "--no-run", "--message-format", "json", "-vv"]).env("CARGO_TERM_COLOR", "never");
    let output = build.output().context("running cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let mut calls = said.lines().filter_map(|line| line.trim().strip_prefix("Running `")?.strip_suffix('`'));
    let call = calls.find(|call| call.contains("--crate-name panic_program ") && !call.contains(" --test "));
    let call = call.with_context(|| format!("cargo does not say how it builds panic_program: {said}"))?;
    succeed(command("sh").args(["-c", &format!("{call} -C panic=abort -C extra-filename=-abort")]))?;
    let built = String::from_utf8_lossy(&output.stdout);
    let messages = built.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut tests = messages.filter(|message| message["target"]["name"] == "panics");
    let tests = tests.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    let tests = tests.context("cargo does not name the tests of panics")?;
    Ok((tests, tools::target_dir().join("debug/deps/panic_program-abort")))
}

/// The tests of crash time on arm64, under qemu-user.
fn arm64(whole: bool) -> anyhow::Result<()> {
    tools::rust_target(ARM64)?;
    tools::arm64_compiler()?;
    tools::debian_package("g++-aarch64-linux-gnu", ARM64_CXX)?;
    tools::arm64_emulator()?;
    let mut crates = vec!["--features", "coroner-capture/fault-injection"];
    crates.extend(ON_ARM64.iter().flat_map(|package| ["-p", package]));
    let runs: [(&[&str], Option<&str>); 5] = [
        (&crates, None),
        // Its tests fork; a fork of an emulator whose other threads are at work may come into the world with its locks held.
        (&["-p", "coroner-unwind"], Some("1")),
        // Of the end-to-end tests those that start their programs by the runner.
        (&["-p", "coroner-tests", "--test", "behaviours"], None),
        // In a whole run: C++ exceptions, with the C++ runtime as a shared library and linked into the program.
        (&["-p", "coroner-ffi", "--test", "exceptions"], None),
        (&[&["-p", "coroner-ffi"], STATIC_CXX_RUNTIME].concat(), None),
    ];
    for (arguments, threads) in runs.into_iter().take(if whole { 5 } else { 3 }) {
        let mut command = command("cargo");
        command
            .args(["test", "--target", ARM64])
            .args(arguments)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", QEMU)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "--cfg without_delivery")
            // For tests that start programs of their own.
            .env("CORONER_TEST_RUNNER", QEMU)
            .env("CORONER_TEST_CC", "aarch64-linux-gnu-gcc")
            .env("CORONER_TEST_CXX", ARM64_CXX);
        if let Some(threads) = threads {
            command.env("RUST_TEST_THREADS", threads);
        }
        succeed(&mut command)?;
    }
    Ok(())
}

/// The documentation, with every link leading somewhere.
fn documentation() -> anyhow::Result<()> {
    let mut command = command("cargo");
    // The command's and the library's documentation have the same name, `coroner`: the library's is the one that counts.
    command.args(["doc", "--quiet", "--workspace", "--no-deps", "--exclude", "coroner-cli", "--lib"]);
    succeed(command.env("RUSTDOCFLAGS", "-D rustdoc::broken_intra_doc_links"))
}

/// What must compile where nothing of it can be run here.
fn other_systems(whole: bool) -> anyhow::Result<()> {
    // The upper ones bring those that they stand on.
    let packages = ["coroner-process", "coroner-capture", "coroner", "coroner-ffi", "coroner-apple-report"];
    let run_elsewhere: &[&str] = if whole { &["aarch64-apple-darwin", "x86_64-apple-darwin"] } else { &[] };
    for target in ["aarch64-linux-android", "aarch64-apple-ios"].iter().chain(run_elsewhere) {
        tools::rust_target(target)?;
        let mut command = command("cargo");
        command.args(["clippy", "--quiet", "--target", target]);
        for package in packages {
            command.args(["-p", package]);
        }
        succeed(command.args(["--", "-D", "warnings"]))?;
        println!("{target}: {}", packages.join(", "));
    }
    portable_systems()
}

/// Where no fault is caught: an app compiles, and so does the desk, where reports are read and no process is watched. Without what
/// needs a C compiler of that system (TLS).
fn portable_systems() -> anyhow::Result<()> {
    let packages = [
        "coroner",
        "coroner-apple-report",
        "coroner-explain",
        "coroner-import",
        "coroner-minidump",
        "coroner-symbols",
        "coroner-tombstone",
    ];
    for target in ["x86_64-pc-windows-gnu", "x86_64-unknown-freebsd"] {
        tools::rust_target(target)?;
        let mut command = command("cargo");
        command.args(["clippy", "--quiet", "--target", target, "--features", "coroner/system-reports"]);
        command.args(packages.iter().flat_map(|package| ["-p", package]));
        // What compiles with a warning there has code that nobody uses.
        succeed(command.args(["--", "-D", "warnings"]))?;
        println!("{target}: {}", packages.join(", "));
    }
    // An app that has what needs no fault to be caught, executed: this machine's kernel runs it. Rust's own linker and C library make it: Debian's gcc for
    // 32 bits has a conflict with that for arm64.
    let target = "i686-unknown-linux-musl";
    tools::rust_target(target)?;
    if cfg!(target_arch = "x86_64") {
        let app = ["--no-default-features", "--features", "json,panics", "--test", "portable"];
        let mut command = command("cargo");
        command.env("CARGO_TARGET_I686_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld");
        let flags = "-Clinker-flavor=ld.lld -Clink-self-contained=yes";
        command.env("CARGO_TARGET_I686_UNKNOWN_LINUX_MUSL_RUSTFLAGS", flags);
        succeed(command.args(["test", "--quiet", "-p", "coroner", "--target", target]).args(app))?;
    }
    Ok(())
}

/// What apps ship, built and read: in a short run for one processor of Linux and one of Apple's.
fn signal_safety(whole: bool) -> anyhow::Result<()> {
    let some = ["signal-safety", "--target", "x86_64-unknown-linux-gnu", "--target", "aarch64-apple-darwin"];
    chore(if whole { &some[..1] } else { &some })
}

/// Whether the lock files of benches, which are workspaces of their own, have what the crates depend on now.
fn lock_files_of_benches() -> anyhow::Result<()> {
    for package in ["capture-bench", "symbols-bench", "throw-bench", "launch-bench", "size-bench"] {
        let manifest = tools::workspace_root().join("xtask").join(package).join("Cargo.toml");
        let mut command = command("cargo");
        command.args(["metadata", "--locked", "--format-version", "1", "--manifest-path"]).arg(manifest);
        command.stdout(std::process::Stdio::null());
        succeed(&mut command).with_context(|| format!("the lock file of {package}"))?;
    }
    Ok(())
}

/// The programs of benches, which are workspaces of their own, with their lock files as they are.
fn benches() -> anyhow::Result<()> {
    // The launch bench is one program a reporter.
    let of_launches = ["", "coroner", "minidumper", "sentry", "human-panic"].map(|feature| ("launch-bench", feature));
    for (package, features) in
        [("capture-bench", ""), ("symbols-bench", ""), ("throw-bench", "")].into_iter().chain(of_launches)
    {
        let manifest = tools::workspace_root().join("xtask").join(package).join("Cargo.toml");
        let mut command = command("cargo");
        command.args(["check", "--quiet", "--locked", "--manifest-path"]).arg(manifest);
        command.args(["--features", features, "--target-dir"]).arg(tools::target_dir().join("benches"));
        succeed(&mut command)?;
        println!("{package} {features}");
    }
    Ok(())
}

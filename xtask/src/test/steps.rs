//! The table of steps: what the test command runs, what each step needs and costs.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context as _, bail};
use toolbox::{deadline, tools};

use super::folder;
use super::needs::Need::{self, AndroidBed, File, Nightly, Program, Root, Target};
use crate::tools::cargo;

/// When a step runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Always.
    Default,
    /// Unless `--whole` is given, which runs more of the same.
    Short,
    /// Only with `--whole`.
    Whole,
}

use When::{Default, Short, Whole};

/// A step of the test command.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) when: When,
    /// Without these the step is skipped.
    pub(crate) needs: &'static [Need],
    /// Without these the step skips a part, with a line of its own.
    pub(crate) wants: &'static [Need],
    /// Seconds on two cores when everything is built, for orientation.
    pub(crate) cost: u32,
    /// Whether the steps after it can't run if it fails.
    pub(crate) is_prerequisite: bool,
    pub(crate) run: fn() -> anyhow::Result<()>,
}

const fn step(name: &'static str, when: When, cost: u32, run: fn() -> anyhow::Result<()>) -> Step {
    Step { name, when, needs: &[], wants: &[], cost, is_prerequisite: false, run }
}

impl Step {
    const fn needs(self, needs: &'static [Need]) -> Self {
        Self { needs, ..self }
    }

    const fn wants(self, wants: &'static [Need]) -> Self {
        Self { wants, ..self }
    }
}

const PIP: Need = Program("pip3", "python3-pip");
const VENV: Need = File("/usr/share/doc/python3-venv", "python3-venv");
const MAKE: Need = Program("make", "make");
const CLANG: Need = Program("clang", "clang");
const XZ: Need = Program("xz", "xz-utils");
const NPM: Need = Program("npm", "npm");
const JAVAC: Need = Program("javac", "default-jdk-headless");
const QEMU: Need = Program("qemu-aarch64-static", "qemu-user-static");
const ARM64_GCC: Need = Program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu");
const ARM64_LIBC: Need = File("/usr/aarch64-linux-gnu/lib/libc.a", "libc6-dev-arm64-cross");
const ARM64_GXX: Need = Program("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu");
const LLD: Need = Program("ld.lld", "lld");
const WINE: Need = Program("wine", "wine");
const WINE64: Need = File("/usr/lib/wine/wine64", "wine64");
const MINGW: Need = Program("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64");
const CMAKE: Need = Program("cmake", "cmake");
const PKG_CONFIG: Need = Program("pkg-config", "pkg-config");
const GDB: Need = Program("gdb", "gdb");
const LIBCXX: [Need; 2] =
    [File("/usr/share/doc/libc++-dev", "libc++-dev"), File("/usr/share/doc/libc++abi-dev", "libc++abi-dev")];

const CARGO_DENY: &str = "0.20.2";

const ARM64: &str = "aarch64-unknown-linux-gnu";
const WINDOWS: &str = "x86_64-pc-windows-gnu";
const I686: &str = "i686-unknown-linux-musl";

/// The steps, in the order in which they run: cheap and telling ones first.
pub(crate) const STEPS: &[Step] = &[
    step("format", Default, 3, || run(cargo(&["fmt", "--all", "--check"]))),
    // All programs, libraries and tests, once: the later steps run what is built here.
    Step { is_prerequisite: true, ..step("build", Default, 1, build) },
    step("words", Default, 1, || tool("words", &[])),
    step("import cycles", Default, 1, || tool("import-cycles", &[])),
    step("C header is current", Default, 3, || tool("header", &["--check"])),
    step("tests", Default, 250, tests).wants(&[CLANG, JAVAC, MAKE, XZ]),
    step("panics that abort", Short, 5, panic_abort),
    step("tests with other features", Default, 40, other_features),
    step("lints", Short, 5, lints),
    step("front door", Default, 30, || tool("front-door", &["--short"])).needs(&[MAKE, CMAKE, PKG_CONFIG, PIP, VENV]),
    step("worst minute", Short, 30, || tool("worst-minute", &["--short"])).needs(&[Root]),
    step("signal safety", Short, 30, || tool("signal-safety", &["--short"])),
    step("signal safety can fail", Short, 10, || tool("signal-safety", &["--self-test", "--short"])),
    step("explanations", Short, 15, || tool("explain-bench", &["--short"])),
    step("desk", Default, 30, || tool("desk-check", &["--short"])).wants(&[GDB]),
    step("launches", Short, 30, || tool("launches", &["--short"])),
    step("oracle", Short, 30, || tool("oracle", &["--short"])).needs(&[PIP]),
    step("smoke: Linux on arm64", Short, 5, || tool("smoke", &[ARM64])).needs(&[
        Target(ARM64),
        ARM64_GCC,
        ARM64_LIBC,
        QEMU,
    ]),
    step("smoke: macOS", Short, 5, || tool("smoke", &["x86_64-apple-darwin"]))
        .needs(&[Target("x86_64-apple-darwin"), PIP]),
    step("smoke: macOS on arm64", Short, 5, || tool("smoke", &["aarch64-apple-darwin"])).needs(&[
        Target("aarch64-apple-darwin"),
        Target(ARM64),
        ARM64_GCC,
        ARM64_LIBC,
        QEMU,
        PIP,
    ]),
    step("smoke: Android", Short, 5, || tool("smoke", &["x86_64-linux-android"])).needs(&[
        AndroidBed,
        Root,
        Target("x86_64-linux-android"),
        Target("aarch64-linux-android"),
        CLANG,
        LLD,
        XZ,
        QEMU,
    ]),
    step("smoke: Android on arm64", Short, 5, || tool("smoke", &["aarch64-linux-android"])).needs(&[
        AndroidBed,
        Root,
        Target("aarch64-linux-android"),
        Target("x86_64-linux-android"),
        CLANG,
        LLD,
        XZ,
        QEMU,
    ]),
    step("smoke: Windows", Short, 15, || tool("windows", &["--short"])).needs(&[Target(WINDOWS), MINGW, WINE, WINE64]),
    step("smoke: events through Relay", Short, 10, || tool("sentry-check", &["--short"])).needs(&[PIP, VENV]),
    // From here on with `--whole` only.
    step("lints of everything", Whole, 60, lints_of_everything),
    step("documentation", Whole, 60, documentation),
    step("JSON Schema is current", Whole, 60, || run(cargo(&["run", "--quiet", "-p", "schema", "--", "--check"]))),
    step("JSON of reports", Whole, 60, json_schema),
    step("lock files of benches", Whole, 5, lock_files_of_benches),
    step("panics that abort, throughout", Whole, 60, panic_abort_throughout),
    step("Swift names", Whole, 60, || {
        run(cargo(&["test", "-p", "coroner-symbols", "--features", "swift", "--lib", "demangle"]))
    }),
    step("C++ exceptions, static runtime", Whole, 60, || {
        run(cargo(&[&["test", "-p", "coroner-ffi"], STATIC_CXX].concat()))
    })
    .wants(&LIBCXX),
    step("Miri", Whole, 300, || {
        ["report_lock", "run_state", "two_threads"].iter().try_for_each(|only| tool("miri", &["--only", only]))
    })
    .needs(&[Nightly]),
    step("worst minute, whole", Whole, 300, || tool("worst-minute", &[])).needs(&[Root]),
    step("signal safety of every target", Whole, 200, || tool("signal-safety", &[])),
    step("signal safety can fail, every target", Whole, 40, || tool("signal-safety", &["--self-test"])),
    step("explanations, all", Whole, 600, || tool("explain-bench", &[])),
    step("launches, all", Whole, 300, || tool("launches", &[])),
    step("oracle, all", Whole, 100, || tool("oracle", &[])).needs(&[PIP]),
    step("fuzz", Whole, 120, || tool("fuzz-run", &["--seconds", "120"])).needs(&[Nightly]),
    step("tests on arm64", Whole, 400, tests_on_arm64).needs(&[Target(ARM64), ARM64_GCC, ARM64_GXX, ARM64_LIBC, QEMU]),
    step("darwin", Whole, 1500, || tool("darwin", &["--all"])).needs(&[
        Target(ARM64),
        ARM64_GCC,
        ARM64_LIBC,
        QEMU,
        PIP,
    ]),
    step("Android library", Whole, 160, || tool("aar", &["--profile", "dev", "--run"]))
        .needs(&[AndroidBed, Root, JAVAC]),
    step("Android", Whole, 600, || tool("android", &[])).needs(&[AndroidBed, Root, CLANG, LLD, XZ, QEMU]),
    step("Windows", Whole, 70, || tool("windows", &[])).needs(&[Target(WINDOWS), MINGW, WINE, WINE64, CMAKE]),
    step("other systems compile", Whole, 120, other_systems),
    step("32-bit Linux runs", Whole, 30, portable_linux).needs(&[Target(I686)]),
    step("each feature of coroner", Whole, 120, each_feature),
    step("benches compile", Whole, 200, benches),
    step("archive for C", Whole, 400, || tool("dist", &["--check"])),
    step("package for Apple's systems", Whole, 120, || tool("dist", &["--profile", "dev", "--apple"])).needs(&[PIP]),
    step("workflows", Whole, 5, || tool("dist", &["--workflows"])).needs(&[NPM]),
    step("licenses", Whole, 5, licenses),
    step("Debian package", Whole, 60, || tool("dist", &["--profile", "dev", "--debian"])),
    step("events through Relay", Whole, 60, || tool("sentry-check", &["--only", "relay"])).needs(&[PIP, VENV]),
    step("events of macOS through Relay", Whole, 60, || tool("sentry-check", &["--only", "relay-darwin"]))
        .needs(&[PIP, VENV]),
    step("minidumps by Breakpad", Whole, 20, || tool("sentry-check", &["--only", "minidump"])).needs(&[PIP, VENV]),
    step("delivery to Bugsink", Whole, 70, || tool("sentry-check", &["--only", "bugsink"])).needs(&[PIP, VENV]),
    step("debug ids", Whole, 20, || tool("sentry-check", &["--only", "debug-ids"])).needs(&[PIP, VENV]),
];

/// Runs a command that must succeed.
fn run(mut command: Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = deadline::status(&mut command).with_context(|| format!("running {program}"))?;
    if !status.success() {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        bail!("{program} {} failed: {status}", arguments.join(" "));
    }
    Ok(())
}

/// Runs an instrument: the program of the step `build`, or built by itself where that step has not
/// run.
fn tool(name: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let is_built = env::var_os(tools::BUILT).is_some();
    let program = tools::target_dir().join("debug").join(name);
    let mut command = if is_built && program.is_file() {
        let mut command = Command::new(program);
        command.current_dir(tools::workspace_root());
        command
    } else {
        crate::tools::command(name)?
    };
    command.args(arguments);
    run(command)
}

fn build() -> anyhow::Result<()> {
    let mut command = cargo(&["build"]);
    command.args(tools::ALL_TARGETS);
    run(command)
}

fn tests() -> anyhow::Result<()> {
    let mut command = cargo(&["test", "--no-fail-fast"]);
    // Many tests wait: for a hang to be noticed, for a server. Twice as many threads as processors
    // keep both busy.
    let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    command.env("RUST_TEST_THREADS", threads.to_string());
    run(command)
}

/// The lints of the crates that apps link.
fn lints() -> anyhow::Result<()> {
    let packages = ["coroner", "coroner-capture", "coroner-exceptions", "coroner-ffi"];
    let mut command = cargo(&["clippy", "--quiet"]);
    command.args(packages.iter().flat_map(|package| ["-p", package])).args(["--", "-D", "warnings"]);
    run(command)
}

fn lints_of_everything() -> anyhow::Result<()> {
    run(cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

/// The fault injection of crash time, and `coroner` with the fewest features: what needs another
/// build than the rest.
fn other_features() -> anyhow::Result<()> {
    // One selection of packages and features, so that the crates below them are built once.
    let features = "coroner-capture/fault-injection,coroner-capture/interpose-pthread-create";
    run(cargo(&["test", "-p", "coroner-capture", "-p", "coroner", "--no-default-features", "--features", features]))
}

/// The tests of panics with a program that is built with `panic = "abort"`, of crates that unwind.
///
/// Cargo can't give an option to one package with the features of all, so the compiler is called as
/// cargo calls it, with one option more.
fn panic_abort() -> anyhow::Result<()> {
    // Cargo prints no command for what is up to date.
    let source = tools::workspace_root().join("tests/src/bin/panic_program.rs");
    fs::File::options().write(true).open(&source)?.set_modified(std::time::SystemTime::now())?;
    let mut build = cargo(&["build", "--message-format", "json", "-vv"]);
    build.args(tools::ALL_TARGETS).env("CARGO_TERM_COLOR", "never");
    let output = build.output().context("running cargo")?;
    let printed = String::from_utf8_lossy(&output.stderr);
    let mut calls = printed.lines().filter_map(|line| line.trim().strip_prefix("Running `")?.strip_suffix('`'));
    let call = calls.find(|call| call.contains("--crate-name panic_program ") && !call.contains(" --test "));
    let call = call.with_context(|| format!("cargo didn't print how it builds panic_program: {printed}"))?;
    let mut shell = Command::new("sh");
    shell.current_dir(tools::workspace_root());
    shell.args(["-c", &format!("{call} -C panic=abort -C extra-filename=-abort")]);
    run(shell)?;
    let built = String::from_utf8_lossy(&output.stdout);
    let messages = built.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut tests = messages.filter(|message| {
        message["target"]["name"] == "it" && message["package_id"].to_string().contains("#coroner-tests@")
    });
    let tests = tests.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    let mut tests = Command::new(tests.context("cargo didn't name the end-to-end tests")?);
    tests.current_dir(tools::workspace_root().join("tests")).arg("panics::");
    tests.env("CORONER_PANIC_ABORT_PROGRAM", tools::target_dir().join("debug/deps/panic_program-abort"));
    run(tests)
}

/// The same tests with everything built with `panic = "abort"`.
fn panic_abort_throughout() -> anyhow::Result<()> {
    let folder = folder("panic-abort");
    let mut build = cargo(&["build", "--quiet", "-p", "coroner-tests", "--bin", "panic_program", "--target-dir"]);
    build.arg(&folder).env("CARGO_PROFILE_DEV_PANIC", "abort");
    run(build)?;
    let mut test = cargo(&["test", "-p", "coroner-tests", "--test", "it", "panics::"]);
    test.env("CORONER_PANIC_ABORT_PROGRAM", folder.join("debug/panic_program"));
    run(test)
}

/// `coroner-ffi`'s tests of C++ exceptions where the C++ runtime is linked into the program:
/// another build of the library.
const STATIC_CXX: &[&str] = &[
    "--no-default-features",
    "--features",
    "wrap-cxa-throw,interpose-pthread-create,json,symbolicate",
    "--test",
    "it",
    "exceptions::",
];

/// The tests of crash time on arm64, under qemu-user.
fn tests_on_arm64() -> anyhow::Result<()> {
    const RUNNER: &str = "qemu-aarch64-static -L /usr/aarch64-linux-gnu";
    let crash_time: &[&str] = &[
        "--features",
        "coroner-capture/fault-injection",
        "-p",
        "coroner-process",
        "-p",
        "coroner-report",
        "-p",
        "coroner-capture",
    ];
    let runs: [(&[&str], Option<&str>); 5] = [
        (crash_time, None),
        // Its tests fork; a fork of an emulator whose other threads hold locks may hang.
        (&["-p", "coroner-unwind"], Some("1")),
        (&["-p", "coroner-tests", "--test", "behaviours"], None),
        (&["-p", "coroner-ffi", "--test", "it", "exceptions::"], None),
        (&[&["-p", "coroner-ffi"], STATIC_CXX].concat(), None),
    ];
    for (arguments, threads) in runs {
        let mut command = cargo(&["test", "--target", ARM64]);
        command
            .args(arguments)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", RUNNER)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "--cfg without_delivery")
            // For tests that start programs of their own.
            .env("CORONER_TEST_RUNNER", RUNNER)
            .env("CORONER_TEST_CC", "aarch64-linux-gnu-gcc")
            .env("CORONER_TEST_CXX", "aarch64-linux-gnu-g++");
        if let Some(threads) = threads {
            command.env("RUST_TEST_THREADS", threads);
        }
        run(command)?;
    }
    Ok(())
}

/// The documentation, with every link leading somewhere.
fn documentation() -> anyhow::Result<()> {
    // The command's documentation has the same name as the library's, `coroner`.
    let mut command = cargo(&["doc", "--quiet", "--no-deps", "--exclude", "coroner-cli", "--workspace", "--lib"]);
    command.env("RUSTDOCFLAGS", "-D rustdoc::broken_intra_doc_links");
    run(command)
}

/// The JSON of reports beside its schema.
fn json_schema() -> anyhow::Result<()> {
    let reports = std::path::absolute(folder("report-json"))?;
    fs::create_dir_all(&reports)?;
    let mut test = cargo(&["test", "--quiet", "-p", "coroner-tests", "-p", "coroner-cli"]);
    test.env("CORONER_TEST_REPORTS", &reports);
    run(test)?;
    let mut check = cargo(&["run", "--quiet", "-p", "json-schema-check", "--features", "check", "--"]);
    check.arg(&reports);
    run(check)
}

/// Clippy for systems whose programs can't all be run here.
fn other_systems() -> anyhow::Result<()> {
    // Each brings the crates it depends on.
    let apps: &[&str] = &["coroner-process", "coroner-capture", "coroner", "coroner-ffi", "coroner-formats"];
    // Without what needs a C compiler for that system (TLS).
    let portable: &[&str] = &["coroner", "coroner-explain", "coroner-formats", "coroner-symbols"];
    let targets = [
        ("aarch64-linux-android", apps, ""),
        ("aarch64-apple-ios", apps, ""),
        ("aarch64-apple-darwin", apps, ""),
        ("x86_64-apple-darwin", apps, ""),
        (WINDOWS, portable, "coroner/system-reports"),
        ("x86_64-unknown-freebsd", portable, "coroner/system-reports"),
    ];
    for (target, packages, features) in targets {
        tools::rust_target(target)?;
        let mut command = cargo(&["clippy", "--quiet", "--target", target, "--features", features]);
        command.args(packages.iter().flat_map(|package| ["-p", package])).args(["--", "-D", "warnings"]);
        run(command)?;
        println!("{target}: {}", packages.join(", "));
    }
    Ok(())
}

/// An app where no fault is caught: this machine's kernel runs 32-bit programs, linked by Rust's
/// own linker and C library.
fn portable_linux() -> anyhow::Result<()> {
    let mut command = cargo(&["test", "--quiet", "-p", "coroner", "--target", I686, "--no-default-features"]);
    command.args(["--features", "json,panics", "--test", "portable"]);
    command.env("CARGO_TARGET_I686_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld");
    let flags = "-Clinker-flavor=ld.lld -Clink-self-contained=yes";
    command.env("CARGO_TARGET_I686_UNKNOWN_LINUX_MUSL_RUSTFLAGS", flags);
    run(command)
}

/// `coroner` with each feature by itself and with some together, and a test of a feature that is
/// not a default one.
fn each_feature() -> anyhow::Result<()> {
    run(cargo(&[
        "test",
        "--quiet",
        "-p",
        "coroner-ffi",
        "--features",
        "system-reports",
        "--test",
        "it",
        "metric_kit",
    ]))?;
    const FEATURES: [&str; 12] = [
        "exceptions",
        "interpose-pthread-create",
        "json",
        "minidebuginfo",
        "otlp",
        "panics",
        "sentry",
        "symbolicate",
        "system-reports",
        "sentry,panics",
        "sentry-client,symbolicate",
        "json,symbolicate,system-reports",
    ];
    for features in FEATURES {
        run(cargo(&["check", "--quiet", "-p", "coroner", "--no-default-features", "--features", features]))?;
        println!("{features}");
    }
    Ok(())
}

/// The benches that are workspaces of their own, and their features: the launch bench is one
/// program a reporter.
const BENCHES: [(&str, &[&str]); 5] = [
    ("capture-bench", &[""]),
    ("symbols-bench", &[""]),
    ("throw-bench", &[""]),
    ("launch-bench", &["", "coroner", "minidumper", "sentry", "human-panic"]),
    ("size-bench", &[]),
];

fn manifest(bench: &str) -> PathBuf {
    tools::workspace_root().join("tools/bench").join(bench).join("Cargo.toml")
}

/// Whether the lock files of these workspaces and of `fuzz` match what the crates depend on.
/// Checks licenses and sources of all packages; advisories can't be had everywhere.
fn licenses() -> anyhow::Result<()> {
    let folder = tools::cargo_tool("cargo-deny", CARGO_DENY)?;
    let mut command = Command::new(folder.join("cargo-deny"));
    command.current_dir(tools::workspace_root());
    command.args(["--workspace", "--all-features", "check", "licenses", "bans", "sources"]);
    run(command)
}

fn lock_files_of_benches() -> anyhow::Result<()> {
    for (bench, _) in BENCHES {
        let mut command = cargo(&["metadata", "--locked", "--format-version", "1", "--manifest-path"]);
        command.arg(manifest(bench)).stdout(Stdio::null());
        run(command).with_context(|| format!("the lock file of {bench}"))?;
    }
    let mut command = cargo(&["metadata", "--locked", "--format-version", "1", "--manifest-path", "fuzz/Cargo.toml"]);
    command.stdout(Stdio::null());
    run(command).context("the lock file of fuzz")
}

fn benches() -> anyhow::Result<()> {
    run(cargo(&["check", "--quiet", "-p", "backtrace-bench", "-p", "scope-bench", "-p", "unwind-bench"]))?;
    for (bench, features) in BENCHES {
        for features in features {
            let mut command = cargo(&["check", "--quiet", "--locked", "--manifest-path"]);
            command.arg(manifest(bench)).args(["--features", features, "--target-dir"]).arg(folder("benches"));
            run(command)?;
            println!("{bench} {features}");
        }
    }
    Ok(())
}

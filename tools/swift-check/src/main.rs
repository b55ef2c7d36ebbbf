//! Compiles and runs Coroner's Swift module with a real Swift.
//!
//! It compares stacks with Swift's own backtraces. See the package's `README.md`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, ensure};
use clap::Parser as _;
use serde_json::Value;

use toolbox::tools;

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Use the Swift in this root directory instead of setting one up
    #[arg(long)]
    root: Option<PathBuf>,
    /// Print one JSON object, a row per check, as the last line
    #[arg(long)]
    json: bool,
}

/// The system's release and packages.
const RELEASE: &str = "trixie";
const PACKAGES: [&str; 3] = ["swiftlang", "libc6-dev", "libstdc++-14-dev"];
/// The programs' folder in the root.
const FOLDER: &str = "/coroner";

/// Ways to crash, each with its report's monitor and reason, and an app's function on its stack.
///
/// The function has Swift's mangled name.
const DEATHS: [(&str, &str, &str); 6] = [
    ("null", "SIGSEGV", "$s4shop5total"),
    ("fatal-error", "SIGILL", "$s4shop5close"),
    ("index", "SIGILL", "$s4shop6orders"),
    ("overflow", "SIGSEGV", "$s4shop3sum"),
    ("async", "SIGILL", "$s4shop4leaf"),
    ("thread", "SIGILL", "$s4shop6orders"),
];

/// A Swift installation, the library, and the app.
struct Bed {
    root: PathBuf,
}

/// Runs the instrument.
///
/// # Errors
/// An error if Swift can't be installed, a program doesn't compile, or a row fails.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = arguments.root.clone().map_or_else(set_up, Ok)?;
    let bed = Bed { root };
    bed.copy_sources()?;
    let mut rows = Vec::new();
    let mut row = |name: String, result: anyhow::Result<()>| {
        let error = result.err().map(|error| format!("{error:#}"));
        println!("{} {name} {}", if error.is_none() { "ok  " } else { "FAIL" }, error.as_deref().unwrap_or_default());
        rows.push(serde_json::json!({ "name": name, "ok": error.is_none(), "error": error }));
    };
    for version in ["5", "6"] {
        row(format!("module and app in the language mode {version}"), bed.compile(version));
    }
    row("the package's manifest".to_owned(), bed.manifest());
    for (way, signal, function) in DEATHS {
        row(format!("crash: {way}"), bed.death(way, signal, function));
    }
    row("a report that the app drops".to_owned(), bed.kept_back());
    row("the message of fatalError".to_owned(), bed.last_words());
    row("handled errors".to_owned(), bed.errors());
    row("a live backtrace".to_owned(), bed.backtrace());
    row("killed".to_owned(), bed.says("kill", "outcome: unknown, report: 0"));
    row("clean exit".to_owned(), bed.says("nothing", "outcome: cleanExit, report: 0"));
    let failed = rows.iter().filter(|row| row["ok"] == false).count();
    println!("{} rows, {failed} failed", rows.len());
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "swift-check", "pass": failed == 0, "rows": rows }));
    }
    ensure!(failed == 0, "{failed} rows failed");
    Ok(())
}

/// Installs a Debian with Swift.
fn set_up() -> anyhow::Result<PathBuf> {
    let root = tools::tools_dir().join(format!("swift-{RELEASE}"));
    if root.join("usr/bin/swiftc").exists() {
        return Ok(root);
    }
    tools::debian_package("debootstrap", "debootstrap")?;
    println!("setting up Debian's {RELEASE} with Swift (3.3 GB)");
    let policy = Command::new("apt-cache").args(["policy", "debootstrap"]).output()?;
    let policy = String::from_utf8_lossy(&policy.stdout).into_owned();
    let mirror =
        policy.split_whitespace().find(|word| word.starts_with("http")).context("apt has no mirror configured")?;
    let made = Command::new("debootstrap").args(["--variant=minbase", RELEASE]).arg(&root).arg(mirror).output()?;
    succeeded("debootstrap", &made)?;
    let mut apt = Command::new("chroot");
    apt.arg(&root).args(["apt-get", "install", "-y", "--no-install-recommends"]).args(PACKAGES);
    succeeded("apt-get", &apt.output()?)?;
    Ok(root)
}

fn succeeded(what: &str, output: &Output) -> anyhow::Result<()> {
    let printed = String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
    ensure!(output.status.success(), "{what} failed: {}: {}", output.status, printed.trim());
    Ok(())
}

impl Bed {
    /// Copies the module's and the app's sources, the C header and module map, and the library.
    fn copy_sources(&self) -> anyhow::Result<()> {
        let workspace = tools::workspace_root();
        let folder = self.folder();
        let _ = std::fs::remove_dir_all(&folder);
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&workspace).args(["build", "--quiet", "-p", "coroner-ffi"]);
        succeeded("cargo build", &cargo.output()?)?;
        let ours = workspace.join("crates/bindings/ffi");
        for (from, to) in [
            (tools::built_library("libcoroner_ffi.so"), "libcoroner_ffi.so"),
            (ours.join("include/coroner.h"), "CCoroner/coroner.h"),
            (ours.join("tests/swift/main.swift"), "main.swift"),
            (ours.join("tests/swift/MetricKit.swift"), "stand-in/MetricKit.swift"),
            (ours.join("tests/swift/module.modulemap"), "CCoroner/module.modulemap"),
            (workspace.join("tools/dist/src/apple/Package.swift"), "package/Package.swift"),
        ] {
            copy(&from, &folder.join(to))?;
        }
        // Also under its soname.
        copy(&folder.join("libcoroner_ffi.so"), &folder.join(dist::soname()))?;
        for source in std::fs::read_dir(ours.join("swift/Sources/Coroner"))? {
            let source = source?;
            for place in ["Coroner", "package/Sources/Coroner"] {
                copy(&source.path(), &folder.join(place).join(source.file_name()))?;
            }
        }
        Ok(())
    }

    fn folder(&self) -> PathBuf {
        self.root.join(FOLDER.trim_start_matches('/'))
    }

    /// Runs a shell command in the root.
    fn shell(&self, script: &str) -> anyhow::Result<Output> {
        let libraries = "/usr/libexec/swift/lib/swift/linux";
        let script = format!(
            "[ -e /proc/self ] || mount -t proc proc /proc; [ -c /dev/null ] || mknod -m 666 /dev/null c 1 3; cd {FOLDER} && {script}"
        );
        // The mounts disappear with the command.
        let mut command = Command::new("unshare");
        command.args(["--mount", "chroot"]).arg(&self.root).args(["sh", "-c", &script]);
        command.env("LD_LIBRARY_PATH", format!("{libraries}:{FOLDER}")).env("HOME", "/root").env("LC_ALL", "C.UTF-8");
        command.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
        Ok(command.output()?)
    }

    /// Compiles the app; warnings are errors.
    fn compile(&self, version: &str) -> anyhow::Result<()> {
        let common = format!("swiftc -g -warnings-as-errors -swift-version {version} -I CCoroner");
        let module =
            "-parse-as-library -emit-module -emit-library -module-name Coroner Coroner/*.swift -o libCoroner.so";
        succeeded("the module", &self.shell(&format!("{common} {module} -L . -lcoroner_ffi"))?)?;
        let stand_in = self.shell(&format!(
            "{common} -parse-as-library -emit-module -module-name MetricKit stand-in/MetricKit.swift -o stand-in/MetricKit.swiftmodule"
        ))?;
        succeeded("the stand-in for MetricKit", &stand_in)?;
        let with_it = self.shell(&format!(
            "{common} -I stand-in -parse-as-library -typecheck -module-name Coroner Coroner/*.swift"
        ))?;
        succeeded("the module beside MetricKit", &with_it)?;
        let app = self.shell(&format!("{common} -I . main.swift -L . -lCoroner -lcoroner_ffi -o shop"))?;
        succeeded("the app", &app)
    }

    /// Checks that SwiftPM reads the manifest.
    fn manifest(&self) -> anyhow::Result<()> {
        let read = self.shell("cd package && swift package dump-package")?;
        succeeded("swift package", &read)?;
        let manifest: Value = serde_json::from_slice(&read.stdout)?;
        let targets = manifest["targets"].as_array().context("no targets")?;
        let names: Vec<&str> = targets.iter().filter_map(|target| target["name"].as_str()).collect();
        ensure!(names == ["CCoroner", "Coroner"], "unexpected targets: {names:?}");
        Ok(())
    }

    /// Runs a launch in this mode; returns its standard output and standard error.
    fn launch(&self, way: &str) -> anyhow::Result<(String, String)> {
        let output = self.shell(&format!("./shop store {way}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((text(&output.stdout), text(&output.stderr)))
    }

    fn forget(&self) -> anyhow::Result<()> {
        let store = self.folder().join("store");
        if store.exists() {
            std::fs::remove_dir_all(store)?;
        }
        Ok(())
    }

    /// Returns the delivered reports.
    fn reports(&self) -> anyhow::Result<Vec<Value>> {
        let mut reports = Vec::new();
        let folder = self.folder().join("store/given");
        if !folder.exists() {
            return Ok(reports);
        }
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                reports.push(serde_json::from_slice(&std::fs::read(path)?)?);
            }
        }
        Ok(reports)
    }

    /// Checks a crash's report.
    ///
    /// It must have the signal, the app's function, the app's scope, and each frame of Swift's own
    /// backtrace that is on the stack.
    fn death(&self, way: &str, signal: &str, function: &str) -> anyhow::Result<()> {
        self.forget()?;
        let (printed, errors) = self.launch(way)?;
        let (next, _) = self.launch("next")?;
        let wanted = "crashed last run: a report\noutcome: crashed, report: 32, delivered: 1\n";
        ensure!(next == wanted, "unexpected output of the next launch: {next:?}");
        let reports = self.reports()?;
        let [report] = reports.as_slice() else { anyhow::bail!("{} reports", reports.len()) };
        ensure!(report["crash"]["signal"]["name"] == signal, "unexpected signal: {}", report["crash"]["signal"]);
        ensure!(report["run"]["tags"]["shelf"] == "upper" && report["run"]["user"]["username"] == "Ada", "the scope");
        let frames = crashed_frames(report)?;
        let has = |name: &str| frames.iter().any(|frame| name_of(frame).is_some_and(|own| own.starts_with(name)));
        ensure!(has(function), "no frame in {function}");
        let ours: Vec<u64> = frames.iter().filter_map(address).collect();
        let theirs = backtrace_of_swift(&(printed + &errors));
        ensure!(theirs.len() > 1, "no backtrace from Swift");
        // Swift's backtrace leaves out frames that it considers the system's.
        let mut rest = ours.iter();
        for address in &theirs {
            ensure!(rest.any(|own| own == address), "frame {address:#x} of Swift's backtrace is missing in {ours:#x?}");
        }
        Ok(())
    }

    fn kept_back(&self) -> anyhow::Result<()> {
        self.forget()?;
        self.launch("keep")?;
        let (next, _) = self.launch("next")?;
        ensure!(
            next.ends_with("outcome: crashed, report: 32, delivered: 0\n"),
            "unexpected output of the next launch: {next:?}"
        );
        ensure!(self.reports()?.is_empty(), "the dropped report was delivered");
        Ok(())
    }

    fn last_words(&self) -> anyhow::Result<()> {
        self.forget()?;
        self.shell("./shop store fatal-error 2> said")?;
        self.launch("next")?;
        let reports = std::fs::read_dir(self.folder().join("store/given"))?.map(|entry| Ok(entry?.path()));
        let reports: Vec<PathBuf> = reports.collect::<anyhow::Result<_>>()?;
        let raw = reports.iter().find(|path| path.extension().is_some_and(|extension| extension == "coroner"));
        let report = coroner_report::Report::read_file(raw.context("no report")?)?;
        let cause = report.explained_cause().unwrap_or_default();
        ensure!(
            cause.starts_with("shop/main.swift:18: Fatal error: the shop is closed"),
            "unexpected message: {cause:?}"
        );
        Ok(())
    }

    fn errors(&self) -> anyhow::Result<()> {
        self.forget()?;
        let (printed, errors) = self.launch("error")?;
        ensure!(printed == "third: full\ndelivered: 2\n", "unexpected output: {printed:?} {errors}");
        let reports = self.reports()?;
        let exceptions = |report: &Value| {
            let all = report["exceptions"].as_array().cloned().unwrap_or_default();
            all.iter()
                .map(|one| format!("{} {} {}", one["language"], one["type_name"], one["message"]))
                .collect::<Vec<_>>()
        };
        let mut all: Vec<String> = reports.iter().map(|report| exceptions(report).join("; ")).collect();
        all.sort();
        let [shop, own] = all.as_slice() else { anyhow::bail!("{all:?}") };
        ensure!(shop.contains("\"Shop\"") && shop.contains("\"Disk\" \"no space (Code: 28)\""), "{shop}");
        ensure!(own.contains("shop.ShopError") && own.contains("closed(until: 8)"), "{own}");
        for report in &reports {
            let frames = crashed_frames(report)?;
            let first =
                frames.iter().filter_map(name_of).find(|name| !coroner_report::model::is_runtime_function(name));
            ensure!(first == Some("async_Main"), "{first:?} is the app's first function");
        }
        Ok(())
    }

    fn backtrace(&self) -> anyhow::Result<()> {
        let (printed, errors) = self.launch("backtrace")?;
        ensure!(
            printed.starts_with("true async_Main\n") && printed.ends_with("false true\n"),
            "unexpected output: {printed:?} {errors}"
        );
        Ok(())
    }

    fn says(&self, way: &str, wanted: &str) -> anyhow::Result<()> {
        self.forget()?;
        self.launch(way)?;
        let (next, errors) = self.launch("next")?;
        ensure!(next.starts_with(wanted), "unexpected output of the next launch: {next:?} {errors}");
        Ok(())
    }
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to.parent().context("a path without a folder")?)?;
    std::fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}

fn crashed_frames(report: &Value) -> anyhow::Result<Vec<Value>> {
    let threads = report["threads"].as_array().context("no threads")?;
    let crashed = threads.iter().find(|thread| thread["tid"] == report["crash"]["tid"]).context("no crashed thread")?;
    Ok(crashed["frames"].as_array().context("no frames")?.clone())
}

fn name_of(frame: &Value) -> Option<&str> {
    frame["raw_function"].as_str().or_else(|| frame["function"].as_str())
}

fn address(frame: &Value) -> Option<u64> {
    hexadecimal(frame["address"].as_str()?)
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Returns the addresses of the crashed thread in the Swift runtime's text.
///
/// Callers that await an async function are left out, because they are not on the stack. For a
/// recursion, only its first frames are returned.
fn backtrace_of_swift(text: &str) -> Vec<u64> {
    let mut addresses = Vec::new();
    let mut lines = text.lines().skip_while(|line| !(line.starts_with("Thread ") && line.contains("crashed")));
    lines.next();
    for line in lines.skip_while(|line| line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_frame = words.first().is_some_and(|word| word.parse::<u32>().is_ok());
        if !is_frame || line.contains("[async]") || addresses.len() == 64 {
            break;
        }
        addresses.extend(words.iter().find_map(|word| hexadecimal(word)));
    }
    addresses
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

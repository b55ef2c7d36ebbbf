//! Launches of programs that are not made for tests, with Coroner's default settings.
//!
//! These are a tool from crates.io with the README's snippet, and a tool, daemons and a pre-forking
//! server in C.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use super::{Seen, disk_bytes};
use toolbox::system_calls::system_calls;
use toolbox::{deadline, tools};

/// The tool's name and version on crates.io.
const TOOL: (&str, &str) = ("ripgrep", "14.1.1");
const CALLS: &str = "system calls of a launch";
const LARGEST: &str = "KiB in the store at most";
const APP: &str = include_str!("app.c");

/// An app that can be started with its own store.
pub(super) struct App {
    folder: tempfile::TempDir,
    program: PathBuf,
    store: PathBuf,
    is_tool: bool,
}

impl App {
    /// Returns the tool; README's snippet names no store.
    fn tool() -> anyhow::Result<App> {
        let program = build_tool()?;
        let folder = tempfile::tempdir()?;
        let store = folder.path().join("com.example.paint/coroner");
        Ok(App { folder, program, store, is_tool: true })
    }

    /// Returns the app in C.
    fn in_c() -> anyhow::Result<App> {
        let program = build_app()?;
        let folder = tempfile::tempdir()?;
        let store = folder.path().join("store");
        Ok(App { folder, program, store, is_tool: false })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env("XDG_STATE_HOME", self.folder.path()).env_remove("STATE_DIRECTORY").stdin(Stdio::null());
        if !self.is_tool {
            command.arg(&self.store);
        }
        command.args(words);
        command
    }

    /// Runs it until it and all its children that share its output have ended.
    ///
    /// It must exit successfully.
    fn run(&self, words: &[&str]) -> anyhow::Result<()> {
        let output = self.command(words).output().with_context(|| format!("starting {}", self.program.display()))?;
        let printed = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{words:?} failed: {}: {}", output.status, printed.trim());
        Ok(())
    }

    /// Runs a launch that crashes.
    fn crash(&self) -> anyhow::Result<()> {
        let mut child = if self.is_tool {
            // It waits for input to search. Its line about the last run shows that Coroner is
            // installed.
            let mut child = self.command(&["word", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let mut line = String::new();
            BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
            ensure!(line.starts_with("the last run "), "unexpected output: {line:?}");
            // SAFETY: no memory is accessed; the child is this process's own and has not been
            // waited for.
            ensure!(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGSEGV) } == 0, "can't send it a signal");
            child
        } else {
            self.command(&["crash"]).spawn()?
        };
        let status = child.wait()?;
        ensure!(status.signal() == Some(libc::SIGSEGV), "unexpected exit of a crash: {status}");
        Ok(())
    }

    /// Returns the number of reports delivered by the app's default sink.
    fn reports(&self) -> usize {
        names(&self.store.join("reports")).iter().filter(|name| name.to_string_lossy().ends_with(".json")).count()
    }

    /// Returns the number of pending or live runs in the store.
    fn runs(&self) -> usize {
        names(&self.store.join("runs")).len()
    }

    /// Launches the app until `reports` reports have arrived, and checks that no more follow.
    ///
    /// The launches exit cleanly. Each launch must store at least one.
    fn deliver(&self, reports: usize) -> anyhow::Result<Seen> {
        let mut launches = 0;
        while self.reports() < reports {
            ensure!(launches < reports, "{} of {reports} reports after {launches} launches", self.reports());
            self.run(&["end"])?;
            launches += 1;
        }
        self.run(&["flush"])?;
        let delivered = self.reports();
        ensure!(delivered == reports, "{delivered} reports for {reports} crashes");
        ensure!(!self.store.join("broken").exists(), "a run was set aside");
        ensure!(self.runs() == 0, "{} runs are left", self.runs());
        Ok(Seen::from([("crashes", reports as u64), ("short launches until all reports are there", launches as u64)]))
    }
}

fn names(folder: &Path) -> Vec<OsString> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

/// One crash, and then short launches of a real, stripped release build.
pub(super) fn tool(launches: usize) -> anyhow::Result<Seen> {
    after_one_crash(&App::tool()?, &["--version"], 0, launches)
}

/// The same with a tool in C that ends in one of these ways.
///
/// By `exit`, by `quick_exit`, by `_exit` after marking a clean exit, and by `_exit` without it.
pub(super) fn tool_in_c(launches: usize) -> anyhow::Result<Seen> {
    let mut all = Seen::new();
    let ends = [
        ("end", 0, "system calls of a launch that ends by exit"),
        ("quick", 0, "by quick_exit"),
        ("marked", 1, "by _exit, marked"),
        ("unmarked", 1, "by _exit"),
    ];
    for (word, own, name) in ends {
        let seen = after_one_crash(&App::in_c()?, &[word], own, launches)?;
        all.extend(seen.get(CALLS).map(|count| (name, *count)));
        let most = all.entry(LARGEST).or_default();
        *most = seen.get(LARGEST).copied().unwrap_or_default().max(*most);
    }
    Ok(all)
}

/// Tests launches that end in a way that leaves `own` runs behind.
fn after_one_crash(app: &App, words: &[&str], own: usize, launches: usize) -> anyhow::Result<Seen> {
    app.crash()?;
    app.run(words)?;
    ensure!(app.reports() == 1, "expected one report after the first launch, got {}", app.reports());
    // One in ten launches waits for the work that an earlier one postponed, however short they are;
    // from the 40th on without names. A launch that ends without `exit` leaves its own run behind.
    let mut settling = 0_u64;
    while settling < 2 || app.runs() > own {
        ensure!(settling < 60, "{} runs are left after {settling} launches", app.runs());
        app.run(words)?;
        settling += 1;
    }
    let settled = disk_bytes(&app.store);
    let mut largest = settled;
    for launch in 0..launches {
        app.run(words)?;
        if launch % 50 == 0 {
            largest = largest.max(disk_bytes(&app.store));
        }
    }
    largest = largest.max(disk_bytes(&app.store));
    ensure!(largest <= settled + (64 << 10), "the store grew from {settled} to {largest} bytes");
    ensure!(app.runs() == own, "{} runs are left", app.runs());
    ensure!(app.reports() == 1, "{} reports for one crash", app.reports());
    let mut calls = BTreeMap::<i64, u64>::new();
    let mut command = app.command(words);
    command.stdout(Stdio::null());
    let count = system_calls(command, &mut |number| *calls.entry(number).or_default() += 1)?;
    // The next launch processes a run that ended without `exit`, on a thread.
    let threads = [(libc::SYS_clone, "clone"), (libc::SYS_clone3, "clone3")];
    let never = [(libc::SYS_fsync, "fsync"), (libc::SYS_fdatasync, "fdatasync"), (libc::SYS_msync, "msync")];
    for (number, name) in never.into_iter().chain(threads.into_iter().filter(|_| own == 0)) {
        ensure!(!calls.contains_key(&number), "a launch with nothing to deliver calls {name}");
    }
    Ok(Seen::from([
        ("launches", launches as u64),
        ("launches until delivery was done", settling + 1),
        (LARGEST, largest >> 10),
        (CALLS, u64::try_from(count)?),
    ]))
}

/// Tests daemons that crash after `daemon` and after two forks, and one that exits cleanly.
///
/// The parents exit cleanly.
pub(super) fn daemons() -> anyhow::Result<Seen> {
    let app = App::in_c()?;
    ["daemon", "forked-twice", "daemon-ends"].iter().try_for_each(|word| app.run(&[word]))?;
    app.deliver(2)
}

/// Tests a server whose workers crash, are killed and restarted.
///
/// The workers also fork in forks and in threads, and start or exec other programs.
pub(super) fn server() -> anyhow::Result<Seen> {
    let app = App::in_c()?;
    app.run(&["server"])?;
    app.deliver(6)
}

/// Builds the tool with README's snippet at the start of `main`, as a stripped release build.
fn build_tool() -> anyhow::Result<PathBuf> {
    let (name, version) = TOOL;
    let folder = tools::target_dir().join("launches");
    let source = folder.join(format!("{name}-{version}"));
    if !source.join("patched").exists() {
        let fetch = folder.join("fetch");
        fs::create_dir_all(fetch.join("src"))?;
        fs::write(fetch.join("src/lib.rs"), "")?;
        let manifest = format!(
            "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n{name} = \"={version}\"\n"
        );
        fs::write(fetch.join("Cargo.toml"), manifest)?;
        let mut vendor = cargo(&fetch);
        vendor.args(["vendor", "--quiet", "--versioned-dirs", "vendor"]).stdout(Stdio::null());
        ensure!(deadline::status(&mut vendor)?.success(), "can't download {name} {version} from crates.io");
        if source.exists() {
            fs::remove_dir_all(&source)?;
        }
        fs::rename(fetch.join("vendor").join(format!("{name}-{version}")), &source)?;
        patch(&source)?;
        fs::write(source.join("patched"), "")?;
    }
    let target = folder.join("target");
    let mut build = cargo(&source);
    build.args(["build", "--release", "--quiet", "--target-dir"]).arg(&target);
    build.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    ensure!(deadline::status(&mut build)?.success(), "can't build {name} {version}");
    Ok(target.join("release/rg"))
}

fn cargo(folder: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(folder);
    command
}

/// Adds Coroner to the tool's dependencies and README's first snippet to its `main`.
fn patch(source: &Path) -> anyhow::Result<()> {
    let root = tools::workspace_root();
    let readme = fs::read_to_string(root.join("README.md"))?;
    let (_, rest) = readme.split_once("```rust,no_run\nfn main() {\n").context("README's snippet")?;
    let (snippet, _) = rest.split_once("\n}\n```").context("missing end of the README's snippet")?;
    let manifest = source.join("Cargo.toml");
    let coroner = root.join("crates/launch/coroner");
    let added = format!("\n[dependencies.coroner]\npath = {:?}\n\n[workspace]\n", coroner.display().to_string());
    fs::write(&manifest, fs::read_to_string(&manifest)? + &added)?;
    let main = source.join("crates/core/main.rs");
    let text = fs::read_to_string(&main)?;
    let begin = "fn main() -> ExitCode {\n";
    if !text.contains(begin) {
        bail!("{} has another main", main.display());
    }
    fs::write(&main, text.replacen(begin, &format!("{begin}{snippet}\n"), 1))?;
    Ok(())
}

/// Builds the app in C, with the static library.
fn build_app() -> anyhow::Result<PathBuf> {
    tools::debian_package("gcc", "gcc")?;
    let root = tools::workspace_root();
    tools::build_workspace()?;
    let folder = tools::target_dir().join("launches");
    fs::create_dir_all(&folder)?;
    let (source, program) = (folder.join("app.c"), folder.join("app"));
    fs::write(&source, APP)?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-s", "-Wall", "-pthread", "-o"]).arg(&program).arg(&source);
    gcc.arg("-I").arg(root.join("crates/bindings/ffi/include"));
    gcc.arg(tools::built_library("libcoroner_ffi.a")).args(["-lpthread", "-ldl", "-lm"]);
    ensure!(gcc.status().context("running gcc")?.success(), "can't build the app in C");
    Ok(program)
}

//! Running the crashing program, and reading what it left.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use coroner_report::model::Report;
use coroner_symbols::{Options, Symbolizer};

/// After that long a process counts as hung, and is killed. A report takes milliseconds; a program of Darwin's may run in
/// an emulator.
const LIMIT: Duration = Duration::from_secs(if cfg!(target_vendor = "apple") { 120 } else { 30 });

/// How a process ended, and what it left.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote to its standard output and error.
    pub output: String,
    /// From its start to its end.
    pub time: Duration,
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The crashing program.
    pub program: &'a Path,
    /// The name of a fault.
    pub fault: &'a str,
    /// How many threads are parked meanwhile.
    pub threads: usize,
    /// Conditions, by name.
    pub conditions: &'a [&'a str],
    /// Whether it is the first process of a PID namespace of its own.
    pub first_process: bool,
}

impl Run<'_> {
    /// Runs it with that store (or without Coroner).
    ///
    /// # Errors
    /// Where it can't be started, or does not end in time; it is killed then.
    pub fn run(&self, store: Option<&Path>) -> anyhow::Result<Ended> {
        let mut words: Vec<OsString> = Vec::new();
        if self.first_process {
            words.extend(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"].map(OsString::from));
        }
        // A command that runs programs of another architecture.
        let runner = std::env::var("CORONER_TEST_RUNNER").unwrap_or_default();
        words.extend(runner.split_whitespace().map(OsString::from));
        words.push(self.program.into());
        words.push(store.map_or_else(|| "-".into(), Into::into));
        words.extend([self.fault.into(), self.threads.to_string().into()]);
        words.extend(self.conditions.iter().map(OsString::from));

        let (program, arguments) = words.split_first().context("an empty command")?;
        let (mut reader, writer) = std::io::pipe()?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        command.env("RUST_BACKTRACE", "0");
        no_core_files();
        let start = Instant::now();
        let mut child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        drop(command);
        let output = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = reader.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if start.elapsed() > LIMIT {
                child.kill()?;
                child.wait()?;
                bail!("it hangs: still alive after {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let time = start.elapsed();
        // A child that outlives its parent would hold the pipe open; that is a hang, too.
        while !output.is_finished() {
            if start.elapsed() > LIMIT {
                bail!("it ended with {status}, but left a process behind");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Ended { status, output: output.join().unwrap_or_default(), time })
    }
}

/// Thousands of crashes are to leave no core files behind. The limit is this process's own, which others inherit: to set it in
/// each child would take a `fork`, and a fork of a busy emulator may hang.
fn no_core_files() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: writes one limit, and reads it.
        unsafe {
            libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit);
            limit.rlim_cur = 0;
            libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
        }
    });
}

/// The report files of a store that were written, of all its runs, by path.
///
/// # Errors
/// Where the store can't be read.
pub fn report_files(store: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for run in std::fs::read_dir(store.join("runs")).context("the store has no runs")? {
        for file in std::fs::read_dir(run?.path())? {
            let path = file?.path();
            let is_report = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("report"));
            let is_written = || std::fs::read(&path).is_ok_and(|bytes| bytes.iter().any(|byte| *byte != 0));
            if is_report && is_written() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// What names frames. One for all reports: the same program's symbols are read once.
static SYMBOLIZER: Mutex<Option<Symbolizer>> = Mutex::new(None);

/// The reports of a store, named as a next launch would name them.
///
/// # Errors
/// Where one can't be read: which, and why.
pub fn reports(store: &Path) -> anyhow::Result<Vec<Report>> {
    let read = |path: &PathBuf| {
        let mut report = Report::read_file(path).with_context(|| path.display().to_string())?;
        let mut symbolizer = SYMBOLIZER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = symbolizer.get_or_insert_with(|| Symbolizer::new(Options::default())).symbolicate_report(&mut report);
        crate::report_json::keep(|| report.to_json())?;
        Ok(report)
    };
    report_files(store)?.iter().map(read).collect()
}

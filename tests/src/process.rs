//! Runs the crashing program and reads its reports.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use coroner_report::model::Report;
use coroner_symbols::{Options, Symbolizer};

/// Timeout after which a process counts as hung and is killed. A report takes milliseconds; a
/// Darwin program may run in an emulator.
const LIMIT: Duration = Duration::from_secs(if cfg!(target_vendor = "apple") { 120 } else { 30 });

/// The result of a process.
#[derive(Debug)]
pub struct Ended {
    /// Exit status.
    pub status: ExitStatus,
    /// Output to stdout and stderr.
    pub output: String,
    /// Time from start to end.
    pub time: Duration,
}

/// A process to run.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The crashing program.
    pub program: &'a Path,
    /// Name of the fault.
    pub fault: &'a str,
    /// Number of parked threads.
    pub threads: usize,
    /// Names of the conditions.
    pub conditions: &'a [&'a str],
    /// Whether it is the first process of a new PID namespace.
    pub first_process: bool,
}

impl Run<'_> {
    /// Runs the process with that store, or without Coroner if `None`.
    ///
    /// # Errors
    /// The process can't be started, or times out and is killed.
    pub fn run(&self, store: Option<&Path>) -> anyhow::Result<Ended> {
        let mut words: Vec<OsString> = Vec::new();
        if self.first_process {
            words.extend(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"].map(OsString::from));
        }
        // A command that runs programs for another architecture.
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
                bail!("the process hangs: still running after {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let time = start.elapsed();
        // A child process that outlives its parent keeps the pipe open, which also counts as a
        // hang.
        while !output.is_finished() {
            if start.elapsed() > LIMIT {
                bail!("the process ended with {status}, but a child is still running");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Ended { status, output: output.join().unwrap_or_default(), time })
    }
}

/// Disables core files, so that thousands of crashes leave none. The limit is set for this process
/// and inherited: setting it in each child would require a `fork`, which may hang in a busy
/// emulator.
fn no_core_files() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes one limit and reads it.
        unsafe {
            libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit);
            limit.rlim_cur = 0;
            libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
        }
    });
}

/// Returns the nonempty report files of all runs in a store, sorted by path.
///
/// # Errors
/// The store can't be read.
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

/// The symbolizer for all reports, so that the same program's symbols are read once.
static SYMBOLIZER: Mutex<Option<Symbolizer>> = Mutex::new(None);

/// Returns a store's reports, symbolicated as at the next launch.
///
/// # Errors
/// A report can't be read.
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

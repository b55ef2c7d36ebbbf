//! Kills launches of `launch_program` at random moments and checks the delivery of reports.
//!
//! Every complete report must arrive exactly once, in the folder and at a server, and the store
//! must stay within its limits. [`foreign`] does the same with ordinary programs. See the package's
//! `README.md`.

mod foreign;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser as _;
use coroner::{RawRun, Retention};
use coroner_report::Report;
use coroner_tests::server::{Reply, Server};

use toolbox::tools;

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Print one JSON object, a row per scenario, as the last line
    #[arg(long)]
    json: bool,
    /// Run fewer launches, and skip ripgrep
    #[arg(long)]
    short: bool,
    /// Run only rows whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Seed the moments at which processes are killed
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Counts by name.
type Seen = BTreeMap<&'static str, u64>;

/// Runs the rows.
///
/// # Errors
/// An error if a row fails, or the program can't be built.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let program = program()?;
    let few = |all: usize| if arguments.short { all / 3 } else { all };
    let mut failed = Vec::new();
    let mut rows = Vec::new();
    let mut row = |name: &'static str, show: &dyn Fn() -> anyhow::Result<Seen>| {
        if arguments.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return;
        }
        let (seen, error) = match show() {
            Ok(seen) => (seen, None),
            Err(error) => (Seen::new(), Some(format!("{error:#}"))),
        };
        println!("{} {name}: {}", if error.is_none() { "ok  " } else { "FAIL" }, error.as_deref().unwrap_or_default());
        seen.iter().for_each(|(what, count)| println!("       {count:>8} {what}"));
        failed.extend(error.is_some().then_some(name));
        rows.push(serde_json::json!({ "name": name, "ok": error.is_none(), "seen": seen, "error": error }));
    };
    let killed = if arguments.short { 40 } else { 1000 };
    row("launches that are killed at any moment", &|| kill_loop(&program, killed, arguments.seed));
    row("50 workers that crash at once", &|| workers(&program, 50, 50));
    row("40 workers, the oldest crashes and 39 are killed", &|| workers(&program, 40, 1));
    row("clean launches after a crash", &|| clean_launches(&program, few(600)));
    row("a pre-forking server in C", &foreign::server);
    row("daemons in C", &foreign::daemons);
    row("one crash of a tool in C, and short launches", &|| foreign::tool_in_c(if arguments.short { 20 } else { 250 }));
    // It takes minutes to build.
    if !arguments.short {
        row("one crash of ripgrep with README's snippet, and short launches", &|| foreign::tool(1000));
    }
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "launches", "pass": failed.is_empty(), "rows": rows }));
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join("; "));
    Ok(())
}

/// Builds the program without debug information, as apps are shipped.
fn program() -> anyhow::Result<PathBuf> {
    tools::build_workspace()?;
    let built = tools::target_dir().join("debug/launch_program");
    let shipped = built.with_extension("shipped");
    let status =
        Command::new("strip").arg("-g").arg("-o").args([&shipped, &built]).status().context("running strip")?;
    ensure!(status.success(), "strip failed: {status}");
    Ok(shipped)
}

/// A store, and a server that accepts everything.
struct Bench<'p> {
    folder: tempfile::TempDir,
    server: Server,
    program: &'p Path,
    /// The ids of all complete reports of processes that have ended.
    complete: BTreeSet<String>,
    /// Runs that were examined.
    known: BTreeSet<PathBuf>,
    /// Number of reports truncated by a kill.
    torn: u64,
}

impl<'p> Bench<'p> {
    fn new(program: &'p Path) -> anyhow::Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
            server: Server::start(|_, _| Reply::ok())?,
            program,
            complete: BTreeSet::new(),
            known: BTreeSet::new(),
            torn: 0,
        })
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn start(&self, words: &[&str]) -> anyhow::Result<Child> {
        let mut command = Command::new(self.program);
        command.arg(self.store()).arg(self.server.dsn()).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().context("starting the program")
    }

    /// Examines the runs of processes that have ended since the last call.
    fn look(&mut self) -> anyhow::Result<()> {
        let Ok(runs) = std::fs::read_dir(self.store().join("runs")) else { return Ok(()) };
        for run in runs {
            let path = run?.path();
            let is_run = path.file_name().is_some_and(|name| name.len() == 32);
            if !is_run || !self.known.insert(path.clone()) {
                continue;
            }
            for bytes in RawRun::read(&path).map(|raw| raw.reports).unwrap_or_default() {
                match Report::read(&bytes) {
                    Ok(report) if report.complete => drop(self.complete.insert(report.header.event_id.to_string())),
                    Ok(_) => self.torn += 1,
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Returns the events of the reports in the folder.
    fn in_folder(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.store().join("reports")).into_iter().flatten().flatten();
        let id = |name: String| Some(name.strip_suffix(".json")?.split_once('-')?.1.to_owned());
        names.filter_map(|file| id(file.file_name().into_string().ok()?)).collect()
    }

    /// Launches the program, which exits immediately, until the folder has `reports` reports.
    ///
    /// Each launch must store at least one.
    fn short_launches(&self, reports: usize) -> anyhow::Result<u64> {
        for launches in 0..=reports {
            if self.in_folder().len() >= reports {
                return Ok(launches as u64);
            }
            self.start(&[])?.wait()?;
        }
        bail!("after {reports} short launches the folder has {} of {reports} reports", self.in_folder().len())
    }

    /// Launches the program until nothing is left to deliver, and checks what has arrived.
    fn finish(&mut self) -> anyhow::Result<Seen> {
        let mut flushed = false;
        for _ in 0..10 {
            let output = self.start(&["flush"])?.wait_with_output()?;
            flushed = String::from_utf8_lossy(&output.stdout).contains("flushed: true");
            if flushed {
                break;
            }
        }
        ensure!(flushed, "undelivered reports after ten launches");
        let files = self.in_folder();
        let in_folder: BTreeSet<String> = files.iter().cloned().collect();
        ensure!(
            files.len() == in_folder.len(),
            "duplicate reports in the folder: {} files for {} events",
            files.len(),
            in_folder.len()
        );
        let at_server = self.server.events();
        let lost = |there: &BTreeSet<String>| self.complete.difference(there).cloned().collect::<Vec<_>>();
        // The folder has its own limits; the server has everything.
        let room = in_folder.len() >= Retention::default().number;
        ensure!(room || lost(&in_folder).is_empty(), "missing in the folder: {:?}", lost(&in_folder));
        ensure!(lost(&at_server).is_empty(), "missing at the server: {:?}", lost(&at_server));
        ensure!(in_folder.is_subset(&at_server), "the folder has events that the server doesn't have");
        let broken = std::fs::read_dir(self.store().join("broken")).map_or(0, Iterator::count);
        ensure!(broken == 0, "{broken} runs were set aside");
        Ok(Seen::from([
            ("complete reports", self.complete.len() as u64),
            ("torn reports and crashes without one", self.torn),
            ("events at the server", at_server.len() as u64),
            (
                "events that came to the server a second time",
                (self.server.items("event").len() - at_server.len()) as u64,
            ),
            ("reports in the folder", in_folder.len() as u64),
        ]))
    }
}

/// Measures a launch that crashes and has a crash to deliver.
fn whole_launch(bench: &mut Bench<'_>) -> anyhow::Result<Duration> {
    let began = Instant::now();
    bench.start(&["crash"])?.wait()?;
    let whole = began.elapsed();
    bench.look()?;
    Ok(whole)
}

/// Makes launches that crash, work or exit, each killed at a random moment if still running.
fn kill_loop(program: &Path, launches: usize, seed: u64) -> anyhow::Result<Seen> {
    /// Number of doublings in the range of kill moments, each with equally many moments.
    ///
    /// They range from 1/30 to about twice the time of a launch that crashes and delivers a crash.
    const DOUBLINGS: f64 = 6.0;
    /// Number of launches after which that time is measured again, by one that is not killed.
    ///
    /// If the machine has become slower meanwhile, launches would end before they send anything,
    /// and the outbox drops the oldest crashes beyond its limit.
    const MEASURED: usize = 50;
    let mut bench = Bench::new(program)?;
    whole_launch(&mut bench)?;
    let (mut first, mut work) = (Duration::ZERO, String::new());
    let mut chance = seed;
    let (mut killed, mut largest) = (0, 0);
    for number in 0..launches {
        if number % MEASURED == 0 {
            let whole = whole_launch(&mut bench)?;
            (first, work) = (whole / 30, format!("work={}", whole.as_millis()));
        }
        let words: &[&str] = match number % 4 {
            0 => &["crash"],
            1 => &["work=5", "crash"],
            2 => &[&work],
            _ => &[],
        };
        let mut child = bench.start(words)?;
        chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        #[expect(clippy::cast_precision_loss, reason = "chance needs few digits")]
        let delay = first.mul_f64((DOUBLINGS * (chance >> 33) as f64 / (1_u64 << 31) as f64).exp2());
        let deadline = Instant::now() + delay;
        while Instant::now() < deadline && child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_micros(200).min(deadline.saturating_duration_since(Instant::now())));
        }
        killed += u64::from(child.try_wait()?.is_none());
        let _ = child.kill();
        child.wait()?;
        bench.look()?;
        if number % 20 == 0 {
            largest = largest.max(disk_bytes(&bench.store()));
        }
    }
    let mut seen = bench.finish()?;
    ensure!(bench.complete.len() > launches / 50, "too few complete reports: {}", bench.complete.len());
    largest = largest.max(disk_bytes(&bench.store()));
    // The store, the folder and the outbox have this limit each, in addition to files half-written
    // at a kill.
    let most = 3 * Retention::default().bytes;
    ensure!(largest <= most, "the store grew to {largest} bytes; the limit is {most}");
    seen.extend([
        ("launches", launches as u64),
        ("of them killed", killed),
        ("KiB in the store at most", largest >> 10),
    ]);
    Ok(seen)
}

/// Starts `all` processes at once; the `crashing` oldest ones crash, the others are killed.
///
/// Then makes launches that exit immediately, and one that waits.
fn workers(program: &Path, all: usize, crashing: usize) -> anyhow::Result<Seen> {
    let mut bench = Bench::new(program)?;
    let mut workers = Vec::new();
    for _ in 0..all {
        let mut worker = bench.start(&["keep", "wait", "crash"])?;
        let mut line = String::new();
        BufReader::new(worker.stdout.take().context("its output")?).read_line(&mut line)?;
        ensure!(line == "installed\n", "unexpected output of a worker: {line:?}");
        workers.push(worker);
    }
    for (number, worker) in workers.iter_mut().enumerate() {
        match worker.stdin.take() {
            Some(mut stdin) if number < crashing => stdin.write_all(b"\n")?,
            _ => worker.kill()?,
        }
    }
    for worker in &mut workers {
        worker.wait()?;
    }
    bench.look()?;
    let short = bench.short_launches(crashing)?;
    let mut seen = bench.finish()?;
    ensure!(bench.complete.len() == crashing, "expected {crashing} complete reports, got {}", bench.complete.len());
    seen.insert("short launches until the folder has them all", short);
    Ok(seen)
}

/// Makes a crash, and then launches that exit cleanly and have nothing to deliver.
fn clean_launches(program: &Path, launches: usize) -> anyhow::Result<Seen> {
    let mut bench = Bench::new(program)?;
    bench.start(&["keep", "crash"])?.wait()?;
    bench.look()?;
    ensure!(bench.complete.len() == 1, "expected one complete report, got {}", bench.complete.len());
    for _ in 0..launches {
        if !bench.start(&["keep"])?.wait()?.success() {
            bail!("a clean launch failed");
        }
    }
    let mut seen = bench.finish()?;
    seen.insert("clean launches", launches as u64);
    Ok(seen)
}

/// Returns the bytes on disk below a folder. Files removed meanwhile may or may not be counted.
fn disk_bytes(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let of_entry = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.map(of_entry).sum()
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

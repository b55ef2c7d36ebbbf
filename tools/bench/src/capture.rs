//! `bench capture`: measures a crash from the fault to the report on disk, and to the exit.
//!
//! Processes have 1, 10, 100 and 1,000 threads (all but one parked eleven frames deep). Peers:
//! minidump-writer in a forked child, and no reporter.
//!
//! All take turns in every round. For Coroner it also measures the time until the crash record is
//! in the run state, and until header, fault and the crashed thread's registers are in the report.
//! With `--names` the dying process symbolicates, as it does by default on Apple systems; that time
//! is reported separately, because the peer doesn't symbolicate and everything else is on disk
//! before. With `--bionic` the peer is Coroner on a device's C library.
//!
//! The program (`capture-bench`) writes the time of its fault into a shared mapping. This one waits
//! for writes to the report file with inotify and records the time of the last; a pidfd signals the
//! process's exit.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use coroner_report::wire::Phase;
use serde::Serialize;

use toolbox::android_bed::{self as android, Arch};
use toolbox::tools;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Run this many rounds and take the median; a first one is discarded
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Give the process this many threads
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100, 1000])]
    threads: Vec<usize>,
    /// Symbolicate in the dying process, as on Apple's systems; the peer doesn't
    #[arg(long)]
    names: bool,
    /// Compare with Coroner on a device's bionic instead of minidump-writer
    #[arg(long)]
    bionic: bool,
}

/// The peer with `--bionic`.
const ON_BIONIC: &str = "coroner on bionic";

/// Time limit of a process.
const LIMIT_MS: i32 = 30_000;

/// The measurements of one crash.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    /// Time from the fault to the report's last byte, and to the process's exit, in nanoseconds.
    report: u64,
    exit: u64,
    bytes: u64,
    /// The part of `report` that symbolication took, at its end.
    names: u64,
    /// Time from the fault to the crash record, and to the report's first sections.
    record: u64,
    first: u64,
}

/// A comparison.
#[derive(Serialize)]
struct Row {
    name: String,
    threads: usize,
    /// Milliseconds from fault to report: median, minimum and maximum.
    ours: f64,
    ours_range: [f64; 2],
    peer: f64,
    peer_range: [f64; 2],
    unit: &'static str,
    /// The peer's value divided by ours.
    ratio: f64,
    /// Milliseconds of ours that symbolication took.
    names: f64,
    /// Milliseconds from fault to the crash record, and to the report's first sections.
    first: [f64; 2],
    /// Milliseconds from the fault to the process's exit: ours, the peer's, without a reporter.
    exit: [f64; 3],
    /// Size of the report: ours, the peer's.
    bytes: [u64; 2],
}

/// Runs the benchmark.
///
/// # Errors
/// An error if a program can't be built or run, hangs, or leaves no report.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    ensure!(arguments.rounds > 0 && !arguments.threads.is_empty(), "nothing to measure");
    let (peer_name, peer_program) = if arguments.bionic {
        let bed = match android::set_up()? {
            Ok(bed) => bed,
            Err(why) => bail!("can't measure bionic: {why}"),
        };
        let program = build_for_bionic(&bed)?;
        android::enter_device(&bed.join("device/x86_64/system")).context("entering the device")?;
        (ON_BIONIC, program)
    } else {
        ("minidump-writer", build("minidump-writer")?)
    };
    let reporters = ["coroner", peer_name, "none"];
    let programs = [build("coroner")?, peer_program, build("none")?];
    let mut rows: Vec<Row> = Vec::new();
    println!(
        "{:>7}  {:<16} {:>28} {:>10} {:>12} {:>14} {:>18}",
        "threads", "reporter", "fault to report, ms", "to exit", "bytes", "of it names", "record, first, µs"
    );
    for threads in &arguments.threads {
        let mut samples: [Vec<Sample>; 3] = Default::default();
        for round in 0..=arguments.rounds {
            for ((reporter, program), samples) in reporters.iter().zip(&programs).zip(&mut samples) {
                let sample = crash(program, reporter, *threads, arguments.names)
                    .with_context(|| format!("{reporter} with {threads} threads"))?;
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
        for (reporter, samples) in reporters.iter().zip(&samples) {
            let (report, range) = times(samples, |sample| sample.report);
            let (exit, _) = times(samples, |sample| sample.exit);
            let bytes = median(samples.iter().map(|sample| sample.bytes));
            if *reporter == "none" {
                println!("{threads:>7}  {reporter:<16} {:>28} {exit:>10.2}", "");
            } else {
                let times = format!("{report:.2} [{:.2}..{:.2}]", range[0], range[1]);
                let names = times_of_names(samples);
                let first = if is_ours(reporter) { format_first(samples) } else { String::new() };
                println!("{threads:>7}  {reporter:<16} {times:>28} {exit:>10.2} {bytes:>12} {names:>14.2} {first:>18}");
            }
        }
        let [ours, peer, none] = &samples;
        let (our_report, ours_range) = times(ours, |sample| sample.report);
        let (peer_report, peer_range) = times(peer, |sample| sample.report);
        let exit = [ours, peer, none].map(|samples| times(samples, |sample| sample.exit).0);
        let bytes = [ours, peer].map(|samples| median(samples.iter().map(|sample| sample.bytes)));
        println!("{:>7}  ratio {:.1}", "", peer_report / our_report);
        rows.push(Row {
            name: format!("fault to report, {threads} threads: coroner / {peer_name}"),
            threads: *threads,
            ours: our_report,
            ours_range,
            peer: peer_report,
            peer_range,
            unit: "ms",
            ratio: peer_report / our_report,
            names: times_of_names(ours),
            first: times_to_first(ours),
            exit,
            bytes,
        });
    }
    let least = rows.iter().min_by_key(|row| row.threads);
    let most = rows.iter().max_by_key(|row| row.threads);
    let mut bytes_per_thread = None;
    if let (Some(least), Some(most)) = (least, most)
        && most.threads > least.threads
    {
        let more = (most.threads - least.threads) as u64;
        let per_thread = [0, 1].map(|which| most.bytes[which].saturating_sub(least.bytes[which]) / more);
        println!("bytes for each further thread: {} ({peer_name} {})", per_thread[0], per_thread[1]);
        bytes_per_thread = Some(per_thread);
    }
    if arguments.json {
        println!(
            "{}",
            serde_json::json!({ "tool": "bench", "bench": "capture", "rows": rows, "bytes_per_thread": bytes_per_thread })
        );
    }
    Ok(())
}

/// Returns the median time of symbolication, in milliseconds.
fn times_of_names(samples: &[Sample]) -> f64 {
    times(samples, |sample| sample.names).0
}

/// Returns the median milliseconds from fault to crash record and to the first sections.
fn times_to_first(samples: &[Sample]) -> [f64; 2] {
    [times(samples, |sample| sample.record).0, times(samples, |sample| sample.first).0]
}

fn format_first(samples: &[Sample]) -> String {
    let [record, first] = times_to_first(samples).map(|milliseconds| milliseconds * 1e3);
    format!("{record:.0}, {first:.0}")
}

/// Returns the median, minimum and maximum of one time, in milliseconds.
fn times(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> (f64, [f64; 2]) {
    let all = || samples.iter().map(&of);
    let milliseconds = |nanoseconds: u64| std::time::Duration::from_nanos(nanoseconds).as_secs_f64() * 1e3;
    let (least, most) = (all().min().unwrap_or(0), all().max().unwrap_or(0));
    (milliseconds(median(all())), [milliseconds(least), milliseconds(most)])
}

pub(super) fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// Builds the program with one reporter, as an app would ship it.
pub(super) fn build(reporter: &str) -> anyhow::Result<PathBuf> {
    let folder = tools::target_dir().join("bench-capture").join(reporter);
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--target-dir"]).arg(&folder).arg("--manifest-path");
    command.arg(tools::workspace_root().join("tools/bench/capture-bench/Cargo.toml"));
    if reporter != "none" {
        command.args(["--features", reporter]);
    }
    let status = command.status().context("running cargo")?;
    ensure!(status.success(), "can't build capture-bench with {reporter}");
    Ok(folder.join("release/capture-bench"))
}

/// Builds Coroner's program for the bed's bionic.
fn build_for_bionic(bed: &Path) -> anyhow::Result<PathBuf> {
    let folder = tools::target_dir().join("bench-capture").join("bionic");
    let mut command = android::cargo(bed, Arch::X86_64, &["build", "--quiet", "--release", "--features", "coroner"]);
    command.arg("--manifest-path").arg(tools::workspace_root().join("tools/bench/capture-bench/Cargo.toml"));
    let status = command.arg("--target-dir").arg(&folder).status().context("running cargo")?;
    ensure!(status.success(), "can't build capture-bench for bionic");
    Ok(folder.join(Arch::X86_64.target()).join("release/capture-bench"))
}

/// Whether a program contains Coroner, with any C library.
fn is_ours(reporter: &str) -> bool {
    matches!(reporter, "coroner" | ON_BIONIC)
}

/// Crashes one process.
fn crash(program: &Path, reporter: &str, threads: usize, names: bool) -> anyhow::Result<Sample> {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(program);
    if names {
        command.env("CAPTURE_BENCH_NAMES", "1");
    }
    let mut child = command
        .arg(folder.path())
        .arg(threads.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
    let report = PathBuf::from(line.trim_end());
    ensure!(report.is_file(), "missing report file {line:?}");
    let watch = watch(&report)?;
    let process = pidfd(child.id())?;
    // By then, all threads are waiting.
    std::thread::sleep(std::time::Duration::from_millis(20));
    child.stdin.take().context("no input")?.write_all(b"\n")?;

    let mut last_write = 0;
    let exit = loop {
        let mut ready =
            [process.as_raw_fd(), watch.as_raw_fd()].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: two open descriptors.
        let count = unsafe { libc::poll(ready.as_mut_ptr(), 2, LIMIT_MS) };
        let time = now();
        if count == 0 {
            child.kill()?;
            child.wait()?;
            bail!("it hangs");
        }
        if ready[1].revents != 0 {
            drain(&watch);
            last_write = time;
        }
        if ready[0].revents != 0 {
            break time;
        }
    };
    let status = child.wait()?;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    ensure!(signal == Some(libc::SIGSEGV), "it ended with {status}");
    let started = fs::read(folder.path().join("started"))?;
    let word = |at| -> anyhow::Result<u64> {
        Ok(u64::from_le_bytes(started.get(at..at + 8).context("missing start time")?.try_into()?))
    };
    let (started, started_wall) = (word(0)?, word(8)?);
    let exit = exit.saturating_sub(started);
    if is_ours(reporter) {
        // Writes to a mapped file cause no events, but the report contains the time it took, from
        // the handler's first clock read. That read is between the fault and the time in the crash
        // record: so all of the report's time is counted from the fault, and the record's time is
        // added.
        let [entry, names, total] = is_whole(&report, threads, names)?;
        let facts = coroner_report::RunFacts::read_file(report.with_file_name("state"))?;
        let record = facts.crash.context("missing crash record")?.time.0.saturating_sub(started_wall);
        let bytes = fs::read(&report)?.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
        return Ok(Sample { report: record + total, exit, bytes, names, record, first: record + entry });
    }
    let bytes = fs::metadata(&report)?.len();
    if reporter != "none" {
        ensure!(last_write > started && bytes > 100, "missing report");
    }
    Ok(Sample { report: last_write.saturating_sub(started), exit, bytes, ..Sample::default() })
}

/// Checks that a report is complete, so that a fast but incomplete one doesn't count.
///
/// Returns the nanoseconds of its first sections, its names, and all of it.
fn is_whole(report: &Path, threads: usize, names: bool) -> anyhow::Result<[u64; 3]> {
    let report = coroner::Report::read_file(report)?;
    ensure!(report.complete, "the report is incomplete: {:?}", report.problems);
    let parked = report.threads.iter().filter(|thread| !thread.crashed);
    let deep = parked.filter(|thread| thread.registers.is_some() && thread.frames.len() > 11).count();
    ensure!(deep + 1 == threads, "{deep} other threads have all their frames, of {}", threads - 1);
    ensure!(report.symbol_names.is_empty() != names, "there are {} names", report.symbol_names.len());
    let end = report.end.as_ref().context("missing end of the report")?;
    let took = |wanted| end.phases.iter().filter(|phase| phase.phase == wanted).map(|phase| phase.ns).sum();
    Ok([took(Phase::ENTRY), took(Phase::SYMBOL_NAMES), end.total_ns])
}

/// Returns CLOCK_MONOTONIC in nanoseconds, the program's clock.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns an inotify descriptor that is readable after the file was written to or truncated.
fn watch(file: &Path) -> anyhow::Result<OwnedFd> {
    let path = std::ffi::CString::new(file.as_os_str().as_encoded_bytes())?;
    // SAFETY: a new descriptor, owned here; the path is NUL-terminated.
    unsafe {
        let fd = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
        ensure!(fd >= 0, "inotify: {}", std::io::Error::last_os_error());
        let watch = OwnedFd::from_raw_fd(fd);
        let added = libc::inotify_add_watch(fd, path.as_ptr(), libc::IN_MODIFY);
        ensure!(added >= 0, "watching {}: {}", file.display(), std::io::Error::last_os_error());
        Ok(watch)
    }
}

/// Reads all events, so that the next poll waits for another one.
fn drain(watch: &OwnedFd) {
    let mut buffer = [0_u8; 4096];
    // SAFETY: a buffer of this size; the descriptor does not block.
    while unsafe { libc::read(watch.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) } > 0 {}
}

/// Returns a descriptor that is readable after the process has ended.
fn pidfd(pid: u32) -> anyhow::Result<OwnedFd> {
    // SAFETY: a new descriptor, owned here.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        ensure!(fd >= 0, "pidfd_open: {}", std::io::Error::last_os_error());
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

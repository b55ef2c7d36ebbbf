//! Runs one target, and reads libFuzzer's statistics.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::Serialize;
use toolbox::{deadline, tools};

/// Time limit of an input, as wall time on a machine that also does other work.
pub(crate) const TIMEOUT_SECONDS: u32 = 10;

/// Memory limit of the whole process, including AddressSanitizer.
const RSS_LIMIT_MIB: u32 = 2048;

/// Limit of one allocation.
const MALLOC_LIMIT_MIB: u32 = 512;

/// Limit of an input. Larger seeds are cut.
const MAX_INPUT_BYTES: u32 = 32 << 10;

/// Limits of one target's run.
pub(crate) struct Budget {
    pub(crate) seconds: f64,
    pub(crate) runs: Option<u64>,
    pub(crate) seed: u32,
}

/// The outcome of one target.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    target: String,
    pub(crate) runs: u64,
    pub(crate) seconds: f64,
    /// Number of inputs in the corpus.
    pub(crate) seeds: usize,
    /// Number of new inputs that reached new code.
    pub(crate) kept: u64,
    /// Covered edges of the control flow graph.
    pub(crate) edges: u64,
    /// Time of the slowest input, in whole seconds.
    pub(crate) slowest_seconds: u64,
    pub(crate) peak_mib: u64,
    /// The failing input's path below `fuzz`.
    pub(crate) failure: Option<String>,
}

/// Runs a target on its corpus and on mutations of it.
///
/// New inputs go to `fuzz/target/found/TARGET`, which each run empties; a failing one goes to
/// `fuzz/artifacts/TARGET`.
///
/// # Errors
/// An error if the program can't be run, or ended without libFuzzer's statistics.
pub(crate) fn run(program: &Path, target: &str, budget: &Budget) -> anyhow::Result<Row> {
    let fuzz = tools::workspace_root().join("fuzz");
    let [corpus, found, artifacts] = ["corpus", "target/found", "artifacts"].map(|name| fuzz.join(name).join(target));
    let seeds = fs::read_dir(&corpus).with_context(|| format!("can't read {}", corpus.display()))?.count();
    if found.is_dir() {
        fs::remove_dir_all(&found)?;
    }
    fs::create_dir_all(&found)?;
    fs::create_dir_all(&artifacts)?;
    let log = fuzz.join("target").join(format!("{target}.log"));

    let mut command = Command::new(program);
    command.current_dir(&fuzz).arg(&found).arg(&corpus);
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(format!("-dict={}", fuzz.join(dictionary(target)).display()));
    // 0 would mean no limit.
    command.arg(format!("-max_total_time={}", budget.seconds.round().max(1.0)));
    if let Some(runs) = budget.runs {
        command.arg(format!("-runs={runs}"));
    }
    command.args([
        format!("-seed={}", budget.seed),
        format!("-timeout={TIMEOUT_SECONDS}"),
        format!("-rss_limit_mb={RSS_LIMIT_MIB}"),
        format!("-malloc_limit_mb={MALLOC_LIMIT_MIB}"),
        format!("-max_len={MAX_INPUT_BYTES}"),
        "-print_final_stats=1".to_owned(),
    ]);
    let output = File::create(&log).with_context(|| format!("can't create {}", log.display()))?;
    command.stdout(output.try_clone()?).stderr(output);
    let began = Instant::now();
    let status = deadline::status(&mut command).with_context(|| format!("can't run {}", program.display()))?;
    let seconds = began.elapsed().as_secs_f64();

    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let mut row = Row { seeds, seconds, ..row_of_log(target, &text) };
    if status.success() {
        // A slow input is written, too, but is not a failure.
        row.failure = None;
    } else {
        eprintln!("=== {target}: {status}; the whole log is {}\n{}", log.display(), failure_of_log(&text));
        ensure!(text.contains("stat::"), "ended with {status} before libFuzzer's statistics; see {}", log.display());
        if let Some(failure) = &row.failure {
            eprintln!("reproduce in fuzz/: cargo fuzz run {target} {failure}");
        }
        row.failure.get_or_insert_with(|| status.to_string());
    }
    Ok(row)
}

/// Returns the target's dictionary, below `fuzz`.
fn dictionary(target: &str) -> String {
    let own = format!("dictionaries/{target}.dict");
    if tools::workspace_root().join("fuzz").join(&own).is_file() { own } else { "dictionaries/binary.dict".to_owned() }
}

/// Returns the part of libFuzzer's output after its last status line.
fn failure_of_log(log: &str) -> String {
    let is_failure = |line: &&str| !line.starts_with('#') && !line.starts_with("\tNEW_FUNC");
    let mut lines: Vec<&str> = log.lines().rev().take_while(is_failure).collect();
    lines.reverse();
    lines.join("\n")
}

/// Reads libFuzzer's output: status lines, the failing input's path, and the final statistics.
fn row_of_log(target: &str, log: &str) -> Row {
    let statistic = |name: &str| {
        let mut values =
            log.lines().filter_map(|line| line.strip_prefix("stat::")?.strip_prefix(name)?.strip_prefix(':'));
        values.next().and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    };
    let edges = log.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once(" cov: ").filter(|_| line.starts_with('#'))?;
        rest.split(' ').next()?.parse().ok()
    });
    let failure = log
        .lines()
        .find_map(|line| line.split_once("Test unit written to "))
        .map(|(_, path)| path.find("artifacts/").map_or(path, |start| &path[start..]).to_owned());
    Row {
        target: target.to_owned(),
        runs: statistic("number_of_executed_units"),
        seconds: 0.0,
        seeds: 0,
        kept: statistic("new_units_added"),
        edges: edges.unwrap_or(0),
        slowest_seconds: statistic("slowest_unit_time_sec"),
        peak_mib: statistic("peak_rss_mb"),
        failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "INFO: Seed: 1
#2\tINITED cov: 100 ft: 101 corp: 1/1b exec/s: 0 rss: 40Mb
#512\tNEW    cov: 358 ft: 720 corp: 20/301b lim: 4 exec/s: 0 rss: 49Mb L: 4/4 MS: 1 ChangeBit-
==7== ERROR: libFuzzer: deadly signal
artifact_prefix='/home/user/coroner/fuzz/artifacts/log/'; Test unit written to /home/user/coroner/fuzz/artifacts/log/crash-0a
stat::number_of_executed_units: 513
stat::average_exec_per_sec:     0
stat::new_units_added:          19
stat::slowest_unit_time_sec:    2
stat::peak_rss_mb:              51
";

    #[test]
    fn reads_statistics_and_the_failing_input() {
        let row = row_of_log("log", LOG);
        assert_eq!((row.runs, row.kept, row.edges, row.slowest_seconds, row.peak_mib), (513, 19, 358, 2, 51));
        assert_eq!(row.failure.as_deref(), Some("artifacts/log/crash-0a"));
        let passed = LOG.lines().filter(|line| !line.contains("written")).collect::<Vec<_>>().join("\n");
        assert_eq!(row_of_log("log", &passed).failure, None);
        assert!(failure_of_log(LOG).starts_with("==7== ERROR: libFuzzer: deadly signal"));
    }

    #[test]
    fn every_dictionary_is_used() {
        let targets = crate::setup::targets("").unwrap();
        let used: Vec<_> = targets.iter().map(|target| dictionary(target)).collect();
        for entry in fs::read_dir(tools::workspace_root().join("fuzz/dictionaries")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(used.contains(&format!("dictionaries/{name}")), "no target uses {name}");
        }
    }
}

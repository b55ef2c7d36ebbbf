//! Compares a minidump's frames, as walked by Breakpad's processor, with the report's.
//!
//! The minidumps are made from our reports.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::{Bench, Row, output};
use toolbox::android_bed as android;

/// Faults, and the processor's names for them.
const DEATHS: [(&str, &str); 4] =
    [("null-store", "SIGSEGV"), ("divide-by-zero", "SIGFPE"), ("abort", "SIGABRT"), ("illegal-instruction", "SIGILL")];

/// Minimum length of the processor's stacks; a shorter one proves nothing.
const FEWEST: usize = 4;

/// The program that crashes, and where.
struct Victim<'a> {
    program: PathBuf,
    /// The arguments after the store, for a fault.
    words: fn(&str) -> Vec<String>,
    /// The folder that it uses as `/system`.
    device: Option<&'a Path>,
    /// The folders with its images' files, whose unwind data the processor needs.
    files: Vec<PathBuf>,
}

/// Compares some faults.
pub(super) fn check(bench: &Bench) -> anyhow::Result<Vec<Row>> {
    let files = vec![bench.programs.clone()];
    // Nothing listens at that address, and nothing should be sent.
    let words = |fault: &str| {
        ["http://key@127.0.0.1:9/1", &format!("fault={fault}"), "stack=32768", "no-symbols"].map(str::to_owned).to_vec()
    };
    check_victim(bench, &Victim { program: bench.programs.join("sentry_app"), words, device: None, files })
}

/// Compares a program that uses an Android device's C library.
pub(super) fn check_android(bench: &Bench) -> anyhow::Result<Vec<Row>> {
    let bed = match android::set_up()? {
        Ok(bed) => bed,
        Err(why) => return Ok(vec![Row::new("minidump-android", format!("skipped: {why}"), Vec::new())]),
    };
    let system = bed.join("device/x86_64/system");
    let program = android::test_program(&bed, "crash_program")?;
    let words = |fault: &str| [fault, "2", "stack-memory"].map(str::to_owned).to_vec();
    let files = vec![program.with_file_name(""), system.join("lib64"), system.join("bin")];
    check_victim(bench, &Victim { program, words, device: Some(&system), files })
}

/// Compares some faults of a program.
fn check_victim(bench: &Bench, victim: &Victim<'_>) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut last = None;
    for (fault, signal) in DEATHS {
        let (ours, theirs) = both(bench, victim, fault).with_context(|| format!("fault {fault}"))?;
        let mut problems = compare(&ours, &theirs);
        if !theirs["reason"].as_str().is_some_and(|reason| reason.starts_with(signal)) {
            problems.push(format!("unexpected crash reason: {}", theirs["reason"]));
        }
        rows.push(Row::new("minidump", fault, problems));
        last = Some((ours, theirs));
    }
    // Check the check: it must find one wrong address.
    let (mut ours, theirs) = last.context("no fault")?;
    ours["threads"][0]["frames"][2]["address"] = json!("0x1");
    let problems = if compare(&ours, &theirs).is_empty() {
        vec!["the wrong address was not detected".to_owned()]
    } else {
        Vec::new()
    };
    rows.push(Row::new("minidump", "the comparison detects a wrong address", problems));
    Ok(rows)
}

/// Returns our report of a crash, and the processor's output for its minidump.
fn both(bench: &Bench, victim: &Victim<'_>, fault: &str) -> anyhow::Result<(Value, Value)> {
    let store = bench.folder(&format!("minidump/{fault}"))?;
    let mut program = Command::new(&victim.program);
    program.env_remove("SENTRY_DSN").env("RUST_BACKTRACE", "0").arg(&store).args((victim.words)(fault));
    if let Some(system) = victim.device {
        android::where_system_is(system, &mut program);
        program.env("TMPDIR", bench.scratch.path());
    }
    program.output()?;
    let run = std::fs::read_dir(store.join("runs"))?.next().context("no run")??.path();
    let dump = store.join("report.dmp");
    let converted = bench.program("coroner").arg("convert").arg(&run).args(["--to", "minidump"]).output()?;
    ensure!(converted.status.success(), "{}", String::from_utf8_lossy(&converted.stderr).trim());
    std::fs::write(&dump, converted.stdout)?;
    let ours = output(bench.program("coroner").arg("show").arg(&run).args(["--format", "json", "--thread", "all"]))?;
    let theirs = output(bench.python("minidump_frames.py")?.arg(&dump).args(&victim.files))?;
    Ok((serde_json::from_str(&ours)?, serde_json::from_str(&theirs)?))
}

/// Returns the address by which a frame's name is looked up.
pub(super) fn lookup(frame: &Value) -> Option<u64> {
    let address = u64::from_str_radix(frame["address"].as_str()?.trim_start_matches("0x"), 16).ok()?;
    Some(if frame["address_kind"] == "instruction" { address } else { address.wrapping_sub(1) })
}

/// Returns the differences.
///
/// The crashed thread's frames must all be equal; of other threads, whose stacks are missing, only
/// the first.
fn compare(ours: &Value, theirs: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let threads = |side: &Value| side["threads"].as_array().cloned().unwrap_or_default();
    let (our_threads, their_threads) = (threads(ours), threads(theirs));
    if our_threads.len() != their_threads.len() {
        problems.push(format!("{} threads became {}", our_threads.len(), their_threads.len()));
    }
    for (our, their) in our_threads.iter().zip(&their_threads) {
        let tid = &our["tid"];
        if tid != &their["id"] {
            problems.push(format!("thread {tid} became {}", their["id"]));
        }
        let our_frames: Vec<u64> = our["frames"].as_array().into_iter().flatten().filter_map(lookup).collect();
        let found = their["frames"].as_array().cloned().unwrap_or_default();
        // Ignore frames that the processor guesses after its rules end.
        let known = found.iter().take_while(|frame| matches!(frame["trust"].as_str(), Some("context" | "cfi")));
        let their_frames: Vec<u64> = known.filter_map(|frame| frame["address"].as_u64()).collect();
        let number = if our["crashed"] == true { our_frames.len() } else { our_frames.len().min(1) };
        if our_frames.get(..number) != their_frames.get(..number) {
            problems.push(format!("thread {tid}: expected {our_frames:x?}, got {their_frames:x?}"));
        }
        if our["crashed"] == true && number < FEWEST {
            problems.push(format!("the crashed thread has only {number} frames"));
        }
    }
    problems
}

//! Compares minidumps' reports with the frames of Breakpad's processor (`minidump_stackwalk`).

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{Desk, Row, cores, crashes, failure_text};
use toolbox::tools;

const PART: &str = "minidumps";
const WANTED: f64 = 0.99;
/// Maximum number of minidumps compared.
const MOST: usize = 68;
/// Maximum number of frames compared per stack; in an endless recursion, the first ones.
const FRAMES: usize = 64;
/// The processor, with its dependencies.
const REQUIREMENTS: &str = "cffi==2.1.1\nmilksnake==0.1.6\npycparser==3.12\nsymbolic==8.7.2\n";

pub(super) fn examine(desk: &Desk) -> anyhow::Result<Vec<Row>> {
    if !tools::on_path("gdb") {
        eprintln!("minidumps: skipped: missing `gdb` (Debian's package)");
        return Ok(Vec::new());
    }
    let python = tools::python_environment("desk", REQUIREMENTS)?.join("bin/python");
    let script = tools::workspace_root().join("tools/sentry-check/src/minidump_frames.py");
    let programs = crashes::build(desk)?;
    let began = Instant::now();
    let (mut minidumps, mut frames, mut equal) = (0, 0_u32, 0_u32);
    let mut first = None;
    for (program, cause, way) in crashes::deaths(&programs).into_iter().take(desk.cases(MOST)) {
        if began.elapsed() > desk.time {
            break;
        }
        if !cores::dump(desk, program, cause, &way)? {
            continue;
        }
        desk.run(&["dump", "--core", "core", "--minidump", "shop.dmp", "-o", "core.txt"])?;
        let ours: Value = serde_json::from_str(&desk.run(&["show", "shop.dmp", "--format", "json"])?)?;
        let theirs = by_breakpad(&python, &script, &desk.path("shop.dmp"))?;
        let ours = addresses(&ours["threads"][0]["frames"]);
        minidumps += 1;
        // The processor's guesses after its rules end are ignored, and end the comparison.
        let known = theirs.iter().take_while(|(_, trust)| matches!(trust.as_str(), "context" | "cfi"));
        let theirs: Vec<u64> = known.map(|(address, _)| *address).take(FRAMES).collect();
        let same = theirs.iter().zip(&ours).filter(|(one, other)| one == other).count();
        frames += theirs.len() as u32;
        equal += same as u32;
        if same < theirs.len() && first.is_none() {
            first = Some(format!("{cause} of {}: theirs {theirs:x?}, ours {ours:x?}", program.display()));
        }
    }
    if let Some(first) = first {
        eprintln!("minidumps: the first difference: {first}");
    }
    let share = if frames == 0 { 0.0 } else { f64::from(equal) / f64::from(frames) };
    let seen = format!("{equal} of {frames}, {:.2} %", share * 100.0);
    let what = format!("frames of {minidumps} minidumps that equal Breakpad's");
    Ok(vec![Row::new(PART, &what, format!("at least {} %", WANTED * 100.0), seen, share >= WANTED)])
}

/// Returns the crashed (first) thread's frame addresses, and how each frame was found.
fn by_breakpad(python: &Path, script: &Path, minidump: &Path) -> anyhow::Result<Vec<(u64, String)>> {
    let output = Command::new(python).arg(script).arg(minidump).output().context("running python")?;
    ensure!(output.status.success(), "{}", failure_text(&output));
    let state: Value = serde_json::from_slice(&output.stdout)?;
    let frames = state["threads"][0]["frames"].as_array().context("its frames")?.iter();
    let frame = |frame: &Value| Some((frame["address"].as_u64()?, frame["trust"].as_str()?.to_owned()));
    Ok(frames.filter_map(frame).collect())
}

/// The addresses for symbol lookup: for a return address, the byte before it.
fn addresses(frames: &Value) -> Vec<u64> {
    let address = |frame: &Value| {
        let address = u64::from_str_radix(frame["address"].as_str()?.strip_prefix("0x")?, 16).ok()?;
        Some(if frame["address_kind"] == "instruction" { address } else { address.wrapping_sub(1) })
    };
    frames.as_array().into_iter().flatten().filter_map(address).collect()
}

//! Symbolicates our events with `symbolic`, as a server with the debug files does.
//!
//! It replaces each frame that has an address with the functions at that address. It must add no
//! frame and change no name.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use coroner_report::model::hide_home;
use serde_json::Value;

use super::{Bench, Row, minidump, output, relay};
use toolbox::tools;

/// Faults of `inlined_program`.
const WAYS: [&str; 3] = ["null", "panic", "sort"];

/// Minimum number of inlined functions' frames in an event; fewer prove nothing.
const FEWEST: usize = 4;

/// Compares each fault, and a C++ exception.
pub(super) fn check(bench: &Bench) -> anyhow::Result<Vec<Row>> {
    let programs = build()?;
    let program = programs.join("inlined_program");
    let mut rows = Vec::new();
    let mut last = None;
    for way in WAYS {
        let run = die(bench, way, Command::new(&program), &[way])?;
        let event = event(bench, &run)?;
        rows.push(compare(&programs, way, &event, &[&program])?);
        last = Some((run, event));
    }
    let cpp = relay::exceptions_program(bench)?;
    let library = cpp.with_file_name("libframes.so");
    let run = die(bench, "exception", Command::new(&cpp), &["nests", "0"])?;
    rows.push(compare(&programs, "C++ exception", &event(bench, &run)?, &[&cpp, &library])?);

    // Check the check: if each of the functions has the address, there are more frames.
    let (run, mut event) = last.context("no event")?;
    let address = inlined_address(bench, &run)?;
    for frame in stacks_mut(&mut event).flatten().filter(|frame| frame["instruction_addr"].is_null()) {
        frame["instruction_addr"] = format!("{address:#x}").into();
    }
    let found = compare(&programs, "multiplied", &event, &[&program])?;
    let problems =
        if found.problems.is_empty() { vec!["the additional frames were not detected".to_owned()] } else { Vec::new() };
    rows.push(Row::new("symbolic", "the comparison detects duplicated frames", problems));
    Ok(rows)
}

/// Builds the program and the symbolicator as apps are shipped, with debug information.
fn build() -> anyhow::Result<PathBuf> {
    let folder = tools::target_dir().join("symbolicator");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--package", "symbolicator-check", "--target-dir"]).arg(&folder);
    let status = command.current_dir(tools::workspace_root()).status().context("running cargo")?;
    ensure!(status.success(), "can't build symbolicator-check");
    Ok(folder.join("release"))
}

/// Returns the run of a program that crashes.
fn die(bench: &Bench, name: &str, mut program: Command, way: &[&str]) -> anyhow::Result<PathBuf> {
    let store = bench.folder(&format!("symbolic/{name}"))?;
    let status = program.arg(&store).args(way).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    ensure!(!status.success(), "{name} did not crash");
    Ok(std::fs::read_dir(store.join("runs"))?.next().context("no run")??.path())
}

fn event(bench: &Bench, run: &Path) -> anyhow::Result<Value> {
    let event = output(bench.program("coroner").arg("convert").arg(run).args(["--to", "sentry"]))?;
    Ok(serde_json::from_str(&event)?)
}

/// Returns an address at which functions were inlined.
fn inlined_address(bench: &Bench, run: &Path) -> anyhow::Result<u64> {
    let report = output(bench.program("coroner").arg("show").arg(run).args(["--format", "json", "--thread", "all"]))?;
    let report: Value = serde_json::from_str(&report)?;
    let frames = report["threads"].as_array().into_iter().flatten().filter_map(|thread| thread["frames"].as_array());
    let mut inlined = frames.flatten().filter(|frame| frame["inlined"].as_array().is_some_and(|list| list.len() > 1));
    inlined.find_map(minidump::lookup).context("no inlined function")
}

/// Returns the frames of each stack.
fn stacks_mut(event: &mut Value) -> impl Iterator<Item = &mut Vec<Value>> {
    let groups =
        event.as_object_mut().into_iter().flatten().filter(|(key, _)| ["exception", "threads"].contains(&key.as_str()));
    let values = groups.filter_map(|(_, group)| group["values"].as_array_mut()).flatten();
    values.filter_map(|value| value.get_mut("stacktrace")?["frames"].as_array_mut())
}

/// Returns the differences after the server's processing.
fn compare(programs: &Path, name: &str, event: &Value, files: &[&PathBuf]) -> anyhow::Result<Row> {
    let input = tempfile::NamedTempFile::new()?;
    std::fs::write(&input, event.to_string())?;
    let mut command = Command::new(programs.join("symbolicate_event"));
    command.args(files).stdin(std::fs::File::open(&input)?);
    let printed: Value = serde_json::from_str(&output(&mut command)?)?;
    let (mut problems, mut frames, mut inlined, mut by_server) = (Vec::new(), 0, 0, 0);
    for stack in printed["stacks"].as_array().into_iter().flatten() {
        let side = |side: &str| stack[side].as_array().cloned().unwrap_or_default();
        let (before, after) = (side("before"), side("after"));
        frames += before.len();
        inlined += before.iter().filter(|frame| frame["has_address"] == false).count();
        by_server += after.iter().filter(|frame| frame["by"] == "server").count();
        if before.len() != after.len() {
            problems.push(format!("{}: {} frames became {}", stack["name"], before.len(), after.len()));
        }
        for (ours, theirs) in before.iter().zip(&after).filter(|(ours, theirs)| !is_same(ours, theirs)) {
            problems.push(format!("{}: {ours} became {theirs}", stack["name"]));
        }
    }
    if inlined < FEWEST || by_server == 0 {
        problems.push(format!("{inlined} frames of inlined functions, {by_server} frames named by the server"));
    }
    Ok(Row::new(
        "symbolic",
        format!("{name}: {frames} frames, {inlined} without an address, {by_server} named by the server"),
        problems,
    ))
}

/// Whether a server's frame has the same function, as named by the compiler, and location.
///
/// Unknown values (a line 0) stay as they were sent (`_merge_frame`). The debug file contains the
/// builder's home directory in the path of a source below it; our event omits it.
fn is_same(ours: &Value, theirs: &Value) -> bool {
    let unknown = |value: &Value| value.is_null() || value == 0;
    ["symbol", "file", "line"].into_iter().all(|key| {
        let mut theirs = theirs[key].clone();
        if let (Value::String(path), "file") = (&mut theirs, key) {
            hide_home(path);
        }
        ours[key] == theirs || unknown(&theirs)
    })
}

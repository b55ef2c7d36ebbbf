//! Core dumps as reports, beside gdb's frames of the same process.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;

use super::{Desk, Row, crashes, write};
use crate::tools;

const PART: &str = "cores";
/// The share of frames that are gdb's.
const WANTED: f64 = 0.99;
/// Core dumps that are compared.
const MOST: usize = 68;
/// Frames of a stack that are compared: of a recursion without end the first.
const FRAMES: usize = 64;

pub(super) fn examine(desk: &Desk) -> anyhow::Result<Vec<Row>> {
    if !tools::on_path("gdb") {
        eprintln!("cores: skipped: there is no `gdb` (Debian's package)");
        return Ok(Vec::new());
    }
    let began = Instant::now();
    let programs = crashes::build(desk)?;
    let (mut cores, mut frames, mut equal) = (0, 0, 0);
    let mut first = None;
    for (program, cause, way) in crashes::deaths(&programs).into_iter().take(desk.cases(MOST)) {
        if began.elapsed() > desk.time {
            break;
        }
        if !dump(desk, program, cause, &way)? {
            continue;
        }
        let theirs = by_gdb(desk, program)?;
        let ours = by_coroner(&serde_json::from_str(&desk.run(&["show", "core", "--format", "json"])?)?);
        cores += 1;
        frames += theirs.len();
        let same = theirs.iter().zip(&ours).filter(|(one, other)| one == other).count();
        equal += same;
        if same < theirs.len() && first.is_none() {
            first = Some(format!("{cause} of {}: gdb {theirs:?}, ours {ours:?}", program.display()));
        }
    }
    if let Some(first) = first {
        eprintln!("cores: the first difference: {first}");
    }
    let share = if frames == 0 { 0.0 } else { f64::from(equal as u32) / f64::from(frames as u32) };
    let seen = format!("{equal} of {frames}, {:.2} %", share * 100.0);
    let what = format!("frames of {cores} core dumps that are gdb's");
    Ok(vec![Row::new(PART, &what, format!("at least {} %", WANTED * 100.0), seen, share >= WANTED)])
}

/// Lets a program die in gdb, which writes what it has of that to the file `core`. False if it did not die there.
pub(super) fn dump(desk: &Desk, program: &Path, cause: &str, way: &str) -> anyhow::Result<bool> {
    let core = desk.path("core");
    let _ = std::fs::remove_file(&core);
    gdb(desk).arg("-ex").arg(format!("run {cause} {way}")).args(["-ex", "gcore core"]).arg(program).output()?;
    Ok(core.exists())
}

fn gdb(desk: &Desk) -> Command {
    let mut command = Command::new("gdb");
    command.args(["-q", "-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "set width 0"]);
    command.current_dir(desk.folder.path());
    command
}

/// Prints the functions of gdb's frames, but for those that it infers of tail calls, which are on no stack.
const SCRIPT: &str = r#"
frame = gdb.newest_frame()
while frame is not None:
    if frame.type() != gdb.TAILCALL_FRAME:
        print("frame", frame.name())
    frame = frame.older()
"#;

/// The functions that gdb has of the core dump, innermost first, up to main. Of a process that has just stopped it seems to leave out the inlined function
/// whose first instruction it stopped at.
fn by_gdb(desk: &Desk, program: &Path) -> anyhow::Result<Vec<String>> {
    write(&desk.path("frames.py"), SCRIPT)?;
    let output = gdb(desk).arg(program).args(["core", "-x", "frames.py"]).output().context("running gdb")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(up_to_main(text.lines().filter_map(|line| line.strip_prefix("frame ")).map(plain).collect()))
}

fn by_coroner(report: &Value) -> Vec<String> {
    let mut functions = Vec::new();
    for frame in report["threads"][0]["frames"].as_array().into_iter().flatten() {
        let inlined = frame["inlined"].as_array().into_iter().flatten();
        functions.extend(inlined.map(|inlined| plain(inlined["function"].as_str().unwrap_or("??"))));
        functions.push(plain(frame["function"].as_str().unwrap_or("??")));
    }
    up_to_main(functions)
}

fn up_to_main(mut functions: Vec<String>) -> Vec<String> {
    functions.truncate(FRAMES);
    let main = functions.iter().position(|name| name == "main");
    functions.truncate(main.map_or(functions.len(), |main| main + 1));
    functions
}

/// A function of several names has one: `__GI_raise`, `raise`, `__raise`.
fn plain(name: &str) -> String {
    name.trim_start_matches("__GI_").trim_start_matches('_').to_owned()
}

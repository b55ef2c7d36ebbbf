//! Reads minidumps that others wrote, and compares each claim with `minidump-processor`'s.
//!
//! That library decodes the file for itself and walks with the symbol files of a folder, as the
//! command `minidump-stackwalk` does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use minidump::{Minidump, Module};
use minidump_processor::ProcessState;
use minidump_unwind::{FrameTrust, Symbolizer, simple_symbol_supplier};
use serde_json::Value;

use super::{Desk, Row};

const PART: &str = "given-minidumps";

/// The result for a file.
enum Outcome {
    Read,
    /// Something is missing, which the report states.
    Partly(String),
    Refused(String),
    /// A claim differs from the file's content.
    Wrong(String),
}

pub(super) fn examine(desk: &Desk) -> anyhow::Result<Vec<Row>> {
    let mut files = Vec::new();
    for path in &desk.minidumps {
        match path.is_dir() {
            true => files.extend(std::fs::read_dir(path)?.filter_map(|entry| Some(entry.ok()?.path()))),
            false => files.push(path.clone()),
        }
    }
    files.sort();
    let mut counts = [0; 4];
    let mut total = Frames::default();
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let outcome = compare(desk, file, &mut total)?;
        let (index, what, why) = match &outcome {
            Outcome::Read => (0, "read", ""),
            Outcome::Partly(why) => (1, "partly", why.as_str()),
            Outcome::Refused(why) => (2, "refused", why.as_str()),
            Outcome::Wrong(why) => (3, "WRONG", why.as_str()),
        };
        counts[index] += 1;
        println!("{what:<8} {name:<52} {why}");
    }
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let [read, partly, refused, wrong] = counts;
    let seen = format!("{read} read, {partly} partly, {refused} refused, {wrong} wrong");
    let Frames { equal, all } = total;
    Ok(vec![
        Row::new(PART, &format!("claims in {} minidumps", files.len()), "0 wrong", seen, wrong == 0),
        Row::new(
            PART,
            "frames that equal minidump-processor's",
            "all that it found by rules",
            format!("{equal} of {all}"),
            equal == all,
        ),
    ])
}

/// Frames that the other found by rules, and how many of them are the same.
#[derive(Default)]
struct Frames {
    equal: usize,
    all: usize,
}

fn compare(desk: &Desk, file: &Path, total: &mut Frames) -> anyhow::Result<Outcome> {
    let text = file.to_str().context("a path that is not UTF-8")?;
    let mut arguments = vec!["show", text, "--format", "json"];
    if let Some(symbols) = &desk.symbols {
        arguments.extend(["--symbols", symbols.to_str().context("a path that is not UTF-8")?]);
    }
    let output = desk.command(&arguments).output().context("running coroner")?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let panicked = output.status.code() != Some(1) || message.contains("panicked");
        let line = message.lines().next().unwrap_or_default().to_owned();
        return Ok(if panicked { Outcome::Wrong(line) } else { Outcome::Refused(line) });
    }
    let ours: Value = serde_json::from_slice(&output.stdout)?;
    let dump = Minidump::read_path(file)?;
    let folders: Vec<PathBuf> = desk.symbols.iter().cloned().collect();
    let symbolizer = Symbolizer::new(simple_symbol_supplier(folders));
    let theirs = pollster::block_on(minidump_processor::process_minidump(&dump, &symbolizer))?;
    let mut wrong = claims(&ours, &theirs);
    let (frames, difference) = frames(&ours, &theirs);
    total.equal += frames.equal;
    total.all += frames.all;
    wrong.extend(difference);
    if !wrong.is_empty() {
        return Ok(Outcome::Wrong(wrong.join("; ")));
    }
    let problem = ours["problems"].as_array().and_then(|problems| problems.first());
    let problem = problem.map(|problem| problem["what"].as_str().unwrap_or_default().chars().take(90).collect());
    Ok(problem.map_or(Outcome::Read, Outcome::Partly))
}

/// Returns the claims other than frames that differ.
fn claims(ours: &Value, theirs: &ProcessState) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut claim = |what: &str, ours: Option<String>, theirs: Option<String>| {
        if let Some(ours) = ours.filter(|ours| Some(ours) != theirs.as_ref()) {
            wrong.push(format!("{what}: {ours}, not {}", theirs.unwrap_or_else(|| "anything".to_owned())));
        }
    };
    let crash = &ours["crash"];
    let is_fatal = !crash["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "not_fatal"));
    let pid = ours["header"]["pid"].as_u64().filter(|pid| *pid != 0).map(|pid| pid.to_string());
    if theirs.process_id.is_some() {
        claim("process", pid, theirs.process_id.map(|pid| pid.to_string()));
    }
    let info = theirs.exception_info.as_ref();
    let reason = info.map(|info| info.reason.to_string()).unwrap_or_default();
    let requesting = theirs.requesting_thread.and_then(|index| theirs.threads.get(index));
    let crashed = ours["threads"].as_array().into_iter().flatten().find(|thread| thread["crashed"] == true);
    let crashed = crashed.and_then(|thread| thread["tid"].as_u64()).map(|tid| tid.to_string());
    claim("crashed thread", crashed, requesting.map(|thread| thread.thread_id.to_string()));
    if is_fatal && crash["address"].is_string() {
        claim("address", number(&crash["address"]).map(hexadecimal), info.map(|info| hexadecimal(info.address.0)));
    }
    // The other's names, such as `SIGSEGV / SEGV_MAPERR`, have no code where it is unknown.
    for name in
        [&crash["signal"]["name"], &crash["mach"]["name"], &crash["signal"]["code_name"], &crash["mach"]["code_name"]]
    {
        if let Some(name) = name.as_str()
            && !reason.contains(name.trim_start_matches("STATUS_").trim_start_matches("EXCEPTION_"))
        {
            claim("reason", Some(name.to_owned()), Some(reason.clone()));
        }
    }
    let ids: BTreeMap<u64, Option<String>> = theirs
        .modules
        .iter()
        .map(|module| (module.base_address(), module.debug_identifier().map(|id| id.breakpad().to_string())))
        .collect();
    for image in ours["images"].as_array().into_iter().flatten() {
        let base = number(&image["load_address"]).unwrap_or_default();
        let path = image["path"].as_str().unwrap_or_default();
        let Some(id) = ids.get(&base) else {
            claim(path, Some(hexadecimal(base)), None);
            continue;
        };
        // The id of a PE image begins with its time stamp.
        let ours = image["build_id"].as_str().filter(|id| !id.is_empty() && image["kind"] != "pe");
        let ours = ours.map(|ours| breakpad_id(ours, image["kind"] == "elf"));
        let id = id.as_ref().and_then(|id| id.get(..32)).map(str::to_owned);
        claim(path, ours, id);
    }
    wrong
}

/// Returns the first 16 bytes of an id as Breakpad writes them: a GUID.
///
/// The first three fields of an ELF image's id are little-endian.
fn breakpad_id(id: &str, is_elf: bool) -> String {
    let mut pairs =
        id.as_bytes().chunks(2).map(|pair| String::from_utf8_lossy(pair).to_uppercase()).collect::<Vec<_>>();
    pairs.resize(16, "00".to_owned());
    if is_elf {
        pairs[..4].reverse();
        pairs[4..6].reverse();
        pairs[6..8].reverse();
    }
    pairs.concat()
}

/// Compares the stacks up to the first frame that either side guessed.
fn frames(ours: &Value, theirs: &ProcessState) -> (Frames, Option<String>) {
    let (mut frames, mut difference) = (Frames::default(), None);
    for thread in ours["threads"].as_array().into_iter().flatten() {
        let Some(stack) =
            theirs.threads.iter().find(|stack| Some(u64::from(stack.thread_id)) == thread["tid"].as_u64())
        else {
            continue;
        };
        let mut mine = thread["frames"].as_array().into_iter().flatten();
        for (index, frame) in stack.frames.iter().enumerate() {
            let mine = mine.next();
            if !matches!(frame.trust, FrameTrust::Context | FrameTrust::CallFrameInfo) {
                break;
            }
            frames.all += 1;
            if mine.and_then(|mine| number(&mine["address"])) == Some(frame.resume_address) {
                frames.equal += 1;
                continue;
            }
            let mine = mine.map_or(Value::Null, |mine| mine["address"].clone());
            let text = format!("frame {index} of {}: {mine}, not {:#x}", stack.thread_id, frame.resume_address);
            difference.get_or_insert(text);
            break;
        }
    }
    (frames, difference)
}

fn number(text: &Value) -> Option<u64> {
    u64::from_str_radix(text.as_str()?.strip_prefix("0x")?, 16).ok()
}

fn hexadecimal(number: u64) -> String {
    format!("{number:#x}")
}

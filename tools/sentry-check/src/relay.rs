//! Sends events through Relay's normalizer.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::{Bench, Row, output};
use toolbox::tools;

/// Checks the event of every fault and every specimen.
pub(super) fn check(bench: &Bench) -> anyhow::Result<Vec<Row>> {
    let is_wanted = |name: &&str| !bench.short || SHORT.contains(name);
    let faults: Vec<&str> = coroner_faults::FAULTS.iter().map(|fault| fault.name).filter(is_wanted).collect();
    // Two at a time: symbolication takes most of the time.
    let made: Vec<anyhow::Result<Vec<Value>>> = std::thread::scope(|scope| {
        let halves = faults.chunks(faults.len().div_ceil(2));
        let threads: Vec<_> = halves
            .map(|names| {
                scope.spawn(move || {
                    let events = names.iter().map(|name| crash(bench, name).with_context(|| format!("fault {name}")));
                    events.collect::<anyhow::Result<Vec<Vec<Value>>>>().map(|events| events.concat())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
            .collect()
    });
    let mut events = Vec::new();
    for half in made {
        events.extend(half?);
    }
    ensure!(events.len() >= faults.len(), "{} events of {} faults", events.len(), faults.len());
    for act in PANICS {
        let mut program = bench.program("panic_program");
        let store = bench.folder(&format!("relay/panic-{act}"))?;
        program.arg(&store).arg(act);
        events.extend(die(bench, &mut program, &store, &format!("panic {act}"))?);
    }
    let program = exceptions_program(bench)?;
    for words in CPP_EXCEPTIONS {
        let name = format!("C++ {}", words[0]);
        let store = bench.folder(&format!("relay/cpp-{}", words[0]))?;
        events.extend(die(bench, Command::new(&program).arg(&store).args(words), &store, &name)?);
    }
    let specimens = output(&mut bench.program("examples/specimens"))?;
    for line in specimens.lines() {
        events.push(serde_json::from_str(line).context("a specimen")?);
    }
    let mut rows = judge(bench, &events)?;
    for (row, event) in rows.iter_mut().zip(&events) {
        row.problems.extend(wrong_mechanism(event));
    }
    // Check the check: it must find an event with one wrong address.
    let mut wrong = events.first().context("no event")?.clone();
    wrong["event"]["exception"]["values"][0]["stacktrace"]["frames"][0]["instruction_addr"] = json!("zz");
    let found = judge(bench, &[wrong])?;
    let caught = found.iter().any(|row| !row.problems.is_empty());
    let problems = if caught { Vec::new() } else { vec!["the wrong address was not detected".to_owned()] };
    rows.push(Row::new("relay", "the normaliser detects an invalid address", problems));
    Ok(rows)
}

/// Faults of a short run: one for each kind of event.
const SHORT: [&str; 3] = ["null-store", "abort", "stack-overflow"];

/// Fatal panics of `panic_program`.
const PANICS: [&str; 3] = ["main", "twice", "cannot-unwind"];

/// Uncaught exceptions of `coroner-ffi/tests/exceptions.cpp`: one, and one that another caused.
const CPP_EXCEPTIONS: [&[&str]; 2] = [&["passes", "0"], &["nests", "0"]];

/// Builds that program with this machine's C++ compiler.
pub(super) fn exceptions_program(bench: &Bench) -> anyhow::Result<PathBuf> {
    tools::build_workspace()?;
    let sources = tools::workspace_root().join("crates/bindings/ffi");
    let folder = bench.folder("exceptions")?;
    let (library, program) = (folder.join("libframes.so"), folder.join("program"));
    let compiler = || {
        let mut command = Command::new("c++");
        command.args(["-g", "-O1", "-Wno-terminate", "-o"]);
        command
    };
    let mut command = compiler();
    command.arg(&library).args(["-shared", "-fPIC"]).arg(sources.join("tests/exceptions_library.cpp"));
    output(&mut command)?;
    let mut command = compiler();
    command.arg(&program).arg(sources.join("tests/exceptions.cpp")).arg("-I").arg(sources.join("include"));
    command.arg("-I").arg(tools::workspace_root().join("fixtures/exceptions"));
    command.arg(&library).arg(format!("-Wl,-rpath,{}", folder.display()));
    command.arg(tools::built_library("libcoroner_ffi.a")).args(["-lpthread", "-ldl", "-lm"]);
    output(&mut command)?;
    Ok(program)
}

/// Checks the mechanisms of an event from a language's runtime.
///
/// The uncaught exception comes last and names what caught it; its causes come before and are
/// marked as such.
fn wrong_mechanism(named: &Value) -> Option<String> {
    let name = named["name"].as_str()?;
    let expected = match name.split(' ').next()? {
        "C++" => "cpp_exception",
        "panic" => "panic",
        _ => return None,
    };
    let mut exceptions = named["event"]["exception"]["values"].as_array()?.iter().rev();
    let uncaught = exceptions.next()?;
    if uncaught["mechanism"]["type"] != expected {
        return Some(format!("unexpected mechanism: expected {expected}, got {}", uncaught["mechanism"]["type"]));
    }
    if name == "C++ nests" && exceptions.len() == 0 {
        return Some("missing cause".to_owned());
    }
    let chained = |cause: &Value| cause["mechanism"]["type"] == "chained" && cause["mechanism"]["parent_id"].is_u64();
    exceptions
        .find(|cause| !chained(cause))
        .map(|cause| format!("unexpected mechanism of a cause: {}", cause["mechanism"]))
}

/// Faults of Mach-O programs on `darwin-host`, one of each kind that reports distinguish.
const ON_DARWIN: [&str; 10] = [
    "null-store",
    "null-store-thread",
    "read-only-store",
    "call-null",
    "divide-by-zero",
    "illegal-instruction",
    "breakpoint",
    "abort",
    "stack-overflow",
    "panic-abort",
];

/// Checks the events of Mach-O programs that crash on `darwin-host`.
pub(super) fn check_darwin(bench: &Bench) -> anyhow::Result<Vec<Row>> {
    let arch = darwin::Arch::ALL.into_iter().find(|arch| !arch.emulated()).context("Mach-O programs can't run here")?;
    let kit = darwin::Kit::set_up(arch)?;
    let program = darwin::crash_program(&kit)?;
    let mut events = Vec::new();
    for fault in ON_DARWIN {
        let store = bench.folder(&format!("relay-darwin/{fault}"))?;
        let mut command = kit.run(&program);
        command.arg(&store).args([fault, "2"]);
        events.extend(die(bench, &mut command, &store, fault)?);
    }
    let mut rows = judge(bench, &events)?;
    for (row, event) in rows.iter_mut().zip(&events) {
        row.check = "relay-darwin";
        let exception = &event["event"]["exception"]["values"][0];
        let image = &event["event"]["debug_meta"]["images"][0];
        if image["type"] != "macho" || event["event"]["contexts"]["os"]["name"] != "macOS" {
            row.problems.push(format!("not an image of macOS: {image}"));
        }
        let known = ["mach", "signalhandler", "panic"];
        if !known.iter().any(|kind| exception["mechanism"]["type"] == *kind) {
            row.problems.push(format!("the mechanism is {}", exception["mechanism"]));
        }
    }
    Ok(rows)
}

/// Returns the events of a process that crashes by this fault.
fn crash(bench: &Bench, fault: &str) -> anyhow::Result<Vec<Value>> {
    let store = bench.folder(&format!("relay/{fault}"))?;
    let mut command = bench.program("crash_program");
    command.arg(&store).args([fault, "2"]);
    die(bench, &mut command, &store, fault)
}

/// Returns the events that a command leaves in a store.
fn die(bench: &Bench, command: &mut Command, store: &Path, name: &str) -> anyhow::Result<Vec<Value>> {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.with_context(|| format!("running the program that crashes with {name}"))?;
    let mut events = Vec::new();
    for run in std::fs::read_dir(store.join("runs"))? {
        events.extend(convert(bench, &run?.path())?.map(|event| json!({ "name": name, "event": event })));
    }
    ensure!(!events.is_empty(), "missing report of {name}");
    Ok(events)
}

/// Returns the event of a run's report, if it left one.
fn convert(bench: &Bench, run: &Path) -> anyhow::Result<Option<Value>> {
    let written = std::fs::read(run.join("report")).is_ok_and(|bytes| bytes.iter().any(|byte| *byte != 0));
    if !written {
        return Ok(None);
    }
    let json = output(bench.program("coroner").arg("convert").arg(run).args(["--to", "sentry"]))?;
    Ok(Some(serde_json::from_str(&json)?))
}

fn judge(bench: &Bench, events: &[Value]) -> anyhow::Result<Vec<Row>> {
    let mut child = bench.python("normalise.py")?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no way in")?;
    let stdout = child.stdout.take().context("no way out")?;
    let lines: Vec<String> = events.iter().map(ToString::to_string).collect();
    let writer = std::thread::spawn(move || lines.iter().try_for_each(|line| writeln!(stdin, "{line}")));
    let mut rows = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let printed: Value = serde_json::from_str(&line?)?;
        let problems = printed["problems"].as_array().cloned().unwrap_or_default();
        let problems = problems.iter().filter_map(|problem| problem.as_str().map(ToOwned::to_owned)).collect();
        rows.push(Row::new("relay", printed["name"].as_str().unwrap_or_default(), problems));
    }
    let _ = writer.join();
    let status = child.wait()?;
    ensure!(
        status.success() && rows.len() == events.len(),
        "the normaliser ended with {status} after {} events",
        rows.len()
    );
    Ok(rows)
}

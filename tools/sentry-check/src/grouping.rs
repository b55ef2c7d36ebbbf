//! Checks Sentry's grouping for pairs of events.
//!
//! The same cause in two builds must be one issue, another cause another, and the title what a
//! person would write.
//!
//! Sentry's default strategy (`newstyle`, develop.sentry.dev, *Grouping*; Relay passes it on
//! unchanged) uses each exception's in-app frames, or all frames if there are none: each frame's
//! file and trimmed function, without recursion. The type counts, too, unless the mechanism is
//! synthetic; the message only if there are no frames. The title is the type or, for a synthetic
//! one, the innermost in-app function. This is implemented here for each event, except a project's
//! own stack trace rules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{Bench, Row, build_programs, output};

/// Faults of `crash_program` with different causes.
const FAULTS: [&str; 15] = [
    "null-store",
    "bad-pointer",
    "read-only-store",
    "call-null",
    "divide-by-zero",
    "illegal-instruction",
    "breakpoint",
    "abort",
    "assert",
    "fortify",
    "panic-abort",
    "kill-segv",
    "raise-fpe",
    "in-signal-handler",
    "stack-overflow",
];

/// Modes of `one_place_program`.
const WAYS: [&str; 8] = ["null", "elsewhere", "trap", "panic", "panic-again", "io-error", "parse-error", "hang"];

/// Pairs of its modes that are one issue.
///
/// These are signals at the same place, as in sentry-native and sentry-cocoa, and the same panic
/// with different messages.
const ONE_ISSUE: [(&str, &str); 3] = [("null", "elsewhere"), ("null", "trap"), ("panic", "panic-again")];

/// Pairs of its modes that are different issues.
const OTHER_ISSUE: [(&str, &str); 9] = [
    ("null", "panic"),
    ("null", "io-error"),
    ("null", "hang"),
    ("panic", "io-error"),
    ("panic", "hang"),
    ("io-error", "parse-error"),
    ("io-error", "hang"),
    ("trap", "hang"),
    ("trap", "parse-error"),
];

/// An event as a server groups it.
#[derive(Debug, PartialEq, Eq)]
struct Inputs {
    title: String,
    /// The input of the group's hash.
    group: Vec<String>,
}

type Events = BTreeMap<String, Inputs>;

/// Compares the pairs.
pub(super) fn check(bench: &Bench) -> anyhow::Result<Vec<Row>> {
    // Another version of the program: inlined, with other addresses and registers. It is beside the
    // first, so that it runs the same way.
    let other = bench.folder("grouping/other-build")?;
    let of_packages = |setting: &str| {
        ["coroner-faults", "coroner-tests"].map(|package| format!("profile.dev.package.{package}.{setting}"))
    };
    // See docs/stripped-releases.md: with line tables only, inlined functions have no paths, and
    // the optimizer decides which functions are inlined.
    let names = of_packages("debug=\"limited\"");
    build_programs(&[&names[..], &of_packages("opt-level=2")].concat())?;
    for program in PROGRAMS {
        std::fs::copy(bench.programs.join(program), other.join(program))?;
    }
    build_programs(&names)?;
    for program in PROGRAMS {
        let is_same = std::fs::read(bench.programs.join(program))? == std::fs::read(other.join(program))?;
        ensure!(!is_same, "both builds of {program} have the same ID");
    }
    let builds = [events(bench, &bench.programs, "one")?, events(bench, &other, "other")?];
    let [one, another] = &builds;

    let mut rows = Vec::new();
    for (name, inputs) in one {
        let mut problems = different(inputs, &another[name]);
        problems.extend(wrong_title(name, inputs));
        rows.push(Row::new("grouping", format!("{name} in two builds: {}", inputs.title), problems));
    }
    for (first, second) in ONE_ISSUE {
        let problems = different(&one[first], &another[second]);
        rows.push(Row::new(
            "grouping",
            format!("{first} and {second} at the same place are grouped as one issue"),
            problems,
        ));
    }
    let neighbours = FAULTS.iter().zip(&FAULTS[1..]).map(|(first, second)| (*first, *second));
    for (first, second) in neighbours.chain(OTHER_ISSUE) {
        // Within one build and across two.
        let all = [(&one[first], &one[second]), (&one[first], &another[second])];
        let problems = all.iter().filter(|(first, second)| first.group == second.group);
        let problems = problems.map(|(first, _)| format!("one issue by {:?}", first.group)).collect();
        rows.push(Row::new("grouping", format!("{first} and {second} are grouped as two issues"), problems));
    }
    Ok(rows)
}

const PROGRAMS: [&str; 2] = ["crash_program", "one_place_program"];

fn different(one: &Inputs, other: &Inputs) -> Vec<String> {
    if one == other {
        return Vec::new();
    }
    let only = |of: &Inputs, than: &Inputs| -> Vec<String> {
        of.group.iter().filter(|part| !than.group.contains(part)).cloned().collect()
    };
    vec![format!("{:?} {:?} and {:?} {:?}", one.title, only(one, other), other.title, only(other, one))]
}

/// Checks that a title contains the failing function, or the language's exception.
fn wrong_title(name: &str, inputs: &Inputs) -> Option<String> {
    let expected = match name {
        "null" | "elsewhere" | "trap" => "paint",
        "panic" | "panic-again" => "panic",
        "panic-abort" => "panic in a function that cannot unwind",
        // Functions that are inlined and have their own names.
        "bad-pointer" => "load",
        "call-null" => "call",
        "null-store" | "read-only-store" | "in-signal-handler" => "store",
        "io-error" => "std::io::error::Error",
        "parse-error" => "core::num::error::ParseIntError",
        "hang" => "App Hanging",
        fault => coroner_faults::find(fault)?.frames.first()?,
    };
    let last = |title: &str| title.rsplit("::").next().unwrap_or_default().to_owned();
    let is_right = inputs.title == expected || last(&inputs.title) == expected;
    (!is_right).then(|| format!("unexpected title: expected `{expected}`, got `{}`", inputs.title))
}

/// Creates the events of all faults and modes.
fn events(bench: &Bench, programs: &Path, build: &str) -> anyhow::Result<Events> {
    let mut events = Events::new();
    let all = FAULTS.map(|fault| ("crash_program", fault, vec!["0"])).into_iter();
    for (program, way, more) in all.chain(WAYS.map(|way| ("one_place_program", way, Vec::new()))) {
        let store = bench.folder(&format!("grouping/{build}/{way}"))?;
        let mut command = Command::new(programs.join(program));
        command.arg(&store).arg(way).args(more).env("RUST_BACKTRACE", "0").current_dir(&store);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().with_context(|| format!("running {program}"))?;
        let report = report(&store).with_context(|| format!("missing report of {program} {way}"))?;
        let event = output(bench.program("coroner").arg("convert").arg(&report).args(["--to", "sentry"]))?;
        events.insert(way.to_owned(), inputs(&serde_json::from_str(&event)?));
    }
    Ok(events)
}

/// Returns a program's delivered report, or else the run in which it crashed.
fn report(store: &Path) -> anyhow::Result<PathBuf> {
    let files =
        |folder: &str| std::fs::read_dir(store.join(folder)).into_iter().flatten().flatten().map(|entry| entry.path());
    let delivered = files("reports").find(|path| path.extension().is_some_and(|extension| extension == "json"));
    delivered.or_else(|| files("runs").next()).context("nothing")
}

fn inputs(event: &Value) -> Inputs {
    let exceptions = event["exception"]["values"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut group = Vec::new();
    let mut title = String::new();
    for exception in exceptions {
        let frames = exception["stacktrace"]["frames"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_synthetic = exception["mechanism"]["synthetic"] == true;
        let kind = exception["type"].as_str().unwrap_or_default();
        if !is_synthetic {
            group.push(format!("type {kind}"));
        }
        let in_app: Vec<&Value> = frames.iter().filter(|frame| frame["in_app"] == true).collect();
        let innermost = in_app.last().map(|frame| function(frame)).unwrap_or_default();
        title = if is_synthetic { innermost } else { kind.to_owned() };
        let used = if in_app.is_empty() { frames.iter().collect() } else { in_app };
        let mut before = None;
        for frame in used {
            if before.is_some_and(|before| is_recursion(before, frame)) {
                continue;
            }
            before = Some(frame);
            let file = frame["filename"].as_str().unwrap_or_default();
            let file = file.rsplit(['/', '\\']).next().unwrap_or_default().to_lowercase();
            group.push(format!("{file} {}", function(frame)));
        }
        if frames.is_empty() {
            group.push(exception["value"].as_str().unwrap_or_default().to_owned());
        }
    }
    // The event's own fingerprint replaces all that.
    if let Some(fingerprint) = event["fingerprint"].as_array() {
        group = fingerprint.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect();
    }
    Inputs { title, group }
}

fn is_recursion(before: &Value, frame: &Value) -> bool {
    ["abs_path", "package", "filename", "function", "lineno", "colno"].iter().all(|key| before[key] == frame[key])
}

fn function(frame: &Value) -> String {
    trimmed(frame["function"].as_str().unwrap_or_default())
}

/// Returns a function's name without arguments, return type and generic parameters.
fn trimmed(function: &str) -> String {
    let mut name = String::new();
    let mut rest = function.trim_end_matches(" const");
    // `<A as B>::c` is `A::c`.
    if let Some((implementation, after)) = rest.strip_prefix('<').and_then(closed) {
        name.push_str(implementation.split(" as ").next().unwrap_or_default());
        rest = after;
    }
    while let Some(at) = rest.find(['(', '<', '[', '{']) {
        name.push_str(&rest[..at]);
        let open = &rest[at..=at];
        let Some((inside, after)) = closed(&rest[at + 1..]) else { break };
        name.push_str(match open {
            "<" => "<T>",
            "{" => "{closure}",
            _ if inside == "anonymous namespace" => "(anonymous namespace)",
            _ => "",
        });
        rest = after;
    }
    name.push_str(rest);
    name.trim().rsplit(' ').next().unwrap_or_default().to_owned()
}

/// Splits the text at the bracket that closes the open one.
fn closed(text: &str) -> Option<(&str, &str)> {
    let mut depth = 1;
    for (at, character) in text.char_indices() {
        match character {
            '(' | '<' | '[' | '{' => depth += 1,
            // Not the end of an arrow.
            '>' if text[..at].ends_with('-') => {}
            ')' | '>' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[..at], &text[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::trimmed;

    #[test]
    fn names_are_trimmed_as_a_server_does() {
        for (function, expected) in [
            ("paint::main", "paint::main"),
            ("core::ops::FnOnce::call_once::<fn(u8) -> bool, (u8,)>", "core::ops::FnOnce::call_once::<T>"),
            ("<paint::Brush as core::fmt::Display>::fmt", "paint::Brush::fmt"),
            ("<fn() -> u8 as paint::Run>::run", "fn() -> u8::run"),
            ("void std::swap<int>(int&, int&)", "std::swap<T>"),
            ("shop::(anonymous namespace)::charge(long) const", "shop::(anonymous namespace)::charge"),
            ("paint::main::{closure#0}", "paint::main::{closure}"),
        ] {
            assert_eq!(trimmed(function), expected.rsplit(' ').next().unwrap());
        }
    }
}

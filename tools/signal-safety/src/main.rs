//! Checks, in a linked program, that all code reachable from a crash is safe in a signal handler.
//!
//! From each entry point (`entries*.txt`) it follows the machine code: calls and jumps ([`graph`]),
//! functions passed to assembly ([`flow`]), loops ([`spin`]), stacks ([`stack`]). Anything not in
//! `allowed*.txt` is a finding, reported with the path to it. ELF and Mach-O have separate lists.
//! See the package's `README.md` for guarantees and limits.

mod artefact;
mod decode;
mod flow;
mod graph;
mod lines;
mod program;
mod rules;
mod self_test;
mod size;
mod spin;
mod stack;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Parser as _;

use graph::{Finding, Graph, Reached};
use lines::Lines;
use program::{Function, Machine, Program};
use rules::Rules;

/// Entry points, and what they may reach.
#[derive(Clone, Copy, Debug)]
struct List {
    entries: &'static str,
    allowed: &'static str,
}

/// The lists for one kind of system.
///
/// There is one for crash time, and one for Coroner code that runs in a healthy process and may do
/// little more (a C++ throw).
#[derive(Clone, Copy, Debug)]
struct Lists {
    crash: List,
    throw: Option<List>,
}

/// The prefix of the paths of functions that run during a throw.
const THROWS: &str = "coroner_exceptions::";

const LINUX: Lists = Lists {
    crash: List { entries: include_str!("entries.txt"), allowed: include_str!("allowed.txt") },
    throw: Some(List { entries: include_str!("throw_entries.txt"), allowed: include_str!("throw_allowed.txt") }),
};
const DARWIN: Lists = Lists {
    crash: List { entries: include_str!("entries_darwin.txt"), allowed: include_str!("allowed_darwin.txt") },
    throw: None,
};

/// A system's parsed lists, and whether a program was checked with them.
#[derive(Debug)]
struct System {
    lists: Lists,
    crash: Rules,
    throw: Rules,
    used: bool,
}

impl System {
    fn read(lists: Lists) -> anyhow::Result<System> {
        let more = lists.throw.map_or("", |list| list.allowed);
        let throw = Rules::parse(&format!("{}\n{more}", lists.crash.allowed))?;
        Ok(System { lists, crash: Rules::parse(lists.crash.allowed)?, throw, used: false })
    }

    /// Checks a program of this system.
    fn check(&mut self, path: &Path, program: &Program) -> anyhow::Result<Verdict> {
        self.used = true;
        let mut verdict = check(program, self.lists.crash.entries, &self.crash, true)
            .with_context(|| format!("checking {}", path.display()))?;
        // Not every checked program throws: the smallest app doesn't contain the crate.
        if let Some(throw) = self.lists.throw.filter(|_| program.functions().any(|f| f.name.starts_with(THROWS))) {
            let throws = check(program, throw.entries, &self.throw, false)?;
            verdict.entries.extend(throws.entries);
            verdict.missing.extend(throws.missing);
        }
        Ok(verdict)
    }

    /// Returns the unused lines of crash time's list.
    fn unused(&self) -> Vec<&str> {
        if self.used { self.crash.unused() } else { Vec::new() }
    }
}

/// Default targets.
const TARGETS: [&str; 4] =
    ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-apple-darwin", "aarch64-apple-darwin"];

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Check this linked program or library instead of building what apps ship
    #[arg(long, value_name = "FILE")]
    artefact: Vec<PathBuf>,
    /// Build and check for these targets
    #[arg(long, value_name = "TARGET", default_values = TARGETS)]
    target: Vec<String>,
    /// Check only the smallest Rust app for this machine
    #[arg(long)]
    short: bool,
    /// Check the checker on a program that breaks every rule
    #[arg(long)]
    self_test: bool,
    /// Also list every reachable function
    #[arg(long)]
    list: bool,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// The verdict on one artefact.
#[derive(Debug)]
struct Verdict {
    machine: Machine,
    entries: BTreeMap<String, Reached>,
    missing: Vec<String>,
}

impl Verdict {
    /// Returns each finding once, with the entry points that lead to it.
    fn findings(&self) -> Vec<(&Finding, Vec<&str>)> {
        let mut found: Vec<(&Finding, Vec<&str>)> = Vec::new();
        for (entry, reached) in &self.entries {
            for finding in &reached.findings {
                match found.iter_mut().find(|(known, _)| known.offence == finding.offence && known.what == finding.what)
                {
                    Some((_, entries)) => entries.push(entry),
                    None => found.push((finding, vec![entry])),
                }
            }
        }
        found.sort_by(|(a, _), (b, _)| (a.offence, &a.what).cmp(&(b.offence, &b.what)));
        found
    }

    fn is_safe(&self) -> bool {
        self.missing.is_empty() && self.entries.values().all(|reached| reached.findings.is_empty())
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.self_test {
        let own = [TARGETS[0].to_owned()];
        return self_test::run(if arguments.short { &own } else { &arguments.target });
    }
    let mut artefacts = arguments.artefact.clone();
    if artefacts.is_empty() && arguments.short {
        artefacts.extend(artefact::build_app(TARGETS[0])?);
    } else if artefacts.is_empty() {
        for target in &arguments.target {
            artefacts.extend(artefact::build(target)?);
        }
    }
    let (mut linux, mut darwin) = (System::read(LINUX)?, System::read(DARWIN)?);
    let mut rows = Vec::new();
    let mut failed = 0;
    for path in &artefacts {
        let program = Program::read(path)?;
        let system = if program.is_macho() { &mut darwin } else { &mut linux };
        let verdict = system.check(path, &program)?;
        print(path, &verdict, arguments.list);
        failed += usize::from(!verdict.is_safe());
        rows.push(row(path, &verdict));
    }
    let unused = [linux.unused(), darwin.unused()].concat();
    if arguments.artefact.is_empty() && !arguments.short && !unused.is_empty() {
        println!("\nunused entries of the allow list: {}", unused.join(", "));
    }
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "signal-safety", "pass": failed == 0, "artefacts": rows }));
    }
    ensure!(failed == 0, "{failed} of {} artefacts reach code that is not async-signal-safe", artefacts.len());
    Ok(())
}

/// Parses the list of entry points, with lines `[MACHINE:]PATH -- when it runs`.
fn entry_paths(entries: &str, machine: Machine) -> anyhow::Result<Vec<&str>> {
    let mut paths = Vec::new();
    for line in entries.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (path, _when) = line.split_once(" -- ").with_context(|| format!("{line:?}: missing ` -- when it runs`"))?;
        let path = path.trim();
        let only = [("x86_64:", Machine::X86_64), ("aarch64:", Machine::Aarch64)]
            .into_iter()
            .find_map(|(prefix, only)| path.strip_prefix(prefix).map(|rest| (rest, only)));
        match only {
            Some((rest, only)) if only == machine => paths.push(rest),
            Some(_) => {}
            None => paths.push(path),
        }
    }
    Ok(paths)
}

/// Checks a linked program from each entry point, and bounds its stacks if `bounds_stacks` is set.
fn check(program: &Program, entries: &str, rules: &Rules, bounds_stacks: bool) -> anyhow::Result<Verdict> {
    let graph = Graph::new(program);
    let mut verdict = Verdict { machine: program.machine, entries: BTreeMap::new(), missing: Vec::new() };
    for wanted in entry_paths(entries, program.machine)? {
        let found: Vec<&Function> =
            program.functions().filter(|function| rules::is_path(&function.name, wanted)).collect();
        if found.is_empty() {
            verdict.missing.push(wanted.to_owned());
        }
        for entry in found {
            verdict.entries.insert(entry.name.clone(), graph.search(entry, rules, bounds_stacks));
        }
    }
    Ok(verdict)
}

fn print(path: &Path, verdict: &Verdict, list: bool) {
    println!("{} ({:?})", path.display(), verdict.machine);
    for (entry, reached) in &verdict.entries {
        println!(
            "  {} {entry}: {} functions, {} imports, {} system calls, {} calls through pointers",
            if reached.findings.is_empty() { "ok  " } else { "FAIL" },
            reached.functions.len(),
            reached.imports.len(),
            reached.system_calls.len(),
            reached.indirect.len(),
        );
        let words = |words: &std::collections::BTreeSet<String>| words.iter().cloned().collect::<Vec<_>>().join(" ");
        if !reached.imports.is_empty() {
            println!("         imports: {}", words(&reached.imports));
        }
        if !reached.system_calls.is_empty() {
            println!("         system calls: {}", words(&reached.system_calls));
        }
        for (function, reason) in &reached.indirect {
            println!("         calls through a pointer: {function}: {reason}");
        }
        if !reached.thread_locals.is_empty() {
            println!("         reads the thread pointer: {}", words(&reached.thread_locals));
        }
        for bound in &reached.stacks {
            println!("         stack of {}: {} of {} bytes ({})", bound.root, bound.bytes, bound.size, bound.stack);
            for (function, bytes) in &bound.path {
                println!("           {bytes:6} {function}");
            }
        }
        if list {
            for function in &reached.functions {
                println!("         {function}");
            }
        }
    }
    for missing in &verdict.missing {
        println!("  FAIL {missing}: function not found: renamed, or unreferenced");
    }
    let lines = Lines::open(path);
    for (finding, entries) in verdict.findings() {
        println!("\n  {} {}", finding.what, finding.offence.describe());
        if entries.len() > 1 {
            println!("    reachable from {} entry points, for example:", entries.len());
        }
        for step in &finding.path {
            println!("    {}", step.function);
            for line in lines.at(step.at) {
                println!("        {line}");
            }
        }
        println!("    {}", finding.what);
    }
}

fn row(path: &Path, verdict: &Verdict) -> serde_json::Value {
    let entries: Vec<_> = verdict
        .entries
        .iter()
        .map(|(entry, reached)| {
            serde_json::json!({
                "entry": entry,
                "functions": reached.functions.len(),
                "imports": reached.imports,
                "system_calls": reached.system_calls,
                "indirect": reached.indirect,
                "stacks": reached.stacks,
                "pass": reached.findings.is_empty(),
            })
        })
        .collect();
    let findings: Vec<_> = verdict
        .findings()
        .iter()
        .map(|(finding, _)| {
            let path: Vec<&str> = finding.path.iter().map(|step| step.function.as_str()).collect();
            serde_json::json!({ "offence": finding.offence, "what": finding.what, "path": path })
        })
        .collect();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    serde_json::json!({
        "artefact": name,
        "machine": format!("{:?}", verdict.machine),
        "entries": entries,
        "missing": verdict.missing,
        "findings": findings,
        "pass": verdict.is_safe(),
    })
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}

//! Whole programs that install Coroner and crash.
//!
//! These are the behaviors of `coroner-tests`, the libraries that the linked program loads, and one
//! crash's report, read by the next launch and by `coroner` on Linux.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, ensure};
use object::{LittleEndian, macho::MachHeader64, read::macho::MachHeader as _};
use serde_json::Value;

use super::{
    Row,
    kit::{Kit, succeed},
};
use toolbox::tools;

/// The library that a thread of `loading-images` loads.
const PLUGIN: &str = "plugin.c";

/// Behaviors to run if every instruction is emulated, unless all are requested.
///
/// A fault, an abort, a stack overflow, two threads at once, an earlier holder of the port, locks
/// held.
const UNDER_AN_EMULATOR: [&str; 7] =
    ["null-store", "abort", "stack-overflow", "stack-overflow-thread", "two-threads", "accepting-port", "held-locks"];

/// Tests of the next launch to run there, unless all are requested.
const LAUNCHES_UNDER_AN_EMULATOR: [&str; 4] = [
    "next_launch::a_crash_becomes_one_report_with_names_and_scope",
    "next_launch::the_next_launch_knows_how_the_last_run_ended",
    "next_launch::a_fork_child_that_exits_does_not_end_its_parents_run",
    "next_launch::a_process_that_survives_a_crash_has_a_report_and_its_own_outcome",
];

/// A part of this check, with one verdict.
type Part<'a> = &'a dyn Fn(&Kit) -> anyhow::Result<()>;

/// The parts of a partial run.
const PARTS: [&str; 3] = ["crashes: next launch", "crashes: behaviours", "crashes: locks"];

/// Runs the parts about crashes, if `only` matches them.
///
/// With `all`, everything also runs under an emulator, where that takes long; with `part`, only
/// [`PARTS`].
pub(super) fn run(kit: &Kit, only: Option<&str>, all: bool, part: bool) -> Vec<Row> {
    let parts: [(&str, Part<'_>); 7] = [
        ("crashes: tests of the app's side", &app),
        ("crashes: next launch", &|kit| next_launch(kit, all)),
        ("crashes: live backtraces", &backtraces),
        ("crashes: behaviours", &|kit| behaviours(kit, all)),
        ("crashes: locks", &locks),
        ("crashes: linked libraries", &libraries),
        ("crashes: who reads the report", &readers),
    ];
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only)) && (!part || PARTS.contains(&name));
    let wanted = parts.iter().filter(|(name, _)| wanted(name));
    wanted.map(|(name, part)| Row::new((*name).to_owned(), kit.arch, || part(kit))).collect()
}

/// Runs the unit tests of the upper crates.
///
/// They cover the data directory, the store, deliveries, facts of the system and of the bundle,
/// reports and symbols; also the faults' own endings.
fn app(kit: &Kit) -> anyhow::Result<()> {
    succeed(kit.test_upper_crates().arg("--lib"))?;
    succeed(kit.cargo("test").args(["--quiet", "--package", "coroner-faults"]))
}

/// Tests runs with every kind of end, and the next run's processing of each.
///
/// Under an emulator a few, unless `all`.
fn next_launch(kit: &Kit, all: bool) -> anyhow::Result<()> {
    let mut command = kit.test_upper_crates();
    command.args(["--test", "it", "--"]);
    if kit.arch.emulated() && !all {
        command.arg("--exact").args(LAUNCHES_UNDER_AN_EMULATOR);
    } else {
        command.args(["next_launch::", "shared_store::"]);
    }
    succeed(kit.one_by_one(&mut command))
}

/// Tests live backtraces, with libraries that are loaded and unloaded.
fn backtraces(kit: &Kit) -> anyhow::Result<()> {
    let mut command = kit.test_upper_crates();
    command.args(["--test", "it", "--", "run_id_thread::", "backtrace::", "all_threads::"]);
    command.env("CORONER_TEST_CC", kit.compiler_words());
    succeed(kit.one_by_one(&mut command))
}

/// Tests every fault and every behavior of the table; under an emulator a few, unless `all`.
fn behaviours(kit: &Kit, all: bool) -> anyhow::Result<()> {
    let mut command = kit.test_upper_crates();
    command.args(["--test", "behaviours"]);
    command.env("CORONER_TEST_LIBRARY", kit.build(PLUGIN)?);
    if kit.arch.emulated() && !all {
        command.args(["--", "--exact"]).args(UNDER_AN_EMULATOR);
        return succeed(kit.one_by_one(&mut command));
    }
    succeed(kit.one_by_one(&mut command))?;
    // Threads that hang, too.
    succeed(kit.one_by_one(kit.test_upper_crates().args(["--test", "it", "hangs::"])))
}

/// Tests threads that wait for each other's locks.
fn locks(kit: &Kit) -> anyhow::Result<()> {
    succeed(kit.one_by_one(kit.test_upper_crates().args(["--test", "it", "locks::"])))
}

/// Builds the program that crashes and returns its path.
///
/// # Errors
/// An error if the program can't be built.
pub fn program(kit: &Kit) -> anyhow::Result<std::path::PathBuf> {
    // With its tests, so that it has the same features as those already built.
    succeed(kit.test_upper_crates().args(["--no-run", "--test", "behaviours"]))?;
    Ok(tools::target_dir().join(kit.arch.target()).join("debug/crash_program"))
}

/// Returns the install names of the libraries that a linked program loads.
fn loaded_by(path: &Path) -> anyhow::Result<Vec<String>> {
    let file = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let header = MachHeader64::<LittleEndian>::parse(&*file, 0)?;
    let mut commands = header.load_commands(LittleEndian, &*file, 0)?;
    let mut names = Vec::new();
    while let Some(command) = commands.next()? {
        if let Some(library) = command.dylib()? {
            names.push(String::from_utf8_lossy(command.string(LittleEndian, library.dylib.name)?).into_owned());
        }
    }
    Ok(names)
}

/// Checks that an app that links Coroner needs only libSystem.
fn libraries(kit: &Kit) -> anyhow::Result<()> {
    let names = loaded_by(&program(kit)?)?;
    ensure!(names == ["/usr/lib/libSystem.B.dylib"], "unexpected libraries: {}", names.join(", "));
    Ok(())
}

/// Returns the part of a report on which both readers must agree.
///
/// It is the crash, and each thread's frame addresses.
fn essence(report: &Value) -> Value {
    let frames = |thread: &Value| -> Vec<Value> {
        thread["frames"].as_array().into_iter().flatten().map(|frame| frame["address"].clone()).collect()
    };
    let threads = report["threads"].as_array().into_iter().flatten();
    let threads: Vec<_> =
        threads.map(|thread| serde_json::json!([thread["tid"], thread["name"], frames(thread)])).collect();
    serde_json::json!({ "crash": report["crash"], "threads": threads, "images": report["images"] })
}

/// Crashes a program, and checks that its next launch and Linux's command read the same report.
fn readers(kit: &Kit) -> anyhow::Result<()> {
    let program = program(kit)?;
    let folder = tempfile::tempdir()?;
    let store = folder.path().join("store");
    let run = |fault: &str| kit.run(&program).arg(&store).args([fault, "3"]).output();
    let died = run("null-store")?;
    ensure!(!died.status.success(), "the program did not crash: {}", died.status);
    let next = run("deliver")?;
    let printed = String::from_utf8_lossy(&next.stdout).into_owned() + &String::from_utf8_lossy(&next.stderr);
    ensure!(
        next.status.success() && printed.contains("the last run crashed"),
        "unexpected output of the next launch: {printed:?}"
    );

    let mut delivered = fs::read_dir(store.join("reports"))?.collect::<Result<Vec<_>, _>>()?;
    delivered.retain(|file| file.path().extension().is_some_and(|kind| kind == "coroner"));
    let [report] = &delivered[..] else { anyhow::bail!("expected one delivered report, got {}", delivered.len()) };
    let theirs: Value = serde_json::from_slice(&fs::read(report.path().with_extension("json"))?)?;
    tools::build_workspace()?;
    let mut show = Command::new(tools::target_dir().join("debug/coroner"));
    let shown = show.args(["show", "--format", "json"]).arg(report.path()).output()?;
    ensure!(shown.status.success(), "coroner show: {}", String::from_utf8_lossy(&shown.stderr));
    let ours: Value = serde_json::from_slice(&shown.stdout)?;
    for (reader, read) in [("the next launch", &theirs), ("coroner show", &ours)] {
        ensure!(read["crash"]["mach"]["name"] == "EXC_BAD_ACCESS", "{reader} reads {}", read["crash"]);
    }
    ensure!(essence(&theirs) == essence(&ours), "the readers disagree: {} and {}", essence(&theirs), essence(&ours));
    Ok(())
}

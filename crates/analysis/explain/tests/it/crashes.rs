//! Explanations of real crashes of C programs, with and without optimization.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use coroner_explain::{Certainty, Explanation, FaultKind, ImageFiles, NoCode, explain};
use coroner_report::model::Address;
use coroner_report::wire::Access;
use coroner_report::{Report, RunFacts};
use coroner_symbols::{Options, Symbolizer};

use crate::common::copy_library_to;

// Builds the library that the programs are linked with.
use coroner_ffi as _;

/// A crash and its expected explanation.
struct Row {
    act: &'static str,
    kind: FaultKind,
    access: Option<Access>,
    width: Option<u32>,
    /// The bad register's value and the displacement; `None` if not checked.
    operand: Option<(u64, Option<i64>)>,
    /// Text that the headline contains.
    headline: &'static str,
    /// The kind without optimization, if it differs.
    ///
    /// The operand is then computed earlier, or the divisor is in the red zone, which is not saved.
    unoptimized: Option<FaultKind>,
    /// Whether the instruction is written in assembly, and so is the same with optimization.
    is_assembly: bool,
}

const fn row(act: &'static str, kind: FaultKind, headline: &'static str) -> Row {
    Row { act, kind, access: None, width: None, operand: None, headline, unoptimized: None, is_assembly: false }
}

const fn access(row: Row, access: Access, width: u32, value: u64, displacement: i64) -> Row {
    let displacement = if displacement == 0 { None } else { Some(displacement) };
    Row { access: Some(access), width: Some(width), operand: Some((value, displacement)), ..row }
}

const fn unoptimized(row: Row, kind: FaultKind) -> Row {
    Row { unoptimized: Some(kind), ..row }
}

const fn assembly(row: Row) -> Row {
    Row { is_assembly: true, ..row }
}

const FILLED: u64 = 0x5a5a_5a5a_5a5a_5a5a;
const FREED: u64 = 0xdfdf_dfdf_dfdf_dfdf;
const ODD: u64 = 0x00de_ad00_beef_0000;

const ROWS: &[Row] = &[
    access(row("null-field", FaultKind::NullPointer, "null + 0x10"), Access::READ, 4, 0, 16),
    access(row("null-write", FaultKind::NullPointer, "null + 0x10"), Access::WRITE, 4, 0, 16),
    row("null-add", FaultKind::NullPointer, "of 8 bytes"),
    access(row("near-null", FaultKind::NearNull, "0x40"), Access::READ, 4, 0x30, 16),
    access(row("minus-one", FaultKind::NearNull, "0xf"), Access::READ, 4, u64::MAX, 16),
    access(row("non-canonical", FaultKind::NonCanonical, "0xdead00beef0000"), Access::READ, 4, ODD, 16),
    access(row("jemalloc", FaultKind::PoisonedPointer, "freed jemalloc memory"), Access::READ, 4, FILLED, 16),
    access(row("mimalloc", FaultKind::PoisonedPointer, "freed mimalloc memory"), Access::WRITE, 4, FREED, 16),
    access(row("unmapped", FaultKind::Unmapped, "0x123400000010"), Access::READ, 4, 0x1234_0000_0000, 16),
    unoptimized(row("element", FaultKind::NullPointer, "1 byte"), FaultKind::NearNull),
    row("read-only", FaultKind::WriteToReadOnly, "write of 4 bytes"),
    row("code", FaultKind::WriteToReadOnly, "write of 4 bytes"),
    row("call-null", FaultKind::JumpToNull, "Call through a null pointer"),
    row("call-nowhere", FaultKind::JumpToNowhere, "0x123400000000"),
    row("call-data", FaultKind::ExecuteOfData, "non-executable memory"),
    row("call-non-canonical", FaultKind::NonCanonical, "jump to 0xdead00beef0000"),
    // Without optimization the divisor is in the red zone.
    row("divide", FaultKind::DivisionByZero, "division by zero"),
    row("divide-overflow", FaultKind::DivisionOverflow, "overflow"),
    row("return-nowhere", FaultKind::BadReturn, "Return to an invalid address: 0x123400000000"),
    row("return-null", FaultKind::BadReturn, "Return to an invalid address: null"),
    row("return-data", FaultKind::BadReturn, "Return to an invalid address: 0x"),
    row("return-text", FaultKind::BadReturn, " in smashed (crashes.c:"),
    assembly(row("trap", FaultKind::Trap, "ud2")),
    assembly(row("ubsan", FaultKind::Trap, "array index out of bounds")),
    assembly(row("breakpoint", FaultKind::Breakpoint, "int3")),
    row("step", FaultKind::Unknown, "SIGTRAP: TRAP_TRACE"),
    assembly(row("privileged", FaultKind::PrivilegedInstruction, "hlt")),
    assembly(row("unaligned", FaultKind::Unaligned, "16 bytes")),
    assembly(row("bad-opcode", FaultKind::IllegalInstruction, "Illegal instruction")),
    assembly(row("abort", FaultKind::Abort, "Abort, called by act_of (crashes.c:")),
    row("overflow", FaultKind::StackOverflow, "excessive recursion in "),
    row("fiber-overflow", FaultKind::StackOverflow, "excessive recursion in "),
    row("fiber-up", FaultKind::GuardPage, "write of 1 byte"),
    row("fiber-far-below", FaultKind::GuardPage, "write of 1 byte"),
    row("truncated", FaultKind::TruncatedMapping, "read of 1 byte"),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn build(folder: &Path, optimization: &str) -> PathBuf {
    let program = folder.join(format!("crashes{optimization}"));
    let mut command = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    command.args([optimization, "-g", "-Wl,--build-id", "-fno-optimize-sibling-calls", "-w", "-o"]).arg(&program);
    command.arg(repository().join("crates/analysis/explain/tests/crashes.c"));
    command.arg("-I").arg(repository().join("crates/bindings/ffi/include"));
    command.arg(copy_library_to(folder)).arg(format!("-Wl,-rpath,{}", folder.display()));
    let built = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(built.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&built.stderr));
    program
}

fn run(program: &Path, store: &Path, act: &str) -> Output {
    // No core files; a small stack, so that the report contains all frames of an overflow.
    let mut command = Command::new("sh");
    // Cargo's value starts with the folder of an earlier build.
    command.env_remove("LD_LIBRARY_PATH");
    command.args(["-c", "ulimit -c 0; ulimit -s 512; exec \"$@\"", "sh"]).arg(program).arg(store).arg(act);
    command.output().unwrap()
}

/// Runs the program, and returns the symbolicated report of its crash.
fn run_and_read_report(program: &Path, store: &Path, act: &str, symbolizer: &mut Symbolizer) -> Report {
    let died = run(program, store, act);
    assert!(died.status.code().is_none(), "{act}: no crash: {died:?}");
    let runs: Vec<PathBuf> = std::fs::read_dir(store.join("runs")).unwrap().map(|run| run.unwrap().path()).collect();
    assert_eq!(runs.len(), 1, "{act}: {runs:?}");
    let mut report = Report::read_file(runs[0].join("report")).unwrap();
    symbolizer.symbolicate_report(&mut report);
    report
}

fn check(row: &Row, is_optimized: bool, report: &Report, explanation: &Explanation) -> Result<(), String> {
    let Row { act, kind, access, width, operand, headline, unoptimized, .. } = row;
    let fail = |what: &str| Err(format!("{act}: {what}\n{explanation:#?}\n{:?}", report.crash));
    let kind = if is_optimized { *kind } else { unoptimized.unwrap_or(*kind) };
    if explanation.kind != kind {
        return fail("the kind");
    }
    let known = explanation.access.unwrap_or_default();
    if access.is_some_and(|access| known.kind != Some(access)) || width.is_some_and(|width| known.width != Some(width))
    {
        return fail("the access");
    }
    if let Some((value, displacement)) = operand {
        let Some(named) = &explanation.operand else { return fail("no operand") };
        let is_register = named.register.is_some() && named.value == Some(Address(*value));
        if !is_register || named.displacement != *displacement {
            return fail("the operand");
        }
    }
    if !explanation.headline.contains(headline) {
        return fail("the headline");
    }
    Ok(())
}

#[test]
fn real_crashes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for optimization in ["-O0", "-O2"] {
        let program = build(folder.path(), optimization);
        let is_optimized = optimization == "-O2";
        let rows: Vec<&Row> = ROWS.iter().filter(|row| !(is_optimized && row.is_assembly)).collect();
        std::thread::scope(|scope| {
            let halves = rows.chunks(rows.len().div_ceil(2)).map(|rows| {
                let (program, folder) = (&program, folder.path());
                scope.spawn(move || {
                    let mut symbolizer = Symbolizer::new(Options::default());
                    let check = |row: &&Row| {
                        let report = run_and_read_report(
                            program,
                            &folder.join(format!("{}{optimization}", row.act)),
                            row.act,
                            &mut symbolizer,
                        );
                        let explanation = explain(&report, &ImageFiles::for_report(&report, &mut symbolizer));
                        println!("{optimization} {}: {}", row.act, explanation.headline);
                        // The report contains the code, so the file is not needed.
                        let alone = explain(&report, &NoCode);
                        assert_eq!(alone.kind, explanation.kind, "{}", row.act);
                        // Except for the call's operand, which may depend on the function's start.
                        let leaves_out = alone.operand.is_none() && explanation.call.is_some();
                        assert!(alone.operand == explanation.operand || leaves_out, "{}: {alone:?}", row.act);
                        assert!(
                            explanation.code_change.is_none() && explanation.bit_flips.is_empty(),
                            "{}: {explanation:?}",
                            row.act
                        );
                        // As from a version that didn't save code.
                        let blind = explain(&Report { code: Vec::new(), ..report.clone() }, &NoCode);
                        // The stack contains the address that a return took.
                        let is_known = blind.operand.is_none() || blind.kind == FaultKind::BadReturn;
                        let is_blind = blind.instruction.is_none() && is_known && blind.call.is_none();
                        assert!(is_blind, "an explanation without evidence: {blind:?}");
                        // Without code the explanation is the same or less specific.
                        let agrees = blind.kind == explanation.kind
                            || is_less(blind.kind, explanation.kind)
                            || blind.certainty != Certainty::Certain;
                        assert!(agrees, "{}: {blind:?}\n{explanation:?}", row.act);
                        check(row, is_optimized, &report, &explanation).err()
                    };
                    rows.iter().filter_map(check).collect::<Vec<String>>()
                })
            });
            let halves: Vec<_> = halves.collect();
            halves.into_iter().for_each(|half| wrong.extend(half.join().unwrap()));
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A shell is process 1 of a PID namespace, in the role of a service manager.
///
/// A service manager's watchdog kills an unresponsive service with SIGABRT.
#[test]
fn an_abort_by_a_service_managers_watchdog_is_recognized() {
    /// Scripts in which process 1 or its child sends the signal.
    const MANAGER: &str = r#""$@" > "$OUT" & until grep -q installed "$OUT"; do sleep 0.05; done; kill -ABRT $!; wait"#;
    const CHILD: &str =
        r#""$@" > "$OUT" & until grep -q installed "$OUT"; do sleep 0.05; done; sh -c "kill -ABRT $!"; wait"#;
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "-O1");
    let run_and_explain = |name: &str, script: &str, watchdog: &[(&str, &str)]| {
        let store = folder.path().join(name);
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh"]);
        command.arg(&program).arg(&store).arg("waits");
        command.env_remove("LD_LIBRARY_PATH").env_remove("WATCHDOG_USEC").env_remove("WATCHDOG_PID");
        command.env("OUT", folder.path().join(format!("{name}.out"))).envs(watchdog.iter().copied());
        let done = command.output().unwrap();
        if String::from_utf8_lossy(&done.stderr).contains("unshare failed") {
            println!("skipped: can't create a namespace: {done:?}");
            return None;
        }
        let runs = std::fs::read_dir(store.join("runs")).unwrap_or_else(|error| panic!("{error}: {done:?}"));
        let run = runs.map(|run| run.unwrap().path()).next().unwrap();
        let mut report = Report::read_file(run.join("report")).unwrap();
        report.stitch(RunFacts::read_file(run.join("state")).unwrap());
        Some(explain(&report, &NoCode).headline)
    };
    let wanted =
        "SIGABRT, sent by process 1 (the service manager), as its watchdog does after 3 s without a keep-alive";
    let has_watchdog = ("WATCHDOG_USEC", "3000000");
    let Some(by_manager) = run_and_explain("manager", MANAGER, &[has_watchdog]) else { return };
    assert!(by_manager.starts_with(wanted), "{by_manager}");
    // No watchdog, a watchdog of the parent, a signal from another process.
    for (name, script, watchdog) in [
        ("none", MANAGER, &[][..]),
        ("inherited", MANAGER, &[has_watchdog, ("WATCHDOG_PID", "1")]),
        ("child", CHILD, &[has_watchdog]),
    ] {
        let headline = run_and_explain(name, script, watchdog).unwrap();
        assert!(
            headline.starts_with("SIGABRT, sent by process ") && !headline.contains("watchdog"),
            "{name}: {headline}"
        );
    }
}

/// Whether `blind` is a less specific kind than `seeing`.
fn is_less(blind: FaultKind, seeing: FaultKind) -> bool {
    match blind {
        FaultKind::DivisionError => matches!(seeing, FaultKind::DivisionByZero | FaultKind::DivisionOverflow),
        FaultKind::NearNull => seeing == FaultKind::NullPointer,
        FaultKind::Unmapped => matches!(seeing, FaultKind::NonCanonical | FaultKind::PoisonedPointer),
        _ => false,
    }
}

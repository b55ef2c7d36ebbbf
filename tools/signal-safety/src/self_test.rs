//! Checks the checker with a program that breaks every rule, one per entry point.

use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::program::Program;
use super::rules::{Offence, Rules};

/// The program, with one violation per entry point.
const SOURCE: &str = "fixtures/signal-safety/broken.rs";

/// The expected finding for each entry point, and a function that must be on the path to it.
const EXPECTED: &[(&str, Option<(Offence, &str)>)] = &[
    ("entry_clean", None),
    ("entry_fits", None),
    ("entry_allocates", Some((Offence::Allocator, "entry_allocates"))),
    ("entry_indexes", Some((Offence::Panic, "entry_indexes"))),
    ("entry_unwraps", Some((Offence::Panic, "entry_unwraps"))),
    ("entry_locks", Some((Offence::Lock, "entry_locks"))),
    ("entry_lazy_thread_local", Some((Offence::LazyThreadLocal, "entry_lazy_thread_local"))),
    ("entry_formats", Some((Offence::Formatting, "entry_formats"))),
    ("entry_calls_library", Some((Offence::Import, "entry_calls_library"))),
    ("entry_through_table", Some((Offence::Allocator, "allocates_behind_table"))),
    ("entry_through_vtable", Some((Offence::Allocator, "work"))),
    ("entry_unknown_call", Some((Offence::UnknownCall, "entry_unknown_call"))),
    ("entry_system_call", Some((Offence::SystemCall, "entry_system_call"))),
    ("entry_runs_constant", Some((Offence::Allocator, "allocates_when_run"))),
    ("entry_runs_by_wrapper", Some((Offence::Allocator, "allocates_when_run"))),
    ("entry_runs_stored", Some((Offence::UnknownCall, "entry_runs_stored"))),
    ("entry_runs_field", Some((Offence::UnknownCall, "entry_runs_field"))),
    ("entry_runs_given", Some((Offence::UnknownCall, "entry_runs_given"))),
    ("entry_spin_lock", Some((Offence::Spin, "entry_spin_lock"))),
    ("entry_spin_exchange", Some((Offence::Spin, "entry_spin_exchange"))),
    ("entry_spin_behind_call", Some((Offence::Spin, "entry_spin_behind_call"))),
    ("entry_spin_backing_off", Some((Offence::Spin, "entry_spin_backing_off"))),
    ("entry_polls", Some((Offence::Spin, "entry_polls"))),
    ("entry_polls_pausing", Some((Offence::Spin, "entry_polls_pausing"))),
    ("entry_counted_spin", None),
    ("entry_lock_free", None),
    ("entry_walks_list", None),
    ("entry_deep", Some((Offence::StackTooDeep, "entry_deep"))),
    ("entry_deep_together", Some((Offence::StackTooDeep, "entry_deep_together"))),
    ("entry_deep_when_run", Some((Offence::StackTooDeep, "entry_deep_when_run"))),
    ("entry_deep_elsewhere", Some((Offence::StackTooDeep, "entry_deep_elsewhere"))),
    ("entry_recurs", Some((Offence::Recursion, "entry_recurs"))),
    ("entry_recurs_bounded", None),
    ("entry_unknown_frame", Some((Offence::UnknownFrame, "moves_stack"))),
    ("entry_unlisted_stack", Some((Offence::UnknownStack, "entry_unlisted_stack"))),
];

/// Bytes of the stack of each entry point, and of functions that run on another stack.
const STACK: &str = "16384";

/// Entry points with an exact bound: the minimum and maximum expected bound.
///
/// The frame has 6,000 bytes; the function calls memset, and a red zone is added.
const BOUNDS: &[(&str, i64, i64)] = &[("entry_fits", 6600, 6800)];

/// The fixture's allow-list.
const ALLOWED: &str = "crate broken -- the fixture\ncrate core -- as in the real list\nimport memcpy -- a copy\n\
    import memset -- as memcpy\nfunction __aarch64_* -- atomics\nindirect entry_through_table -- followed by its table\n\
    indirect entry_through_vtable -- followed by its vtables\nthrough broken_run 2 -- as coroner_guarded_run\n\
    switch broken_switch 2 -- as coroner_stack_call\nfunction broken_* -- its assembly\nimport-stack 512 -- memcpy\n\
    recursion recurs_bounded 3 -- its argument";

/// Additions to the allow-list for each system.
const ALLOWED_ON_LINUX: &str = "syscall gettid 186 178 -- harmless";
const ALLOWED_ON_DARWIN: &str = "import getpid -- harmless\nimport bzero -- as memcpy\n\
    import __bzero -- as memcpy\n\
    function compiler_rt.* -- Zig's memset, as memcpy";

/// Builds the fixture for each target and compares the findings.
///
/// It is built as part of a program and as a shared library.
pub(super) fn run(targets: &[String]) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let entries: String = EXPECTED.iter().map(|(entry, _)| format!("broken::{entry} -- on purpose\n")).collect();
    let names = EXPECTED.iter().map(|(entry, _)| *entry).chain(["deep_on_another_stack"]);
    let stacks: String = names.map(|name| format!("stack broken::{name} {STACK} -- on purpose\n")).collect();
    let mut wrong = 0;
    for target in targets {
        let system = if target.contains("-apple-") { ALLOWED_ON_DARWIN } else { ALLOWED_ON_LINUX };
        let rules = Rules::parse(&format!("{ALLOWED}\n{system}\n{stacks}"))?;
        let library = folder.path().join(format!("broken-{target}.so"));
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc
            .args(["--edition=2024", "--crate-type=cdylib", "--crate-name=broken", "-Copt-level=3", "-Cdebuginfo=1"])
            .args(["-Ccodegen-units=1", "--target", target])
            .arg("-o")
            .arg(&library)
            .arg(toolbox::tools::workspace_root().join(SOURCE));
        if let Some(linker) = super::artefact::linker(target)? {
            rustc.arg(format!("-Clinker={linker}"));
        }
        ensure!(rustc.status().context("running rustc")?.success(), "can't compile {SOURCE} for {target}");
        let verdict = super::check(&Program::read(&library)?, &entries, &rules, true)?;
        ensure!(verdict.missing.is_empty(), "{target}: not in the library: {}", verdict.missing.join(", "));
        for (entry, expected) in EXPECTED {
            let reached = &verdict.entries[&format!("broken::{entry}")];
            let right = match expected {
                None => reached.findings.is_empty(),
                Some((offence, through)) => reached.findings.iter().any(|finding| {
                    finding.offence == *offence && finding.path.iter().any(|step| step.function.contains(through))
                }),
            };
            wrong += usize::from(!right);
            let found: Vec<String> =
                reached.findings.iter().map(|finding| format!("{:?} ({})", finding.offence, finding.what)).collect();
            let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
            println!("{} {target} {entry}: found {found}", if right { "ok  " } else { "FAIL" });
        }
        for (entry, least, most) in BOUNDS {
            let stacks = &verdict.entries[&format!("broken::{entry}")].stacks;
            let right = stacks.iter().any(|bound| (*least..=*most).contains(&bound.bytes));
            wrong += usize::from(!right);
            let bytes: Vec<i64> = stacks.iter().map(|bound| bound.bytes).collect();
            println!("{} {target} {entry}: {bytes:?} bytes of stack", if right { "ok  " } else { "FAIL" });
        }
    }
    if wrong > 0 {
        bail!("{wrong} entry points of {SOURCE} were misjudged");
    }
    println!("all violations found, and nothing else");
    Ok(())
}

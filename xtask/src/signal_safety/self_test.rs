//! Proves the proof: a program that breaks every rule on purpose, and what must be found in it.

use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::program::Program;
use super::rules::{Offence, Rules};

/// The program; it says what is wrong with each entry.
const SOURCE: &str = "fixtures/signal-safety/broken.rs";

/// What must be found from each entry point, and a function that must be on the way to it.
const EXPECTED: &[(&str, Option<(Offence, &str)>)] = &[
    ("entry_clean", None),
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
];

/// What the fixture may do.
const ALLOWED: &str = "crate broken -- the fixture\ncrate core -- as in the real list\nimport memcpy -- a copy\n\
    import memset -- as memcpy\nfunction __aarch64_* -- atomics\nindirect entry_through_table -- followed by its table\n\
    indirect entry_through_vtable -- followed by its vtables";

/// What it may do by system.
const ALLOWED_ON_LINUX: &str = "syscall gettid 186 178 -- harmless";
const ALLOWED_ON_DARWIN: &str = "import getpid -- harmless\nimport bzero -- as memcpy\n\
    import __bzero -- as memcpy\n\
    function compiler_rt.* -- Zig's memset, as memcpy";

/// Builds the fixture for each target, as a program's part and as a shared library, and compares.
pub(super) fn run(targets: &[String]) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let entries: String = EXPECTED.iter().map(|(entry, _)| format!("broken::{entry} -- on purpose\n")).collect();
    let mut wrong = 0;
    for target in targets {
        let system = if target.contains("-apple-") { ALLOWED_ON_DARWIN } else { ALLOWED_ON_LINUX };
        let rules = Rules::parse(&format!("{ALLOWED}\n{system}"))?;
        let library = folder.path().join(format!("broken-{target}.so"));
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc
            .args(["--edition=2024", "--crate-type=cdylib", "--crate-name=broken", "-Copt-level=3", "-Cdebuginfo=1"])
            .args(["-Ccodegen-units=1", "--target", target])
            .arg("-o")
            .arg(&library)
            .arg(crate::tools::workspace_root().join(SOURCE));
        if let Some(linker) = super::artefact::linker(target)? {
            rustc.arg(format!("-Clinker={linker}"));
        }
        ensure!(rustc.status().context("running rustc")?.success(), "{SOURCE} does not compile for {target}");
        let verdict = super::prove(&Program::read(&library)?, &entries, &rules)?;
        ensure!(verdict.missing.is_empty(), "{target}: not in the library: {}", verdict.missing.join(", "));
        for (entry, expected) in EXPECTED {
            let reached = &verdict.entries[&format!("broken::{entry}")];
            let right = match expected {
                None => reached.findings.is_empty(),
                Some((offence, through)) => reached.findings.iter().any(|finding| {
                    finding.offence == *offence && finding.way.iter().any(|step| step.function.contains(through))
                }),
            };
            wrong += usize::from(!right);
            let found: Vec<String> =
                reached.findings.iter().map(|finding| format!("{:?} ({})", finding.offence, finding.what)).collect();
            let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
            println!("{} {target} {entry}: found {found}", if right { "ok  " } else { "FAIL" });
        }
    }
    if wrong > 0 {
        bail!("the proof misjudged {wrong} entry points of {SOURCE}");
    }
    println!("the proof finds what it must, and nothing in the clean one");
    Ok(())
}

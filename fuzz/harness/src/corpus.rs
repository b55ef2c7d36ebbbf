//! Runs each target over its corpus: one test per target.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use arbitrary::{Arbitrary as _, Unstructured};

use crate::case::Case;
use crate::{delivery, process, reports, symbols, unwind};

/// Declares the targets: name, kind of input, function.
macro_rules! targets {
    ($($name:ident: $input:ident => $module:ident::$function:ident,)*) => {
        const TARGETS: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            fn $name() {
                let call = concat!(stringify!($module), "::", stringify!($function), "(");
                run_corpus(stringify!($name), call, &|input| $input(input, $module::$function));
            }
        )*
    };
}

targets! {
    apple_report: bytes => reports::apple_report,
    cfa_instructions: case => unwind::cfa_instructions,
    code: case => unwind::code,
    compact_unwind: case => unwind::compact_unwind,
    core_dump: bytes => reports::dump,
    core_stream: bytes => reports::core_stream,
    debug_frame: case => unwind::debug_frame,
    eh_frame: case => unwind::eh_frame,
    eh_frame_hdr: case => unwind::eh_frame_hdr,
    envelope: bytes => delivery::envelope,
    explanation: bytes => reports::explanation,
    expression: case => unwind::expression,
    java_stack_trace: bytes => reports::java_stack_trace,
    link_map: bytes => process::link_map,
    log: bytes => reports::log,
    minidump: bytes => reports::dump,
    outbox: bytes => delivery::outbox,
    outbox_state: bytes => delivery::outbox_state,
    packed_core: bytes => reports::dump,
    proc_text: bytes => process::proc_text,
    report_file: bytes => reports::report_file,
    report_sections: bytes => reports::report_sections,
    report_writers: bytes => reports::report_writers,
    run_state: bytes => reports::run_state,
    run_state_values: bytes => reports::run_state_values,
    server_answer: bytes => delivery::server_answer,
    sframe: case => unwind::sframe,
    store_notes: bytes => delivery::store_notes,
    symbols_breakpad: bytes => symbols::breakpad,
    symbols_demangling: bytes => symbols::demangling,
    symbols_dwarf: bytes => symbols::dwarf,
    symbols_elf: bytes => symbols::elf_file,
    symbols_macho: bytes => symbols::macho_file,
    symbols_scan_elf: bytes => symbols::scan_elf,
    symbols_scan_macho: bytes => symbols::scan_macho,
    tombstone: bytes => reports::tombstone,
    walk: case => unwind::walk,
}

fn bytes(input: &[u8], run: fn(&[u8])) {
    run(input);
}

/// Runs an input like libFuzzer's harness: not if `arbitrary` rejects it.
fn case(input: &[u8], run: fn(&Case<'_>)) {
    if let Ok(case) = Case::arbitrary_take_rest(Unstructured::new(input)) {
        run(&case);
    }
}

/// Runs a target over its corpus, after checking that its program calls the same function.
fn run_corpus(name: &str, call: &str, run: &dyn Fn(&[u8])) {
    let program = read(&fuzz().join(format!("fuzz_targets/{name}.rs")));
    assert!(program.contains(&format!("coroner_fuzz::{call}")), "fuzz_targets/{name}.rs doesn't call {call}…)");
    let files = entries(&fuzz().join("corpus").join(name));
    assert!(!files.is_empty(), "corpus/{name} is empty");
    let fails = |file: &&String| {
        let input = fs::read(fuzz().join("corpus").join(name).join(file)).expect("a readable input");
        panic::catch_unwind(AssertUnwindSafe(|| run(&input))).is_err()
    };
    let failing: Vec<_> = files.iter().filter(fails).collect();
    assert!(failing.is_empty(), "failing inputs in fuzz/corpus/{name}: {failing:?}");
}

#[test]
fn every_target_has_a_program_a_corpus_and_a_test() {
    let declared: BTreeSet<String> = TARGETS.iter().map(ToString::to_string).collect();
    let programs = entries(&fuzz().join("fuzz_targets"));
    assert_eq!(programs.iter().map(|file| file.replace(".rs", "")).collect::<BTreeSet<_>>(), declared);
    assert_eq!(entries(&fuzz().join("corpus")), declared);
    let manifest = read(&fuzz().join("Cargo.toml"));
    let in_manifest = |name: &&String| manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\""));
    assert_eq!(declared.iter().filter(in_manifest).count(), declared.len(), "a program is missing in fuzz/Cargo.toml");
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the harness is in fuzz/").to_owned()
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("can't read {}: {error}", file.display()))
}

fn entries(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("can't read {}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

//! The tests of Coroner's own crates, as Mach-O programs.

use super::{
    Row, cxx,
    kit::{Kit, UPPER_CRATES, succeed},
};
use toolbox::tools;

/// The crates, and which of their tests where not all: those that damage every byte of a file say nothing of the system, and
/// take minutes under an emulator; those that compile with this machine's compilers have none there. The unit tests of
/// [`UPPER_CRATES`] are run as those of the app's side.
const CRATES: &[(&str, &[&str])] = &[
    ("coroner-report", &["--test", "it", "--", "encoder::", "round_trip::", "model::", "run_state::", "text::"]),
    // This program's own Mach-O file and image.
    ("coroner-symbols", &["--test", "it", "--", "macho::", "names::", "report::", "scan::"]),
    // Compact unwind, DWARF and Swift's async frames of this program's own.
    ("coroner-unwind", &["--tests"]),
    // The others have not been run there.
    ("coroner-process", &["--lib", "--test", "it", "--", "--skip=files::", "--skip=memory::", "--skip=memory_use::"]),
    // Code of the program's own making, by the rule that it registered.
    ("coroner", &["--test", "it", "unwind_ranges::"]),
    // Real deaths, each with its report; faults of the crash path itself.
    (
        "coroner-capture",
        &[
            "--features",
            "fault-injection",
            "--lib",
            "--test",
            "darwin",
            "--test",
            "it",
            "--",
            "--skip=began_anew::",
            "--skip=walk_numbers::",
        ],
    ),
];

/// The crates whose code differs by processor.
const OF_THE_PROCESSOR: [&str; 3] = ["coroner-unwind", "coroner-process", "coroner-capture"];

/// Runs the tests of the crates whose name contains `only`; with `part`, of those alone that differ by processor.
pub(super) fn run(kit: &Kit, only: Option<&str>, part: bool) -> Vec<Row> {
    let wanted =
        |name: &str| only.is_none_or(|only| name.contains(only)) && (!part || OF_THE_PROCESSOR.contains(&name));
    let tests = |(name, options): &(&str, &[&str])| {
        Row::new(format!("tests of {name}"), kit.arch, || {
            let mut command = if UPPER_CRATES.contains(name) {
                kit.test_upper_crates()
            } else {
                let mut command = kit.cargo("test");
                command.args(["--quiet", "--package", name]);
                command
            };
            command.arg("--no-fail-fast").args(*options);
            if *name == "coroner-unwind" {
                kit.one_by_one(&mut command);
            }
            succeed(&mut command)
        })
    };
    CRATES.iter().filter(|(name, _)| wanted(name)).map(tests).collect()
}

/// Deaths by exceptions of languages, if `only` names them: with C++ libraries that are built first.
pub(super) fn exceptions(kit: &Kit, only: Option<&str>) -> Option<Row> {
    const NAME: &str = "deaths by exceptions";
    if only.is_some_and(|only| !NAME.contains(only)) {
        return None;
    }
    let verdict = || {
        let tests = tools::workspace_root().join("crates/crash/exceptions/tests/darwin_exceptions");
        let throws = cxx::build_library(kit, &tests.join("throws.cpp"))?;
        let foundation = kit.build_library(&tests.join("foundation.c"))?;
        let sanitizer = kit.build_library(&tests.join("sanitizer.c"))?;
        let mut command = kit.cargo("test");
        command.args(["--quiet", "--package", "coroner-exceptions", "--features", "interpose-cxa-throw"]);
        command.args(["--test", "darwin_exceptions"]).env("CORONER_TEST_THROWS", throws);
        command.env("CORONER_TEST_SANITIZER", sanitizer);
        succeed(command.env("CORONER_TEST_FOUNDATION", foundation))
    };
    Some(Row::new(NAME.to_owned(), kit.arch, verdict))
}

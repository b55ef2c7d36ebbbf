//! C++ exceptions in real processes: type, message and throw stack must be right however they end.
//!
//! Tested with libstdc++ and libc++, linked as shared libraries (`interpose-cxa-throw`, the
//! default) and into the program (`wrap-cxa-throw`).
//!
//! For another architecture `CORONER_TEST_CXX` names its compiler and `CORONER_TEST_RUNNER` the
//! command that runs its programs. On Android the runtime is the device's libc++, named by
//! `CORONER_TEST_LIBCXX`.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{fast_linker, library, succeed};

/// The program, and how it was built.
struct Program {
    folder: tempfile::TempDir,
    path: PathBuf,
}

/// Returns the command that runs programs for another architecture; empty for this one.
fn runner() -> Vec<String> {
    let runner = std::env::var("CORONER_TEST_RUNNER").unwrap_or_default();
    runner.split_whitespace().map(ToOwned::to_owned).collect()
}

/// A C++ runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runtime {
    /// libstdc++.
    Gnu,
    /// libc++ with libc++abi.
    Llvm,
}

/// The way the C++ runtime is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuntimeLinkage {
    Shared,
    LinkedIn,
}

/// The linkage that the enabled features support.
const DEFAULT_LINKAGE: RuntimeLinkage =
    if cfg!(feature = "wrap-cxa-throw") { RuntimeLinkage::LinkedIn } else { RuntimeLinkage::Shared };

/// Returns the folder of libc++'s headers, if installed for this architecture.
///
/// Debian's package is libc++-dev.
fn libcxx() -> Option<PathBuf> {
    if !runner().is_empty() {
        return None;
    }
    let folders = std::fs::read_dir("/usr/lib").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    folders.filter(|path| path.join("include/c++/v1/vector").is_file() && path.join("lib/libc++.a").is_file()).max()
}

fn compiler(runtime: Runtime) -> Option<Command> {
    let mut command = Command::new(std::env::var_os("CORONER_TEST_CXX").unwrap_or_else(|| "c++".into()));
    command.args(["-g", "-O1", "-fomit-frame-pointer", "-Wall", "-Wextra", "-Wno-terminate"]);
    if runtime == Runtime::Llvm && cfg!(not(target_os = "android")) {
        command.args(["-nostdinc++", "-Wno-unknown-pragmas"]).arg("-isystem").arg(libcxx()?.join("include/c++/v1"));
    }
    Some(command)
}

/// Builds the program; `None` if the runtime is not installed.
fn build(runtime: Runtime, runtime_linkage: RuntimeLinkage, shared_coroner: bool) -> Option<Program> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let folder = tempfile::tempdir().unwrap();
    let mut frames = compiler(runtime)?;
    frames.args(["-shared", "-fPIC", "-nodefaultlibs", "-o"]).arg(folder.path().join("libframes.so"));
    succeed(frames.arg(tests.join("exceptions_library.cpp")));
    let path = folder.path().join("program");
    let mut command = compiler(runtime)?;
    command.arg("-o").arg(&path).arg(tests.join("exceptions.cpp")).arg("-I").arg(tests.join("../include"));
    command.arg("-I").arg(tests.join("../../../../fixtures/exceptions"));
    command.arg("-L").arg(folder.path()).arg("-lframes").arg(format!("-Wl,-rpath,{}", folder.path().display()));
    if shared_coroner {
        let shared = folder.path().join(env!("CORONER_SONAME"));
        std::fs::copy(library("so"), &shared).unwrap();
        command.arg(shared);
    } else {
        command.args(fast_linker()).arg(library("a"));
    }
    let into_program = runtime_linkage == RuntimeLinkage::LinkedIn;
    if cfg!(feature = "wrap-cxa-throw") {
        command.args(["-Wl,--wrap=__cxa_throw,--wrap=__cxa_rethrow", "-static-libgcc"]);
    }
    match runtime {
        Runtime::Gnu if into_program => drop(command.arg("-static-libstdc++")),
        Runtime::Gnu => {}
        Runtime::Llvm if cfg!(target_os = "android") => {
            command.arg(std::env::var_os("CORONER_TEST_LIBCXX").expect("the device's libc++"));
        }
        Runtime::Llvm => {
            let lib = libcxx()?.join("lib");
            command.arg("-nodefaultlibs");
            if into_program {
                command.arg(lib.join("libc++.a")).arg(lib.join("libc++abi.a"));
                command.args(["-lpthread", "-ldl", "-lm", "-lc", "-lgcc_eh", "-lgcc"]);
            } else {
                command.arg("-L").arg(&lib).args(["-lc++", "-lc++abi", "-lgcc_s", "-lgcc"]);
            }
        }
    }
    if cfg!(not(target_os = "android")) {
        command.arg("-lpthread");
    }
    command.args(["-ldl", "-lm", "-lc"]);
    succeed(&mut command);
    Some(Program { folder, path })
}

impl Program {
    /// Returns the command that starts the program.
    fn command(&self) -> Command {
        let runner = runner();
        let Some((first, rest)) = runner.split_first() else { return Command::new(&self.path) };
        let mut command = Command::new(first);
        command.args(rest).arg(&self.path).env("COUNT_ALLOCATED", "1");
        command
    }

    /// Runs the program in its own store, and again to deliver the report.
    fn run(&self, words: &[&str]) -> (Output, Vec<Value>) {
        let store = tempfile::tempdir_in(self.folder.path()).unwrap();
        let ended = self.command().arg(store.path()).args(words).output().unwrap();
        for _ in 0..10 {
            let again = self.command().arg(store.path()).output().unwrap();
            if again.status.success() {
                break;
            }
        }
        let Ok(reports) = std::fs::read_dir(store.path().join("reports")) else { return (ended, Vec::new()) };
        let paths = reports.map(|entry| entry.unwrap().path());
        let json = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        (ended, json.map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect())
    }

    /// Runs the program, which must be killed by SIGABRT; returns the report.
    ///
    /// There must be one report with these exceptions, the uncaught one first.
    fn crash_with(&self, words: &[&str], expected: &[Expected]) -> Value {
        let (ended, reports) = self.run(words);
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{words:?}: {ended:?}");
        let report = only_report(words, reports);
        check_exceptions(&report, words, expected);
        report
    }
}

/// Returns the only report.
fn only_report(words: &[&str], mut reports: Vec<Value>) -> Value {
    assert_eq!(reports.len(), 1, "{words:?}: expected one report per crash");
    reports.remove(0)
}

/// An exception expected in a report.
struct Expected {
    kind: Option<&'static str>,
    message: Option<&'static str>,
    /// The frames of its throw, innermost first, without gaps.
    frames: &'static [&'static str],
}

const fn expected(kind: &'static str, message: &'static str, frames: &'static [&'static str]) -> Expected {
    Expected { kind: Some(kind), message: Some(message), frames }
}

fn check_exceptions(report: &Value, words: &[&str], expected: &[Expected]) {
    assert_eq!(report["complete"], true, "{words:?}");
    let crash = &report["crash"];
    assert_eq!(crash["monitor"], "cpp_exception", "{words:?}");
    let exceptions = report["exceptions"].as_array().unwrap();
    assert_eq!(exceptions.len(), expected.len(), "{words:?}: {exceptions:?}");
    assert_eq!(crash["exception_type"].as_str(), expected[0].kind, "{words:?}");
    assert_eq!(crash["message"].as_str(), expected[0].message, "{words:?}");
    // The stack begins after Coroner's terminate handler, and has the registers that are known
    // there.
    let threads = report["threads"].as_array().unwrap();
    let thread = threads.iter().find(|thread| thread["crashed"] == true).unwrap();
    assert!(!thread["frames"].to_string().contains("coroner_exceptions::terminate"), "{words:?}: {}", thread["frames"]);
    let registers = thread["registers"].as_object().unwrap();
    assert!(!registers.contains_key("rax") && !registers.contains_key("x0"), "{words:?}: {registers:?}");
    for (exception, expected) in exceptions.iter().zip(expected) {
        assert_eq!(exception["language"], "cpp");
        assert_eq!(exception["type_name"].as_str(), expected.kind, "{words:?}");
        assert_eq!(exception["message"].as_str(), expected.message, "{words:?}");
        let names: Vec<&str> = exception["frames"]
            .as_array()
            .unwrap()
            .iter()
            .map(|frame| frame["function"].as_str().unwrap_or("?"))
            .map(|name| name.split('(').next().unwrap_or_default())
            .collect();
        assert!(names.starts_with(expected.frames), "{words:?}: {names:?}");
    }
}

/// The functions from the throw to the outermost.
const PASSES: &[&str] = &["shop::throws", "library_calls", "shop::passes"];
const ERROR: &str = "std::runtime_error";

/// Checks what must hold with any runtime and linkage.
fn check_all_cases(program: &Program) {
    let cheese = |frames| expected(ERROR, "out of cheese", frames);
    let whole: &[&str] = &["shop::throws", "library_calls", "shop::passes", "main"];
    program.crash_with(&["passes", "0"], &[cheese(whole)]);
    program.crash_with(&["passes", "1"], &[expected("shop::DoorError", "the door is shut", whole)]);
    let on_thread = program.crash_with(
        &["passes", "0", "thread"],
        &[cheese(&["shop::throws", "library_calls", "shop::passes", "on_thread"])],
    );
    assert_eq!(on_thread["exceptions"][0]["tid"], on_thread["crash"]["tid"]);
    // Two threads at once: the report is that of the first, and contains the other one's stack.
    let two = program.crash_with(
        &["passes", "0", "two"],
        &[cheese(&["shop::throws", "library_calls", "shop::passes", "on_thread"])],
    );
    let in_terminate = |thread: &&Value| {
        let frames = thread["frames"].as_array().unwrap();
        frames.iter().any(|frame| frame["function"].as_str().is_some_and(|name| name.starts_with("on_thread")))
    };
    assert_eq!(two["threads"].as_array().unwrap().iter().filter(in_terminate).count(), 2);

    // Regardless of the time from there to the process's exit.
    let (ended, reports) = program.run(&["passes", "0", "two-slow"]);
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    check_exceptions(&only_report(&["two-slow"], reports), &["two-slow"], &[cheese(PASSES)]);

    // The remaining stack is not that of the throw.
    let through = &["shop::throws", "library_calls", "shop::passes", "shop::rethrows"];
    program.crash_with(&["rethrows", "0"], &[cheese(through)]);
    program.crash_with(&["rethrows", "1", "thread"], &[expected("shop::DoorError", "the door is shut", through)]);
    let refused = &["shop::throws", "library_calls", "shop::passes", "shop::never_throws", "shop::in_noexcept"];
    program.crash_with(&["noexcept", "0"], &[cheese(refused)]);
    program.crash_with(&["other-thread", "0"], &[cheese(PASSES)]);
    program.crash_with(&["created", "0"], &[cheese(&[])]);

    // Causes.
    let (_, reports) = program.run(&["nests", "0"]);
    let report = only_report(&["nests"], reports);
    let kind = report["exceptions"][0]["type_name"].as_str().unwrap().to_owned();
    assert!(
        kind.contains("nested<shop::OrderError>") || kind.contains("_Nested_exception<shop::OrderError>"),
        "{kind}"
    );
    assert_eq!(report["exceptions"][0]["message"], "the order failed");
    assert_eq!(report["exceptions"][1]["type_name"], ERROR);
    assert_eq!(report["exceptions"][1]["message"], "out of cheese");
    let first = |index: usize| report["exceptions"][index]["frames"][0]["function"].as_str().unwrap().to_owned();
    assert!(first(1).starts_with("shop::throws("), "{}", first(1));

    // Exceptions that are not a `std::exception`.
    for (what, text) in [("2", "a thrown string that is longer than any small buffer"), ("3", "short")] {
        let (_, reports) = program.run(&["passes", what]);
        let report = only_report(&["passes", what], reports);
        assert_eq!(report["crash"]["message"], text);
        assert!(report["crash"]["exception_type"].as_str().unwrap().contains("basic_string<char"));
    }
    program.crash_with(&["passes", "4"], &[expected("char const*", "a literal", PASSES)]);
    program.crash_with(&["passes", "5"], &[expected("int", "-42", PASSES)]);
    program.crash_with(&["passes", "12"], &[expected("unsigned long", "18446744073709551615", PASSES)]);
    let plain = Expected { kind: Some("shop::Plain"), message: None, frames: PASSES };
    program.crash_with(&["passes", "6"], &[plain]);
    program.crash_with(&["passes", "7"], &[expected("std::logic_error*", "on the heap", PASSES)]);

    // No exception, and one of another language.
    let none = Expected { kind: None, message: Some("terminate called without an active exception"), frames: &[] };
    program.crash_with(&["terminates", "0"], &[none]);
    let foreign = Expected { kind: Some("foreign exception ELSE LNG"), message: None, frames: &[] };
    // (libstdc++'s own terminate handler faults on it, even without Coroner.)
    let (_, reports) = program.run(&["foreign", "0", "exits"]);
    check_exceptions(&only_report(&["foreign"], reports), &["foreign"], &[foreign]);

    // `what()` that faults, never returns, throws or aborts: the report lacks only its message.
    for what in ["8", "10", "11"] {
        let (ended, reports) = program.run(&["passes", what]);
        assert!(ended.status.signal().is_some(), "{ended:?}");
        let bad = Expected { kind: Some("shop::BadWhat"), message: None, frames: PASSES };
        check_exceptions(&only_report(&["passes", what], reports), &["passes", what], &[bad]);
    }

    // An earlier handler of SIGABRT sends the signal again, to another thread.
    program.crash_with(&["passes", "0", "thread-sends-again"], &[cheese(PASSES)]);

    // The earlier handler ends the process its own way.
    let (ended, reports) = program.run(&["passes", "0", "exits"]);
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("the app's own terminate handler"));
    check_exceptions(&only_report(&["exits"], reports), &["exits"], &[cheese(PASSES)]);
}

/// A `what()` that never returns is abandoned after a timeout.
///
/// The runtime's own handler then calls it again and hangs, as it would without Coroner.
fn check_hanging_what(program: &Program) {
    let store = tempfile::tempdir_in(program.folder.path()).unwrap();
    let mut child = program.command().arg(store.path()).args(["passes", "9", "exits"]).spawn().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    let again = program.command().arg(store.path()).output().unwrap();
    assert!(again.status.success(), "{again:?}");
    let reports = std::fs::read_dir(store.path().join("reports")).unwrap().map(|entry| entry.unwrap().path());
    let json = reports.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let report = json.map(|path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap()).next();
    let bad = Expected { kind: Some("shop::BadWhat"), message: None, frames: PASSES };
    check_exceptions(&report.unwrap(), &["hangs"], &[bad]);
}

fn check_that_throws_dont_leak(program: &Program) {
    // An emulator is slow, and has its own memory.
    let (thousands, max_growth) = if runner().is_empty() { (125, 4096) } else { (3, 512) };
    let words = ["many", &thousands.to_string()];
    let (ended, reports) = program.run(&words);
    let output = String::from_utf8_lossy(&ended.stdout).into_owned();
    let numbers: Vec<i64> = output.split([' ', ',', '\n']).filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers[0], 8000 * thousands, "{output}");
    assert!(numbers[1] < max_growth, "{output}");
    let door = expected("shop::DoorError", "the door is shut", PASSES);
    check_exceptions(&only_report(&words, reports), &words, &[door]);
}

#[test]
#[cfg(not(target_os = "android"))]
fn libstdcxx() {
    let program = build(Runtime::Gnu, DEFAULT_LINKAGE, false).unwrap();
    check_all_cases(&program);
    check_hanging_what(&program);
    check_that_throws_dont_leak(&program);
}

/// Tests `-static-libstdc++` with the default features.
///
/// The linker leaves out the runtime's own `__cxa_throw`, and Coroner's replaces it.
#[test]
#[cfg(not(any(feature = "wrap-cxa-throw", target_os = "android")))]
fn libstdcxx_linked_into_the_program() {
    let program = build(Runtime::Gnu, RuntimeLinkage::LinkedIn, false).unwrap();
    let needed = Command::new("readelf").arg("-d").arg(&program.path).output().unwrap();
    assert!(!String::from_utf8_lossy(&needed.stdout).contains("libstdc++"), "libstdc++ is linked as a shared library");
    check_all_cases(&program);
    check_that_throws_dont_leak(&program);
}

#[test]
#[cfg(not(any(feature = "wrap-cxa-throw", target_os = "android")))]
fn libstdcxx_with_coroner_as_a_shared_library() {
    let program = build(Runtime::Gnu, DEFAULT_LINKAGE, true).unwrap();
    let cheese = expected(ERROR, "out of cheese", &["shop::throws", "library_calls", "shop::passes", "shop::rethrows"]);
    program.crash_with(&["rethrows", "0", "thread"], &[cheese]);
}

#[test]
#[cfg(target_os = "android")]
fn the_devices_libcxx() {
    let program = build(Runtime::Llvm, DEFAULT_LINKAGE, false).unwrap();
    check_all_cases(&program);
    check_hanging_what(&program);
    check_that_throws_dont_leak(&program);
}

#[test]
#[cfg(not(target_os = "android"))]
fn libcxx_and_libcxxabi() {
    let Some(program) = build(Runtime::Llvm, DEFAULT_LINKAGE, false) else {
        eprintln!("skipped: libc++ is not installed (Debian's libc++-dev and libc++abi-dev)");
        return;
    };
    check_all_cases(&program);
}

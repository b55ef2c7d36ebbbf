//! The C and C++ examples, built as their comments describe, crashed and started again.
//!
//! A program with crashes specific to these languages is tested the same way.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{library, succeed};

/// The way an example is linked.
enum Linkage {
    Static,
    /// Without `PT_GNU_EH_FRAME`, as `gcc -static` links, and without frame pointers.
    StaticWithoutTable,
    /// Without shared libraries, by this compiler argument.
    FullyStatic(&'static str),
    Shared,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Builds an example into `folder`.
fn build(source: &str, compiler: &str, linkage: &Linkage, folder: &Path) -> PathBuf {
    build_file(&repository().join(source), compiler, linkage, folder)
}

fn build_file(source: &Path, compiler: &str, linkage: &Linkage, folder: &Path) -> PathBuf {
    let program = folder.join("program");
    let mut command = Command::new(std::env::var_os(compiler.to_uppercase()).unwrap_or(compiler.into()));
    command.args(["-g", "-O0", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    command.arg(source);
    command.arg("-I").arg(repository().join("crates/bindings/ffi/include"));
    match linkage {
        Linkage::Static => command.arg(library("a")).args(["-lpthread", "-ldl", "-lm"]),
        Linkage::StaticWithoutTable => {
            command.args(["-fomit-frame-pointer", "-Wl,--no-eh-frame-hdr"]).arg(library("a"));
            command.args(["-lpthread", "-ldl", "-lm"])
        }
        Linkage::FullyStatic(argument) => command.arg(argument).arg(library("a")).args(["-lpthread", "-ldl", "-lm"]),
        Linkage::Shared => {
            // Under the soname, like an installed library.
            let shared = folder.join(env!("CORONER_SONAME"));
            std::fs::copy(library("so"), &shared).unwrap();
            command.arg(&shared).arg(format!("-Wl,-rpath,{}", folder.display()))
        }
    };
    succeed(&mut command);
    program
}

fn run(program: &Path, variable: &str, store: &Path, arguments: &[&str]) -> Output {
    // No core files in the repository.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c 0; exec \"$@\"", "sh"]).arg(program).args(arguments).env(variable, store);
    command.output().unwrap()
}

/// Builds and crashes the example, starts it again, and returns the report.
fn build_and_crash(source: &str, compiler: &str, linkage: &Linkage, variable: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let program = build(source, compiler, linkage, folder.path());
    let fresh = run(&program, variable, &folder.path().join("another-store"), &[]);
    assert!(fresh.status.success(), "{fresh:?}");
    crash_by_act(&program, variable, &folder.path().join("store"), "crash", libc::SIGSEGV)
}

/// Crashes the program by `act` with `signal`, starts it again, and returns the report.
fn crash_by_act(program: &Path, variable: &str, store: &Path, act: &str, signal: i32) -> Value {
    let crashed = run(program, variable, store, &[act]);
    assert_eq!(crashed.status.signal(), Some(signal), "{crashed:?}");

    let again = run(program, variable, store, &[]);
    assert!(again.status.success(), "{again:?}");
    let output = String::from_utf8_lossy(&again.stdout);
    let id = output.lines().find_map(|line| line.strip_prefix("the last run crashed: "));
    let id = id.unwrap_or_else(|| panic!("the launch doesn't report the crash: {again:?}")).to_owned();

    // The app waits only a limited time for its delivery; on a busy machine a later launch
    // completes it.
    for _ in 0..10 {
        if store.join("reports").exists() {
            break;
        }
        run(program, variable, store, &[]);
    }
    let reports = std::fs::read_dir(store.join("reports")).unwrap().map(|entry| entry.unwrap().path());
    let json: Vec<PathBuf> = reports.filter(|path| path.extension().is_some_and(|other| other == "json")).collect();
    assert_eq!(json.len(), 1, "{json:?}");
    assert!(json[0].to_string_lossy().contains(&id), "{id} {json:?}");
    serde_json::from_slice(&std::fs::read(&json[0]).unwrap()).unwrap()
}

/// Returns the crashed thread's functions, innermost first.
fn functions(report: &Value) -> Vec<String> {
    let threads = report["threads"].as_array().unwrap();
    let crashed = threads.iter().find(|thread| thread["crashed"] == true).expect("a crashed thread");
    let frames = crashed["frames"].as_array().unwrap().iter();
    frames.map(|frame| frame["function"].as_str().unwrap_or("?").to_owned()).collect()
}

#[test]
fn a_c_app_with_the_static_library() {
    let report = build_and_crash("examples/c/notes.c", "cc", &Linkage::Static, "NOTES_STORE");
    assert_eq!(functions(&report)[..3], ["length_of", "save", "main"]);
    assert_eq!(report["crash"]["signal"]["name"], "SIGSEGV");
    assert_eq!(report["run"]["app"]["id"], "com.example.notes");
    assert_eq!(report["run"]["app"]["version"], "1.0.0");
    assert_eq!(report["run"]["tags"]["editor"], "plain");
    assert_eq!(report["run"]["breadcrumbs"][0]["message"], "saves");
    assert_eq!(report["run"]["breadcrumbs"][0]["category"], "document");
}

#[test]
fn a_program_without_an_unwind_search_table_has_its_stack() {
    let report = build_and_crash("examples/c/notes.c", "cc", &Linkage::StaticWithoutTable, "NOTES_STORE");
    let functions = functions(&report);
    assert_eq!(
        (&functions[..3], functions.last().unwrap().as_str()),
        (&["length_of", "save", "main"].map(String::from)[..], "_start")
    );
    let found: Vec<&str> = report["threads"][0]["frames"]
        .as_array()
        .unwrap()
        .iter()
        .map(|frame| frame["found_by"].as_str().unwrap())
        .collect();
    assert!(found[1..].iter().all(|found| *found == "cfi"), "{found:?}");
}

/// Tests a static program's threads and reports.
///
/// Coroner's `pthread_create` and `__cxa_throw` call the C and C++ libraries' own, which a name
/// lookup can't find.
#[test]
fn a_static_program_starts_threads_and_reports_crashes() {
    for linkage in [Linkage::FullyStatic("-static"), Linkage::FullyStatic("-static-pie")] {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("threads.cpp");
        let text = r#"
            #include <thread>
            #include <cstdio>
            #include "coroner.h"
            int main(int count, char **) {
                if (count > 2) coroner_install(coroner_config_new("threads"));
                std::thread([] { try { throw 1; } catch (int) { std::puts("caught on a thread"); } }).join();
            }"#;
        std::fs::write(&source, text).unwrap();
        let output = run(&build_file(&source, "c++", &linkage, folder.path()), "THREADS", folder.path(), &[]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "caught on a thread\n", "before install: {output:?}");

        let program = build("crates/bindings/ffi/tests/foreign.cpp", "c++", &linkage, folder.path());
        let report = |act: &str, signal| crash_by_act(&program, "FOREIGN_STORE", &folder.path().join(act), act, signal);
        // Only reported on an alternate stack, which the thread got at its creation.
        let overflow = report("overflow", libc::SIGSEGV);
        assert_eq!(overflow["crash"]["flags"][0], "stack_overflow", "{}", overflow["crash"]);
        let uncaught = functions(&report("uncaught", libc::SIGABRT));
        let position = |name: &str| uncaught.iter().position(|function| function.starts_with(name));
        let (thrown, main) = (position("foreign::throws_what_nobody_catches"), position("main"));
        assert!(thrown.is_some() && thrown < main, "{uncaught:?}");
    }
}

#[test]
fn a_cpp_app_with_the_shared_library() {
    let report = build_and_crash("examples/c/shapes.cpp", "c++", &Linkage::Shared, "SHAPES_STORE");
    let functions = functions(&report);
    assert!(functions[0].starts_with("shapes::total("), "{functions:?}");
    assert_eq!(functions[1], "main");
    assert_eq!(report["run"]["tags"]["canvas"], "small");
}

#[test]
fn live_backtraces_of_a_c_program() {
    let folder = tempfile::tempdir().unwrap();
    let program = build("examples/c/backtrace.c", "cc", &Linkage::Shared, folder.path());
    let output = run(&program, "BACKTRACE_STORE", &folder.path().join("store"), &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let after = |head: &str| text.lines().skip_while(|line| *line != head).skip(1).map(str::trim).collect::<Vec<_>>();

    let own = after("this thread:");
    for (line, function) in own.iter().zip(["inner + ", "outer + ", "main + "]) {
        assert!(line.starts_with(function), "{text}");
    }
    let worker = after("the worker:");
    let named = |name: &str| worker.iter().position(|line| line.starts_with(&format!("worker: {name} + ")));
    assert!(named("wait_for_the_end").is_some() && named("wait_for_the_end") < named("work"), "{text}");
    let expected = ["text of more bytes, ended", "hashes agree", "2 threads"];
    assert!(expected.iter().all(|line| text.lines().any(|output| output == *line)), "{text}");
    assert!(!text.contains(": 0 frames"), "{text}");
}

#[test]
fn hooks_and_a_sink_in_c() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("hooks.c");
    let text = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include "coroner.h"
        static int asked;
        static coroner_delivered deliver(void *context, const coroner_given_report *report) {
            printf("%s: id %zu, signal %d, raw %d\n", (const char *)context, strlen(report->event_id),
                   strstr(report->json, "SIGABRT") != NULL, report->raw_length > 100);
            char path[4096];
            snprintf(path, sizeof path, "%s.coroner", getenv("HOOKS_STORE"));
            FILE *file = fopen(path, "wb");
            fwrite(report->raw, 1, report->raw_length, file);
            fclose(file);
            return asked++ ? CORONER_DELIVERED_TAKEN : (coroner_delivered)7;
        }
        static bool keep(void *context, const char *json) { return strstr(json, (const char *)context) == NULL; }
        static void crashed(void *context, const char *id) { printf("%s %zu\n", (const char *)context, strlen(id)); }
        int main(int count, char **words) {
            coroner_config *config = coroner_config_new("com.example.hooks");
            coroner_config_set_store_dir(config, getenv("HOOKS_STORE"));
            if (coroner_config_add_sink(config, "", deliver, NULL) != CORONER_STATUS_INVALID_ARGUMENT) return 2;
            if (coroner_config_set_alternate_stacks(config, (coroner_alternate_stacks)9) != CORONER_STATUS_INVALID_ARGUMENT) return 3;
            coroner_config_add_sink(config, "mine", deliver, "sink");
            coroner_config_set_before_deliver(config, keep, "a secret thing");
            coroner_config_set_on_crashed_last_run(config, crashed, "crashed");
            coroner_config_set_limits(config, 10, 30, 1 << 20);
            coroner_config_set_deadline(config, 2000);
            coroner_config_set_all_threads(config, false);
            coroner_config_set_alternate_stacks(config, CORONER_ALTERNATE_STACKS_ATTACHED);
            if (coroner_install(config) != CORONER_STATUS_OK) { puts(coroner_last_error()); return 4; }
            if (count > 1) coroner_set_tag("note", words[1]);
            if (count > 1) abort();
            coroner_flush(20000);
            return 0;
        }"#;
    std::fs::write(&source, text).unwrap();
    let program = build_file(&source, "cc", &Linkage::Shared, folder.path());
    let launch = |store: &str, words: &[&str]| run(&program, "HOOKS_STORE", &folder.path().join(store), words);
    let stdout = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();

    assert_eq!(launch("store", &["a plain thing"]).status.signal(), Some(libc::SIGABRT));
    let first = launch("store", &[]);
    assert!(first.status.success(), "{first:?}");
    let delivered = "sink: id 32, signal 1, raw 1";
    let lines = stdout(&first);
    assert!(lines.lines().any(|line| line == "crashed 32") && lines.lines().any(|line| line == delivered), "{lines}");
    // The sink received a report like a folder's: with the app's scope, and without the reserved
    // space.
    let raw = std::fs::read(folder.path().join("store.coroner")).unwrap();
    let tags = coroner::Report::read(&raw).unwrap().run.unwrap().tags;
    assert_eq!(tags.get("note").map(String::as_str), Some("a plain thing"));
    assert!(raw.len() < 512 << 10, "{}", raw.len());

    assert_eq!(launch("other", &["a secret thing"]).status.signal(), Some(libc::SIGABRT));
    let dropped = launch("other", &[]);
    assert!(dropped.status.success() && !stdout(&dropped).contains("sink:"), "{dropped:?}");
}

#[test]
fn later_handlers_may_call_ours_with_only_the_signal_number() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("chains.c");
    let text = r#"
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include "coroner.h"
        static struct sigaction found;
        /* Like Ruby's: the registers of the other arguments contain arbitrary values. */
        __attribute__((noinline)) static void call_found(int signal, long a, long b) {
            ((void (*)(int, long, long))(void *)found.sa_handler)(signal, a, b);
        }
        static void handler(int signal) { call_found(signal, 3, 0x123456789abcdef0); }
        __attribute__((noinline)) static void goes_wrong(volatile int *at) { *at = 1; }
        int main(int count, char **words) {
            coroner_config *config = coroner_config_new("com.example.chains");
            coroner_config_set_store_dir(config, getenv("CHAINS_STORE"));
            if (coroner_install(config) != CORONER_STATUS_OK) return 4;
            coroner_last_run_info last = { .size = sizeof last };
            coroner_last_run(&last);
            if (last.outcome == CORONER_OUTCOME_CRASHED) printf("the last run crashed: %s\n", last.event_id);
            if (count < 2) return coroner_flush(20000) == CORONER_STATUS_OK ? 0 : 5;
            sigaction(SIGSEGV, NULL, &found);
            signal(SIGSEGV, handler);
            goes_wrong((int *)8);
            return words[1][0];
        }"#;
    std::fs::write(&source, text).unwrap();
    let program = build_file(&source, "cc", &Linkage::Shared, folder.path());
    let report = crash_by_act(&program, "CHAINS_STORE", &folder.path().join("store"), "crash", libc::SIGSEGV);
    assert_eq!(functions(&report)[..2], ["goes_wrong", "main"]);
    assert_eq!(report["crash"]["address"], "0x8");
}

#[test]
fn crashes_specific_to_c_and_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let program = build("crates/bindings/ffi/tests/foreign.cpp", "c++", &Linkage::Static, folder.path());
    let report = |act: &str, signal| crash_by_act(&program, "FOREIGN_STORE", &folder.path().join(act), act, signal);

    // An uncaught exception unwinds nothing before `terminate`, so the stack is the throw's.
    let uncaught = functions(&report("uncaught", libc::SIGABRT));
    let position = |name: &str| uncaught.iter().position(|function| function.starts_with(name));
    let (thrown, main) = (position("foreign::throws_what_nobody_catches"), position("main"));
    assert!(thrown.is_some() && thrown < main, "{uncaught:?}");

    // On a thread created in C, which has only Coroner's alternate stack.
    let overflow = report("overflow", libc::SIGSEGV);
    assert_eq!(overflow["crash"]["flags"][0], "stack_overflow", "{}", overflow["crash"]);
    let frames = functions(&overflow);
    assert!(frames[0].starts_with("foreign::overflows("), "{:?}", &frames[..3]);
    assert!(frames.iter().any(|function| function.starts_with("overflow_thread")), "the outermost frames are missing");

    // The dying process looks up names only if configured.
    let pure = report("pure", libc::SIGABRT);
    let names = |report: &Value| report["symbol_names"].as_array().map_or(0, Vec::len);
    assert!(names(&pure) > 0 && names(&overflow) == 0, "{} and {}", pure["symbol_names"], overflow["symbol_names"]);
    let pure = functions(&pure);
    assert!(pure.iter().any(|function| function.starts_with("foreign::calls_pure")), "{pure:?}");
}

/// Whether an object is marked for shadow stacks.
///
/// A process has a shadow stack only if all its libraries are marked.
#[cfg(target_arch = "x86_64")]
fn is_marked_for_shadow_stacks(file: &Path) -> bool {
    let notes = Command::new("readelf").arg("-n").arg(file).output().unwrap();
    assert!(notes.status.success(), "{notes:?}");
    String::from_utf8_lossy(&notes.stdout).contains("SHSTK")
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_keeps_its_shadow_stack() {
    assert!(is_marked_for_shadow_stacks(&library("so")), "a process that loads the library loses its shadow stack");
    // Rust's standard library is not marked, so a program that links it must set the mark by linker
    // arguments, as documented.
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("marked.c");
    std::fs::copy(repository().join("examples/c/notes.c"), &source).unwrap();
    let build = |arguments: &[&str]| {
        let program = folder.path().join("marked");
        let mut command = Command::new("cc");
        command.args(["-fcf-protection=full", "-o"]).arg(&program).arg(&source).args(arguments);
        command.arg("-I").arg(repository().join("crates/bindings/ffi/include"));
        command.arg(library("a")).args(["-lpthread", "-ldl", "-lm"]);
        assert!(command.status().unwrap().success(), "{command:?}");
        program
    };
    assert!(is_marked_for_shadow_stacks(&build(&["-Wl,-z,shstk"])));
    let program = build(&[]);
    assert!(
        !is_marked_for_shadow_stacks(&program),
        "the program is marked although it contains Rust code; docs/limits.md describes it otherwise"
    );
    assert!(run(&program, "NOTES_STORE", &folder.path().join("store"), &[]).status.success());
}

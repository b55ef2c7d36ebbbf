//! Rust panics, each in a real process: those that are crashes, non-fatal reports or breadcrumbs.
//!
//! `panic = "abort"` needs another program: `cargo xtask test` builds it and passes its path in
//! `CORONER_PANIC_ABORT_PROGRAM`.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use coroner_report::model::{CrashFlag, Exception, Report};
use coroner_report::text::TextOptions;
use coroner_report::wire::{Language, Monitor};
use coroner_tests::process::{Ended, Run, report_files, reports};

fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_panic_program").into()
}

/// Runs the program and reads the reports that it left.
fn run(program: &Path, act: &str) -> (Ended, Vec<Report>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let run = Run { program, fault: act, threads: 0, conditions: &[], first_process: false };
    let ended = run.run(Some(folder.path())).unwrap();
    let reports = reports(folder.path()).unwrap();
    (ended, reports, folder)
}

/// Returns the last parts of the names of an exception's frames.
fn functions(exception: &Exception) -> Vec<String> {
    let names = exception.frames.iter().flat_map(|frame| {
        let inlined = frame.inlined.iter().filter_map(|inlined| inlined.function.clone());
        inlined.chain(frame.function.clone())
    });
    names.map(|name| name.rsplit("::").next().unwrap_or_default().to_owned()).collect()
}

fn is_panic(exception: &Exception, kind: &str, message: &str, function: &str) {
    assert_eq!(exception.language, Language::RUST);
    assert_eq!(exception.type_name.as_deref(), Some(kind));
    assert_eq!(exception.message.as_deref(), Some(message));
    let location = exception.location.as_deref().unwrap();
    assert!(location.contains("panic_program.rs:"), "{location}");
    assert!(functions(exception).contains(&function.to_owned()), "{:?}", functions(exception));
    is_without_coroner(exception);
}

/// Checks that the stack begins at the call of Coroner.
fn is_without_coroner(exception: &Exception) {
    let names: Vec<&str> = exception.frames.iter().filter_map(|frame| frame.function.as_deref()).collect();
    assert!(!names.iter().any(|name| name.trim_start_matches('<').starts_with("coroner::")), "{names:#?}");
}

/// Returns the run's outcome as reported by the next launch.
fn last_run(folder: &tempfile::TempDir) -> coroner::Outcome {
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let config = coroner::Config::new("com.example.panics").store_dir(folder.path()).no_sinks();
    let coroner = coroner::install(config).unwrap();
    let outcome = coroner.last_run().outcome;
    coroner.uninstall();
    outcome
}

fn one(reports: &[Report]) -> &Report {
    let [report] = reports else { panic!("{} reports", reports.len()) };
    assert!(report.complete, "{:?}", report.problems);
    assert_eq!(report.crash.as_ref().unwrap().monitor, Monitor::PANIC);
    report
}

#[test]
fn a_panic_of_main_is_the_cause_of_the_crash() {
    let (ended, reports, _folder) = run(&program(), "main");
    assert_eq!(ended.status.code(), Some(101), "{}", ended.output);
    assert!(ended.output.contains("the hook before: panicked at"), "{}", ended.output);
    let report = one(&reports);
    let crash = report.crash.as_ref().unwrap();
    assert!(crash.signal.is_none() && !crash.has(CrashFlag::NotFatal));
    assert_eq!(crash.message.as_deref(), Some("out of cheese"));
    assert!(crash.location.as_deref().unwrap().contains("panic_program.rs:"));
    let [exception] = &report.exceptions[..] else { panic!("{:?}", report.exceptions) };
    is_panic(exception, "panic", "out of cheese", "panics");
    assert!(functions(exception).contains(&"main".to_owned()));
    let thread = report.crashed_thread().unwrap();
    assert!(thread.main && thread.has_frames_of(exception), "{:#?}", thread.frames);
    // Registers that were not captured are missing, and the stack is shown once, from the app's
    // call.
    let registers = thread.registers.as_ref().unwrap();
    assert!(registers.named().all(|(name, _)| !["rax", "rflags", "x0", "pstate"].contains(&name)));
    let text = report.to_text(&TextOptions { images: false, ..TextOptions::default() });
    assert_eq!(
        (text.matches("panic_program::main").count(), text.matches("rust_begin_unwind").count()),
        (1, 0),
        "{text}"
    );
}

#[test]
fn a_foreign_main_survives_a_panic_that_its_function_catches() {
    let program: PathBuf = env!("CARGO_BIN_EXE_foreign_main_program").into();
    for (act, status) in [("caught", 0), ("caught-then-101", 101)] {
        let (ended, reports, _folder) = run(&program, act);
        assert_eq!((ended.status.code(), reports.len()), (Some(status), 0), "{act}: {}", ended.output);
    }
    let (ended, reports, _folder) = run(&program, "caught-then-crash");
    assert_eq!(ended.status.signal(), Some(libc::SIGSEGV), "{}", ended.output);
    let [report] = &reports[..] else { panic!("{} reports", reports.len()) };
    assert_eq!(report.crash.as_ref().unwrap().monitor, Monitor::SIGNAL);
}

#[test]
fn a_caught_panic_is_a_breadcrumb() {
    let (ended, reports, _folder) = run(&program(), "caught");
    assert_eq!((ended.status.code(), reports.len()), (Some(0), 0), "{}", ended.output);
    let (ended, reports, folder) = run(&program(), "caught-then-abort");
    assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{}", ended.output);
    assert!(aborted(&reports).exceptions.is_empty(), "long after it");
    let (_, reports, _folder) = run(&program(), "caught-by-another-then-abort");
    assert!(aborted(&reports).exceptions.is_empty(), "another thread's");
    let state = std::fs::read_dir(folder.path().join("runs")).unwrap().next().unwrap().unwrap().path().join("state");
    let facts = coroner_report::model::RunFacts::read(&std::fs::read(state).unwrap()).unwrap();
    let breadcrumb = facts.breadcrumbs.last().unwrap();
    assert_eq!(breadcrumb.message.as_deref(), Some("panic caught: out of cheese"));
}

/// The reason is the C library's abort message, not a panic that was caught before.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_caught_panic_is_not_the_cause_of_a_later_assertion() {
    let (_, reports, _folder) = run(&program(), "caught-then-asserts");
    let report = aborted(&reports);
    assert!(report.exceptions.is_empty(), "{:?}", report.exceptions);
    assert!(report.abort_message().is_some_and(|printed| printed.contains("pages > 0")), "{:?}", report.annotations);
    assert!(
        report.annotations.iter().any(|printed| printed.text.contains("out of cheese")),
        "{:?}",
        report.annotations
    );
}

fn aborted(reports: &[Report]) -> &Report {
    let [report] = reports else { panic!("{} reports", reports.len()) };
    assert_eq!(report.crash.as_ref().unwrap().monitor, Monitor::SIGNAL);
    report
}

/// A program that catches a panic and aborts no longer has the panic's stack.
#[test]
fn a_panic_that_leads_to_an_abort_is_in_its_report() {
    let (ended, reports, _folder) = run(&program(), "aborts-for-it");
    assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{}", ended.output);
    let report = aborted(&reports);
    assert!(report.complete, "{:?}", report.problems);
    is_panic(&report.exceptions[0], "panic shortly before the abort", "out of cheese", "panics");
    assert_eq!(report.crashed_thread().unwrap().name.as_deref(), Some("worker"));
    let text = report.to_text(&TextOptions::default());
    assert!(text.contains("Thrown: panic shortly before the abort (rust)") && text.contains("SIGABRT"), "{text}");
}

#[test]
fn a_panic_that_ends_a_thread_is_reported_and_survived() {
    let (ended, reports, _folder) = run(&program(), "thread");
    assert_eq!(ended.status.code(), Some(0), "{}", ended.output);
    let report = one(&reports);
    assert!(report.crash.as_ref().unwrap().has(CrashFlag::NotFatal));
    is_panic(&report.exceptions[0], "panic that ended its thread", "out of bread", "panics");
    assert_eq!(report.crashed_thread().unwrap().name.as_deref(), Some("baker"));

    // If it is joined and unwrapped, the main thread panics too.
    let (ended, reports, _folder) = run(&program(), "thread-unwrapped");
    assert_eq!(ended.status.code(), Some(101), "{}", ended.output);
    let fatal: Vec<bool> =
        reports.iter().map(|report| !report.crash.as_ref().unwrap().has(CrashFlag::NotFatal)).collect();
    assert_eq!(fatal, [true, false], "the crash has the first file");
}

/// `resume_unwind` calls no hook. A panic that is resumed has one report.
#[test]
fn a_resumed_panic_that_ends_main_is_the_crash() {
    for (act, what) in [("worker", "cheese"), ("worker-without-handle", "cheese"), ("thread-resumed", "bread")] {
        // Without a handle in `main`, the exit status shows the panic, in glibc's `on_exit`.
        if act == "worker-without-handle" && !cfg!(target_env = "gnu") {
            continue;
        }
        let (ended, reports, folder) = run(&program(), act);
        assert_eq!(ended.status.code(), Some(101), "{}", ended.output);
        let report = one(&reports);
        assert!(!report.crash.as_ref().unwrap().has(CrashFlag::NotFatal), "{act}");
        is_panic(&report.exceptions[0], "panic", &format!("out of {what}"), "panics");
        assert_eq!(last_run(&folder), coroner::Outcome::Crashed, "{act}");
    }
    // A thread scope panics separately.
    let (ended, reports, folder) = run(&program(), "scope");
    assert_eq!(ended.status.code(), Some(101), "{}", ended.output);
    let crash = reports[0].crash.as_ref().unwrap();
    assert_eq!((reports.len(), crash.message.as_deref()), (2, Some("a scoped thread panicked")));
    assert_eq!(last_run(&folder), coroner::Outcome::Crashed);
}

#[test]
fn a_status_of_101_is_not_taken_for_a_panic_of_main() {
    let (ended, reports, folder) = run(&program(), "caught-then-exit");
    assert_eq!((ended.status.code(), reports.len()), (Some(101), 0), "{}", ended.output);
    assert_eq!(last_run(&folder), coroner::Outcome::CleanExit);
}

#[test]
fn a_caught_panic_is_reported_on_request() {
    let (ended, reports, _folder) = run(&program(), "caught-and-reported");
    assert_eq!(ended.status.code(), Some(0), "{}", ended.output);
    let report = one(&reports);
    assert!(report.crash.as_ref().unwrap().has(CrashFlag::NotFatal));
    is_panic(&report.exceptions[0], "caught panic", "out of cheese", "panics");
}

#[test]
fn a_panic_while_panicking_is_one_report_with_both_panics() {
    for act in ["twice", "twice-caught"] {
        let (ended, reports, _folder) = run(&program(), act);
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{}", ended.output);
        let report = one(&reports);
        assert!(!report.crash.as_ref().unwrap().has(CrashFlag::NotFatal));
        let [second, first] = &report.exceptions[..] else { panic!("{:?}", report.exceptions) };
        is_panic(second, "panic while panicking", "the second panic", "panic_in_drop");
        is_panic(first, "panic", "out of cheese", "panics");
    }
}

#[test]
fn a_panic_in_a_function_that_cannot_unwind_is_the_cause() {
    let (ended, reports, _folder) = run(&program(), "cannot-unwind");
    assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{}", ended.output);
    is_panic(&one(&reports).exceptions[0], "panic in a function that cannot unwind", "out of hope", "cannot_unwind");
}

#[test]
fn an_uninstall_restores_the_earlier_hook() {
    let (ended, reports, _folder) = run(&program(), "uninstalled");
    assert_eq!((ended.status.code(), reports.len()), (Some(101), 0), "{}", ended.output);
    assert!(ended.output.contains("the hook before: panicked at"), "{}", ended.output);
}

#[test]
fn handled_errors_are_reported_up_to_sixteen_and_are_not_crashes() {
    let folder = tempfile::tempdir().unwrap();
    let program = program();
    let run = Run { program: &program, fault: "handled", threads: 0, conditions: &[], first_process: false };
    let ended = run.run(Some(folder.path())).unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.output);
    let files = report_files(folder.path()).unwrap();
    let mut reports: Vec<Report> = files.iter().map(|path| Report::read_file(path).unwrap()).collect();
    assert_eq!(ended.output.matches("reported: true").count(), 16, "{}", ended.output);
    assert_eq!(reports.len(), 16);
    for report in &reports {
        let crash = report.crash.as_ref().unwrap();
        assert_eq!((crash.monitor, crash.has(CrashFlag::NotFatal)), (Monitor::USER, true));
        assert_eq!(crash.message.as_deref(), Some("the fridge is empty"));
    }
    coroner::SymbolSearch::default().symbolicate(&mut reports[0]);
    let error = &reports[0].exceptions[0];
    assert_eq!(error.frames[0].function.as_deref(), Some("panic_program::main"));
    is_without_coroner(error);
    assert_eq!(last_run(&folder), coroner::Outcome::CleanExit);
}

#[test]
fn a_crash_during_the_report_of_a_handled_error_has_its_own_report() {
    for _ in 0..3 {
        let (ended, reports, _folder) = run(&program(), "handled-as-another-crashes");
        assert_eq!(ended.status.signal(), Some(libc::SIGSEGV), "{}", ended.output);
        let of = |monitor: Monitor| {
            let found = reports.iter().filter(|report| report.crash.as_ref().unwrap().monitor == monitor);
            let [report] = found.collect::<Vec<_>>()[..] else { panic!("reports of {monitor:?} of {}", reports.len()) };
            assert!(report.complete, "{monitor:?}: {:?}", report.problems);
            report
        };
        let crash = of(Monitor::SIGNAL);
        assert_eq!(crash.crashed_thread().unwrap().name.as_deref(), Some("crasher"));
        assert!(!crash.crash.as_ref().unwrap().has(CrashFlag::NotFatal));
        assert!(of(Monitor::USER).crash.as_ref().unwrap().concurrent_crashes.is_empty());
    }
}

#[test]
fn with_panic_abort_every_panic_is_the_cause() {
    let Some(program) = std::env::var_os("CORONER_PANIC_ABORT_PROGRAM").map(PathBuf::from) else {
        eprintln!("skipped: CORONER_PANIC_ABORT_PROGRAM names no program built with panic = \"abort\"");
        return;
    };
    for (act, message) in [("main", "out of cheese"), ("caught", "out of cheese"), ("thread", "out of bread")] {
        let (ended, reports, _folder) = run(&program, act);
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{}", ended.output);
        let report = one(&reports);
        assert!(!report.crash.as_ref().unwrap().has(CrashFlag::NotFatal));
        is_panic(&report.exceptions[0], "panic", message, "panics");
    }
}

//! Crash sessions under adverse conditions: apps that close descriptors, children that crash twice,
//! handlers that are left by a jump or repair the fault, crashes of several threads, and kills
//! while the report is written. All are real processes.
//!
//! Timing is swept instead of left to chance: repetition `n` of a test uses the `n`-th delay.
//! `CORONER_REPETITIONS` overrides the number of repetitions, which is small by default. No
//! repetition is retried, and none may fail.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use coroner_report::model::Report;
use coroner_tests::process::{Run, reports};
use coroner_tests::{descriptors, session};
use serde_json::Value;

use crate::common::{CRASH, Store, ending, has_flag, line, printed_number, repetitions, run, spawn, sweep, wait};

/// Time limit in milliseconds. A crash takes a few, on a busy machine up to a second; waiting for a
/// deadline, or for a thread that never answers, takes longer.
const AT_ONCE: u64 = 1000;

// An app that closes descriptors.

#[test]
fn a_live_run_whose_descriptors_are_closed_is_not_claimed() {
    let store = Store::new();
    let (mut child, mut output) = spawn(Some(&store.path()), "close-and-wait");
    assert!(line(&mut output).starts_with("ready"), "the app closes its descriptors");
    let mut runs = std::fs::read_dir(store.path().join("runs")).expect("runs").flatten();
    let state = runs.next().expect("the living run").path().join("state");
    let outcome = store.next_launch();
    let still_there = state.exists();
    child.stdin.take().expect("its input").write_all(b"\n").expect("it waits for a line");
    let status = wait(&mut child).expect("it ends");
    // There was no run before the live one.
    assert!(
        still_there && outcome.contains("this is the first launch"),
        "the living run is {}, and another launch says: {outcome}",
        if still_there { "still there" } else { "removed" }
    );
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
    descriptors::files_are_untouched(&store.path()).expect("the app's files are its own");
    // The last run is the launch in between; the report is delivered nevertheless.
    store.next_launch();
    let report = store.delivered_crash();
    assert_eq!((&report["complete"], &report["crash"]["signal"]["number"]), (&true.into(), &11.into()), "{report}");
}

#[test]
fn uninstall_closes_no_descriptor_of_the_app() {
    let store = Store::new();
    let ended = store.run("close-and-uninstall", 0);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(printed_number(&ended.output, "lost"), 0, "descriptors of the app");
    descriptors::files_are_untouched(&store.path()).expect("the app's files are its own");
}

// Children in the memory of this process.

#[test]
fn vfork_children_that_crash_at_once_and_their_parent_have_one_report_each() {
    const CHILDREN: u64 = 4;
    let store = Store::new();
    let ended = store.run("vfork-children-together", CHILDREN);
    assert_eq!(ended.status.signal(), Some(libc::SIGSEGV), "{ended:?}");
    let died = ended.output.lines().filter(|line| *line == "child ended by signal 11").count();
    assert_eq!(died as u64, 8 * CHILDREN, "{ended:?}");
    assert_eq!(store.next_launch(), "the last run crashed");
    let reports = store.delivered();
    let children = reports.iter().filter(|report| has_flag(report, "fork_child")).count();
    assert_eq!((children as u64, reports.len() as u64), (8 * CHILDREN, 8 * CHILDREN + 1));
    assert!(reports.iter().all(|report| report["complete"] == true), "a report is truncated");
}

#[test]
fn a_child_with_the_same_handlers_leaves_them_to_the_process() {
    let store = Store::new();
    let ended = store.run("child-with-same-handlers", 0);
    assert_eq!(ended.status.signal(), Some(libc::SIGSEGV), "{ended:?}");
    assert!(ended.output.lines().any(|line| line == "child ended by signal 11"), "{ended:?}");
    assert_eq!(printed_number(&ended.output, "kept"), 1, "the handler");
    assert_eq!(store.next_launch(), "the last run crashed");
    let reports = store.delivered();
    let children = reports.iter().filter(|report| has_flag(report, "fork_child")).count();
    assert_eq!((children, reports.len()), (1, 2));
    assert!(reports.iter().all(|report| report["complete"] == true), "a report is truncated");
}

// Code that is unmapped.

#[test]
fn an_unmapped_caller_is_a_frame_without_an_image_and_its_callers_follow() {
    let store = Store::new();
    let ended = store.run("caller-unloaded", 0);
    assert_eq!(ended.status.signal(), Some(libc::SIGSEGV), "{ended:?}");
    let code = printed_number(&ended.output, "code");
    let found = reports(&store.path()).expect("readable reports");
    let [report] = &found[..] else { panic!("{} reports", found.len()) };
    let frames = &report.crashed_thread().expect("the crashed thread").frames;
    let place = frames.iter().position(|frame| (code..code + 64).contains(&frame.address.0));
    let place = place.unwrap_or_else(|| panic!("no frame at {code:#x}: {frames:#x?}"));
    let is_in_program = |frame: &coroner_report::model::Frame| {
        report
            .images
            .iter()
            .find(|image| image.contains(frame.address))
            .is_some_and(|image| image.name().contains("session_program"))
    };
    assert!(
        frames[place - 1..].len() > 3 && is_in_program(&frames[place - 1]) && is_in_program(&frames[place + 1]),
        "{frames:#x?}"
    );
}

// A thread that ends.

#[test]
fn an_exiting_thread_keeps_its_alternate_stack_during_destructors() {
    let store = Store::new();
    let ended = store.run("overflow-in-destructor", 0);
    assert_eq!(ended.status.signal(), Some(libc::SIGSEGV), "{ended:?}");
    assert_eq!(store.next_launch(), "the last run crashed");
    assert!(has_flag(&store.delivered_crash(), "stack_overflow"));
}

// A child that receives two fatal signals.

#[test]
fn a_child_that_gets_another_crash_signal_dies() {
    let mut endless = Vec::new();
    for delay in sweep(repetitions(20), 0, 1500) {
        let store = Store::new();
        let ended = store.run("second-signal-in-child", delay);
        assert!(ended.status.success(), "after {delay} µs: {ended:?}");
        let hung = printed_number(&ended.output, "hung");
        if hung > 0 {
            endless.push((delay, hung));
        }
    }
    assert!(endless.is_empty(), "children did not die of their signals: (µs, children of 8) {endless:?}");
}

// A handler that is left by a jump.

#[test]
fn a_handler_left_by_a_jump_and_a_thread_that_exits_block_no_thread() {
    let without = run(None, "jump-and-end", 0);
    let store = Store::new();
    let ended = store.run("jump-and-end", 0);
    assert_eq!(ending(ended.status), ending(without.status), "{ended:?}");
    let stopped = printed_number(&ended.output, "milliseconds stopped");
    assert_eq!(store.next_launch(), "the last run crashed");
    let of_main_thread = |report: &Value| report["crash"]["tid"] == report["header"]["pid"];
    let is_reported = store.delivered().iter().any(|report| of_main_thread(report) && report["complete"] == true);
    assert!(
        is_reported && stopped < AT_ONCE,
        "the real crash has a report: {is_reported}; other threads were stopped for {stopped} ms"
    );
}

#[test]
fn a_crash_after_a_handler_was_left_by_a_jump_is_reported() {
    let without = run(None, "jump-and-crash", 0);
    let store = Store::new();
    let ended = store.run("jump-and-crash", 0);
    assert_eq!(ending(ended.status), ending(without.status), "{ended:?}");
    // The fault that the handler repaired was in another function.
    let is_of_crash = |report: &Report| {
        let frames = report.crashed_thread().map_or(&[][..], |thread| &thread.frames);
        report.complete
            && frames.iter().any(|frame| frame.function.as_deref().is_some_and(|name| name.contains("chain_c")))
    };
    let found = reports(&store.path()).expect("readable reports");
    assert_eq!(found.iter().filter(|report| is_of_crash(report)).count(), 1, "of {} reports", found.len());
    assert_eq!(store.next_launch(), "the last run crashed");
}

#[test]
fn sleeps_after_a_report_end_when_they_should() {
    for scenario in ["jump-and-sleep", "sleep-in-handler"] {
        let without = run(None, scenario, 0);
        assert_eq!(
            (printed_number(&without.output, "interrupted"), without.status.success()),
            (0, true),
            "{without:?}"
        );
    }
    let interrupted = ["jump-and-sleep", "sleep-in-handler"].map(|scenario| {
        let ended = Store::new().run(scenario, 0);
        assert!(ended.status.success(), "{scenario}: {ended:?}");
        printed_number(&ended.output, "interrupted")
    });
    assert_eq!(interrupted, [0, 0], "sleeps behind a jump and in a handler that a timer of Coroner's ended");
}

// A handler that repairs the fault.

#[test]
fn hundreds_of_repaired_faults_on_four_threads_do_not_delay_the_app() {
    let faults = 300;
    let without = run(None, "repair-for-ever", faults);
    let store = Store::new();
    let ended = store.run("repair-for-ever", faults);
    assert_eq!(ending(ended.status), ending(without.status), "{ended:?}");
    let (bare, with) = (printed_number(&without.output, "milliseconds"), printed_number(&ended.output, "milliseconds"));
    assert_eq!(store.next_launch(), "the last run crashed");
    let of_null = |report: &Value| report["crash"]["address"] == "0x0" && report["complete"] == true;
    let is_reported = store.delivered().iter().any(of_null);
    assert!(
        is_reported && with < bare + 2 * AT_ONCE,
        "the real crash has a report: {is_reported}; it took {with} ms, and {bare} ms without Coroner"
    );
}

#[test]
fn threads_whose_faults_are_handled_do_not_wait_for_each_other() {
    let mut slow = Vec::new();
    for scenario in ["repair-together", "jump-together"] {
        for delay in sweep(repetitions(5), 0, 100) {
            let ended = Store::new().run(scenario, delay);
            assert!(ended.status.success(), "{scenario}, {delay} µs after one another: {ended:?}");
            let longest = printed_number(&ended.output, "milliseconds");
            if longest >= AT_ONCE {
                slow.push((scenario, delay, longest));
            }
        }
    }
    assert!(slow.is_empty(), "threads were held: (scenario, µs between them, ms) {slow:?}");
}

// A coroutine that crashes.

#[test]
fn a_coroutines_frames_end_at_its_start() {
    let store = Store::new();
    let ended = store.run("crash-on-coroutine", 0);
    let stack = printed_number(&ended.output, "stack begins")..=printed_number(&ended.output, "stack ends");
    let found = reports(&store.path()).expect("readable reports");
    let [report] = &found[..] else { panic!("{} reports", found.len()) };
    let crashed = report.crash.as_ref().expect("what happened").tid;
    let thread = report.threads.iter().find(|thread| thread.tid == crashed).expect("the crashed thread");
    assert!(thread.frames.len() > 2, "{:?}", thread.frames);
    let elsewhere = thread.frames.iter().find(|frame| frame.sp.is_some_and(|sp| !stack.contains(&sp.0)));
    assert!(elsewhere.is_none(), "unexpected frame: {elsewhere:?}");
}

// Several threads that crash.

#[test]
fn simultaneous_crashes_do_not_delay_the_exit() {
    let without = run(None, "crash-together", 100);
    let mut slow = Vec::new();
    for delay in sweep(repetitions(20), 0, 1500) {
        let store = Store::new();
        let (mut child, mut output) = spawn(Some(&store.path()), "crash-together");
        drop(child.stdin.take());
        let begin = printed_number(&line(&mut output), "crashes at");
        let status = wait(&mut child).expect("it ends");
        let time = session::now().saturating_sub(begin) / 1_000_000;
        assert_eq!(ending(status), ending(without.status));
        let found = reports(&store.path()).expect("readable reports");
        let [report] = &found[..] else { panic!("{delay} µs between them: {} reports", found.len()) };
        assert!(report.complete, "{delay} µs between them: {:?}", report.problems);
        if time >= AT_ONCE {
            slow.push((delay, time));
        }
    }
    assert!(slow.is_empty(), "from the first fault to the exit: (µs between them, ms) {slow:?}");
}

// A process that drops its privileges.

#[test]
fn a_childs_crash_is_reported_even_if_it_cannot_write_to_the_store() {
    // SAFETY: returns a number.
    if unsafe { libc::getuid() } != 0 {
        println!("skipped: not root");
        return;
    }
    let run = Run {
        program: Path::new(CRASH),
        fault: "fork-child",
        threads: 3,
        conditions: &["unprivileged"],
        first_process: false,
    };
    let store = Store::new();
    let without = run.run(None).expect("it ends");
    let ended = run.run(Some(&store.path())).expect("it ends");
    assert_eq!((ending(ended.status), &ended.output), (ending(without.status), &without.output));
    let outcome = store.next_launch();
    assert_eq!(outcome, "the last run exited normally", "the parent's run is unharmed");
    let delivered = store.delivered();
    let [report] = &delivered[..] else { panic!("expected one report of the child's crash, got {}", delivered.len()) };
    assert!(has_flag(report, "fork_child"), "{}", report["crash"]);
    assert_eq!(report["crash"]["signal"]["number"], libc::SIGSEGV);
    assert_ne!(report["header"]["pid"], report["header"]["ppid"]);
}

//! Recrashes, which are faults of the crash path itself: each ends one section and not the report,
//! and the deadline ends a section that hangs.
//!
//! Every case is a real process: this test's own program, started again with the case in its
//! environment.
#![cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use coroner_capture::InstallOptions;
use coroner_capture::fault_injection::{self, Failure};
use coroner_report::model::Report;
use coroner_report::wire::SectionKind;

const STORE: &str = "CORONER_TEST_STORE";
const SECTION: &str = "CORONER_TEST_SECTION";
const FAILURE: &str = "CORONER_TEST_FAILURE";

/// The process that crashes; a plain pass when it is not started as one.
#[test]
fn crash_with_a_failing_section() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u16>().unwrap();
    let failure = match number(FAILURE) {
        1 => Failure::Fault,
        2 => Failure::Hang,
        _ => Failure::LostStack,
    };
    let store = CString::new(store.as_bytes()).unwrap();
    let mut setup = InstallOptions::DEFAULT;
    setup.deadline_ms = 500;
    setup.symbol_names = NAMES;
    coroner_capture::install(&store, &setup).unwrap();
    for _ in 0..3 {
        std::thread::spawn(std::thread::park);
    }
    std::thread::sleep(Duration::from_millis(20));
    fault_injection::set(SectionKind(number(SECTION)), failure);
    // SAFETY: none; the crash is what is wanted.
    unsafe { std::ptr::null_mut::<u32>().write_volatile(1) };
}

/// This test's own program, behind the emulator that `CORONER_TEST_RUNNER` names, if it does.
fn this_program() -> Command {
    let this = std::env::current_exe().unwrap();
    let runner = std::env::var("CORONER_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let Some(emulator) = words.next() else { return Command::new(this) };
    let mut command = Command::new(emulator);
    command.args(words).arg(this);
    command
}

/// Crashes a process whose crash path fails in `section`, and reads the report.
fn report_of(section: SectionKind, failure: Failure) -> Report {
    let store = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let status = this_program()
        .args(["recrash::crash_with_a_failing_section", "--exact", "--test-threads=1"])
        .env(STORE, store.path())
        .env(SECTION, section.0.to_string())
        .env(FAILURE, (failure as u32).to_string())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(11), "{section:?}: dies as it would have");
    assert!(began.elapsed() < Duration::from_secs(20), "{section:?}: {:?}", began.elapsed());
    read_only_report(store.path())
}

fn read_only_report(store: &Path) -> Report {
    let runs: Vec<_> = std::fs::read_dir(store.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [run] = &runs[..] else { panic!("one run and not {runs:?}") };
    assert!(!run.join("report-2").exists(), "one death, one report");
    Report::read_file(run.join("report")).unwrap()
}

/// Whether frames are named: on emulated arm64, naming an unoptimised program exceeds the deadline.
const NAMES: bool = cfg!(target_arch = "x86_64");

const ALL: [SectionKind; 7] = [
    SectionKind::HEADER,
    SectionKind::CRASH,
    SectionKind::THREADS,
    SectionKind::IMAGES,
    SectionKind::STACK_MEMORY,
    SectionKind::SYMBOL_NAMES,
    SectionKind::END,
];

#[test]
fn a_fault_ends_one_section() {
    for failure in [Failure::Fault, Failure::LostStack] {
        for section in ALL.into_iter().filter(|section| NAMES || *section != SectionKind::SYMBOL_NAMES) {
            let report = report_of(section, failure);
            let context = format!("{section:?} {failure:?}: {report:#?}");
            assert_eq!(report.end.is_some(), section != SectionKind::END, "{context}");
            assert_eq!(report.crash.is_some(), section != SectionKind::CRASH, "{context}");
            assert_eq!(report.images.is_empty(), section == SectionKind::IMAGES, "{context}");
            // The images that were known at install have names even if their list can't be brought
            // up to date.
            let nameless = !NAMES || [SectionKind::SYMBOL_NAMES, SectionKind::THREADS].contains(&section);
            assert_eq!(report.symbol_names.is_empty(), nameless, "{context}");
            if section != SectionKind::THREADS {
                assert!(report.threads.len() >= 4, "{context}");
                assert!(report.threads[0].frames.len() > 3 || section == SectionKind::IMAGES, "{context}");
            }
            if section != SectionKind::END {
                assert!(!report.complete, "{context}");
                let fault = report.faults.iter().find(|fault| fault.section == section);
                let fault = fault.unwrap_or_else(|| panic!("the fault is in the report: {context}"));
                assert_eq!(fault.signal, 11, "{context}");
            }
        }
    }
}

#[test]
fn the_deadline_ends_a_section_that_hangs() {
    let report = report_of(SectionKind::IMAGES, Failure::Hang);
    let end = report.end.as_ref().expect("an end");
    assert!(end.deadline && !end.complete, "{end:?}");
    assert!(report.crash.is_some());
    assert!(!report.threads.is_empty(), "the crashed thread at least");
}

//! Tests of the complete crash path under Miri, from install to reading the report, on a fake
//! kernel: every memory access is checked against Rust's aliasing rules, against the mappings'
//! bounds and lifetimes, and for data races.
//!
//! `cargo xtask miri` runs it.
mod fake_kernel;
mod fake_process;

extern crate std;

use std::format;
use std::string::String;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::vec::Vec;

use coroner_process::context::{Context, SignalInfo};
use coroner_process::signals::SignalAction;
use coroner_report::model::{Report, RunFacts};
use coroner_report::run_state::{Breadcrumb, CrashRecord, Kind, Limits, ProcessIdentity, RunState};
use coroner_report::wire::SectionKind;

use crate::fault_injection::{self, Failure};
use crate::{InstallOptions, Run, install, uninstall};
use fake_kernel::{FaultEnd, fault};
use fake_process::{FAULT_ADDRESS, process};

/// Serializes the tests: only one install can exist at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const STORE: &str = "/store";

/// Small limits: Miri checks each atomic of a slice whenever a reference to the slice is created.
const SMALL: Limits = Limits {
    facts_bytes: 64,
    small_slots: 2,
    small_bytes: 32,
    large_slots: 1,
    large_bytes: 64,
    breadcrumbs: 2,
    breadcrumb_bytes: 32,
};

/// An install that ends when this is dropped.
struct Installed {
    run: Run,
    _alone: MutexGuard<'static, ()>,
}

impl Installed {
    fn new() -> Self {
        Self::behind(SignalAction::DEFAULT)
    }

    /// Installs over an existing handler of the app.
    fn behind(before: SignalAction) -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        process();
        fault_injection::set(SectionKind(u16::MAX), Failure::Fault);
        // SAFETY: a function that is a handler.
        unsafe { before.set(libc::SIGSEGV) }.unwrap();
        let mut options = InstallOptions::DEFAULT;
        (options.deadline_ms, options.reserve, options.symbol_names) = (500, 16 << 10, true);
        options.stack_memory = 256;
        options.state = SMALL;
        let run = install(c"/store", &options).unwrap();
        fake_kernel::leave_process();
        Installed { run, _alone: alone }
    }

    fn path(&self, name: &str) -> String {
        let id: String = self.run.id.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{STORE}/runs/{id}/{name}")
    }

    fn report(&self, name: &str) -> Report {
        let mut bytes = fake_kernel::read_file(&self.path(name)).unwrap();
        // The unused rest: the reader would check each byte of it.
        while bytes.ends_with(&[0; 64]) {
            bytes.truncate(bytes.len() - 64);
        }
        Report::read(&bytes).unwrap()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        assert!(uninstall());
    }
}

/// Simulates a read from [`FAULT_ADDRESS`] by the calling thread.
fn crash() -> FaultEnd {
    fault(libc::SIGSEGV, 1, FAULT_ADDRESS, &process().thread())
}

/// Starts threads of the app that run until `ended` is set.
fn begin_threads<'s>(scope: &'s Scope<'s, '_>, count: usize, ended: &'s AtomicBool) -> Vec<ScopedJoinHandle<'s, ()>> {
    let begun = std::sync::Arc::new(Barrier::new(count + 1));
    let threads = (0..count).map(|_| {
        let begun = begun.clone();
        scope.spawn(move || {
            fake_kernel::set_registers(process().thread());
            begun.wait();
            while !ended.load(Ordering::Relaxed) {
                fake_kernel::pause();
            }
        })
    });
    let threads = threads.collect();
    begun.wait();
    threads
}

/// Signal handler of the app that repairs the fault: the thread continues after the instruction.
extern "C" fn repair(_signal: i32, _info: *mut SignalInfo, context: *mut libc::c_void) {
    // SAFETY: a handler's third argument.
    let context = unsafe { Context::from_pointer(context) };
    context.set_pc(context.pc() + 2);
}

fn repairing() -> SignalAction {
    SignalAction { handler: repair as *const () as usize, ..SignalAction::DEFAULT }
}

#[test]
fn a_crash_beside_other_threads() {
    let installed = Installed::new();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        begin_threads(scope, 2, &ended);
        assert_eq!(scope.spawn(crash).join().unwrap(), FaultEnd::Died);
        ended.store(true, Ordering::Relaxed);
    });
    let report = installed.report("report");
    assert!(report.complete && report.problems.is_empty(), "{report:#?}");
    let crash = report.crash.as_ref().unwrap();
    assert_eq!(crash.signal.as_ref().unwrap().number, libc::SIGSEGV, "{report:#?}");
    assert_eq!(report.images.len(), 2, "{report:#?}");
    assert_eq!(report.threads.len(), 3, "{report:#?}");
    assert!(report.threads.iter().all(|thread| thread.registers.is_some()), "{report:#?}");
    assert!(report.crashed_thread().unwrap().frames.len() >= 2, "{report:#?}");
    assert!(!report.stack_memory.is_empty(), "{report:#?}");
}

#[test]
fn a_process_that_survives_and_crashes_again_has_two_reports() {
    let first = Installed::behind(repairing());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        begin_threads(scope, 1, &ended);
        for _ in 0..2 {
            assert_eq!(scope.spawn(crash).join().unwrap(), FaultEnd::Continues(pc_behind()));
        }
        ended.store(true, Ordering::Relaxed);
    });
    for name in ["report", "report-2"] {
        let report = first.report(name);
        assert!(report.complete && report.threads.len() == 2, "{report:#?}");
    }
    drop(first);
    // Another install in the same process: the workspace is the first one's.
    let second = Installed::new();
    assert_eq!(std::thread::spawn(crash).join().unwrap(), FaultEnd::Died);
    assert!(second.report("report").complete);
}

/// Returns the address at which a thread continues after [`repair`].
fn pc_behind() -> u64 {
    process().thread().pc + 2
}

#[test]
fn a_fault_of_the_crash_path_ends_its_section() {
    let installed = Installed::behind(repairing());
    for (section, name) in
        [(SectionKind::IMAGES, "report"), (SectionKind::THREADS, "report-2"), (SectionKind::END, "report-3")]
    {
        fault_injection::set(section, Failure::Fault);
        assert_eq!(std::thread::spawn(crash).join().unwrap(), FaultEnd::Continues(pc_behind()));
        let report = installed.report(name);
        assert!(!report.complete && report.crash.is_some(), "{report:#?}");
        assert_eq!(report.images.is_empty(), section == SectionKind::IMAGES, "{report:#?}");
        assert_eq!(report.end.is_none(), section == SectionKind::END, "{report:#?}");
        let is_noted = report.faults.iter().any(|fault| fault.section == section);
        assert_eq!(is_noted, section != SectionKind::END, "{report:#?}");
    }
}

#[test]
fn two_threads_crash_at_once() {
    let installed = Installed::behind(repairing());
    let both = Barrier::new(2);
    let crash_together = || {
        both.wait();
        crash()
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(crash_together), scope.spawn(crash_together)];
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == FaultEnd::Continues(pc_behind())));
    });
    let report = installed.report("report");
    assert!(report.complete, "{report:#?}");
    // The second one came too late for the first one's report, or is in it.
    let has_own = fake_kernel::read_file(&installed.path("report-2")).is_some();
    let concurrent = report.crash.unwrap().concurrent_crashes.len();
    assert_eq!(concurrent + usize::from(has_own), 1);
}

/// Writes the run state from several threads at once, while one thread reads it and one records a
/// crash.
#[test]
fn many_threads_fit_in_the_run_state() {
    let limits = Limits { breadcrumbs: 2, breadcrumb_bytes: 64, ..SMALL };
    let words: Vec<_> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
    let state = RunState::create(&words, &limits, [1; 16], &ProcessIdentity::default()).unwrap();
    let record =
        |number: u64| CrashRecord { tid: number, time_ns: number, pc: number, sp: number, ..CrashRecord::default() };
    std::thread::scope(|scope| {
        for thread in ["a", "b"] {
            scope.spawn(move || {
                for round in 0..3 {
                    let _ = state.set_text(Kind::TAG, "shared", &thread.repeat(round + 1));
                    state.breadcrumb(&Breadcrumb { message: thread, ..Breadcrumb::default() });
                }
            });
        }
        scope.spawn(move || (1..6).for_each(|number| _ = state.set_crash(&record(number))));
        for _ in 0..2 {
            let facts = RunFacts::read(&state.to_bytes()).unwrap();
            assert!(facts.crash.is_none_or(|record| record.tid == record.pc.0 && record.pc == record.sp));
        }
    });
    let facts = RunFacts::read(&state.to_bytes()).unwrap();
    assert!(["aaa", "bbb"].contains(&facts.tags["shared"].as_str()), "{facts:?}");
    assert_eq!(facts.crash.map(|record| record.tid), Some(5));
}

//! Reports that the process writes about itself: panics and handled errors.

use std::sync::atomic::Ordering;
use std::time::Instant;

use coroner_process::registers::Registers;
use coroner_report::run_state::{CrashRecord, Scalar};
use coroner_report::wire::{Exception, Monitor};

use super::process::threads::this_thread;
use super::report::{self, What};
pub(crate) use super::report::{Ending, Threads};
use super::run;
use crate::clock::now_ns;

/// Maximum number of reports that may wait in the run for delivery.
const MAX_WAITING: u32 = 16;

pub(crate) fn report(registers: &Registers, monitor: Monitor, exceptions: &[Exception<'_>], ending: Ending) -> bool {
    report_with(Threads::AsInstalled, registers, monitor, exceptions, ending)
}

pub(crate) fn report_with(
    _threads: Threads,
    _registers: &Registers,
    monitor: Monitor,
    exceptions: &[Exception<'_>],
    ending: Ending,
) -> bool {
    let Some(run) = run::current() else { return false };
    let tid = this_thread();
    let is_dying = run.dying.load(Ordering::Acquire) == tid + 1;
    if exceptions.is_empty() || (is_dying && ending != Ending::FatalAgain) {
        return false;
    }
    if ending == Ending::NonFatal && !may_survive(run) {
        run.state.add_scalar(Scalar::REPORTS_LEFT_OUT, 1);
        return false;
    }
    let time_ns = now_ns();
    if ending != Ending::NonFatal {
        run.is_reported.store(true, Ordering::Release);
        // Write the record first: if the report fails, the next launch creates one from the record.
        run.state.set_crash(&CrashRecord { monitor, tid, time_ns, ..CrashRecord::default() });
    }
    let written = report::write(run, &What { monitor, exceptions, ending, tid, time_ns });
    if let Err(error) = &written {
        log::warn!("coroner: can't write a report: {error}");
        if ending == Ending::NonFatal {
            delivered();
        }
    }
    written.is_ok()
}

/// Whether the limits allow another non-fatal report, which then counts as waiting.
#[allow(deprecated, reason = "`try_update` needs Rust 1.95")]
fn may_survive(run: &run::Current) -> bool {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let wait = |waiting: u32| (waiting < MAX_WAITING).then_some(waiting + 1);
    if run.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, wait).is_err() {
        return false;
    }
    let now = BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64;
    let is_within = run.budget.take(run.options.non_fatal_per_hour, now);
    if !is_within {
        delivered();
    }
    is_within
}

/// Decrements the number of waiting reports.
#[allow(deprecated, reason = "`try_update` needs Rust 1.95")]
pub(crate) fn delivered() {
    let Some(run) = run::current() else { return };
    let _ = run.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| waiting.checked_sub(1));
}

pub(crate) fn is_reported_as_fatal() -> bool {
    run::current().is_some_and(|run| run.is_reported.load(Ordering::Acquire))
}

/// Records that the calling thread ends the process because of its last report.
pub(crate) fn dies() {
    if let Some(run) = run::current() {
        run.dying.store(this_thread() + 1, Ordering::Release);
    }
}

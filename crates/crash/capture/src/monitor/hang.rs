//! Reports of threads that don't respond, written while the process continues. The watchdog that
//! detects them is in the crate `coroner`.
//!
//! The report is written by a session, except that the thread it is about did not enter the session
//! by itself: it is stopped like the others before it is walked, and the watchdog's thread writes.

use coroner_process::threads::{Tid, monotonic_now, process_id, this_thread};
use coroner_report::run_state::Scalar;
use coroner_report::wire::{Hang, Monitor};

use super::exception;
use crate::crash_context::{CrashContext, Ending, Hung, Threads, Uncaught};
use crate::os::crash_entry::report_context;
use crate::{installed, taken_signals};

static BUDGET: crate::run::Budget = crate::run::Budget::new();

/// Resets the budget at the start of a run (not async-signal-safe).
pub(crate) fn begin_run() {
    BUDGET.begin();
}

/// Returns `true` if one more hang may be reported now. Otherwise the hang is counted in the run
/// state.
pub fn is_within_budget() -> bool {
    let Some(installed) = installed::get() else { return false };
    let taken = BUDGET.take(installed.options.non_fatal_per_hour, monotonic_now());
    if !taken {
        left_out();
    }
    taken
}

/// Counts a hang that is not reported.
pub fn left_out() {
    if let Some(installed) = installed::get() {
        installed.run.state.add_scalar(Scalar::REPORTS_LEFT_OUT, 1);
    }
}

/// The exception part of every hang's session.
static NON_FATAL: Uncaught<'static> =
    Uncaught { monitor: Monitor::HANG, exceptions: &[], ending: Ending::NonFatal, threads: Threads::AsInstalled };

/// Writes a report of another thread of this process that doesn't respond. All threads except the
/// calling one are stopped while it is written.
///
/// Not async-signal-safe: may be called anywhere except in a signal handler.
///
/// Returns `false` if there is no report: Coroner is not installed, the process is a child made by
/// fork or is dying, the thread is the calling one, or the report can't be written.
pub fn report(thread: Tid, hang: Hang) -> bool {
    let Some(installed) = installed::get() else { return false };
    let (pid, tid) = (process_id(), this_thread());
    let is_ending = taken_signals::is_dying(pid) || exception::is_reported_as_fatal();
    if !installed.is_own_process(pid) || thread == tid || is_ending {
        return false;
    }
    let context = CrashContext::of_hang(&NON_FATAL, Hung { hang, watcher: tid }, pid, thread);
    report_context(installed, &coroner_walk::current_registers(), (pid, tid), &context)
}

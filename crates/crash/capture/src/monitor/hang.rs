//! Threads that do not answer. Who watches them is not crash time's (the crate `coroner`); here is the report of one: where it stands,
//! while the process goes on.
//!
//! It is the session's, but that the thread that it is about is none that came here by itself: it is stopped as the others are,
//! before it is walked, and the thread that watches writes.

use coroner_process::threads::{Tid, monotonic_now, process_id, this_thread};
use coroner_report::run_state::Scalar;
use coroner_report::wire::{Hang, Monitor};

use super::exception;
use crate::crash_context::{CrashContext, Ending, Hung, Threads, Uncaught};
use crate::os::crash_entry::report_context;
use crate::{installed, taken_signals};

static BUDGET: crate::run::Budget = crate::run::Budget::new();

/// A run begins (not async-signal-safe).
pub(crate) fn begin_run() {
    BUDGET.begin();
}

/// Whether one more hang may be reported now. One that may not is counted in the run state.
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

/// What the session is given of every hang.
static NON_FATAL: Uncaught<'static> =
    Uncaught { monitor: Monitor::HANG, exceptions: &[], ending: Ending::NonFatal, threads: Threads::AsInstalled };

/// Writes a report of another thread of this process, which does not answer. All threads but the calling one stand still while
/// it is written.
///
/// Not async-signal-safe: it may be called anywhere but in a signal handler.
///
/// False where there is no report of it: Coroner is not installed, the process is a child made by fork or is dying, the thread is
/// the calling one, or the report can't be written.
pub fn report(thread: Tid, hang: Hang) -> bool {
    let Some(installed) = installed::get() else { return false };
    let (pid, tid) = (process_id(), this_thread());
    let is_ending = taken_signals::is_dying(pid) || exception::is_reported_as_fatal();
    if pid != installed.run.pid || thread == tid || is_ending {
        return false;
    }
    let context = CrashContext::of_hang(&NON_FATAL, Hung { hang, watcher: tid }, pid, thread);
    report_context(installed, &coroner_walk::current_registers(), (pid, tid), &context)
}

//! Common part of the monitors of language exceptions: writes a report about an exception.
//!
//! Such a death is detected outside a signal handler: the language's runtime calls its last resort
//! (a terminate handler, a panic hook). The exception's description of itself is read then, before
//! any thread is stopped. The report is written at once, and not when a signal follows, since none
//! may: an earlier terminate handler may end the process as it likes. If it aborts, that SIGABRT is
//! the same death and passed on without a second report.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use coroner_process::registers::Registers;
use coroner_process::threads::{Tid, monotonic_now, process_id, this_thread};
use coroner_report::run_state::Scalar;
use coroner_report::wire::{Exception, Monitor};

use crate::crash_context::{CrashContext, Uncaught};
pub use crate::crash_context::{Ending, Threads};
use crate::os::crash_entry::report_context;
use crate::previous_handler::MARKER;
use crate::report_lock::thread_word;
use crate::run::Budget;
use crate::running_handlers::HandledCrash;
use crate::{installed, taken_signals};
use coroner_process::signals::{bit, block_too};

/// [`thread_word`] of the thread that dies of an exception which is already reported; 0 for none.
static DYING: AtomicU64 = AtomicU64::new(0);

/// ID of the process whose end by an exception is reported; 0 for none.
static REPORTED: AtomicI32 = AtomicI32::new(0);

/// Returns `true` if a report states that this process dies of an exception. If the process then
/// ends by `exit`, as after a panic of `main`, that isn't a clean exit.
pub fn is_reported_as_fatal() -> bool {
    REPORTED.load(Ordering::Acquire) == process_id()
}

/// Returns `true` if the thread is dying of a reported exception: a crash signal of the thread is
/// the same death.
pub(crate) fn is_dying(pid: i32, tid: Tid) -> bool {
    DYING.load(Ordering::Acquire) == thread_word(pid, tid)
}

/// Maximum number of reports of survived exceptions that may wait in the run for delivery: they
/// must not take a crash report's place.
const MAX_WAITING: u32 = 16;

static WAITING: AtomicU32 = AtomicU32::new(0);

static BUDGET: Budget = Budget::new();

/// Resets the state at the start of a run (not async-signal-safe).
pub(crate) fn begin_run() {
    DYING.store(0, Ordering::Release);
    WAITING.store(0, Ordering::Release);
    BUDGET.begin();
    REPORTED.store(0, Ordering::Release);
}

/// Writes a report of the calling thread's exception. Its stack is walked from `registers`, such as
/// [`coroner_walk::current_registers`] returns; the stacks of the throws are in `exceptions`. The
/// first exception is the one that the report is about, the others are its causes.
///
/// Not async-signal-safe: may be called anywhere except in a signal handler. Other threads are
/// stopped while it writes.
///
/// Returns `false` if there is no report: Coroner is not installed, the process is a child made by
/// fork that must stay silent, the report can't be written, or it would exceed the limits for
/// non-fatal reports ([`InstallOptions::non_fatal_per_hour`], and sixteen waiting for delivery). A
/// report beyond these limits is counted in the run state.
///
/// [`InstallOptions::non_fatal_per_hour`]: crate::InstallOptions::non_fatal_per_hour
pub fn report(registers: &Registers, monitor: Monitor, exceptions: &[Exception<'_>], ending: Ending) -> bool {
    report_with(Threads::AsInstalled, registers, monitor, exceptions, ending)
}

/// Same as [`report`], with the stacks of `threads`.
#[allow(deprecated, reason = "`try_update` needs Rust 1.95")]
pub fn report_with(
    threads: Threads,
    registers: &Registers,
    monitor: Monitor,
    exceptions: &[Exception<'_>],
    ending: Ending,
) -> bool {
    let Some(installed) = installed::get() else { return false };
    let (pid, tid) = (process_id(), this_thread());
    if exceptions.is_empty() || (is_dying(pid, tid) && ending != Ending::FatalAgain) || taken_signals::is_dying(pid) {
        return false;
    }
    if ending == Ending::NonFatal {
        let wait = |waiting: u32| (waiting < MAX_WAITING).then(|| waiting.wrapping_add(1));
        let waits = WAITING.fetch_update(Ordering::AcqRel, Ordering::Acquire, wait).is_ok();
        if !waits || !BUDGET.take(installed.options.non_fatal_per_hour, monotonic_now()) {
            if waits {
                delivered();
            }
            installed.run.state.add_scalar(Scalar::REPORTS_LEFT_OUT, 1);
            return false;
        }
    }
    let uncaught = Uncaught { monitor, exceptions, ending, threads };
    // SAFETY: the caller waits here for longer than the report may take.
    let context = unsafe { CrashContext::of_exception(&uncaught, registers, pid, tid) };
    let reported = report_context(installed, registers, (pid, tid), &context);
    match ending {
        Ending::NonFatal if !reported => delivered(),
        Ending::Fatal | Ending::FatalAgain if reported => REPORTED.store(pid, Ordering::Release),
        _ => {}
    }
    reported
}

/// Notes that a non-fatal report of an exception no longer waits in this process's run, so that
/// another one may.
#[allow(deprecated, reason = "`try_update` needs Rust 1.95")]
pub fn delivered() {
    let _ = WAITING.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| waiting.checked_sub(1));
}

/// Notes that an earlier handler of the runtime is called next, by a function of the calling thread
/// whose stack pointer is `sp`: whatever the handler raises is the death that was last reported.
pub fn calls_earlier_handler(sp: u64) {
    if let Some(installed) = installed::get() {
        // From below that function's frame.
        installed
            .platform
            .running_handlers
            .begin(this_thread(), &HandledCrash { frame: sp.saturating_add(1024), ..HandledCrash::default() });
        block_too(bit(MARKER));
    }
}

/// Makes crash signals of the calling thread count as the death that was last reported, from now
/// on: that death is certain to end the process.
pub fn dies() {
    DYING.store(thread_word(process_id(), this_thread()), Ordering::Release);
}

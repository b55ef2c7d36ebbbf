//! Report entry on Darwin, where the primary thread writes a report of an exception or of a crash
//! that a signal handler handed over.

use core::sync::atomic::Ordering;

use coroner_process::registers::Registers;
use coroner_process::threads::{Tid, monotonic_now};
use mach2::port::mach_port_t;

use super::other_threads::SuspendedOthers;
use crate::crash_context::{CrashContext, Ending, Next, Reported};
use crate::installed::Installed;
use crate::report_lock::{Claim, REPORT_LOCK};
use crate::report_steps::write_report;
use crate::session::{self, CrashSession};
use coroner_process::exception_messages::{self, Own};

/// Writes a report, on the primary thread. Also returns the other threads if a handler is called
/// next: they stay stopped until the result is dropped. `crashed` is the port of the thread that
/// the report is about, 0 if unknown.
pub(crate) fn write(
    installed: &'static Installed,
    context: &CrashContext,
    crashed: mach_port_t,
    next: Next,
) -> (Reported, Option<SuspendedOthers>) {
    let started = monotonic_now();
    let platform = &installed.platform;
    // First, the record, so that the next launch can make a report of it, whatever happens to this
    // report.
    let is_crash = context.ending() != Ending::NonFatal;
    let number = if is_crash { installed.run.state.set_crash(&context.record()) } else { 0 };
    let me = platform.primary_tid.load(Ordering::Acquire);
    // Only an install that has come in the meantime can own the lock, or this thread itself: the
    // process is dying.
    let Claim::Mine(owner) = REPORT_LOCK.claim(context.pid, me, !is_crash) else {
        return (Reported::Not, None);
    };
    let mut claimed = match installed.claim(owner) {
        Ok(claimed) => claimed,
        Err(owner) => {
            session::release(owner);
            return (Reported::Not, None);
        }
    };
    platform.crashed.store(crashed, Ordering::Release);
    let Some(mut session) = CrashSession::open(&mut claimed, context, started) else {
        session::release(claimed.into_owner());
        return (Reported::Not, None);
    };
    write_report(&mut session, |session| {
        let limit = u64::from(session.installed.options.deadline_ms).saturating_mul(1_000_000);
        platform.deadline.store(started.saturating_add(limit).max(1), Ordering::Release);
        exception_messages::tell(platform.secondary_port, Own::Watch);
    });
    platform.deadline.store(0, Ordering::Release);
    if let Some(images) = session.images() {
        images.release();
    }
    let mut held = None;
    if next == Next::Dies {
        session.end_dying();
        return (Reported::Here(number), None);
    }
    if next == Next::AsksHandler {
        held = session.threads.take();
    }
    session.end();
    session::release(claimed.into_owner());
    (Reported::Here(number), held)
}

/// Hands a crash of the calling thread over to the primary thread, which writes its report, and
/// waits for the report's end.
pub(crate) fn hand_over(installed: &Installed, context: &CrashContext) -> Reported {
    // The report's own limit, and twice as long for one that is being written now, and an earlier
    // holder of the ports.
    let limit = installed.options.deadline_ms.saturating_mul(3).saturating_add(5000);
    installed.platform.handed_over.hand_over(installed.platform.primary_port, context, limit)
}

/// Lets the primary thread write a report of what the calling thread detected outside a signal
/// handler. Returns `false` if there is no report.
pub(crate) fn report_context(
    installed: &'static Installed,
    _registers: &Registers,
    (pid, _tid): (i32, Tid),
    context: &CrashContext,
) -> bool {
    // A child made by fork has none of Coroner's threads.
    pid == installed.run.pid && hand_over(installed, context) != Reported::Not
}

//! The primary thread writes a report, of an exception or of a crash that a signal handler handed over.

use core::sync::atomic::Ordering;

use coroner_process::registers::Registers;
use coroner_process::threads::{Tid, monotonic_now};
use mach2::port::mach_port_t;

use super::other_threads::OtherThreads;
use crate::crash_context::{CrashContext, Ending, Next, Reported};
use crate::installed::Installed;
use crate::report_lock::{Claim, REPORT_LOCK};
use crate::report_steps::write_report;
use crate::session::{self, CrashSession};
use coroner_process::exception_messages::{self, Own};

/// Writes a report, on the primary thread. With it come the other threads where a handler is asked next: they stay stopped until the
/// result is dropped. `crashed` is the port of the thread that it is about, 0 where that is not known.
pub(crate) fn write(
    installed: &'static Installed,
    context: &CrashContext,
    crashed: mach_port_t,
    next: Next,
) -> (Reported, Option<OtherThreads>) {
    let started = monotonic_now();
    let platform = &installed.platform;
    // First of all: what the next launch makes a report of, whatever happens to this one.
    let is_crash = context.ending() != Ending::NonFatal;
    let number = if is_crash { installed.run.state.set_crash(&context.record()) } else { 0 };
    let me = platform.primary_tid.load(Ordering::Acquire);
    // Nobody but an install that has come meanwhile has the lock, or this thread itself: the process is dying.
    let Claim::Mine(owner) = REPORT_LOCK.claim(context.pid, me, !is_crash) else {
        return (Reported::Not, None);
    };
    platform.crashed.store(crashed, Ordering::Release);
    let mut session = match CrashSession::open(owner, installed, context, started) {
        Ok(session) => session,
        Err(owner) => {
            session::release(owner);
            return (Reported::Not, None);
        }
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
    match next {
        Next::Dies => session.end_dying(),
        Next::AsksHandler => {
            held = session.threads.take();
            session::release(session.end());
        }
        Next::RunsOn => session::release(session.end()),
    }
    (Reported::Here(number), held)
}

/// Hands a crash of the calling thread over to the primary thread, which writes its report, and waits for the end of it.
pub(crate) fn hand_over(installed: &Installed, context: &CrashContext) -> Reported {
    // The report's own limit, and twice as long for one that is being written now, and an earlier holder of the ports.
    let limit = installed.options.deadline_ms.saturating_mul(3).saturating_add(5000);
    installed.platform.handed_over.hand_over(installed.platform.primary_port, context, limit)
}

/// Takes what was noticed outside a signal handler by the calling thread into a report: the primary thread writes it. False if
/// there is none.
pub(crate) fn report_context(
    installed: &'static Installed,
    _registers: &Registers,
    (pid, _tid): (i32, Tid),
    context: &CrashContext,
) -> bool {
    // A child made by fork has none of Coroner's threads.
    pid == installed.run.pid && hand_over(installed, context) != Reported::Not
}

//! Darwin's part of the signal monitor, for what no exception reports: abort and what is sent by kill or raise, and faults where the
//! exceptions are not Coroner's.
//!
//! The handler hands its crash over to Coroner's primary thread and waits: it uses little of a stack that may be nearly full,
//! and the report is written as that of an exception. A signal that an exception became which was reported is the same death.

use core::sync::atomic::Ordering;

use coroner_process::context::{SignalContext, SignalInfo};
use coroner_process::signals::{SignalAction, bit};
use coroner_process::syscall::Errno;
use coroner_process::threads::{Tid, process_id, this_thread, wall_now};

use super::{OURS, is_handler, is_ours};
use crate::crash_context::CrashContext;
use crate::darwin::crash_entry;
use crate::forwarding::Outcome;
use crate::guarded_call;
use crate::ignored_signals;
use crate::installed::Installed;
use crate::previous_handler;
use crate::session::{Next, Reported};

/// The signals by which code that is called before a report can be left: not blocked while it runs.
pub(crate) const NEEDED: u32 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(libc::SIGSYS);

/// The highest number of a signal.
pub(super) const LAST_SIGNAL: i32 = 31;

pub(super) fn take(signal: i32) -> Result<(), Errno> {
    OURS.store(entry as *const () as usize, Ordering::Release);
    let before = SignalAction::of(signal)?;
    // A second life after an uninstall that had to leave the handler in place: what was before is remembered already.
    if !is_handler(before.handler) {
        previous_handler::remember(signal, &before);
    }
    // SAFETY: `entry` is async-signal-safe.
    unsafe { ours(signal).set(signal) }
}

/// Coroner's disposition, of any signal.
pub(super) fn ours(_signal: i32) -> SignalAction {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    SignalAction { handler: OURS.load(Ordering::Acquire), flags, mask: 0 }
}

/// Whether a function would see a fault of that signal, Coroner's own left out: then the process may go on after it.
pub(crate) fn has_handler(signal: i32) -> bool {
    let now = SignalAction::of(signal).unwrap_or_default();
    if is_ours(signal) { previous_handler::of(signal).is_function() } else { now.is_function() }
}

/// Whether the process is certain to die of that signal: it has the default action, Coroner's own left out.
pub(crate) fn kills(signal: i32) -> bool {
    let now = SignalAction::of(signal).ok();
    let now = if is_ours(signal) { Some(previous_handler::of(signal)) } else { now };
    now.is_some_and(|action| action.handler == libc::SIG_DFL)
}

/// The handler.
///
/// # Safety
/// Called by the kernel, or by a handler that chains to this one with what the kernel gave it.
pub(crate) unsafe extern "C" fn entry(_signal: i32, info: *mut SignalInfo, context: *mut libc::c_void) {
    let errno = Errno::last();
    // SAFETY: the kernel's (or the chaining handler's) siginfo and ucontext, alive until this returns.
    let (info, context) = unsafe { (&mut *info, SignalContext::from_pointer(context)) };
    let ids = (process_id(), this_thread());
    if !guarded_call::recover(ids.0, ids.1, context.machine_mut()) {
        super::handle(info, context, &ids);
    }
    errno.restore();
}

/// What became of the exception that a signal of that thread is the rest of; `None` if it is of its own.
pub(super) fn became(installed: &Installed, tid: Tid) -> Option<Reported> {
    installed.platform.passed_on(tid)
}

/// Records the crash.
pub(super) fn record(installed: &Installed, info: &SignalInfo, context: &SignalContext, ids: (i32, Tid)) -> u64 {
    installed.run.state.set_crash(&CrashContext::of_signal(info, context.machine(), ids, wall_now()).record())
}

/// Has the primary thread write the report.
pub(super) fn report(
    installed: &'static Installed,
    info: &SignalInfo,
    context: &SignalContext,
    ids: (i32, Tid),
    _next: Next,
) -> Reported {
    crash_entry::hand_over(installed, &CrashContext::of_signal(info, context.machine(), ids, wall_now()))
}

/// The earlier handler has returned: if the process goes on, the thread's next signal is another death.
pub(super) fn handler_returned(installed: &Installed, (_, tid): (i32, Tid), outcome: Outcome) {
    if outcome == Outcome::Continues {
        installed.platform.goes_on(tid);
    }
}

/// Whether a handler that was asked first, and left the thread where it was, may have repaired the fault: then the instruction is tried
/// again.
pub(super) fn is_dealt_with(_installed: &Installed, info: &SignalInfo, context: &SignalContext, tid: Tid) -> bool {
    info.is_fault() && ignored_signals::try_again(tid, context.machine().pc(), info.address())
}

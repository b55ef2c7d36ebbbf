//! Darwin's part of the signal monitor, for what no exception reports: abort, signals sent by kill
//! or raise, and faults if the exceptions aren't Coroner's.
//!
//! The handler hands its crash over to Coroner's primary thread and waits: it uses little of a
//! stack that may be nearly full, and the report is written like that of an exception. If a signal
//! was made from a reported exception, it is the same death.

use coroner_process::context::{SignalContext, SignalInfo};
use coroner_process::syscall::Errno;
use coroner_process::threads::{Tid, process_id, this_thread, wall_now};

use crate::crash_context::{CrashContext, Next, Reported};
use crate::darwin::crash_entry;
use crate::forwarding::Outcome;
use crate::guarded_call;
use crate::ignored_signals;
use crate::installed::Installed;

/// Returns the handler's address.
pub(super) fn handler() -> usize {
    entry as *const () as usize
}

/// The signal handler.
///
/// # Safety
/// Must be called by the kernel, or by a handler that chains to this one with the kernel's
/// arguments.
pub(crate) unsafe extern "C" fn entry(_signal: i32, info: *mut SignalInfo, context: *mut libc::c_void) {
    let errno = Errno::last();
    // SAFETY: the kernel's (or the chaining handler's) siginfo and ucontext, alive until this
    // returns.
    let (info, context) = unsafe { (&mut *info, SignalContext::from_pointer(context)) };
    let ids = (process_id(), this_thread());
    if !guarded_call::recover(ids.0, ids.1, context.machine_mut()) {
        super::handle(info, context, &ids);
    }
    errno.restore();
}

/// Returns the outcome of the exception that became a signal of that thread; `None` if the signal
/// did not come from an exception.
pub(super) fn became(installed: &Installed, tid: Tid) -> Option<Reported> {
    installed.platform.passed_on(tid)
}

/// Records the crash.
pub(super) fn record(installed: &Installed, info: &SignalInfo, context: &SignalContext, ids: (i32, Tid)) -> u64 {
    installed.run.state.set_crash(&CrashContext::of_signal(info, context.machine(), ids, wall_now()).record())
}

/// Lets the primary thread write the report.
pub(super) fn report(
    installed: &'static Installed,
    info: &SignalInfo,
    context: &SignalContext,
    ids: (i32, Tid),
    _next: Next,
) -> Reported {
    crash_entry::hand_over(installed, &CrashContext::of_signal(info, context.machine(), ids, wall_now()))
}

/// Notes that the earlier handler has returned: if the process continues, the thread's next signal
/// is another death.
pub(super) fn handler_returned(installed: &Installed, (_, tid): (i32, Tid), _number: u64, outcome: Outcome) {
    if outcome == Outcome::Continues {
        installed.platform.goes_on(tid);
    }
}

/// Returns `true` if a handler that ran first, and left the thread where it was, may have repaired
/// the fault: then the instruction is retried.
pub(super) fn is_dealt_with(_installed: &Installed, info: &SignalInfo, context: &SignalContext, tid: Tid) -> bool {
    info.is_fault() && ignored_signals::try_again(tid, context.machine().pc(), info.address())
}

/// Returns `false`: the kernel doesn't distinguish signals to the process and to a thread.
pub(super) fn is_sent_to_process(_info: &SignalInfo) -> bool {
    false
}

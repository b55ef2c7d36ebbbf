//! Darwin's part of the signal monitor, for what no exception reports: abort and what is sent by kill or raise, and faults where the
//! exceptions are not Coroner's.
//!
//! The handler hands its crash over to Coroner's primary thread and waits: it uses little of a stack that may be nearly full,
//! and the report is written as that of an exception. A signal that an exception became which was reported is the same death.

use coroner_process::context::{SignalContext, SignalInfo};
use coroner_process::syscall::Errno;
use coroner_process::threads::{Tid, process_id, this_thread, wall_now};

use crate::crash_context::{CrashContext, Next, Reported};
use crate::darwin::crash_entry;
use crate::forwarding::Outcome;
use crate::guarded_call;
use crate::ignored_signals;
use crate::installed::Installed;

/// The handler's address.
pub(super) fn handler() -> usize {
    entry as *const () as usize
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

//! Guarded call of code that is not crash-time code: a fault in it, an abort or a timeout ends the
//! call, not the process.
//!
//! Used to call the app's description of its own death before a report is written (`what()` of a
//! C++ exception). One call at a time. Frames that are left are dropped without running their
//! destructors, so the process should be dying.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use coroner_process::context::Context;
use coroner_process::deadline::Deadline;
use coroner_process::guarded_run::{self, Point};
use coroner_process::threads::{Tid, process_id, this_thread};

use crate::report_lock::thread_word;
use crate::taken_signals::CRASH_PATH_SIGNALS;
use coroner_process::signals::{block_exactly, blocked};

/// The only call that can be in progress.
struct Call {
    /// [`thread_word`] of the thread that is inside it; 0 for none.
    thread: AtomicU64,
    /// Point at which the call is left.
    point: Point,
}

static CALL: Call = Call { thread: AtomicU64::new(0), point: Point::new() };

/// Return value of a call that was left.
const LEFT: u64 = 1;

/// Calls `function(argument)`, for at most `timeout_ms` milliseconds. Returns `false` if the call
/// did not complete, or if another call is in progress.
///
/// # Safety
/// `function(argument)` must be sound to call, except for what a broken object may make of it.
/// Nothing in its frames may matter, if they are dropped, to a process that dies.
pub unsafe fn run(function: guarded_run::Function, argument: *mut c_void, timeout_ms: u32) -> bool {
    let me = thread_word(process_id(), this_thread());
    if CALL.thread.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return false;
    }
    let mask = blocked();
    block_exactly(mask & !CRASH_PATH_SIGNALS);
    let timer = Deadline::start(this_thread(), timeout_ms);
    // SAFETY: the point is this thread's; the rest by the contract.
    let code = unsafe { guarded_run::run(&raw const CALL.point, function, argument) };
    if let Ok(timer) = timer {
        timer.stop();
    }
    block_exactly(mask);
    CALL.thread.store(0, Ordering::Release);
    code == 0
}

/// Leaves the call that the calling thread is inside, for code in it that must not return. Returns
/// if the thread is inside none.
pub fn leave() {
    if CALL.thread.load(Ordering::Acquire) == thread_word(process_id(), this_thread()) {
        // SAFETY: this thread is inside the run, or just before or after it, which the point knows.
        unsafe { CALL.point.leave(LEFT) };
    }
}

/// Leaves the call that the thread is inside, if any, after a crash signal or the deadline's
/// signal. Crash path: atomics and the thread's own context.
pub(crate) fn recover(pid: i32, tid: Tid, context: &mut Context) -> bool {
    let thread = thread_word(pid, tid);
    // SAFETY: as in `leave`; the thread stands still in its handler.
    CALL.thread.load(Ordering::Acquire) == thread && unsafe { CALL.point.recover(context, LEFT) }
}

//! A guarded call of code that is not crash-time code: a fault in it, an abort or a timeout ends the call, and not the process.
//!
//! For what the app says of its own death before a report is written (`what()` of a C++ exception). One call at a time; frames that
//! are left are dropped without running their destructors, so the process should be one that dies.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use coroner_process::context::Context;
use coroner_process::deadline::Deadline;
use coroner_process::guarded_run::{self, Point};
use coroner_process::threads::{Tid, process_id, this_thread};

use crate::report_lock::thread_word;
use crate::taken_signals::CRASH_PATH_SIGNALS;
use coroner_process::signals::{block_exactly, blocked};

/// The one call that can be under way.
struct Call {
    /// The thread that is inside it, as [`thread_word`] says; 0 for none.
    thread: AtomicU64,
    /// Where the call is left.
    point: Point,
}

static CALL: Call = Call { thread: AtomicU64::new(0), point: Point::new() };

/// What a call returns that was left.
const LEFT: u64 = 1;

/// Calls `function(argument)`, for at most `timeout_ms` milliseconds. False if it did not come to its end, or if another call is
/// under way.
///
/// # Safety
/// `function(argument)` is sound to call but for what a broken object may make of it. Nothing in its frames, if they are dropped,
/// matters to a process that dies.
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

/// Leaves the call that the calling thread is inside: for code in it that must not return. Returns if it is inside none.
pub fn leave() {
    if CALL.thread.load(Ordering::Acquire) == thread_word(process_id(), this_thread()) {
        // SAFETY: this thread is inside the run, or just before or behind it, which the point knows.
        unsafe { CALL.point.leave(LEFT) };
    }
}

/// A crash signal came, or the deadline's: if the thread is inside a call, that is left. Crash path: atomics and the thread's own
/// context.
pub(crate) fn recover(pid: i32, tid: Tid, context: &mut Context) -> bool {
    let thread = thread_word(pid, tid);
    // SAFETY: as in `leave`; the thread stands still in its handler.
    CALL.thread.load(Ordering::Acquire) == thread && unsafe { CALL.point.recover(context, LEFT) }
}

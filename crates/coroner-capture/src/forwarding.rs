//! Handlers that were there before Coroner: giving a signal to them, and knowing that one of them runs.

use core::sync::atomic::{AtomicU64, Ordering};

use coroner_machine::context::SignalInfo;
use coroner_machine::threads::Tid;

use crate::os::action::Action;
use crate::os::previous::{self, SignalContext};

/// Whether a signal would have been ignored: the app or its parent chose `SIG_IGN`, and no fault of this thread raised it
/// (the kernel does not let a fault be ignored).
pub(crate) fn ignores(info: &SignalInfo) -> bool {
    previous::of(info.signo).handler == libc::SIG_IGN && !info.is_fault()
}

/// What is left to do when the handlers have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The signal was ignored, or its handler dealt with it: the thread goes on.
    GoesOn,
    /// The process dies when the handler returns.
    Dies,
}

/// Gives the signal to whoever had it before: the function is called, `SIG_IGN` ignores, `SIG_DFL` ends the process with
/// that very signal once Coroner's handler returns. `called`: the function has run already (`chain_first`).
///
/// # Safety
/// As for [`previous::call`].
pub(crate) unsafe fn forward(info: &mut SignalInfo, context: &mut SignalContext, called: bool) -> Outcome {
    let signal = info.signo;
    if ignores(info) {
        return Outcome::GoesOn;
    }
    let ours = Action::of(signal).unwrap_or_default();
    // SAFETY: passed on.
    if !called && unsafe { previous::call(info, context) } {
        // A handler that took itself out and returned means "and now the default": Rust's standard library does so, and
        // counts on the fault coming again. A signal that was sent does not come again.
        let now = Action::of(signal).unwrap_or_default();
        if now == ours || now.handler != libc::SIG_DFL {
            return Outcome::GoesOn;
        }
    } else if !called && previous::of(signal).is_function() {
        return Outcome::GoesOn;
    }
    previous::die(info, context);
    Outcome::Dies
}

/// A previous handler that is running on behalf of a report that is already written: what it raises (it may call abort)
/// is the same death.
///
/// Such a handler may leave by `siglongjmp` and never return here. It is known by its stack: it runs below the frame of
/// Coroner's handler, at most [`Forwarding::REACH`] bytes; a thread that has left it is above.
#[derive(Debug)]
pub(crate) struct Forwarding {
    /// The thread, 0 for none.
    tid: AtomicU64,
    /// The address of the signal's siginfo, above all that the handler uses.
    frame: AtomicU64,
}

impl Forwarding {
    /// More than any handler uses of its stack, less than lies between two threads' stacks.
    const REACH: u64 = 256 << 10;

    pub(crate) const fn new() -> Self {
        Forwarding { tid: AtomicU64::new(0), frame: AtomicU64::new(0) }
    }

    /// A handler begins on thread `tid`, below `frame`; answers what [`Forwarding::end`] needs.
    pub(crate) fn begin(&self, tid: Tid, frame: u64) -> (u64, u64) {
        (self.tid.swap(tid as u64, Ordering::AcqRel), self.frame.swap(frame, Ordering::AcqRel))
    }

    /// It has returned.
    pub(crate) fn end(&self, before: (u64, u64)) {
        self.frame.store(before.1, Ordering::Release);
        self.tid.store(before.0, Ordering::Release);
    }

    /// Whether the thread, interrupted at stack pointer `sp`, was inside that handler.
    pub(crate) fn is_by(&self, tid: Tid, sp: u64) -> bool {
        let frame = self.frame.load(Ordering::Acquire);
        self.tid.load(Ordering::Acquire) == tid as u64 && sp < frame && frame - sp < Self::REACH
    }
}

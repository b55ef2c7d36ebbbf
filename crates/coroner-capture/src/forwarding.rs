//! Handlers that were there before Coroner, while they run.

use core::sync::atomic::{AtomicU64, Ordering};

use coroner_machine::threads::Tid;

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

//! What crash time needs on Linux besides what all systems have: the latch, the rendezvous, the tracer, stacks.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use coroner_machine::rendezvous::{Rendezvous, Round};
use coroner_machine::stack::Stack;
use coroner_machine::threads::TaskDirectory;
use coroner_machine::tracer::Tracer;

use super::deadline::Deadline;
use super::latch::Latch;
use crate::forwarding::Forwarding;

/// See the module.
pub(crate) struct Machinery {
    pub latch: Latch,
    pub forwarding: Forwarding,
    pub rendezvous: Rendezvous,
    pub tasks: TaskDirectory,
    pub tracer: Tracer,
    /// The owner of the latch is writing a report: what happens on its thread is the crash path's own.
    pub writing: AtomicBool,
    /// The owner has written its report and holds the latch and the other threads while the signal is passed on.
    pub holding: AtomicBool,
    /// The timer that ends the holding, as a number; 0 for none.
    pub patience: AtomicU64,
    /// The other threads, while they are held; the owner alone touches it.
    pub held: UnsafeCell<Option<Round<'static>>>,
    /// Where the report is written.
    pub stack: Stack,
    /// Where faults of the crash path itself are handled.
    pub fault_stack: Stack,
}

impl Machinery {
    /// Whether this thread is writing a report.
    pub(crate) fn is_writing(&self, pid: i32, tid: i32) -> bool {
        self.latch.is_mine(pid, tid) && self.writing.load(Ordering::Acquire)
    }

    /// Ends the timer of an earlier handler's patience, if it runs.
    pub(crate) fn stop_patience(&self) {
        if let Some(timer) = Deadline::from_number(self.patience.swap(0, Ordering::AcqRel)) {
            timer.stop();
        }
    }
}

//! Earlier handlers that are running, and what they were called for.

use core::sync::atomic::{AtomicU64, Ordering};

use coroner_process::signals::{bit, blocked};
use coroner_process::threads::Tid;

use crate::previous_handler::MARKER;

/// Earlier handlers that are running: of a crash whose report is written, where what they raise (one may call abort) is the same
/// death, and of one that they are asked about first, whose report is written if they end the process.
///
/// Such a handler may leave by `siglongjmp` and never return here. A thread is inside it if it is the one that called it, runs
/// below the frame of Coroner's handler, at most [`RunningHandlers::REACH`] bytes, and blocks [`MARKER`]: a jump restores the mask
/// from before.
#[derive(Debug)]
pub(crate) struct RunningHandlers {
    handlers: [RunningHandler; HANDLERS],
    next: AtomicU64,
}

/// Threads whose handlers may run at once and be known.
const HANDLERS: usize = 32;

#[derive(Debug)]
struct RunningHandler {
    /// The thread, 0 for none.
    tid: AtomicU64,
    /// See [`HandledCrash`].
    frame: AtomicU64,
    stack: AtomicU64,
    context: AtomicU64,
    number: AtomicU64,
}

/// The crash that an earlier handler is called for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HandledCrash {
    /// The address of the signal's siginfo, above all that the handler uses.
    pub frame: u64,
    /// An address in the frame of Coroner's handler: what the handler that it calls uses lies below. 0 if the signal is none of its.
    pub stack: u64,
    /// The address of its context as long as there is no report of it, else 0.
    pub context: u64,
    /// The number of its crash record, 0 for none.
    pub number: u64,
}

impl RunningHandler {
    fn set(&self, crash: &HandledCrash) {
        self.context.store(crash.context, Ordering::Relaxed);
        self.number.store(crash.number, Ordering::Relaxed);
        self.stack.store(crash.stack, Ordering::Relaxed);
        self.frame.store(crash.frame, Ordering::Release);
    }

    fn crash(&self) -> HandledCrash {
        HandledCrash {
            frame: self.frame.load(Ordering::Acquire),
            stack: self.stack.load(Ordering::Relaxed),
            context: self.context.load(Ordering::Relaxed),
            number: self.number.load(Ordering::Relaxed),
        }
    }

    fn holds(&self, sp: u64, mask: u64) -> bool {
        let frame = self.frame.load(Ordering::Acquire);
        sp < frame && frame - sp < RunningHandlers::REACH && mask & u64::from(bit(MARKER)) != 0
    }
}

impl RunningHandlers {
    /// More than any handler uses of its stack, less than lies between two threads' stacks.
    const REACH: u64 = 256 << 10;

    pub(crate) const fn new() -> Self {
        #[allow(clippy::declare_interior_mutable_const, reason = "each use of it is a handler of its own")]
        const NONE: RunningHandler = RunningHandler {
            tid: AtomicU64::new(0),
            frame: AtomicU64::new(0),
            stack: AtomicU64::new(0),
            context: AtomicU64::new(0),
            number: AtomicU64::new(0),
        };
        RunningHandlers { handlers: [NONE; HANDLERS], next: AtomicU64::new(0) }
    }

    fn of_thread(&self, tid: Tid) -> Option<&RunningHandler> {
        self.handlers.iter().find(|handler| handler.tid.load(Ordering::Acquire) == tid as u64)
    }

    /// Whether a handler of any thread may be running.
    pub(crate) fn is_any(&self) -> bool {
        self.handlers.iter().any(|handler| handler.tid.load(Ordering::Acquire) != 0)
    }

    /// A handler begins on thread `tid` for that crash; returns the one that it interrupts, for [`RunningHandlers::end`].
    pub(crate) fn begin(&self, tid: Tid, crash: &HandledCrash) -> HandledCrash {
        if let Some(handler) = self.of_thread(tid) {
            let before = handler.crash();
            handler.set(crash);
            return before;
        }
        let free = self
            .handlers
            .iter()
            .find(|handler| handler.tid.compare_exchange(0, tid as u64, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        // All taken: by handlers that were left, most likely. The oldest goes.
        let oldest = || self.handlers.get(self.next.fetch_add(1, Ordering::Relaxed) as usize % HANDLERS);
        if let Some(handler) = free.or_else(oldest) {
            handler.tid.store(tid as u64, Ordering::Release);
            handler.set(crash);
        }
        HandledCrash::default()
    }

    /// It has returned. What it was called for, as it is now.
    pub(crate) fn end(&self, tid: Tid, before: &HandledCrash) -> HandledCrash {
        let Some(handler) = self.of_thread(tid) else { return HandledCrash::default() };
        let ended = handler.crash();
        handler.set(before);
        if before.frame == 0 {
            handler.tid.store(0, Ordering::Release);
        }
        ended
    }

    /// What the handler was called for that the thread, interrupted at stack pointer `sp` with `mask` blocked, was inside of.
    pub(crate) fn is_by(&self, tid: Tid, sp: u64, mask: u64) -> Option<HandledCrash> {
        self.of_thread(tid).filter(|handler| handler.holds(sp, mask)).map(RunningHandler::crash)
    }

    /// Whether the thread's running handler passes the signal that it was called for, whose siginfo is at `frame`, on to Coroner's handler, of
    /// whose frame `stack` is an address: the context is then of where the crash was, and says nothing of the handler.
    ///
    /// A new signal, after the handler left by a jump, may have its siginfo at the same place, and block [`MARKER`] (bionic's `abort`
    /// blocks all), but it does not run below the frame from which the handler was called.
    pub(crate) fn is_passed_on(&self, tid: Tid, frame: u64, stack: u64) -> bool {
        self.of_thread(tid).map(RunningHandler::crash).is_some_and(|crash| crash.frame == frame && stack < crash.stack)
            && u64::from(blocked()) & u64::from(bit(MARKER)) != 0
    }

    /// There is a report now of the crash that the thread's handler was asked about first.
    pub(crate) fn note_reported(&self, tid: Tid) {
        if let Some(handler) = self.of_thread(tid) {
            handler.context.store(0, Ordering::Relaxed);
        }
    }

    /// The number of the record of a crash whose handler the thread has left by a jump; 0 for none. It is forgotten.
    pub(crate) fn take_left(&self, tid: Tid, sp: u64, mask: u64) -> u64 {
        let Some(handler) = self.of_thread(tid).filter(|handler| !handler.holds(sp, mask)) else { return 0 };
        let number = handler.number.swap(0, Ordering::Relaxed);
        handler.tid.store(0, Ordering::Release);
        number
    }
}

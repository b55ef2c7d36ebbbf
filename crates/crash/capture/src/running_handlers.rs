//! Earlier handlers that are running, and the crashes that they were called for.

use core::sync::atomic::{AtomicU64, Ordering};

use coroner_process::process::is_alive;
use coroner_process::signals::{bit, blocked};
use coroner_process::threads::Tid;

use crate::previous_handler::MARKER;

/// Table of running earlier handlers. If a handler was called after the crash's report, whatever it
/// raises (it may call abort) is the same death. If a handler is called before the report, the
/// report is written if the handler ends the process.
///
/// Such a handler may leave by `siglongjmp` and never return here. A thread is inside a handler if
/// it is the thread that called it, runs below the frame of Coroner's handler, by at most
/// [`RunningHandlers::REACH`] bytes, and blocks [`MARKER`]: a jump restores the mask from before.
#[derive(Debug)]
pub(crate) struct RunningHandlers {
    handlers: [RunningHandler; HANDLERS],
    next: AtomicU64,
}

/// Maximum number of threads whose running handlers are tracked.
const HANDLERS: usize = 32;

#[derive(Debug)]
struct RunningHandler {
    /// Thread ID; 0 for none.
    tid: AtomicU64,
    /// The following fields are those of [`HandledCrash`].
    frame: AtomicU64,
    stack: AtomicU64,
    context: AtomicU64,
    number: AtomicU64,
}

/// The crash that an earlier handler is called for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HandledCrash {
    /// Address of the signal's siginfo, above everything that the handler uses.
    pub frame: u64,
    /// An address in the frame of Coroner's handler: the handlers that it calls use the stack below
    /// it. 0 if Coroner's handler did not receive the signal.
    pub stack: u64,
    /// Address of the signal's context while there is no report of the crash, otherwise 0.
    pub context: u64,
    /// Number of the crash record, 0 for none.
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
    /// Number of bytes of stack that a handler may use: more than alternate stacks have.
    const REACH: u64 = 2 << 20;

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

    /// Returns `true` if a handler of any thread may be running.
    pub(crate) fn is_any(&self) -> bool {
        self.handlers.iter().any(|handler| handler.tid.load(Ordering::Acquire) != 0)
    }

    /// Returns `true` if a handler of a thread that lives may be running for a reported crash.
    pub(crate) fn is_any_reported(&self, pid: i32) -> bool {
        self.handlers.iter().any(|handler| {
            let tid = handler.tid.load(Ordering::Acquire);
            tid != 0 && handler.context.load(Ordering::Relaxed) == 0 && is_alive(pid, tid as Tid)
        })
    }

    /// Notes that a handler starts on thread `tid` for `crash`. Returns the crash of the handler
    /// that it interrupts, for [`RunningHandlers::end`].
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
        // All are taken: most likely by handlers that were left. The oldest is replaced.
        let oldest = || self.handlers.get(self.next.fetch_add(1, Ordering::Relaxed) as usize % HANDLERS);
        if let Some(handler) = free.or_else(oldest) {
            handler.tid.store(tid as u64, Ordering::Release);
            handler.set(crash);
        }
        HandledCrash::default()
    }

    /// Notes that the handler has returned. Returns the crash that it was called for, in its
    /// current state.
    pub(crate) fn end(&self, tid: Tid, before: &HandledCrash) -> HandledCrash {
        let Some(handler) = self.of_thread(tid) else { return HandledCrash::default() };
        let ended = handler.crash();
        handler.set(before);
        if before.frame == 0 {
            handler.tid.store(0, Ordering::Release);
        }
        ended
    }

    /// Returns the crash whose handler the thread was inside when it was interrupted at stack
    /// pointer `sp` with `mask` blocked.
    pub(crate) fn is_by(&self, tid: Tid, sp: u64, mask: u64) -> Option<HandledCrash> {
        self.of_thread(tid).filter(|handler| handler.holds(sp, mask)).map(RunningHandler::crash)
    }

    /// Returns `true` if the thread's running handler passes the signal that it was called for,
    /// whose siginfo is at `frame`, on to Coroner's handler, in whose frame `stack` is an address.
    /// The context then shows where the crash was, and nothing about the handler.
    ///
    /// A new signal, after the handler left by a jump, may have its siginfo at the same place, and
    /// block [`MARKER`] (bionic's `abort` blocks all), but it does not run below the frame from
    /// which the handler was called.
    pub(crate) fn is_passed_on(&self, tid: Tid, frame: u64, stack: u64) -> bool {
        self.of_thread(tid).map(RunningHandler::crash).is_some_and(|crash| crash.frame == frame && stack < crash.stack)
            && u64::from(blocked()) & u64::from(bit(MARKER)) != 0
    }

    /// Notes that there is now a report of the crash that the thread's handler was called for
    /// first.
    pub(crate) fn note_reported(&self, tid: Tid) {
        if let Some(handler) = self.of_thread(tid) {
            handler.context.store(0, Ordering::Relaxed);
        }
    }

    /// Removes the crash whose handler the thread has left by a jump, and returns its record's
    /// number; 0 for none.
    pub(crate) fn take_left(&self, tid: Tid, sp: u64, mask: u64) -> u64 {
        let Some(handler) = self.of_thread(tid).filter(|handler| !handler.holds(sp, mask)) else { return 0 };
        let number = handler.number.swap(0, Ordering::Relaxed);
        handler.tid.store(0, Ordering::Release);
        number
    }
}

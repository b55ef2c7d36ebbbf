//! What the monitors of language exceptions have in common: an exception on its way into a report.
//!
//! Such a death is noticed in normal life: the runtime of the language calls its last resort (a terminate handler, a panic
//! hook). What the exception says of itself is read then, before any thread is stopped. The report is written at once, and not
//! when a signal follows, since none may: a terminate handler that was there before may end the process as it likes. If it
//! aborts, that SIGABRT is the same death and passed on without a second report.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use coroner_machine::registers::Registers;
use coroner_machine::threads::{Tid, process_id, this_thread};
use coroner_report::wire::{Exception, Monitor};

use crate::os::report::enter_uncaught;
use crate::{global, monitor};

/// What becomes of the process after the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It dies of the exception.
    Fatal,
    /// It dies of the exception, which was reported as fatal already on this thread and has grown worse: the new report takes
    /// the place of the first.
    FatalAgain,
    /// It goes on.
    GoesOn,
}

/// An exception for a report: what [`crate::pipeline`] needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncaught<'a> {
    pub monitor: Monitor,
    /// The one that nobody caught, then what caused it.
    pub exceptions: &'a [Exception<'a>],
    pub ending: Ending,
}

/// The process and thread that dies of an exception which is reported already, as one word; 0 for none.
static DYING: AtomicU64 = AtomicU64::new(0);

/// The process whose end by an exception is reported; 0 for none.
static REPORTED: AtomicI32 = AtomicI32::new(0);

/// A thread and its process in one word, which no other thread has: no system has process ids beyond 24 bits, and none hands
/// out 2^40 thread ids.
pub(crate) fn word(pid: i32, tid: Tid) -> u64 {
    u64::from(pid as u32) << 40 | tid as u64
}

/// Whether a report says that this process dies of an exception: that it then ends by `exit`, as after a panic of `main`, is
/// no clean exit.
pub fn is_reported_as_fatal() -> bool {
    REPORTED.load(Ordering::Acquire) == process_id()
}

/// Whether the thread is dying of an exception that is reported: a crash signal of it is the same death.
pub(crate) fn is_dying(pid: i32, tid: Tid) -> bool {
    DYING.load(Ordering::Acquire) == word(pid, tid)
}

/// Reports that exceptions which the process survives may make in one run: they must not take the place of a crash's.
const MOST_SURVIVED: u32 = 16;

static SURVIVED: AtomicU32 = AtomicU32::new(0);

/// A run begins (normal life).
pub(crate) fn begin_run() {
    DYING.store(0, Ordering::Release);
    SURVIVED.store(0, Ordering::Release);
    REPORTED.store(0, Ordering::Release);
}

/// Writes a report of the calling thread's exception: `registers` are those of the place from which its stack is to be
/// walked, such as [`crate::live::here`] gives; the stacks of the throws are in the exceptions. The first of these is the one
/// that the report is about, the others are what caused it.
///
/// Normal life: it may be called anywhere but in a signal handler. Other threads are stopped while it writes.
///
/// False where there is no report of it: Coroner is not installed, the process is a child made by fork that is to stay silent,
/// sixteen exceptions were reported already that this run survived, or the report can't be written.
pub fn report(registers: &Registers, monitor: Monitor, exceptions: &[Exception<'_>], ending: Ending) -> bool {
    let Some(global) = global::get() else { return false };
    let (pid, tid) = (process_id(), this_thread());
    if exceptions.is_empty() || (is_dying(pid, tid) && ending != Ending::FatalAgain) || monitor::signal::is_dying(pid) {
        return false;
    }
    if ending == Ending::GoesOn && SURVIVED.fetch_add(1, Ordering::AcqRel) >= MOST_SURVIVED {
        return false;
    }
    let uncaught = Uncaught { monitor, exceptions, ending };
    let reported = enter_uncaught(global, registers, (pid, tid), &uncaught);
    if reported && ending != Ending::GoesOn {
        REPORTED.store(pid, Ordering::Release);
    }
    reported
}

/// From now on crash signals of the calling thread are the death that was reported last: it is certain to end the process.
pub fn dies() {
    DYING.store(word(process_id(), this_thread()), Ordering::Release);
}

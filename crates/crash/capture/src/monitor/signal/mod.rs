//! The signal monitor: handlers of the crash signals, and of those that end a process by default.
//!
//! # What the handler does, in this order
//! 1. What is no crash is recovered: a fault of a guarded load, of the crash path itself, of a lost page of the run state.
//! 2. What is not Coroner's is passed on: a signal that the app ignores, that a thread asked to have ignored, a child's
//!    where children are to stay silent, one that is no crash after it has been noted ([`ending`]).
//! 3. Handlers that are to come first ([`crate::asked_first`]) are asked; if they move the thread or repair the fault, that is the
//!    end of it.
//! 4. The report is written: on Linux by the handler itself, on Darwin by the primary thread, which has it handed over.
//! 5. The signal goes to whoever had it before ([`crate::forwarding::forward`]).

#[cfg(target_vendor = "apple")]
mod darwin;
mod ending;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;

use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use coroner_process::context::SignalInfo;
use coroner_process::signal_set::SignalSet;
use coroner_process::signals::{SignalAction, bit, block_exactly, blocked};
use coroner_process::syscall::Errno;
use coroner_process::threads::{Tid, process_id};

#[cfg(target_vendor = "apple")]
use darwin as system;
#[cfg(target_vendor = "apple")]
pub(crate) use darwin::*;
#[cfg(any(target_os = "linux", target_os = "android"))]
use linux as system;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::*;

use crate::ForkPolicy;
use crate::asked_first::{self, Fault};
use crate::forwarding::{self, Asked, Crash, Outcome};
use crate::ignored_signals;
use crate::installed::{self, Installed};
use crate::monitor::exception;
use crate::previous_handler::{self, SignalContext};
use crate::report_lock::REPORT_LOCK;
use crate::session::{Next, Reported};

/// Coroner's handler as the kernel holds it; 0 before the first install.
static OURS: AtomicUsize = AtomicUsize::new(0);

/// The signals whose handler is Coroner's, as the kernel's set; 0 after an uninstall.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The process that has given its signals back because it is dying; 0 for none. By process, since a child made by vfork
/// that dies shares this memory with a parent that lives.
static DYING: AtomicI32 = AtomicI32::new(0);

/// What a handler that was asked first made of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It dealt with the signal: it moved the thread, or returned as from a signal that does not come again by itself, or from a fault
    /// that it has repaired, whose instruction is to be tried again.
    Handled,
    /// It did not.
    Refused,
    /// It did not, and had a crash itself, by which there is a report of this one.
    Reported,
}

/// Takes the signals (not async-signal-safe). What was there before is remembered.
///
/// # Errors
/// The signal of a crash that the system did not give, with its reason; those taken before it are given back.
pub(crate) fn install(signals: SignalSet, endings: SignalSet) -> Result<(), (i32, Errno)> {
    for number in 1..=system::LAST_SIGNAL {
        let is_crash = signals.contains(number);
        if !(is_crash || endings.contains(number)) || number == libc::SIGKILL || number == libc::SIGSTOP {
            continue;
        }
        // Rust's start ignores SIGPIPE: it would be put back at once.
        let is_ignored = || SignalAction::of(number).is_ok_and(|now| now.handler == libc::SIG_IGN);
        if number == libc::SIGPIPE && !is_crash && is_ignored() {
            continue;
        }
        if let Err(errno) = system::take(number) {
            if !is_crash {
                continue;
            }
            uninstall();
            return Err((number, errno));
        }
        let before = previous_handler::of(number);
        if !is_crash && number != libc::SIGTERM && before.handler != libc::SIG_DFL {
            // It is no end of the process: somebody deals with it, or ignores it.
            // SAFETY: the app had installed it.
            let _ = unsafe { before.set(number) };
            continue;
        }
        TAKEN.fetch_or(bit(number).into(), Ordering::AcqRel);
    }
    DYING.store(0, Ordering::Release);
    Ok(())
}

/// Puts the earlier dispositions back (crash path too): after a report the process dies by rules that were there before.
pub(crate) fn give_back() {
    DYING.store(process_id(), Ordering::Release);
    for number in 1..=system::LAST_SIGNAL {
        // Of the deadline, too.
        if (is_taken(number) || number == libc::SIGSYS) && is_ours(number) {
            // SAFETY: the app had installed it.
            let _ = unsafe { previous_handler::of(number).set(number) };
        }
    }
}

/// Whether that is Coroner's handler, as the kernel has it.
pub(crate) fn is_handler(handler: usize) -> bool {
    handler == OURS.load(Ordering::Acquire)
}

/// Whether the kernel calls Coroner's handler for a signal.
pub(crate) fn is_ours(signal: i32) -> bool {
    SignalAction::of(signal).is_ok_and(|now| now.handler != 0 && is_handler(now.handler))
}

/// Takes a signal from who has put a handler over Coroner's (not async-signal-safe).
pub(crate) fn take_back(signal: i32) {
    // SAFETY: the handler is Coroner's own.
    let _ = unsafe { system::ours(signal).set(signal) };
}

/// Gives every signal back whose handler is still Coroner's. Where another handler came later and may chain to Coroner's,
/// that one stays, and Coroner's passes everything on.
pub(crate) fn uninstall() {
    give_back();
    DYING.store(0, Ordering::Release);
    TAKEN.store(0, Ordering::Release);
}

/// Whether Coroner took that signal.
pub(crate) fn is_taken(signal: i32) -> bool {
    TAKEN.load(Ordering::Acquire) & u64::from(bit(signal)) != 0
}

/// Whether the process has given its signals back because it is dying.
pub(crate) fn is_dying(pid: i32) -> bool {
    DYING.load(Ordering::Acquire) == pid
}

/// A signal came, other than one that the system's part has recovered. `ids` lie in the frame of Coroner's handler.
fn handle(info: &mut SignalInfo, context: &mut SignalContext, ids: &(i32, Tid)) {
    let (pid, tid) = *ids;
    if forwarding::ignores(info) {
        return;
    }
    let Some(installed) = installed::get() else {
        // SAFETY: this thread is handling that signal.
        unsafe { forwarding::forward(info, context, false, Asked::Latest) };
        return;
    };
    let is_wanted = installed.options.signals.contains(info.signo);
    if !is_wanted && !ending::note(installed, info, pid) {
        return;
    }
    if is_wanted && let Some(reported) = system::became(installed, tid) {
        return pass_on(installed, info, context, ids, (reported, 0), false);
    }
    let forwarding = &installed.platform.forwarding;
    let (sp, mask) = if forwarding.is_passed_on(tid, info, core::ptr::from_ref(ids) as u64) {
        (core::ptr::from_ref(info) as u64 - 1, blocked().into())
    } else {
        (context.machine().sp(), context.signal_mask().into())
    };
    // A handler of this thread that never returned has left by a jump: that crash was none. Most often there is none, and nothing is
    // called up to the crash record whose address is in a table, see `crash_entry::record`.
    let left = forwarding.take_left(tid, sp, mask);
    if left != 0 {
        installed.run.state.set_crash_not_fatal(left);
    }
    let running = forwarding.is_by(tid, sp, mask);
    let has_handler = previous_handler::of(info.signo).is_function();
    // On Darwin a child made by fork has none of Coroner's threads: it dies as it would have.
    let leaves_children = cfg!(target_vendor = "apple") || installed.options.fork == ForkPolicy::Silent;
    if !is_wanted
        || ignored_signals::take_ignored(tid, info.signo)
        || (pid != installed.run.pid && leaves_children)
        || is_dying(pid)
        || exception::is_dying(pid, tid)
    {
        // SAFETY: as above.
        unsafe { forwarding::forward(info, context, false, Asked::Latest) };
        return;
    }
    if let Some(crash) = running {
        let chains = core::ptr::from_ref(info) as u64 == crash.frame;
        let asked = if chains { Asked::Original } else { Asked::Latest };
        if !(chains || has_handler && is_asked_first(installed, info, context)) {
            report_unfinished(installed, &crash, *ids);
        }
        // SAFETY: as above.
        unsafe { forwarding::forward(info, context, false, asked) };
        return;
    }
    // Before anything is asked or looked up: in a program whose image is overwritten that may be as far as it comes. A crash that is
    // being reported is that of which the process dies: its record stays.
    let records = has_handler && !REPORT_LOCK.is_busy(pid);
    let number = if records { system::record(installed, info, context, *ids) } else { 0 };
    let first = has_handler && is_asked_first(installed, info, context);
    // SAFETY: as above.
    let answer = if first { unsafe { ask(installed, info, context, ids, number) } } else { Answer::Refused };
    let reported = match answer {
        Answer::Handled => return,
        Answer::Reported => Reported::Elsewhere,
        Answer::Refused => {
            let next = if has_handler && !first { Next::AsksHandler } else { Next::Dies };
            system::report(installed, info, context, *ids, next)
        }
    };
    pass_on(installed, info, context, ids, (reported, number), first);
}

/// Gives the signal to whoever had it before: what that one raises on this thread is the same death. `number` is that of the crash record
/// from before the report, 0 for none. `called`: it was asked already. `ids` as in [`handle`].
fn pass_on(
    installed: &'static Installed,
    info: &mut SignalInfo,
    context: &mut SignalContext,
    ids: &(i32, Tid),
    (reported, number): (Reported, u64),
    called: bool,
) {
    // Where another thread's report has this crash, the record from before is all there is of its own.
    let number = if let Reported::Here(later) = reported { later } else { number };
    let (frame, stack) = (core::ptr::from_ref(info) as u64, core::ptr::from_ref(ids) as u64);
    let forwarding = &installed.platform.forwarding;
    let before = forwarding.begin(ids.1, &Crash { frame, stack, context: 0, number });
    // SAFETY: this thread is handling that signal.
    let outcome = unsafe { forwarding::forward(info, context, called, Asked::Latest) };
    forwarding.end(ids.1, &before);
    if outcome == Outcome::Continues {
        installed.run.state.set_crash_not_fatal(number);
    }
    system::handler_returned(installed, *ids, outcome);
}

/// As [`asked_first::is_asked_first`].
fn is_asked_first(installed: &Installed, info: &SignalInfo, context: &SignalContext) -> bool {
    // A list of images that is damaged is read by loads whose faults come to this handler.
    let before = block_exactly(blocked() & !(bit(libc::SIGSEGV) | bit(libc::SIGBUS)));
    let fault = Fault::of(info, context.machine().pc(), context.machine().sp());
    let first = asked_first::is_asked_first(installed, &fault, previous_handler::known(info.signo));
    block_exactly(before);
    first
}

/// Asks the handler that was there before. The crash has a record, of that number, meanwhile: the handler may end the process. `ids` as
/// in [`handle`].
///
/// # Safety
/// This thread is handling that signal.
unsafe fn ask(
    installed: &'static Installed,
    info: &mut SignalInfo,
    context: &mut SignalContext,
    ids: &(i32, Tid),
    number: u64,
) -> Answer {
    let (stack, tid) = (core::ptr::from_ref(ids) as u64, ids.1);
    let (pc, sp) = (context.machine().pc(), context.machine().sp());
    let ours = SignalAction::of(info.signo).unwrap_or_default();
    let (frame, at) = (core::ptr::from_ref(info) as u64, core::ptr::from_ref(context) as u64);
    let forwarding = &installed.platform.forwarding;
    let before = forwarding.begin(tid, &Crash { frame, stack, context: at, number });
    // SAFETY: by the contract.
    let called = unsafe { previous_handler::call(info, context, Asked::Latest) };
    let ended = forwarding.end(tid, &before);
    let moved = context.machine().pc() != pc || context.machine().sp() != sp;
    let stayed = SignalAction::of(info.signo).unwrap_or_default() == ours;
    let handled = called && (moved || (stayed && system::is_dealt_with(installed, info, context, tid)));
    if handled {
        installed.run.state.set_crash_not_fatal(number);
    }
    match (handled, ended.context == 0) {
        (true, reported) => {
            if reported {
                system::handler_returned(installed, *ids, Outcome::Continues);
            }
            Answer::Handled
        }
        (false, true) => Answer::Reported,
        (false, false) => Answer::Refused,
    }
}

/// Writes the report of a crash that a handler of this thread was asked about first: it ends the process, or has a crash itself.
fn report_unfinished(installed: &'static Installed, crash: &Crash, ids: (i32, Tid)) {
    if crash.context == 0 {
        return;
    }
    installed.platform.forwarding.note_reported(ids.1);
    // SAFETY: that handler is running, so what Coroner's own was given for the first signal lies above it, on the same stack.
    let (info, context) = unsafe { (&*(crash.frame as *const SignalInfo), &*(crash.context as *const SignalContext)) };
    system::report(installed, info, context, ids, Next::AsksHandler);
}

/// The calling thread ends the process by `exit`: if it is in a handler that was asked first about a crash, the report of that crash is
/// written.
pub(crate) fn report_before_exit(installed: &'static Installed, ids: (i32, Tid)) {
    let here = 0_u8;
    if let Some(crash) = installed.platform.forwarding.is_by(ids.1, &raw const here as u64, blocked().into()) {
        report_unfinished(installed, &crash, ids);
    }
}

/// Of the calling thread, outside of any handler: a handler that it left by a jump was right to, and that crash was none.
pub(crate) fn settle(installed: &Installed, tid: Tid) {
    let here = 0_u8;
    let number = installed.platform.forwarding.take_left(tid, &raw const here as u64, blocked().into());
    installed.run.state.set_crash_not_fatal(number);
}

//! The signal monitor of Darwin: what no exception reports. abort and what is sent by kill or raise, and faults where the
//! exceptions are not Coroner's.
//!
//! The handler hands its crash over to Coroner's primary thread and waits: it uses little of a stack that may be nearly full,
//! and the report is written as that of an exception. A signal that an exception became which was reported is the same death.

use core::sync::atomic::{AtomicUsize, Ordering};

use coroner_process::context::{SignalContext, SignalInfo};
use coroner_process::syscall::Errno;
use coroner_process::threads::{Tid, process_id, this_thread};
use coroner_report::wire::{Monitor, Signal};

use super::{Answer, DYING, TAKEN, is_dying, is_taken, report_unfinished, uninstall};
use crate::asked_first::{Fault, is_asked_first};
use crate::crash_context::CrashContext;
use crate::darwin::crash_entry;
use crate::forwarding::{self, Asked, Crash, Outcome};
use crate::guarded_call;
use crate::ignored_signals;
use crate::install_options::SignalSet;
use crate::installed::{self, Installed};
use crate::monitor::exception;
use crate::previous_handler;
use crate::report_lock::REPORT_LOCK;
use crate::session::Reported;
use coroner_process::signals::{SignalAction, bit, blocked};

/// Coroner's handler as the kernel holds it.
static OURS: AtomicUsize = AtomicUsize::new(0);

/// The signals by which code that is called before a report can be left: not blocked while it runs.
pub(crate) const NEEDED: u32 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(libc::SIGSYS);

/// Takes the signals (not async-signal-safe). What was there before is remembered.
///
/// # Errors
/// The signal that the system did not give, with its reason; those taken before it are given back.
pub(crate) fn install(signals: SignalSet, watch_sigterm: bool) -> Result<(), (i32, Errno)> {
    let wanted = if watch_sigterm { signals.with(libc::SIGTERM) } else { signals };
    let ours = entry as *const () as usize;
    OURS.store(ours, Ordering::Release);
    for number in 1..32 {
        if !wanted.contains(number) || number == libc::SIGKILL || number == libc::SIGSTOP {
            continue;
        }
        let taken = SignalAction::of(number).and_then(|before| {
            // A second life after an uninstall that had to leave the handler in place: what was before is remembered already.
            if before.handler != ours {
                previous_handler::remember(number, &before);
            }
            let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            // SAFETY: `entry` is async-signal-safe.
            unsafe { SignalAction { handler: ours, flags, mask: 0 }.set(number) }
        });
        if let Err(errno) = taken {
            uninstall();
            return Err((number, errno));
        }
        TAKEN.fetch_or(bit(number).into(), Ordering::AcqRel);
    }
    DYING.store(0, Ordering::Release);
    Ok(())
}

/// Puts the earlier dispositions back (crash path too): after a report the process dies by rules that were there before.
pub(crate) fn give_back() {
    DYING.store(process_id(), Ordering::Release);
    for number in 1..32 {
        if is_taken(number) && is_ours(number) {
            // SAFETY: the app had installed it.
            let _ = unsafe { previous_handler::of(number).set(number) };
        }
    }
}

/// Whether that is Coroner's handler, as the kernel has it.
pub(crate) fn is_handler(handler: usize) -> bool {
    handler == OURS.load(Ordering::Acquire)
}

/// Takes a signal from who has put a handler over Coroner's (not async-signal-safe).
pub(crate) fn take_back(signal: i32) {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler is Coroner's own.
    let _ = unsafe { SignalAction { handler: OURS.load(Ordering::Acquire), flags, mask: 0 }.set(signal) };
}

/// Whether the kernel calls Coroner's handler for a signal.
fn is_ours(signal: i32) -> bool {
    let ours = OURS.load(Ordering::Acquire);
    SignalAction::of(signal).is_ok_and(|now| now.handler == ours && ours != 0)
}

/// Whether a function would see a fault of that signal, Coroner's own left out: then the process may go on after it.
pub(crate) fn has_handler(signal: i32) -> bool {
    let now = SignalAction::of(signal).unwrap_or_default();
    if is_ours(signal) { previous_handler::of(signal).is_function() } else { now.is_function() }
}

/// Whether the process is certain to die of that signal: it has the default action, Coroner's own left out.
pub(crate) fn kills(signal: i32) -> bool {
    let now = SignalAction::of(signal).ok();
    let now = if is_ours(signal) { Some(previous_handler::of(signal)) } else { now };
    now.is_some_and(|action| action.handler == libc::SIG_DFL)
}

/// The handler.
///
/// # Safety
/// Called by the kernel, or by a handler that chains to this one with what the kernel gave it.
pub(crate) unsafe extern "C" fn entry(_signal: i32, info: *mut SignalInfo, context: *mut libc::c_void) {
    let errno = Errno::last();
    // SAFETY: the kernel's (or the chaining handler's) siginfo and ucontext, alive until this returns.
    let (info, context) = unsafe { (&mut *info, SignalContext::from_pointer(context)) };
    handle(info, context);
    errno.restore();
}

fn handle(info: &mut SignalInfo, context: &mut SignalContext) {
    if forwarding::ignores(info) {
        return;
    }
    let ids = (process_id(), this_thread());
    let (pid, tid) = ids;
    if guarded_call::recover(pid, tid, context.machine_mut()) {
        return;
    }
    let Some(installed) = installed::get() else {
        // SAFETY: this thread is handling that signal.
        unsafe { forwarding::forward(info, context, false, Asked::Latest) };
        return;
    };
    if info.signo == libc::SIGTERM {
        installed.note_sigterm(pid);
    }
    let platform = &installed.platform;
    let is_wanted = installed.options.signals.contains(info.signo);
    if is_wanted && let Some(reported) = platform.passed_on(tid) {
        return pass_on(installed, info, context, &ids, reported, false);
    }
    let stack = core::ptr::from_ref(&ids) as u64;
    let (sp, mask) = if platform.forwarding.is_passed_on(tid, info, stack) {
        (core::ptr::from_ref(info) as u64 - 1, blocked().into())
    } else {
        (context.machine().sp(), context.signal_mask().into())
    };
    // A handler of this thread that never returned has left by a jump: that crash was none.
    installed.run.state.set_crash_not_fatal(platform.forwarding.take_left(tid, sp, mask));
    let running = platform.forwarding.is_by(tid, sp, mask);
    let has_handler = previous_handler::of(info.signo).is_function();
    let fault = Fault::of(info, context.machine().pc(), context.machine().sp());
    let first = || has_handler && is_asked_first(installed, &fault, previous_handler::known(info.signo));
    if !is_wanted
        || ignored_signals::take_ignored(tid, info.signo)
        // A child made by fork has none of Coroner's threads: it dies as it would have.
        || pid != installed.run.pid
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
        if !chains && !first() {
            report_unfinished(installed, &crash, (pid, tid));
        }
        // SAFETY: as above.
        unsafe { forwarding::forward(info, context, false, asked) };
        return;
    }
    let first = first();
    // SAFETY: as above.
    let answer = if first { unsafe { ask(installed, info, context, &ids) } } else { Answer::Refused };
    let reported = match answer {
        Answer::Handled => return,
        Answer::Reported => Reported::Elsewhere,
        Answer::Refused => crash_entry::hand_over(installed, &crash_context(info, context, (pid, tid))),
    };
    pass_on(installed, info, context, &ids, reported, first);
}

/// Asks the handler that was there before. The crash is recorded meanwhile: the handler may end the process. `ids` lie in the frame of
/// Coroner's handler.
///
/// # Safety
/// This thread is handling that signal.
unsafe fn ask(installed: &Installed, info: &mut SignalInfo, context: &mut SignalContext, ids: &(i32, Tid)) -> Answer {
    let (stack, (pid, tid)) = (core::ptr::from_ref(ids) as u64, *ids);
    let (pc, sp) = (context.machine().pc(), context.machine().sp());
    // A crash that is being reported is that of which the process dies: its record stays.
    let record = crash_context(info, context, (pid, tid)).record();
    let number = if REPORT_LOCK.is_busy(pid) { 0 } else { installed.run.state.set_crash(&record) };
    let (frame, at) = (core::ptr::from_ref(info) as u64, core::ptr::from_ref(context) as u64);
    let forwarding = &installed.platform.forwarding;
    let before = forwarding.begin(tid, &Crash { frame, stack, context: at, number });
    // SAFETY: by the contract.
    let called = unsafe { previous_handler::call(info, context, Asked::Latest) };
    let ended = forwarding.end(tid, &before);
    let moved = context.machine().pc() != pc || context.machine().sp() != sp;
    let is_tried_again =
        || is_ours(info.signo) && info.is_fault() && ignored_signals::try_again(tid, pc, info.address());
    let handled = called && (moved || is_tried_again());
    if handled {
        installed.run.state.set_crash_not_fatal(number);
    }
    match (handled, ended.context == 0) {
        (true, _) => Answer::Handled,
        (false, true) => Answer::Reported,
        (false, false) => Answer::Refused,
    }
}

/// Writes the report of a crash whose handler is being asked.
pub(super) fn report_asked(installed: &'static Installed, info: &SignalInfo, context: &SignalContext, ids: (i32, Tid)) {
    crash_entry::hand_over(installed, &crash_context(info, context, ids));
}

/// Gives the signal to whoever had it before: what that one raises on this thread is the same death. `called`: it was asked
/// already. `ids` lie in the frame of Coroner's handler.
fn pass_on(
    installed: &Installed,
    info: &mut SignalInfo,
    context: &mut SignalContext,
    ids: &(i32, Tid),
    reported: Reported,
    called: bool,
) {
    let (stack, (_, tid)) = (core::ptr::from_ref(ids) as u64, *ids);
    let forwarding = &installed.platform.forwarding;
    let number = if let Reported::Here(number) = reported { number } else { 0 };
    let before = forwarding.begin(tid, &Crash { frame: core::ptr::from_ref(info) as u64, stack, context: 0, number });
    // SAFETY: this thread is handling that signal.
    let outcome = unsafe { forwarding::forward(info, context, called, Asked::Latest) };
    forwarding.end(tid, &before);
    if outcome == Outcome::Continues {
        installed.platform.goes_on(tid);
        installed.note_handled(reported);
    }
}

/// What happened, from what the kernel gave the handler.
fn crash_context(info: &SignalInfo, context: &SignalContext, (pid, tid): (i32, Tid)) -> CrashContext {
    let machine = context.machine();
    let is_fault = info.is_fault();
    let is_memory_fault = is_fault && matches!(info.signo, libc::SIGSEGV | libc::SIGBUS);
    let has_address =
        is_fault && matches!(info.signo, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP);
    let address = has_address.then(|| info.address());
    let fault = machine.fault();
    let sender = info.sender();
    CrashContext {
        monitor: Monitor::SIGNAL,
        signal: Some(Signal {
            number: info.signo,
            code: info.code,
            errno: info.errno,
            address,
            sender_pid: sender.map(|(pid, _)| pid as u32),
            sender_uid: sender.map(|(_, uid)| uid),
            trap_number: (is_fault && cfg!(target_arch = "x86_64")).then_some(fault.trap),
            error_code: is_fault.then_some(fault.error),
            syscall: None,
        }),
        mach: None,
        pid,
        tid,
        registers: machine.registers(),
        extra: crash_entry::extra(machine),
        extra_count: if is_fault { 3 } else { 0 },
        address,
        access: if is_memory_fault { crash_entry::access(machine) } else { None },
        is_memory_fault,
        uncaught: None,
        hung: None,
    }
}

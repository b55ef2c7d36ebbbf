//! The signal monitor of Darwin: what no exception tells. abort and what is sent by kill or raise, and faults where the
//! exceptions are not Coroner's.
//!
//! The handler hands its crash over to Coroner's primary thread and waits: it uses little of a stack that may be nearly full,
//! and the report is written as that of an exception. A signal that an exception became which was reported is the same death.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use coroner_machine::context::{SignalContext, SignalInfo};
use coroner_machine::syscall::Errno;
use coroner_machine::threads::{Tid, process_id, this_thread};
use coroner_report::wire::{Monitor, Signal};

use crate::darwin::action::{Action, bit};
use crate::darwin::handed::Handed;
use crate::darwin::previous;
use crate::darwin::report;
use crate::forwarding::{self, Outcome};
use crate::monitor::{cpp_exception, exception};
use crate::pipeline::incident::Incident;
use crate::setup::SignalSet;
use crate::{global, ignore};

/// The signals whose handler is Coroner's; 0 after an uninstall.
static TAKEN: AtomicU32 = AtomicU32::new(0);
/// Coroner's handler as the kernel holds it.
static OURS: AtomicUsize = AtomicUsize::new(0);
/// The process that has given its signals back because it is dying; 0 for none.
static DYING: AtomicI32 = AtomicI32::new(0);

/// The signals by which code that is called before a report can be left: not blocked while it runs.
pub(crate) const NEEDED: u32 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(libc::SIGSYS);

/// Takes the signals (normal life). What was there before is remembered.
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
        let taken = Action::of(number).and_then(|before| {
            // A second life after an uninstall that had to leave the handler in place: what was before is remembered already.
            if before.handler != ours {
                previous::remember(number, &before);
            }
            let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            // SAFETY: `entry` is async-signal-safe.
            unsafe { Action { handler: ours, flags, mask: 0 }.set(number) }
        });
        if let Err(errno) = taken {
            uninstall();
            return Err((number, errno));
        }
        TAKEN.fetch_or(bit(number), Ordering::AcqRel);
    }
    DYING.store(0, Ordering::Release);
    Ok(())
}

/// Gives every signal back whose handler is still Coroner's. Where another handler came later and may chain to Coroner's, that
/// one stays, and Coroner's passes everything on.
pub(crate) fn uninstall() {
    give_back();
    DYING.store(0, Ordering::Release);
    TAKEN.store(0, Ordering::Release);
}

/// Puts the earlier dispositions back (crash path too): after a report the process dies by rules that were there before.
pub(crate) fn give_back() {
    DYING.store(process_id(), Ordering::Release);
    let taken = TAKEN.load(Ordering::Acquire);
    for number in (1..32).filter(|number| taken & bit(*number) != 0) {
        if is_ours(number) {
            // SAFETY: the app had installed it.
            let _ = unsafe { previous::of(number).set(number) };
        }
    }
}

/// Whether the process has given its signals back because it is dying.
pub(crate) fn is_dying(pid: i32) -> bool {
    DYING.load(Ordering::Acquire) == pid
}

/// Whether the kernel calls Coroner's handler for a signal.
fn is_ours(signal: i32) -> bool {
    let ours = OURS.load(Ordering::Acquire);
    Action::of(signal).is_ok_and(|now| now.handler == ours && ours != 0)
}

/// Whether a function would see a fault of that signal, Coroner's own left out: then the process may go on after it.
pub(crate) fn has_handler(signal: i32) -> bool {
    let now = Action::of(signal).unwrap_or_default();
    if is_ours(signal) { previous::of(signal).is_function() } else { now.is_function() }
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
    let (pid, tid) = (process_id(), this_thread());
    if cpp_exception::leave(pid, tid, context.machine_mut()) {
        return;
    }
    let Some(global) = global::get() else {
        // SAFETY: this thread is handling that signal.
        unsafe { forwarding::forward(info, context, false) };
        return;
    };
    let os = &global.os;
    if info.signo == libc::SIGTERM {
        global.note_sigterm(pid);
        // SAFETY: as above.
        unsafe { forwarding::forward(info, context, false) };
        return;
    }
    let sp = context.machine().sp();
    let passed_on = os.is_passed_on(tid);
    if !global.setup.signals.contains(info.signo)
        || passed_on
        || ignore::take_ignored(tid, info.signo)
        // A child made by fork has none of Coroner's threads: it dies as it would have.
        || pid != global.run.pid
        || is_dying(pid)
        || exception::is_dying(pid, tid)
        || os.forwarding.is_by(tid, sp)
    {
        pass_on(global, info, context, (tid, passed_on), false);
        return;
    }
    let mut called = false;
    if global.setup.chain_first && info.signo != libc::SIGABRT {
        let (pc, sp) = (context.machine().pc(), context.machine().sp());
        // SAFETY: as above.
        called = unsafe { previous::call(info, context) };
        let moved = context.machine().pc() != pc || context.machine().sp() != sp;
        if called && (moved || (is_ours(info.signo) && info.is_fault() && ignore::try_again(tid, pc, info.address()))) {
            return;
        }
    }
    let incident = incident(info, context, (pid, tid));
    // The report's own limit, and twice as long for one that is being written now, and an earlier holder of the ports.
    let patience = global.setup.deadline_ms.saturating_mul(3).saturating_add(5000);
    let reported = Handed::over(global, &incident, patience);
    pass_on(global, info, context, (tid, reported), called);
}

/// Gives the signal to whoever had it before. `reported`: what that one raises on this thread is the same death.
fn pass_on(
    global: &global::Global,
    info: &mut SignalInfo,
    context: &mut SignalContext,
    (tid, reported): (Tid, bool),
    called: bool,
) {
    let forwarding = &global.os.forwarding;
    let before = reported.then(|| forwarding.begin(tid, core::ptr::from_ref(info) as u64));
    // SAFETY: this thread is handling that signal.
    let outcome = unsafe { forwarding::forward(info, context, called) };
    if let Some(before) = before {
        forwarding.end(before);
        if outcome == Outcome::GoesOn {
            global.os.goes_on(tid);
            global.note_survived(process_id());
        }
    }
}

/// What happened, from what the kernel gave the handler.
fn incident(info: &SignalInfo, context: &SignalContext, (pid, tid): (i32, Tid)) -> Incident {
    let machine = context.machine();
    let is_fault = info.is_fault();
    let is_memory_fault = is_fault && matches!(info.signo, libc::SIGSEGV | libc::SIGBUS);
    let has_address =
        is_fault && matches!(info.signo, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP);
    let address = has_address.then(|| info.address());
    let fault = machine.fault();
    let sender = info.sender();
    Incident {
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
        extra: report::extra(machine),
        extra_count: if is_fault { 3 } else { 0 },
        address,
        access: if is_memory_fault { report::access(machine) } else { None },
        is_memory_fault,
        uncaught: None,
        hung: None,
    }
}

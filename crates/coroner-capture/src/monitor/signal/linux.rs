//! The signal monitor of Linux: the handler writes the report on the crashed thread itself.
//!
//! # What the handler does, in this order
//! 1. A fault of a guarded load (or of the crash path itself) is made good: the thread goes on behind it.
//! 2. What is not Coroner's is passed on: a signal that the app ignores, that a thread asked to have ignored, a child's
//!    where children are to stay silent, SIGTERM after it has been noted.
//! 3. Handlers that are to come first (managed runtimes) are asked; if they move the thread or repair the fault, that is
//!    the end of it.
//! 4. The thread goes on at once on Coroner's own large stack. The alternate stacks of threads are small (Rust's have
//!    8 KiB, of which the kernel's frame takes up to 3.4 KiB), so nothing before this step uses more than a few hundred
//!    bytes.
//! 5. The report is written ([`crate::linux::report`], [`crate::pipeline`]).
//! 6. The signal goes to whoever had it before ([`crate::forwarding::forward`]).

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use coroner_machine::context::{self, Context, SignalInfo};
use coroner_machine::memory::make_good;
use coroner_machine::syscall::Errno;
use coroner_machine::threads::{process_id, this_thread};
use coroner_report::wire::{Access, ExtraRegister, Monitor, Signal};

use crate::forwarding::{self, Outcome};
use crate::linux::action::{Action, bit};
use crate::linux::deadline::{self, Deadline};
use crate::linux::previous;
use crate::linux::report::{self, Reported};
use crate::monitor::{cpp_exception, exception};
use crate::pipeline::incident::Incident;
use crate::setup::{ForkPolicy, SignalSet};
use crate::{global, ignore};

/// The signals whose handler is Coroner's, as the kernel's set; 0 after an uninstall.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Coroner's disposition as the kernel holds it, of any taken signal: handler, flags and restorer are the same for all.
/// Kept for the crash path, which puts it back where an app's handler came later and chained to Coroner's.
static OURS: Ours = Ours { handler: AtomicUsize::new(0), flags: AtomicU64::new(0), restorer: AtomicUsize::new(0) };

struct Ours {
    handler: AtomicUsize,
    flags: AtomicU64,
    restorer: AtomicUsize,
}

/// The process that has given its signals back because it is dying; 0 for none. By process, since a child made by vfork
/// that dies shares this memory with a parent that lives.
static DYING: AtomicI32 = AtomicI32::new(0);

/// The signals that the crash path itself may raise or be interrupted by: never blocked while it runs.
pub(crate) const NEEDED: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(deadline::SIGNAL);

/// Takes the signals (normal life). What was there before is remembered. `held` is blocked while the handler runs: the
/// rendezvous' signal, so that a thread that crashes on its own is not stopped on its way.
///
/// # Errors
/// The signal that the system did not give, with its reason; those taken before it are given back.
pub(crate) fn install(signals: SignalSet, watch_sigterm: bool, held: i32) -> Result<(), (i32, Errno)> {
    let mut wanted = signals;
    if watch_sigterm {
        wanted = wanted.with(libc::SIGTERM);
    }
    for number in 1..=64 {
        if !wanted.contains(number) || number == libc::SIGKILL || number == libc::SIGSTOP {
            continue;
        }
        if let Err(errno) = take(number, held) {
            uninstall();
            return Err((number, errno));
        }
        TAKEN.fetch_or(bit(number), Ordering::AcqRel);
    }
    DYING.store(0, Ordering::Release);
    Ok(())
}

/// Takes one signal.
fn take(signal: i32, held: i32) -> Result<(), Errno> {
    let before = Action::of(signal)?;
    // A second life after an uninstall that had to leave the handler in place: what was before is remembered already.
    if before.handler != entry as *const () as usize {
        previous::remember(signal, &before);
    }
    // The C library's sigaction, so that what interposes it (ART's libsigchain, sanitizers) knows of the handler and the
    // library's own signal return is used.
    // SAFETY: an all-zero sigaction is valid.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = entry as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // Little is blocked: the crash path sets its own mask, once for all monitors.
    // SAFETY: the set is valid.
    unsafe { libc::sigaddset(&raw mut action.sa_mask, held) };
    // SAFETY: both pointers are valid; `entry` is async-signal-safe.
    if unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) } != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let now = Action::of(signal)?;
    OURS.flags.store(now.flags, Ordering::Relaxed);
    OURS.restorer.store(now.restorer, Ordering::Relaxed);
    OURS.handler.store(now.handler, Ordering::Release);
    Ok(())
}

/// Gives every signal back whose handler is still Coroner's. Where another handler came later and may chain to Coroner's,
/// that one stays, and Coroner's passes everything on.
pub(crate) fn uninstall() {
    give_back();
    DYING.store(0, Ordering::Release);
    TAKEN.store(0, Ordering::Release);
}

/// Puts the earlier dispositions back (crash path too): after a report the process dies by rules that were there before.
pub(crate) fn give_back() {
    DYING.store(process_id(), Ordering::Release);
    let taken = TAKEN.load(Ordering::Acquire);
    let ours = OURS.handler.load(Ordering::Acquire);
    for number in 1..=64 {
        if taken & bit(number) == 0 && number != deadline::SIGNAL {
            continue;
        }
        if Action::of(number).is_ok_and(|now| now.handler == ours && ours != 0) {
            // SAFETY: the app had installed it.
            let _ = unsafe { previous::of(number).set(number) };
        }
    }
}

/// Whether the process has given its signals back because it is dying.
pub(crate) fn is_dying(pid: i32) -> bool {
    DYING.load(Ordering::Acquire) == pid
}

/// What [`is_first`] found when it asked last.
static FIRST: AtomicBool = AtomicBool::new(false);

/// Lets the next [`is_first`] ask the kernel.
pub(crate) fn ask_again() {
    FIRST.store(false, Ordering::Release);
}

/// Whether Coroner's handler is the one that the kernel calls for memory faults (normal life).
///
/// The kernel is asked at the first call and at every 64th after it: two system calls for each live backtrace would cost
/// more than the walk.
pub(crate) fn is_first() -> bool {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    const MEMORY: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];
    if CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) || !FIRST.load(Ordering::Acquire) {
        let taken = TAKEN.load(Ordering::Acquire);
        let ours = OURS.handler.load(Ordering::Acquire);
        let is_ours = |signal: i32| taken & bit(signal) != 0 && Action::of(signal).is_ok_and(|now| now.handler == ours);
        FIRST.store(MEMORY.into_iter().all(is_ours), Ordering::Release);
    }
    FIRST.load(Ordering::Acquire)
}

/// What [`displace`] took out, for [`replace`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Displaced([Option<Action>; 7]);

/// The signals that [`displace`] sees to.
const HELD: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, deadline::SIGNAL];

/// Makes Coroner's handler the first one of every signal that the crash path relies on, for the time of the report: an
/// app's handler that was installed later and chained here must not see the crash path's own faults.
pub(crate) fn displace() -> Displaced {
    let ours = Action {
        handler: OURS.handler.load(Ordering::Acquire),
        flags: OURS.flags.load(Ordering::Relaxed),
        restorer: OURS.restorer.load(Ordering::Relaxed),
        mask: 0,
    };
    let mut displaced = Displaced::default();
    for (place, signal) in displaced.0.iter_mut().zip(HELD) {
        if let Ok(now) = Action::of(signal)
            && now.handler != ours.handler
            // SAFETY: the handler is Coroner's own.
            && unsafe { ours.set(signal) }.is_ok()
        {
            *place = Some(now);
        }
    }
    displaced
}

/// Puts back what [`displace`] took out.
pub(crate) fn replace(displaced: &Displaced) {
    for (place, signal) in displaced.0.iter().zip(HELD) {
        if let Some(action) = place {
            // SAFETY: the app had installed it.
            let _ = unsafe { action.set(signal) };
        }
    }
}

/// The handler.
///
/// # Safety
/// Called by the kernel, or by a handler that chains to this one with what the kernel gave it.
pub(crate) unsafe extern "C" fn entry(_signal: i32, info: *mut SignalInfo, context: *mut libc::c_void) {
    // SAFETY: the kernel's (or the chaining handler's) siginfo and ucontext, alive until this returns.
    let (info, context) = unsafe { (&mut *info, Context::from_pointer(context)) };
    let faulted = matches!(info.signo, libc::SIGSEGV | libc::SIGBUS);
    if faulted && make_good(context) {
        return;
    }
    let (pid, tid) = (process_id(), this_thread());
    if cpp_exception::leave(pid, tid, context) {
        return;
    }
    let global = global::get();
    if let Some(global) = global
        && global.os.is_writing(pid, tid)
    {
        return report::own_fault(global, info, context);
    }
    if deadline::is_deadline(info) {
        // A handler that runs after the report takes long: it may wait for a thread that is held. (Or a timer fired just as
        // its report ended.)
        if let Some(global) = global
            && global.os.latch.is_mine(pid, tid)
        {
            report::finish(global);
            global.os.stop_patience();
        }
        return;
    }
    if forwarding::ignores(info) {
        return;
    }
    let Some(global) = global else {
        // SAFETY: this thread is handling that signal.
        unsafe { forwarding::forward(info, context, false) };
        return;
    };
    if info.signo == libc::SIGTERM {
        global.note_sigterm(pid);
        // SAFETY: as above.
        unsafe { forwarding::forward(info, context, false) };
        return;
    }
    if !global.setup.signals.contains(info.signo)
        || ignore::take_ignored(tid, info.signo)
        || (pid != global.run.pid && global.setup.fork == ForkPolicy::Silent)
        || is_dying(pid)
        || exception::is_dying(pid, tid)
        || global.os.forwarding.is_by(tid, context.sp())
    {
        // SAFETY: as above.
        unsafe { forwarding::forward(info, context, false) };
        return;
    }
    let mut called = false;
    if global.setup.chain_first && info.signo != libc::SIGABRT {
        let (pc, sp) = (context.pc(), context.sp());
        let ours = Action::of(info.signo).unwrap_or_default();
        // SAFETY: as above.
        called = unsafe { previous::call(info, context) };
        let moved = context.pc() != pc || context.sp() != sp;
        let stayed = Action::of(info.signo).unwrap_or_default() == ours;
        if called && (moved || (stayed && info.is_fault() && ignore::try_again(tid, pc, info.address()))) {
            return;
        }
    }
    if report::enter(global, info, context, (pid, tid), None) != Reported::Owner {
        // SAFETY: as above.
        unsafe { forwarding::forward(info, context, called) };
        return;
    }
    // The other threads are held while the signal is passed on: most often the process dies of it. A handler that takes
    // long may need them, and one may never come back here (siglongjmp): a timer lets them go.
    let runs_handler = !called && previous::of(info.signo).is_function();
    if runs_handler && let Ok(timer) = Deadline::start(tid, PATIENCE_MS) {
        global.os.patience.store(timer.into_number(), Ordering::Release);
    }
    let before = global.os.forwarding.begin(tid, core::ptr::from_ref(info) as u64);
    // SAFETY: as above.
    let outcome = unsafe { forwarding::forward(info, context, called) };
    global.os.forwarding.end(before);
    global.os.stop_patience();
    if outcome == Outcome::GoesOn {
        global.note_survived(pid);
    }
    // Of a child made by vfork that dies, the latch is its parent's, which lives.
    if outcome == Outcome::GoesOn || pid != global.run.pid {
        report::finish(global);
    }
}

/// What happened, from what the kernel gave the handler.
pub(crate) fn incident(info: &SignalInfo, context: &Context, (pid, tid): (i32, i32)) -> Incident {
    let fault = context.fault();
    let is_memory_fault = info.is_fault() && matches!(info.signo, libc::SIGSEGV | libc::SIGBUS);
    let has_address = info.is_fault()
        && matches!(info.signo, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP);
    let address = has_address.then(|| info.address());
    let sender = info.sender();
    #[cfg(target_arch = "x86_64")]
    let extra =
        [(ExtraRegister::TRAPNO, fault.trap), (ExtraRegister::ERR, fault.error), (ExtraRegister::CR2, fault.address)];
    #[cfg(target_arch = "aarch64")]
    let extra =
        [(ExtraRegister::ESR, fault.error), (ExtraRegister::FAR, fault.address), (ExtraRegister::THREAD_POINTER, 0)];
    let known = if cfg!(target_arch = "x86_64") { 3 } else { 2 };
    Incident {
        monitor: Monitor::SIGNAL,
        signal: Some(Signal {
            number: info.signo,
            code: info.code,
            errno: info.errno,
            address,
            sender_pid: sender.map(|(pid, _)| pid as u32),
            sender_uid: sender.map(|(_, uid)| uid),
            trap_number: (info.is_fault() && cfg!(target_arch = "x86_64")).then_some(fault.trap),
            error_code: info.is_fault().then_some(fault.error),
            syscall: (info.is_fault() && info.signo == libc::SIGSYS).then(|| info.system_call()),
        }),
        mach: None,
        pid,
        tid,
        registers: context.registers(),
        extra,
        extra_count: if info.is_fault() { known } else { 0 },
        address,
        access: is_memory_fault.then(|| context.access()).flatten().map(|access| match access {
            context::Access::Read => Access::READ,
            context::Access::Write => Access::WRITE,
            context::Access::Execute => Access::EXECUTE,
        }),
        is_memory_fault,
        uncaught: None,
        hung: None,
    }
}

/// How long the other threads are held while an earlier handler runs.
const PATIENCE_MS: u32 = 300;

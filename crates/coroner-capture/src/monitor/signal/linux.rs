//! The signal monitor of Linux: the handler writes the report on the crashed thread itself.
//!
//! # What the handler does, in this order
//! 1. A fault of a guarded load (or of the crash path itself) is recovered: the thread goes on behind it. A page of the run state that
//!    is lost (somebody cut the file) is replaced.
//! 2. What is not Coroner's is passed on: a signal that the app ignores, that a thread asked to have ignored, a child's
//!    where children are to stay silent, SIGTERM after it has been noted.
//! 3. Handlers that are to come first ([`crate::asked_first`]) are asked; if they move the thread or repair the fault, that is the
//!    end of it.
//! 4. The report is written ([`crate::linux::crash_entry`], [`crate::session`]), on Coroner's own stack.
//! 5. The signal goes to whoever had it before ([`crate::forwarding::forward`]). Where that is a function, the other threads stay
//!    stopped and the lock owned while it runs, but not for long.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use coroner_process::context::{self, Context, SignalInfo};
use coroner_process::memory::{is_accessible, recover_guarded_load};
use coroner_process::signals::{SignalAction, bit, block_exactly, blocked};
use coroner_process::syscall::Errno;
use coroner_process::threads::{Tid, process_id, this_thread, wall_now};
use coroner_report::run_state::CrashRecord;
use coroner_report::wire::{Access, ExtraRegister, Monitor, Signal};

use super::{Answer, DYING, TAKEN, is_dying, report_unfinished, uninstall};
use crate::asked_first::{self, Fault};
use crate::crash_context::CrashContext;
use crate::forwarding::{self, Asked, Crash, Outcome};
use crate::guarded_call;
use crate::ignored_signals;
use crate::install_options::{ForkPolicy, SignalSet};
use crate::installed::{self, Installed};
use crate::linux::crash_entry::{self, Source};
use crate::linux::{deadline, other_threads, signal_death};
use crate::loaded_image::{self, Holder};
use crate::monitor::exception;
use crate::previous_handler;
use crate::report_lock::REPORT_LOCK;
use crate::session::{self, Next, Reported};

/// Coroner's disposition as the kernel holds it, of any taken signal: handler, flags and restorer are the same for all.
/// Kept for the crash path, which puts it back where an app's handler came later and chained to Coroner's.
static OURS: Ours = Ours { handler: AtomicUsize::new(0), flags: AtomicU64::new(0), restorer: AtomicUsize::new(0) };

struct Ours {
    handler: AtomicUsize,
    flags: AtomicU64,
    restorer: AtomicUsize,
}

/// The signals that the crash path itself may raise or be interrupted by: never blocked while it runs.
pub(crate) const NEEDED: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(deadline::SIGNAL);

/// Takes the signals (not async-signal-safe). What was there before is remembered. `held` is blocked while the handler runs: the
/// signal that stops threads, so that a thread that crashes on its own is not stopped on its way.
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

fn take(signal: i32, held: i32) -> Result<(), Errno> {
    // glibc says all that the kernel does; an interposer, and musl of the restorer, may not.
    let asks_kernel = !cfg!(target_env = "gnu") || may_be_interposed();
    let before = if asks_kernel { Some(SignalAction::of(signal)?) } else { None };
    // The C library's sigaction, so that what interposes it (ART's libsigchain, sanitizers) knows of the handler and the
    // library's own signal return is used.
    // SAFETY: an all-zero sigaction is valid.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler();
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // Little is blocked: the crash path sets its own mask, once for all monitors.
    // SAFETY: the set is valid.
    unsafe { libc::sigaddset(&raw mut action.sa_mask, held) };
    // SAFETY: all-zero is valid; both pointers are valid; `entry` is async-signal-safe.
    let (failed, replaced) = unsafe {
        let mut replaced: libc::sigaction = core::mem::zeroed();
        (libc::sigaction(signal, &raw const action, &raw mut replaced) != 0, replaced)
    };
    if failed {
        return Err(Errno(libc::EINVAL));
    }
    let before = before.unwrap_or_else(|| of_library(&replaced));
    let mut earlier = before;
    // Most often nobody had it.
    if (asks_kernel && before.is_function()) || OURS.handler.load(Ordering::Acquire) != handler() {
        let now = SignalAction::of(signal)?;
        if now.handler == handler() {
            OURS.flags.store(now.flags, Ordering::Relaxed);
            OURS.restorer.store(now.restorer, Ordering::Relaxed);
            OURS.handler.store(now.handler, Ordering::Release);
        } else {
            earlier = take_from_interposer(signal, &action, &replaced, &now)?;
        }
    }
    // After an uninstall that had to leave the handler in place, what was before is remembered already.
    if before.handler != handler() {
        previous_handler::remember(signal, &earlier);
    }
    Ok(())
}

/// Whether `sigaction` may be another one than the C library's: it is not if it lies in one image with a function of that library.
fn may_be_interposed() -> bool {
    let library = loaded_image::holder_of(libc::getpid as *const () as u64);
    !matches!(library, Holder::Image(_)) || loaded_image::holder_of(libc::sigaction as *const () as u64) != library
}

/// What the kernel said, as glibc hands it on.
fn of_library(action: &libc::sigaction) -> SignalAction {
    let restorer = action.sa_restorer.map_or(0, |restorer| restorer as usize);
    // SAFETY: the kernel's set of signals is the first word of the library's, which is larger.
    let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() };
    SignalAction { handler: action.sa_sigaction, flags: u64::from(action.sa_flags as u32), restorer, mask }
}

/// Who interposes sigaction has kept the signal: `now` is what the kernel has, `replaced` what the caller was given in its place. Returns
/// who is to have the signal after Coroner.
fn take_from_interposer(
    signal: i32,
    action: &libc::sigaction,
    replaced: &libc::sigaction,
    now: &SignalAction,
) -> Result<SignalAction, Errno> {
    // SAFETY: an all-zero sigaction is valid; the pointer is.
    let seen = unsafe {
        let mut seen: libc::sigaction = core::mem::zeroed();
        libc::sigaction(signal, core::ptr::null(), &raw mut seen);
        seen.sa_sigaction
    };
    if seen == handler() {
        // It calls Coroner's handler itself for what is not its own (ART's libsigchain).
        return Ok(SignalAction { handler: replaced.sa_sigaction, flags: replaced.sa_flags as u64, ..*now });
    }
    // It refuses in silence (AddressSanitizer with handle_segv=2), and is asked after the report like any other handler.
    let ours = SignalAction { handler: handler(), flags: action.sa_flags as u64 | now.flags & RESTORER, ..*now };
    // SAFETY: `entry` is async-signal-safe, and returns where the other one's handler does, by the C library's function.
    unsafe { ours.set(signal)? };
    Ok(*now)
}

/// `SA_RESTORER` of asm/signal.h.
const RESTORER: u64 = 0x0400_0000;

/// Puts the earlier dispositions back (crash path too): after a report the process dies by rules that were there before.
pub(crate) fn give_back() {
    DYING.store(process_id(), Ordering::Release);
    let taken = TAKEN.load(Ordering::Acquire);
    let ours = OURS.handler.load(Ordering::Acquire);
    for number in 1..=64 {
        if taken & bit(number) == 0 && number != deadline::SIGNAL {
            continue;
        }
        if SignalAction::of(number).is_ok_and(|now| now.handler == ours && ours != 0) {
            // SAFETY: the app had installed it.
            let _ = unsafe { previous_handler::of(number).set(number) };
        }
    }
}

/// Whether that is Coroner's handler, as the kernel has it.
pub(crate) fn is_handler(handler: usize) -> bool {
    handler == OURS.handler.load(Ordering::Acquire)
}

/// Takes a signal from who has put a handler over Coroner's (not async-signal-safe).
pub(crate) fn take_back(signal: i32) {
    // SAFETY: the handler is Coroner's own.
    let _ = unsafe { ours().set(signal) };
}

/// Coroner's disposition, of any signal.
fn ours() -> SignalAction {
    SignalAction {
        handler: OURS.handler.load(Ordering::Acquire),
        flags: OURS.flags.load(Ordering::Relaxed),
        restorer: OURS.restorer.load(Ordering::Relaxed),
        mask: 0,
    }
}

/// The handler that recovers guarded loads, if it has SIGSEGV and SIGBUS.
pub(crate) fn recovers_loads() -> Option<usize> {
    let faults = bit(libc::SIGSEGV) | bit(libc::SIGBUS);
    (TAKEN.load(Ordering::Acquire) & faults == faults).then(|| OURS.handler.load(Ordering::Acquire))
}

/// What [`displace`] took out, for [`replace`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Displaced([Option<SignalAction>; 7]);

/// The signals that [`displace`] sees to.
const HELD: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, deadline::SIGNAL];

/// Makes Coroner's handler the first one of every signal that the crash path relies on, for the time of the report: an
/// app's handler that was installed later and chained here must not see the crash path's own faults.
pub(crate) fn displace() -> Displaced {
    let ours = ours();
    let mut displaced = Displaced::default();
    for (place, signal) in displaced.0.iter_mut().zip(HELD) {
        if let Ok(now) = SignalAction::of(signal)
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

// The interrupted thread may have EFLAGS.AC set (bit 18, Intel SDM volume 3, 2.3), which the kernel leaves as it is: the handler's
// own unaligned accesses would fault, without end. The interrupted flags are in the context.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.coroner_signal_entry,\"ax\",@progbits",
    ".globl coroner_signal_entry",
    ".hidden coroner_signal_entry",
    ".type coroner_signal_entry,@function",
    "coroner_signal_entry:",
    ".cfi_startproc",
    "pushfq",
    ".cfi_adjust_cfa_offset 8",
    "and dword ptr [rsp], 0xfffbffff",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "jmp {entry}",
    ".cfi_endproc",
    ".size coroner_signal_entry, . - coroner_signal_entry",
    ".popsection",
    entry = sym entry,
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn coroner_signal_entry();
}

/// The handler's address, as the kernel is to call it.
fn handler() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return coroner_signal_entry as *const () as usize;
    #[cfg(any(target_arch = "aarch64", miri))]
    {
        // Two casts of a function need not give the same address, and under Miri do not.
        static ENTRY: unsafe extern "C" fn(i32, *mut SignalInfo, *mut libc::c_void) = entry;
        ENTRY as *const () as usize
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
    if faulted && recover_guarded_load(context) {
        return;
    }
    if info.signo == libc::SIGBUS
        && info.is_fault()
        && installed::get().is_some_and(|installed| installed.replace_lost_page(info.address()))
    {
        return;
    }
    let ids = (process_id(), this_thread());
    let (pid, tid) = ids;
    if guarded_call::recover(pid, tid, context) {
        return;
    }
    if REPORT_LOCK.is_mine(pid, tid) {
        return crash_entry::handle_recrash(info, context);
    }
    // A deadline that came just as its report ended is nobody's.
    if deadline::is_deadline(info) || forwarding::ignores(info) {
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
    let forwarding = &installed.platform.forwarding;
    let stack = core::ptr::from_ref(&ids) as u64;
    let (sp, mask) = if forwarding.is_passed_on(tid, info, stack) {
        (core::ptr::from_ref(info) as u64 - 1, blocked())
    } else {
        (context.sp(), context.signal_mask())
    };
    // A handler of this thread that never returned has left by a jump: that crash was none. Most often there is none, and nothing is
    // called up to the crash record whose address is in a table, see `crash_entry::record`.
    let left = forwarding.take_left(tid, sp, mask);
    if left != 0 {
        installed.run.state.set_crash_not_fatal(left);
    }
    let running = forwarding.is_by(tid, sp, mask);
    let has_handler = previous_handler::of(info.signo).is_function();
    if !installed.options.signals.contains(info.signo)
        || ignored_signals::take_ignored(tid, info.signo)
        || (pid != installed.run.pid && installed.options.fork == ForkPolicy::Silent)
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
        if !chains && !(has_handler && is_asked_first(installed, info, context)) {
            report_unfinished(installed, &crash, ids);
        }
        // SAFETY: as above.
        unsafe { forwarding::forward(info, context, false, asked) };
        return;
    }
    // Before anything is asked or looked up: in a program whose image is overwritten that may be as far as it comes. A crash that is
    // being reported is that of which the process dies: its record stays.
    let records = has_handler && !REPORT_LOCK.is_busy(pid);
    let number = if records { crash_entry::record(installed, Source::Signal(info), context, ids) } else { 0 };
    let first = has_handler && is_asked_first(installed, info, context);
    // SAFETY: as above.
    let answer = if first { unsafe { ask(installed, info, context, &ids, number) } } else { Answer::Refused };
    let reported = match answer {
        Answer::Handled => return,
        Answer::Reported => Reported::Elsewhere,
        Answer::Refused => {
            let next = if has_handler && !first { Next::AsksHandler } else { Next::Dies };
            crash_entry::report(installed, Source::Signal(info), context, ids, next)
        }
    };
    // Where another thread's report has this crash, the record from above is all there is of its own.
    let number = if let Reported::Here(later) = reported { later } else { number };
    let before = forwarding.begin(tid, &Crash { frame: core::ptr::from_ref(info) as u64, stack, context: 0, number });
    // SAFETY: as above.
    let outcome = unsafe { forwarding::forward(info, context, first, Asked::Latest) };
    forwarding.end(tid, &before);
    if outcome == Outcome::Continues {
        installed.run.state.set_crash_not_fatal(number);
    }
    if outcome != Outcome::Dies && matches!(reported, Reported::Here(_)) {
        resume_others(installed, ids);
    }
}

/// The process goes on after a report that a handler of the app was asked about.
fn resume_others(installed: &Installed, (pid, tid): (i32, i32)) {
    if let Some(owner) = REPORT_LOCK.end_forwarding(pid, tid) {
        other_threads::resume(installed);
        session::release(owner);
    }
}

/// As [`asked_first::is_asked_first`].
fn is_asked_first(installed: &Installed, info: &SignalInfo, context: &Context) -> bool {
    // A list of images that is damaged is read by loads whose faults come to this handler.
    let before = block_exactly(blocked() & !(bit(libc::SIGSEGV) | bit(libc::SIGBUS)));
    let fault = Fault::of(info, context.pc(), context.sp());
    let first = asked_first::is_asked_first(installed, &fault, previous_handler::known(info.signo));
    block_exactly(before);
    first
}

/// Asks the handler that was there before. The crash has a record, of that number, meanwhile: the handler may end the process. `ids` lie
/// in the frame of Coroner's handler.
///
/// # Safety
/// This thread is handling that signal.
unsafe fn ask(
    installed: &Installed,
    info: &mut SignalInfo,
    context: &mut Context,
    ids: &(i32, i32),
    number: u64,
) -> Answer {
    let (stack, (pid, tid)) = (core::ptr::from_ref(ids) as u64, *ids);
    let (pc, sp) = (context.pc(), context.sp());
    let ours = SignalAction::of(info.signo).unwrap_or_default();
    let (frame, at) = (core::ptr::from_ref(info) as u64, core::ptr::from_ref(context) as u64);
    let forwarding = &installed.platform.forwarding;
    let before = forwarding.begin(tid, &Crash { frame, stack, context: at, number });
    // SAFETY: by the contract.
    let called = unsafe { previous_handler::call(info, context, Asked::Latest) };
    let ended = forwarding.end(tid, &before);
    let moved = context.pc() != pc || context.sp() != sp;
    let stayed = SignalAction::of(info.signo).unwrap_or_default() == ours;
    // A runtime is believed, and so is one that dealt with crashes of this run before; one that the app says is to come first may
    // not know of them.
    let goes_on = || {
        !signal_death::occurs_again(info)
            || !installed.options.chain_first
            || ignored_signals::try_again(tid, pc, info.address())
            || is_repaired(info, context)
    };
    let handled = called && (moved || (stayed && goes_on()));
    if handled {
        installed.run.state.set_crash_not_fatal(number);
    }
    match (handled, ended.context == 0) {
        (true, true) => {
            resume_others(installed, (pid, tid));
            Answer::Handled
        }
        (true, false) => Answer::Handled,
        (false, true) => Answer::Reported,
        (false, false) => Answer::Refused,
    }
}

/// Writes the report of a crash whose handler is being asked.
pub(super) fn report_asked(installed: &'static Installed, info: &SignalInfo, context: &Context, ids: (i32, Tid)) {
    crash_entry::report(installed, Source::Signal(info), context, ids, Next::AsksHandler);
}

/// Whether the memory whose access faulted can be accessed so now: a write barrier repairs the same fault again and again.
fn is_repaired(info: &SignalInfo, context: &Context) -> bool {
    /// `SEGV_MAPERR`, `SEGV_ACCERR` and `BUS_ADRERR`, asm-generic/siginfo.h: there is an address.
    const WITH_ADDRESS: [(i32, i32); 3] = [(libc::SIGSEGV, 1), (libc::SIGSEGV, 2), (libc::SIGBUS, 2)];
    let write = match context.access() {
        Some(context::Access::Read) => false,
        // An emulator may not say (qemu-user on arm64 gives no ESR): what can be written can be read.
        Some(context::Access::Write) | None => true,
        Some(context::Access::Execute) => return false,
    };
    WITH_ADDRESS.contains(&(info.signo, info.code)) && is_accessible(info.address(), write)
}

/// What the run state keeps of a crash.
pub(crate) fn crash_record(info: &SignalInfo, context: &Context, tid: i32) -> CrashRecord {
    CrashRecord {
        monitor: Monitor::SIGNAL,
        signal: info.signo,
        code: info.code.into(),
        errno: info.errno,
        address: address_of(info),
        tid: tid as u64,
        time_ns: wall_now(),
        pc: context.pc(),
        sp: context.sp(),
    }
}

/// The address that the signal is about, if it is known. `SI_KERNEL` says of a memory fault that it is not (x86_64: a non-canonical
/// address, a privileged instruction).
pub(crate) fn address_of(info: &SignalInfo) -> Option<u64> {
    let of_fault = matches!(info.signo, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP);
    (info.is_fault() && of_fault && info.code != SI_KERNEL).then(|| info.address())
}

/// `SI_KERNEL`, asm-generic/siginfo.h.
const SI_KERNEL: i32 = 0x80;

/// What happened, from what the kernel gave the handler.
pub(crate) fn crash_context(info: &SignalInfo, context: &Context, (pid, tid): (i32, i32)) -> CrashContext {
    let fault = context.fault();
    let is_memory_fault = info.is_fault() && matches!(info.signo, libc::SIGSEGV | libc::SIGBUS);
    let address = address_of(info);
    let sender = info.sender();
    #[cfg(target_arch = "x86_64")]
    let extra =
        [(ExtraRegister::TRAPNO, fault.trap), (ExtraRegister::ERR, fault.error), (ExtraRegister::CR2, fault.address)];
    #[cfg(target_arch = "aarch64")]
    let extra =
        [(ExtraRegister::ESR, fault.error), (ExtraRegister::FAR, fault.address), (ExtraRegister::THREAD_POINTER, 0)];
    let known = if cfg!(target_arch = "x86_64") { 3 } else { 2 };
    CrashContext {
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

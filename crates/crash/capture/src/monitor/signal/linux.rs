//! Linux's part of the signal monitor: taking signals, recovery, and how a crash becomes a report. The crashed thread writes it itself
//! ([`crate::linux::crash_entry`]), on Coroner's own stack.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use coroner_process::context::{self, Context, SignalInfo};
use coroner_process::deadline;
use coroner_process::memory::{is_accessible, recover_guarded_load};
use coroner_process::signal_frame;
use coroner_process::signals::{SignalAction, bit};
use coroner_process::stop_the_world::action;
use coroner_process::syscall::Errno;
use coroner_process::threads::{Tid, process_id, this_thread, wall_now};
use coroner_report::run_state::CrashRecord;
use coroner_report::wire::Monitor;
use coroner_walk::loaded_image::{self, Holder};

use super::{OURS, TAKEN};
use crate::crash_context::address_of;
use crate::forwarding::Outcome;
use crate::guarded_call;
use crate::ignored_signals;
use crate::installed::{self, Installed};
use crate::linux::crash_entry::{self, Source};
use crate::linux::{other_threads, signal_death};
use crate::previous_handler;
use crate::report_lock::REPORT_LOCK;
use crate::session::{self, Next, Reported};

/// What the kernel holds with Coroner's handler, of any taken signal: flags and restorer are the same for all.
/// Kept for the crash path, which puts it back where an app's handler came later and chained to Coroner's. The kernel is asked for them
/// only where `sigaction` may be interposed, which the handler's way back may be, too; else the flags are 0.
static DISPOSITION: Disposition =
    Disposition { flags: AtomicU64::new(0), restorer: AtomicUsize::new(0), held: AtomicU64::new(0) };

struct Disposition {
    flags: AtomicU64,
    restorer: AtomicUsize,
    /// The signal that stops threads, as a set.
    held: AtomicU64,
}

/// The signals that the crash path itself may raise or be interrupted by: never blocked while it runs.
pub(crate) const NEEDED: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(deadline::SIGNAL);

/// The highest number of a signal.
pub(super) const LAST_SIGNAL: i32 = 64;

/// Says what is blocked while the handlers run: the signal that stops threads, so that a thread that crashes on its own is not stopped
/// on its way. Before an install.
pub(crate) fn hold(signal: i32) {
    DISPOSITION.held.store(bit(signal), Ordering::Release);
}

pub(super) fn take(signal: i32) -> Result<(), Errno> {
    // glibc says all that the kernel does; an interposer, and musl of the restorer, may not.
    let asks_kernel = !cfg!(target_env = "gnu") || may_be_interposed();
    let before = if asks_kernel { Some(SignalAction::of(signal)?) } else { None };
    // The C library's sigaction, so that what interposes it (ART's libsigchain, sanitizers) knows of the handler and the
    // library's own signal return is used.
    let mut action = action_blocking(DISPOSITION.held.load(Ordering::Acquire));
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
    if !asks_kernel {
        OURS.store(handler(), Ordering::Release);
    } else if before.is_function() || OURS.load(Ordering::Acquire) != handler() {
        let now = SignalAction::of(signal)?;
        if now.handler == handler() {
            DISPOSITION.flags.store(now.flags, Ordering::Relaxed);
            DISPOSITION.restorer.store(now.restorer, Ordering::Relaxed);
            OURS.store(now.handler, Ordering::Release);
        } else {
            earlier = take_from_interposer(signal, &action, &replaced, &now)?;
        }
    }
    // After an uninstall that had to leave the handler in place, what was before is remembered already.
    if before.handler != handler() {
        previous_handler::remember(signal, &earlier);
    }
    let mask = mask_of_handler(signal);
    if mask != DISPOSITION.held.load(Ordering::Acquire) {
        action = action_blocking(mask);
        // SAFETY: as above; nobody asks for what was before.
        unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) };
    }
    Ok(())
}

/// `SA_EXPOSE_TAGBITS` (asm-generic/signal-defs.h, Linux 5.11; older kernels ignore it): of a pointer with a memory tag `si_addr` has the
/// tag.
pub(crate) const EXPOSE_TAGS: i32 = if cfg!(target_arch = "aarch64") { 0x800 } else { 0 };

/// What is blocked while Coroner's handler of that signal runs: the crash path sets its own mask, once for all monitors, so that is
/// little, and what the handler from before it blocks. That one counts on it from the fault to its return: a garbage collector's write
/// barrier (Boehm's) blocks the signal that stops threads, which would find the thread on its alternate stack and scan from there.
fn mask_of_handler(signal: i32) -> u64 {
    let before = previous_handler::of(signal);
    let of_before = if before.is_function() { before.mask & !NEEDED & !bit(previous_handler::MARKER) } else { 0 };
    DISPOSITION.held.load(Ordering::Acquire) | of_before
}

/// Coroner's handler, for the C library, with signals that are blocked while it runs.
fn action_blocking(mask: u64) -> libc::sigaction {
    // SAFETY: an all-zero sigaction is valid.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler();
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | EXPOSE_TAGS;
    for number in (1..=64).filter(|number| mask & bit(*number) != 0) {
        // SAFETY: the set is valid.
        unsafe { libc::sigaddset(&raw mut action.sa_mask, number) };
    }
    action
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

/// Coroner's disposition of that signal.
pub(crate) fn ours(signal: i32) -> SignalAction {
    let (handler, mask) = (OURS.load(Ordering::Acquire), mask_of_handler(signal));
    match DISPOSITION.flags.load(Ordering::Relaxed) {
        // It returns as the C library's handlers do, by code of Coroner's own.
        0 => {
            let plain = action(handler);
            SignalAction { flags: plain.flags | EXPOSE_TAGS as u64, mask, ..plain }
        }
        flags => SignalAction { handler, flags, restorer: DISPOSITION.restorer.load(Ordering::Relaxed), mask },
    }
}

/// The handler that recovers guarded loads, if it has SIGSEGV and SIGBUS.
pub(crate) fn recovers_loads() -> Option<usize> {
    let faults = bit(libc::SIGSEGV) | bit(libc::SIGBUS);
    (TAKEN.load(Ordering::Acquire) & faults == faults).then(|| OURS.load(Ordering::Acquire))
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
    let mut displaced = Displaced::default();
    for (place, signal) in displaced.0.iter_mut().zip(HELD) {
        let ours = ours(signal);
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
    "endbr64",
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
/// Called by the kernel, or by a handler that chains to this one, with what the kernel gave it or with the number alone.
pub(crate) unsafe extern "C" fn entry(signal: i32, info: *mut SignalInfo, context: *mut libc::c_void) {
    let here = 0_u8;
    let given = signal_frame::arguments(signal, info as u64, context as u64, &raw const here as u64);
    let Some((info, context)) = given else { return die_unseen(signal) };
    // SAFETY: the kernel's (or the chaining handler's) siginfo and ucontext, alive until this returns.
    let (info, context) = unsafe { (&mut *(info as *mut SignalInfo), Context::from_pointer(context as *mut _)) };
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
    if !deadline::is_deadline(info) {
        super::handle(info, context, &ids);
    }
}

/// A handler called this one with a signal's number alone, and the kernel's frame is not on the stack: what can be noted is noted, and the
/// process dies as by the default action.
#[cold]
fn die_unseen(signal: i32) {
    let current = installed::get().filter(|installed| installed.run.pid == process_id());
    if let Some(installed) = current.filter(|installed| installed.options.signals.contains(signal)) {
        let (monitor, tid, time_ns) = (Monitor::SIGNAL, this_thread() as u64, wall_now());
        installed.run.state.set_crash(&CrashRecord { monitor, signal, tid, time_ns, ..CrashRecord::default() });
    }
    signal_death::by_default(signal);
}

/// What the rest of an exception became: there are none here.
pub(super) fn became(_installed: &Installed, _tid: Tid) -> Option<Reported> {
    None
}

/// Records the crash.
pub(super) fn record(installed: &Installed, info: &SignalInfo, context: &Context, ids: (i32, Tid)) -> u64 {
    crash_entry::record(installed, Source::Signal(info), context, ids, wall_now())
}

/// Writes the report.
pub(super) fn report(
    installed: &'static Installed,
    info: &SignalInfo,
    context: &Context,
    ids: (i32, Tid),
    next: Next,
) -> Reported {
    crash_entry::report(installed, Source::Signal(info), context, ids, next)
}

/// The earlier handler has returned: if the process goes on, so do the other threads that a report left stopped.
pub(super) fn handler_returned(installed: &Installed, (pid, tid): (i32, Tid), outcome: Outcome) {
    if outcome != Outcome::Dies
        && let Some(owner) = REPORT_LOCK.end_forwarding(pid, tid)
    {
        other_threads::resume(installed);
        session::release(owner);
    }
}

/// Whether a handler that was asked first, and left the thread where it was, has dealt with the signal. A runtime is believed, and so is
/// one that dealt with crashes of this run before; one that the app says is to come first may not know of them.
pub(super) fn is_dealt_with(installed: &Installed, info: &SignalInfo, context: &Context, tid: Tid) -> bool {
    !signal_death::occurs_again(info)
        || !installed.options.chain_first
        || ignored_signals::try_again(tid, context.pc(), info.address())
        || is_repaired(info, context)
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
pub(crate) fn crash_record(info: &SignalInfo, context: &Context, tid: i32, time_ns: u64) -> CrashRecord {
    CrashRecord {
        monitor: Monitor::SIGNAL,
        signal: info.signo,
        code: info.code.into(),
        errno: info.errno,
        address: address_of(info),
        tid: tid as u64,
        time_ns,
        pc: context.pc(),
        sp: context.sp(),
    }
}

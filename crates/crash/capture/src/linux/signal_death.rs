//! Lets the process die of a signal that no other handler takes.

#[cfg(target_arch = "x86_64")]
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};
use core::sync::atomic::{AtomicU8, Ordering};

use coroner_process::context::{self, SignalContext, SignalInfo};
use coroner_process::memory::is_accessible;
use coroner_process::process;
use coroner_process::shared_handlers;
use coroner_process::signals::{SignalAction, bit};
use coroner_process::syscall::syscall;
use coroner_process::threads::{Tid, process_id, this_thread};

#[cfg(target_arch = "x86_64")]
use super::other_threads;
use crate::installed;
#[cfg(target_arch = "x86_64")]
use crate::previous_handler;
#[cfg(target_arch = "x86_64")]
use crate::report_lock::REPORT_LOCK;
#[cfg(target_arch = "x86_64")]
use crate::session;
use crate::taken_signals;

/// Lets the process die of this signal when the handler returns, with the thread where the signal
/// found it (as a core dump shows it).
///
/// The signal is queued for the thread with its original siginfo, and blocked until the handler
/// returns: a fault may not occur again (another process repaired the file; the kernel moved the
/// thread out of a restartable sequence), and its process would live without Coroner's handlers.
/// Two kinds of processes can't rely on that:
/// * The first one of a pid namespace ignores it (pid_namespaces(7)).
/// * A seccomp filter may kill the process for the system call, by SIGSYS.
///
/// There the thread [retries](Retry) what raised the signal, with the default action, by which the
/// kernel kills any process; the other threads are stopped, so only another process can have
/// repaired it. If nothing raises the signal again (it was sent or [forced](is_forced)), the exit
/// status gives it as a shell would. The same exit status is used if no signal can be sent.
///
/// Returns `false` if the process lives, with all its handlers: nothing would kill it.
pub(crate) fn die(info: &SignalInfo, context: &mut SignalContext) -> bool {
    let (signal, pid) = (info.signo, process_id());
    let is_filtered = is_filtered();
    let retries = (pid == 1 || is_filtered) && occurs_again(info) && !is_forced(info, context);
    if retries && cfg!(target_arch = "aarch64") && is_repaired(info, context) {
        return false;
    }
    if installed::get().is_some_and(|of| of.run.pid != pid && shared_handlers::are_shared_with(of.run.pid)) {
        // SAFETY: Coroner's own handler, which the parent has now.
        unsafe { shared_handlers::restore_after_death(signal, &taken_signals::ours(signal)) };
    } else {
        taken_signals::give_back();
    }
    // SAFETY: the default action runs no code.
    let is_reset = unsafe { SignalAction::DEFAULT.set(signal) }.is_ok();
    let mask = context.signal_mask();
    // If a system call filter refuses it: the kernel kills for a fault whose signal is blocked
    // (`force_sig_info_to_task` of kernel/signal.c).
    context.set_signal_mask(if is_reset { mask & !bit(signal) } else { mask | bit(signal) });
    if retries {
        #[cfg(target_arch = "x86_64")]
        RETRY.begin(context, mask);
        return true;
    }
    if !((pid == 1 || is_filtered) && step_back(info, context)) {
        send(info, (pid, this_thread()), is_filtered);
    }
    true
}

/// Whether a filter is active, as the report found: 0 if there was none, else one of these.
static FILTER: AtomicU8 = AtomicU8::new(0);
const UNFILTERED: u8 = 1;
const FILTERED: u8 = 2;

/// Notes whether a seccomp filter is active, for [`die`].
///
/// A filter may trap the query itself. The crash path handles that signal while it writes a report,
/// but no longer when the process dies.
pub(crate) fn note_filter(is_active: bool) {
    FILTER.store(if is_active { FILTERED } else { UNFILTERED }, Ordering::Relaxed);
}

fn is_filtered() -> bool {
    match FILTER.load(Ordering::Relaxed) {
        0 => process::has_seccomp_filter(),
        noted => noted == FILTERED,
    }
}

/// Sends the thread its signal once more, or exits if that does not kill the process.
fn send(info: &SignalInfo, (pid, tid): (i32, Tid), is_filtered: bool) {
    let signal = info.signo;
    if pid == 1 {
        process::exit(128 + signal);
    }
    // SAFETY: no memory is touched. Async-signal-safe: one system call.
    let by_number = || unsafe { syscall!(libc::SYS_tgkill, pid, tid, signal) }.is_ok();
    // The app has just sent it this way, so the filter allows it, and its siginfo is the same.
    let was_raised = info.code == libc::SI_TKILL && info.sender().is_some_and(|(sender, _)| sender == pid);
    if is_filtered && was_raised && by_number() {
        return;
    }
    // SAFETY: the kernel reads one siginfo. Async-signal-safe: one system call. A process may send
    // itself any siginfo.
    let queued = unsafe { syscall!(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, core::ptr::from_ref(info)) };
    if queued.is_err() && !by_number() {
        process::exit(128 + signal);
    }
}

/// A fault whose instruction is executed once more, to kill the process.
///
/// If it succeeds, the process lives, and must have Coroner's handlers again. The processor traps
/// after the instruction (`EFLAGS.TF`, Intel SDM volume 3, 18.3.1.4), and Coroner's handler of
/// SIGTRAP takes the others back. arm64 has no such flag for programs: there it is asked before
/// whether the memory can be accessed now.
#[cfg(target_arch = "x86_64")]
struct Retry {
    /// The thread; 0 for none.
    tid: AtomicI32,
    /// The signals that the thread blocks.
    mask: AtomicU64,
    /// Number of the crash record, 0 for none.
    number: AtomicU64,
    /// Whether the thread has left the crash path, and owns the report lock only until it dies.
    is_reported: AtomicBool,
}

#[cfg(target_arch = "x86_64")]
static RETRY: Retry = Retry {
    tid: AtomicI32::new(0),
    mask: AtomicU64::new(0),
    number: AtomicU64::new(0),
    is_reported: AtomicBool::new(false),
};

#[cfg(target_arch = "x86_64")]
impl Retry {
    fn begin(&self, context: &mut SignalContext, mask: u64) {
        // Another handler of SIGTRAP, which the app has installed since, stays.
        let is_given_back =
            SignalAction::of(libc::SIGTRAP).is_ok_and(|now| now.handler == previous_handler::of(libc::SIGTRAP).handler);
        // SAFETY: Coroner's own handler.
        if !is_given_back || unsafe { taken_signals::ours(libc::SIGTRAP).set(libc::SIGTRAP) }.is_err() {
            return;
        }
        self.mask.store(mask, Ordering::Relaxed);
        self.number.store(0, Ordering::Relaxed);
        self.is_reported.store(false, Ordering::Relaxed);
        self.tid.store(this_thread(), Ordering::Release);
        context.set_signal_mask(context.signal_mask() & !bit(libc::SIGTRAP));
        context.set_single_step(true);
    }
}

/// Notes that the crash with this record has its report, and that the thread dies of it when the
/// handler returns.
pub(crate) fn note_reported(tid: Tid, number: u64) {
    #[cfg(target_arch = "x86_64")]
    if RETRY.tid.load(Ordering::Acquire) == tid {
        RETRY.number.store(number, Ordering::Relaxed);
        RETRY.is_reported.store(true, Ordering::Relaxed);
    }
    #[cfg(target_arch = "aarch64")]
    let _ = (tid, number);
}

/// Lets the process continue, with Coroner's handlers, if the signal is the trap after a
/// [retried](Retry) instruction, which has succeeded. Returns whether it is.
#[cfg(target_arch = "x86_64")]
pub(crate) fn survive(info: &SignalInfo, context: &mut SignalContext, (pid, tid): (i32, Tid)) -> bool {
    /// `TRAP_TRACE` of asm-generic/siginfo.h.
    const SINGLE_STEP: i32 = 2;
    let is_trap = info.signo == libc::SIGTRAP && info.code == SINGLE_STEP;
    if !is_trap || RETRY.tid.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return false;
    }
    context.set_single_step(false);
    context.set_signal_mask(RETRY.mask.load(Ordering::Relaxed));
    taken_signals::take_again();
    if RETRY.is_reported.load(Ordering::Relaxed)
        && let Some(installed) = installed::get()
    {
        if installed.is_own_process(pid) {
            installed.run.state.set_crash_not_fatal(RETRY.number.load(Ordering::Relaxed));
        }
        if let Some(owner) = REPORT_LOCK.own_again(pid, tid) {
            other_threads::resume(installed);
            session::release(owner);
        }
    }
    true
}

/// Returns `false`: no instruction is retried with a trap after it.
#[cfg(target_arch = "aarch64")]
pub(crate) fn survive(_info: &SignalInfo, _context: &mut SignalContext, _ids: (i32, Tid)) -> bool {
    false
}

/// Lets the process die of a signal of which only the number is known, by the default action: of
/// the fault that occurs again, or of the signal that is sent once more.
pub(crate) fn by_default(signal: i32) {
    taken_signals::give_back();
    // SAFETY: the default action runs no code.
    let _ = unsafe { SignalAction::DEFAULT.set(signal) };
    // SAFETY: no memory is touched. Async-signal-safe: one system call.
    if unsafe { syscall!(libc::SYS_tgkill, process_id(), this_thread(), signal) }.is_err() {
        process::exit(128 + signal);
    }
}

/// Returns `true` if the signal is raised again when the thread continues: a fault of the
/// instruction at its program counter.
pub(crate) fn occurs_again(info: &SignalInfo) -> bool {
    /// Failed memory, `BUS_MCEERR_AR` and `BUS_MCEERR_AO`: the kernel takes the page away at the
    /// first access.
    const MEMORY_FAILURE: core::ops::RangeInclusive<i32> = 4..=5;
    match info.signo {
        libc::SIGBUS => info.is_fault() && !MEMORY_FAILURE.contains(&info.code),
        libc::SIGSEGV | libc::SIGILL | libc::SIGFPE => info.is_fault(),
        // arm64 reports `brk` at its own address, x86_64 reports `int3` after it.
        libc::SIGTRAP => info.is_fault() && cfg!(target_arch = "aarch64"),
        _ => false,
    }
}

/// Returns `true` if the memory whose access faulted can now be accessed in that way: a write
/// barrier repairs the same fault again and again.
pub(crate) fn is_repaired(info: &SignalInfo, context: &SignalContext) -> bool {
    /// `SEGV_MAPERR`, `SEGV_ACCERR` and `BUS_ADRERR`, asm-generic/siginfo.h: these have an address.
    const WITH_ADDRESS: [(i32, i32); 3] = [(libc::SIGSEGV, 1), (libc::SIGSEGV, 2), (libc::SIGBUS, 2)];
    let write = match context.access() {
        Some(context::Access::Read) => false,
        // An emulator may not report it (qemu-user on arm64 provides no ESR): writable memory is
        // also readable.
        Some(context::Access::Write) | None => true,
        Some(context::Access::Execute) => return false,
    };
    WITH_ADDRESS.contains(&(info.signo, info.code)) && is_accessible(info.address(), write)
}

/// Whether no instruction raised the `SIGSEGV`: the kernel could not write another signal's frame
/// to the thread's stack, or could not read it when the handler returned (`force_sigsegv` of
/// kernel/signal.c). The thread would continue as if nothing had happened.
fn is_forced(info: &SignalInfo, context: &SignalContext) -> bool {
    /// From asm-generic/siginfo.h.
    const SI_KERNEL: i32 = 0x80;
    /// x86_64's exception for a non-canonical address (`X86_TRAP_GP` of asm/trapnr.h), which has
    /// the same code.
    const GENERAL_PROTECTION: u64 = 13;
    let is_of_instruction = cfg!(target_arch = "x86_64") && context.fault().trap == GENERAL_PROTECTION;
    info.signo == libc::SIGSEGV && info.code == SI_KERNEL && !is_of_instruction
}

/// Moves the thread back to an `int3` that it has just executed. Returns `false` if there is none.
#[cfg(target_arch = "x86_64")]
fn step_back(info: &SignalInfo, context: &mut SignalContext) -> bool {
    /// The one-byte breakpoint instruction.
    const INT3: u8 = 0xcc;
    /// The exception of the one-byte breakpoint, `X86_TRAP_BP` of asm/trapnr.h.
    const BREAKPOINT: u64 = 3;
    let before = context.pc().wrapping_sub(1);
    let is_breakpoint = info.signo == libc::SIGTRAP && info.is_fault() && context.fault().trap == BREAKPOINT;
    // Coroner's handlers of SIGSEGV and SIGBUS may have been given back by now, so the kernel is
    // asked.
    // SAFETY: the kernel has just read this byte of the thread's code. Async-signal-safe: a load.
    if !is_breakpoint || !is_accessible(before, false) || unsafe { (before as *const u8).read_volatile() } != INT3 {
        return false;
    }
    context.set_pc(before);
    true
}

/// Does nothing: `brk` on arm64 doesn't advance the program counter.
#[cfg(target_arch = "aarch64")]
fn step_back(_info: &SignalInfo, _context: &mut SignalContext) -> bool {
    false
}

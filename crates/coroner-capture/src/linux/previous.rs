//! The handlers that were there before Coroner's, and giving a signal to them as if Coroner were not there.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(crate) use coroner_machine::context::Context as SignalContext;
use coroner_machine::context::SignalInfo;
#[cfg(target_arch = "x86_64")]
use coroner_machine::memory::{KernelCopy, Memory};
use coroner_machine::syscall::syscall;
use coroner_machine::threads::{process_id, this_thread};

use super::action::{Action, DEFAULT, bit, block_exactly};
use super::process;

/// One signal's earlier disposition. It outlives an uninstall, since another reporter that was installed later may have
/// kept Coroner's handler as *its* previous one.
struct Slot {
    handler: AtomicUsize,
    flags: AtomicU64,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

const SIGNALS: usize = 65;

static PREVIOUS: [Slot; SIGNALS] = [const {
    Slot {
        handler: AtomicUsize::new(DEFAULT),
        flags: AtomicU64::new(0),
        restorer: AtomicUsize::new(0),
        mask: AtomicU64::new(0),
    }
}; SIGNALS];

/// Remembers what a signal's disposition was before Coroner's (normal life).
pub(crate) fn remember(signal: i32, action: &Action) {
    if let Some(slot) = PREVIOUS.get(signal as usize) {
        slot.flags.store(action.flags, Ordering::Relaxed);
        slot.restorer.store(action.restorer, Ordering::Relaxed);
        slot.mask.store(action.mask, Ordering::Relaxed);
        slot.handler.store(action.handler, Ordering::Release);
    }
}

/// What a signal's disposition was before Coroner's; the default for one that Coroner never took.
pub(crate) fn of(signal: i32) -> Action {
    PREVIOUS.get(signal as usize).map_or(Action::DEFAULT, |slot| Action {
        handler: slot.handler.load(Ordering::Acquire),
        flags: slot.flags.load(Ordering::Relaxed),
        restorer: slot.restorer.load(Ordering::Relaxed),
        mask: slot.mask.load(Ordering::Relaxed),
    })
}

/// Calls the earlier handler, if it is a function, with the original signal, siginfo and ucontext, and the mask that it
/// asked for. False if there is none.
///
/// # Safety
/// The three must be those of the signal that this thread is handling.
pub(crate) unsafe fn call(info: &mut SignalInfo, context: &mut SignalContext) -> bool {
    let signal = info.signo;
    let action = of(signal);
    if !action.is_function() {
        return false;
    }
    if action.flags & libc::SA_RESETHAND as u64 != 0 {
        remember(signal, &Action::DEFAULT);
    }
    let mut mask = context.signal_mask() | action.mask;
    if action.flags & libc::SA_NODEFER as u64 == 0 {
        mask |= bit(signal);
    }
    // The timer that lets the other threads go must come through.
    let before = block_exactly(mask & !bit(super::deadline::SIGNAL));
    // SAFETY: the app installed this function as a handler of this signal. One that takes only the number gets two more
    // arguments, which both calling conventions allow.
    let handler: unsafe extern "C" fn(i32, *mut SignalInfo, *mut SignalContext) =
        unsafe { core::mem::transmute(action.handler) };
    // SAFETY: it is called as the kernel would have, on the same stack rules and with the same mask.
    unsafe { handler(signal, info, context) };
    block_exactly(before);
    true
}

/// Lets the process die of this signal when the handler returns, with the thread where the signal found it (that is what
/// a core dump shows):
/// * a fault occurs again when the thread goes on, now with the default action, which kills even the first process of a
///   pid namespace; the other threads stand still, so nobody can have mended it meanwhile;
/// * a signal that was sent, an `int3` and a seccomp trap do not occur again: the signal is queued once more, blocked until
///   the handler returns, with its siginfo. The first process of a pid namespace is not killed so (pid_namespaces(7)):
///   there `int3` is executed again, and for the rest the exit status tells the signal as a shell would.
pub(crate) fn die(info: &SignalInfo, context: &mut SignalContext) {
    let signal = info.signo;
    crate::monitor::signal::give_back();
    // SAFETY: the default action runs no code.
    let _ = unsafe { Action::DEFAULT.set(signal) };
    context.set_signal_mask(context.signal_mask() & !bit(signal));
    let pid = process_id();
    if occurs_again(info) || (pid == 1 && step_back(info, context)) {
        return;
    }
    if pid == 1 {
        process::exit(128 + signal);
    }
    let tid = this_thread();
    // SAFETY: the kernel reads one siginfo. Async-signal-safe: one system call. A process may send itself any siginfo.
    let queued = unsafe { syscall!(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, core::ptr::from_ref(info)) };
    if queued.is_err() {
        // SAFETY: no memory is touched. Async-signal-safe: one system call.
        let _ = unsafe { syscall!(libc::SYS_tgkill, pid, tid, signal) };
    }
}

/// Whether the signal is raised again when the thread goes on: a fault of the instruction at its program counter.
fn occurs_again(info: &SignalInfo) -> bool {
    /// Memory that failed, `BUS_MCEERR_AR` and `BUS_MCEERR_AO`: the kernel takes the page away at the first access.
    const MEMORY_FAILURE: core::ops::RangeInclusive<i32> = 4..=5;
    match info.signo {
        libc::SIGBUS => info.is_fault() && !MEMORY_FAILURE.contains(&info.code),
        libc::SIGSEGV | libc::SIGILL | libc::SIGFPE => info.is_fault(),
        // arm64 reports `brk` at its own address, x86_64 `int3` behind it.
        libc::SIGTRAP => info.is_fault() && cfg!(target_arch = "aarch64"),
        _ => false,
    }
}

/// Sets the thread back before an `int3` that it has just executed. False where there is none.
#[cfg(target_arch = "x86_64")]
fn step_back(info: &SignalInfo, context: &mut SignalContext) -> bool {
    /// The one-byte breakpoint instruction.
    const INT3: u8 = 0xcc;
    let before = context.pc().wrapping_sub(1);
    let mut byte = [0];
    // Coroner's handlers of SIGSEGV and SIGBUS may have been given back by now, so the kernel reads.
    let read = KernelCopy::new().is_some_and(|mut memory| memory.read(before, &mut byte).is_ok());
    if info.signo != libc::SIGTRAP || !info.is_fault() || !read || byte != [INT3] {
        return false;
    }
    context.set_pc(before);
    true
}

/// arm64 has nothing to set back.
#[cfg(target_arch = "aarch64")]
fn step_back(_info: &SignalInfo, _context: &mut SignalContext) -> bool {
    false
}

//! The signal handlers that were there before Coroner's, and giving a signal to them as if Coroner were not there.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

pub(crate) use coroner_machine::context::SignalContext;
use coroner_machine::context::SignalInfo;

use super::action::{Action, bit, block_exactly};
use super::install::give_back;

/// One signal's earlier disposition. It outlives an uninstall, since another reporter that was installed later may have kept
/// Coroner's handler as *its* previous one.
struct Slot {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU32,
}

const SIGNALS: usize = 32;

static PREVIOUS: [Slot; SIGNALS] =
    [const { Slot { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0), mask: AtomicU32::new(0) } };
        SIGNALS];

/// Remembers what a signal's disposition was before Coroner's (normal life).
pub(crate) fn remember(signal: i32, action: &Action) {
    if let Some(slot) = PREVIOUS.get(signal as usize) {
        slot.flags.store(action.flags, Ordering::Relaxed);
        slot.mask.store(action.mask, Ordering::Relaxed);
        slot.handler.store(action.handler, Ordering::Release);
    }
}

/// What a signal's disposition was before Coroner's; the default for one that Coroner never took.
pub(crate) fn of(signal: i32) -> Action {
    PREVIOUS.get(signal as usize).map_or(Action::DEFAULT, |slot| Action {
        handler: slot.handler.load(Ordering::Acquire),
        flags: slot.flags.load(Ordering::Relaxed),
        mask: slot.mask.load(Ordering::Relaxed),
    })
}

/// Calls the earlier handler, if it is a function, with the original signal, siginfo and ucontext, and the mask that it asked
/// for. False if there is none.
///
/// # Safety
/// The three must be those of the signal that this thread is handling.
pub(crate) unsafe fn call(info: &mut SignalInfo, context: &mut SignalContext) -> bool {
    let signal = info.signo;
    let action = of(signal);
    if !action.is_function() {
        return false;
    }
    if action.flags & libc::SA_RESETHAND != 0 {
        remember(signal, &Action::DEFAULT);
    }
    let mut mask = context.signal_mask() | action.mask;
    if action.flags & libc::SA_NODEFER == 0 {
        mask |= bit(signal);
    }
    let before = block_exactly(mask);
    // SAFETY: the app installed this function as a handler of this signal. One that takes only the number gets two more
    // arguments, which both calling conventions allow.
    let handler: unsafe extern "C" fn(i32, *mut SignalInfo, *mut SignalContext) =
        unsafe { core::mem::transmute(action.handler) };
    // SAFETY: it is called as the kernel would have, on the same stack rules and with the same mask.
    unsafe { handler(signal, info, context) };
    block_exactly(before);
    true
}

/// Lets the process die of this signal when the handler returns, with the thread where the signal found it: a fault occurs
/// again when the thread goes on, now with neither Coroner's port nor its handler; a signal that was sent, and an `int3`,
/// whose program counter is behind it, are sent to the thread once more, which blocks them until the handler returns.
pub(crate) fn die(info: &SignalInfo, context: &mut SignalContext) {
    let signal = info.signo;
    give_back();
    // SAFETY: the default action runs no code.
    let _ = unsafe { Action::DEFAULT.set(signal) };
    context.set_signal_mask(context.signal_mask() & !bit(signal));
    let occurs_again = match signal {
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE => info.is_fault(),
        libc::SIGTRAP => info.is_fault() && cfg!(target_arch = "aarch64"),
        _ => false,
    };
    if !occurs_again {
        // Coroner's handler was installed without SA_NODEFER, but may have been called by one that was: blocked for certain.
        block_exactly(block_exactly(u32::MAX) | bit(signal));
        // SAFETY: a signal to the calling thread. Async-signal-safe (POSIX).
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }
}

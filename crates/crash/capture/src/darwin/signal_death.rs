//! Lets the process die of a signal that no other handler takes.

use coroner_process::context::{SignalContext, SignalInfo};
use coroner_process::signals::{SignalAction, bit, block_exactly};

use crate::installed;
use crate::taken_signals;

/// Lets the process die of this signal when the handler returns, with the thread where the signal
/// found it. A fault occurs again when the thread continues, now with neither Coroner's port nor
/// its handler. A signal that was sent, and an `int3`, whose program counter is after it, are sent
/// once more to the thread, which blocks them until the handler returns. Returns `true`: the
/// process dies.
pub(crate) fn die(info: &SignalInfo, context: &mut SignalContext) -> bool {
    let signal = info.signo;
    give_back();
    // SAFETY: the default action runs no code.
    let _ = unsafe { SignalAction::DEFAULT.set(signal) };
    context.set_signal_mask(context.signal_mask() & !bit(signal));
    let occurs_again = match signal {
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE => info.is_fault(),
        libc::SIGTRAP => info.is_fault() && cfg!(target_arch = "aarch64"),
        _ => false,
    };
    if !occurs_again {
        // Coroner's handler was installed without SA_NODEFER, but may have been called by one that
        // was: blocked for certain.
        block_exactly(block_exactly(u32::MAX) | bit(signal));
        // SAFETY: a signal to the calling thread. Async-signal-safe (POSIX).
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }
    true
}

/// Gives signals and exception ports back to their earlier holders (crash path, on any thread), so
/// that after a report the process dies by the rules from before Coroner.
pub(crate) fn give_back() {
    taken_signals::give_back();
    if let Some(installed) = installed::get() {
        installed.platform.ports.give_back(installed.platform.primary_port);
    }
}

//! Letting the process die of a signal that nobody else wants.

use coroner_process::context::{SignalContext, SignalInfo};
use coroner_process::signals::{SignalAction, bit, block_exactly};

use crate::installed;
use crate::taken_signals;

/// Lets the process die of this signal when the handler returns, with the thread where the signal found it: a fault occurs
/// again when the thread goes on, now with neither Coroner's port nor its handler; a signal that was sent, and an `int3`,
/// whose program counter is behind it, are sent to the thread once more, which blocks them until the handler returns.
pub(crate) fn die(info: &SignalInfo, context: &mut SignalContext) {
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
        // Coroner's handler was installed without SA_NODEFER, but may have been called by one that was: blocked for certain.
        block_exactly(block_exactly(u32::MAX) | bit(signal));
        // SAFETY: a signal to the calling thread. Async-signal-safe (POSIX).
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }
}

/// Gives signals and exception ports back to who had them before (crash path, on any thread): after a report the process dies
/// by rules that were there before.
pub(crate) fn give_back() {
    taken_signals::give_back();
    if let Some(installed) = installed::get() {
        installed.platform.ports.give_back(installed.platform.primary_port);
    }
}

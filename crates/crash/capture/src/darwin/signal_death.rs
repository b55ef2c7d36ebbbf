//! Letting the process die of a signal that nobody else wants.

pub(crate) use coroner_process::context::SignalContext;
use coroner_process::context::SignalInfo;
use coroner_process::signals::{SignalAction, bit, block_exactly};

use super::install::give_back;

/// Blocked while an earlier handler runs, so that the context of a signal that interrupts it shows where it was. A jump out of
/// the handler (`siglongjmp`) takes it away with the rest of the handler's mask. SIGINFO is what a terminal's status key sends, and
/// ignored by default: no handler of a crash needs it, and one that is sent meanwhile comes when the handler has returned.
pub(crate) const MARKER: i32 = libc::SIGINFO;

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

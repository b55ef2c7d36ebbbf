//! Linux: a handler of SIGSEGV and SIGBUS recovers guarded loads.

use coroner_process::signals::{SignalAction, bit, blocked};

/// Address of a signal handler that recovers guarded loads.
pub type Owner = usize;

/// Returns `true` if that handler is the first one for both signals.
pub(crate) fn receives_faults(owner: Owner) -> bool {
    [libc::SIGSEGV, libc::SIGBUS]
        .into_iter()
        .all(|signal| SignalAction::of(signal).is_ok_and(|now| now.handler == owner))
}

/// Returns `true` if the calling thread blocks either signal.
pub(crate) fn blocks_faults() -> bool {
    blocked() & (bit(libc::SIGSEGV) | bit(libc::SIGBUS)) != 0
}

//! Linux: a handler of SIGSEGV and SIGBUS recovers guarded loads.

use coroner_process::signals::{SignalAction, bit, blocked};

/// The address of a signal handler that recovers guarded loads.
pub type Owner = usize;

/// Whether that handler is the first one of both signals.
pub(crate) fn receives_faults(owner: Owner) -> bool {
    [libc::SIGSEGV, libc::SIGBUS]
        .into_iter()
        .all(|signal| SignalAction::of(signal).is_ok_and(|now| now.handler == owner))
}

/// Whether the calling thread blocks either.
pub(crate) fn blocks_faults() -> bool {
    blocked() & (bit(libc::SIGSEGV) | bit(libc::SIGBUS)) != 0
}

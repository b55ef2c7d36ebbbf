//! Signals that Coroner's handler has taken: taking them, giving them back, and checking who has
//! them now.

#[cfg(target_vendor = "apple")]
mod darwin;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;

use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use coroner_process::signal_set::SignalSet;
use coroner_process::signals::{SignalAction, bit};
use coroner_process::syscall::Errno;
use coroner_process::threads::process_id;

#[cfg(target_vendor = "apple")]
use darwin as system;
#[cfg(target_vendor = "apple")]
pub(crate) use darwin::*;
#[cfg(any(target_os = "linux", target_os = "android"))]
use linux as system;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::*;

use crate::previous_handler;

/// Coroner's handler as the kernel has it; 0 before the first install.
static OURS: AtomicUsize = AtomicUsize::new(0);

/// The signals whose handler is Coroner's, as the kernel's set; 0 after an uninstall.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// ID of the process that has given its signals back because it is dying; 0 for none. By process,
/// since a child made by vfork that dies shares this memory with a parent that lives.
static DYING: AtomicI32 = AtomicI32::new(0);

/// Takes the signals with the handler at that address (not async-signal-safe). The earlier
/// dispositions are stored.
///
/// # Errors
/// The crash signal that the system did not let Coroner take, with the reason; those taken before
/// it are given back.
pub(crate) fn take(signals: SignalSet, endings: SignalSet, handler: usize) -> Result<(), (i32, Errno)> {
    for number in 1..=system::LAST_SIGNAL {
        let is_crash = signals.contains(number);
        if !(is_crash || endings.contains(number)) || number == libc::SIGKILL || number == libc::SIGSTOP {
            continue;
        }
        // Rust's startup code ignores SIGPIPE: it would be put back at once.
        let is_ignored = || SignalAction::of(number).is_ok_and(|now| now.handler == libc::SIG_IGN);
        if number == libc::SIGPIPE && !is_crash && is_ignored() {
            continue;
        }
        if let Err(errno) = system::take(number, handler) {
            if !is_crash {
                continue;
            }
            uninstall();
            return Err((number, errno));
        }
        let before = previous_handler::of(number);
        if !is_crash && number != libc::SIGTERM && before.handler != libc::SIG_DFL {
            // The signal does not end the process: a handler deals with it, or it is ignored.
            // SAFETY: the app had installed it.
            let _ = unsafe { before.set(number) };
            continue;
        }
        TAKEN.fetch_or(bit(number).into(), Ordering::AcqRel);
    }
    DYING.store(0, Ordering::Release);
    Ok(())
}

/// Restores the earlier dispositions (crash path too), so that after a report the process dies by
/// the rules from before Coroner.
pub(crate) fn give_back() {
    DYING.store(process_id(), Ordering::Release);
    for number in 1..=system::LAST_SIGNAL {
        // Also the deadline's signal.
        if (is_taken(number) || number == libc::SIGSYS) && is_ours(number) {
            // SAFETY: the app had installed it.
            let _ = unsafe { previous_handler::of(number).set(number) };
        }
    }
}

/// Returns `true` if that is the address of Coroner's handler, as the kernel has it.
pub(crate) fn is_handler(handler: usize) -> bool {
    handler == OURS.load(Ordering::Acquire)
}

/// Returns `true` if the kernel calls Coroner's handler for a signal.
pub(crate) fn is_ours(signal: i32) -> bool {
    SignalAction::of(signal).is_ok_and(|now| now.handler != 0 && is_handler(now.handler))
}

/// Takes a signal back from a handler that was installed over Coroner's (not async-signal-safe).
pub(crate) fn take_back(signal: i32) {
    // SAFETY: the handler is Coroner's own.
    let _ = unsafe { system::ours(signal).set(signal) };
}

/// Gives back every signal whose handler is still Coroner's. If another handler was installed later
/// and may chain to Coroner's, that one stays, and Coroner's passes everything on.
pub(crate) fn uninstall() {
    give_back();
    DYING.store(0, Ordering::Release);
    TAKEN.store(0, Ordering::Release);
}

/// Returns `true` if Coroner took that signal.
pub(crate) fn is_taken(signal: i32) -> bool {
    TAKEN.load(Ordering::Acquire) & u64::from(bit(signal)) != 0
}

/// Returns `true` if the process has given its signals back because it is dying.
pub(crate) fn is_dying(pid: i32) -> bool {
    DYING.load(Ordering::Acquire) == pid
}

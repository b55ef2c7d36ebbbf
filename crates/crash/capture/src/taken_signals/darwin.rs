//! Darwin-specific part of the signal handling.

use core::sync::atomic::Ordering;

use coroner_process::signals::{SignalAction, bit};
use coroner_process::syscall::Errno;

use super::{OURS, is_handler, is_ours};
use crate::previous_handler;

/// Signals that can end code called before a report: not blocked while it runs.
pub(crate) const CRASH_PATH_SIGNALS: u32 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(libc::SIGSYS);

/// Highest signal number.
pub(super) const LAST_SIGNAL: i32 = 31;

pub(super) fn take(signal: i32, handler: usize) -> Result<(), Errno> {
    OURS.store(handler, Ordering::Release);
    let before = SignalAction::of(signal)?;
    // After an uninstall that had to leave the handler in place, the earlier disposition is already
    // stored.
    if !is_handler(before.handler) {
        previous_handler::remember(signal, &before);
    }
    // SAFETY: the handler is async-signal-safe.
    unsafe { ours(signal).set(signal) }
}

/// Returns Coroner's disposition for any signal.
pub(super) fn ours(_signal: i32) -> SignalAction {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    SignalAction { handler: OURS.load(Ordering::Acquire), flags, mask: 0 }
}

/// Returns `true` if a function other than Coroner's would handle a fault of that signal, so that
/// the process may continue after it.
pub(crate) fn has_handler(signal: i32) -> bool {
    let now = SignalAction::of(signal).unwrap_or_default();
    if is_ours(signal) { previous_handler::of(signal).is_function() } else { now.is_function() }
}

/// Returns `true` if the process is certain to die of that signal: apart from Coroner's handler, it
/// has the default action.
pub(crate) fn kills(signal: i32) -> bool {
    let now = SignalAction::of(signal).ok();
    let now = if is_ours(signal) { Some(previous_handler::of(signal)) } else { now };
    now.is_some_and(|action| action.handler == libc::SIG_DFL)
}

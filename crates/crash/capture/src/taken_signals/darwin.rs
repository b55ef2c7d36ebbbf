//! Darwin's part.

use core::sync::atomic::Ordering;

use coroner_process::signals::{SignalAction, bit};
use coroner_process::syscall::Errno;

use super::{OURS, is_handler, is_ours};
use crate::previous_handler;

/// The signals by which code that is called before a report can be left: not blocked while it runs.
pub(crate) const CRASH_PATH_SIGNALS: u32 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(libc::SIGSYS);

/// The highest number of a signal.
pub(super) const LAST_SIGNAL: i32 = 31;

pub(super) fn take(signal: i32, handler: usize) -> Result<(), Errno> {
    OURS.store(handler, Ordering::Release);
    let before = SignalAction::of(signal)?;
    // A second life after an uninstall that had to leave the handler in place: what was before is remembered already.
    if !is_handler(before.handler) {
        previous_handler::remember(signal, &before);
    }
    // SAFETY: the handler is async-signal-safe.
    unsafe { ours(signal).set(signal) }
}

/// Coroner's disposition, of any signal.
pub(super) fn ours(_signal: i32) -> SignalAction {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    SignalAction { handler: OURS.load(Ordering::Acquire), flags, mask: 0 }
}

/// Whether a function would see a fault of that signal, Coroner's own left out: then the process may go on after it.
pub(crate) fn has_handler(signal: i32) -> bool {
    let now = SignalAction::of(signal).unwrap_or_default();
    if is_ours(signal) { previous_handler::of(signal).is_function() } else { now.is_function() }
}

/// Whether the process is certain to die of that signal: it has the default action, Coroner's own left out.
pub(crate) fn kills(signal: i32) -> bool {
    let now = SignalAction::of(signal).ok();
    let now = if is_ours(signal) { Some(previous_handler::of(signal)) } else { now };
    now.is_some_and(|action| action.handler == libc::SIG_DFL)
}

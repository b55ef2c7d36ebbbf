//! Forwarding: passes a signal to the handler from before Coroner.

use coroner_process::context::{SignalContext, SignalInfo};
use coroner_process::signals::SignalAction;

use crate::os::signal_death::die;
use crate::previous_handler::{self, Asked};

/// Returns `true` if a signal would have been ignored: the app or its parent chose `SIG_IGN`, and
/// no fault of this thread raised it (the kernel does not let a fault be ignored).
pub(crate) fn ignores(info: &SignalInfo) -> bool {
    previous_handler::of(info.signo).handler == libc::SIG_IGN && !info.is_fault()
}

/// The step that remains after the handlers have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The signal was ignored, or its handler dealt with it: the thread continues.
    Continues,
    /// The signal's handler has returned after installing another one, which may yet end the
    /// process: other reporters restore the handler from before them.
    Replaced,
    /// The process dies when the handler returns.
    Dies,
}

/// Passes the signal to the disposition from before: a function is called, `SIG_IGN` ignores,
/// `SIG_DFL` ends the process with that very signal once Coroner's handler returns. `called` means
/// that the function has already run (`chain_first`). For `asked`, see [`previous_handler::call`].
///
/// # Safety
/// See [`previous_handler::call`].
pub(crate) unsafe fn forward(
    info: &mut SignalInfo,
    context: &mut SignalContext,
    called: bool,
    asked: Asked,
) -> Outcome {
    let signal = info.signo;
    if ignores(info) {
        return Outcome::Continues;
    }
    let ours = SignalAction::of(signal).unwrap_or_default();
    // SAFETY: by the contract.
    if !called && unsafe { previous_handler::call(info, context, asked) } {
        // A handler that removed itself and returned means "and now the default": Rust's standard
        // library does so, and relies on the fault recurring. A signal that was sent does not
        // recur.
        let now = SignalAction::of(signal).unwrap_or_default();
        if now == ours {
            return Outcome::Continues;
        }
        if now.handler != libc::SIG_DFL {
            return Outcome::Replaced;
        }
    }
    if die(info, context) { Outcome::Dies } else { Outcome::Continues }
}

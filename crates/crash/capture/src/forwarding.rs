//! Giving a signal to the handler that was there before Coroner.

use coroner_process::context::{SignalContext, SignalInfo};
use coroner_process::signals::SignalAction;

use crate::os::signal_death::die;
use crate::previous_handler::{self, Asked};

/// Whether a signal would have been ignored: the app or its parent chose `SIG_IGN`, and no fault of this thread raised it
/// (the kernel does not let a fault be ignored).
pub(crate) fn ignores(info: &SignalInfo) -> bool {
    previous_handler::of(info.signo).handler == libc::SIG_IGN && !info.is_fault()
}

/// What is left to do when the handlers have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The signal was ignored, or its handler dealt with it: the thread goes on.
    Continues,
    /// Its handler has returned, and given the signal to another one, which may yet end the process: other reporters put back who was
    /// before them.
    Replaced,
    /// The process dies when the handler returns.
    Dies,
}

/// Gives the signal to whoever had it before: the function is called, `SIG_IGN` ignores, `SIG_DFL` ends the process with
/// that very signal once Coroner's handler returns. `called`: the function has run already (`chain_first`). `asked` as in
/// [`previous_handler::call`].
///
/// # Safety
/// As for [`previous_handler::call`].
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
    // SAFETY: passed on.
    if !called && unsafe { previous_handler::call(info, context, asked) } {
        // A handler that took itself out and returned means "and now the default": Rust's standard library does so, and
        // counts on the fault coming again. A signal that was sent does not come again.
        let now = SignalAction::of(signal).unwrap_or_default();
        if now == ours {
            return Outcome::Continues;
        }
        if now.handler != libc::SIG_DFL {
            return Outcome::Replaced;
        }
    }
    die(info, context);
    Outcome::Dies
}

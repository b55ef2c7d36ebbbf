//! The signal monitor: handlers of the crash signals, and of SIGTERM.

#[cfg(target_vendor = "apple")]
mod darwin;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use coroner_process::context::SignalInfo;
use coroner_process::signals::{bit, blocked};
use coroner_process::threads::Tid;

#[cfg(target_vendor = "apple")]
pub(crate) use darwin::*;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::*;

use crate::forwarding::Crash;
use crate::installed::Installed;
use crate::previous_handler::SignalContext;

/// The signals whose handler is Coroner's, as the kernel's set; 0 after an uninstall.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The process that has given its signals back because it is dying; 0 for none. By process, since a child made by vfork
/// that dies shares this memory with a parent that lives.
static DYING: AtomicI32 = AtomicI32::new(0);

/// What a handler that was asked first made of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It dealt with the signal: it moved the thread, or returned as from a signal that does not come again by itself, or from a fault
    /// that it has repaired, whose instruction is to be tried again.
    Handled,
    /// It did not.
    Refused,
    /// It did not, and had a crash itself, by which there is a report of this one.
    Reported,
}

/// Gives every signal back whose handler is still Coroner's. Where another handler came later and may chain to Coroner's,
/// that one stays, and Coroner's passes everything on.
pub(crate) fn uninstall() {
    give_back();
    DYING.store(0, Ordering::Release);
    TAKEN.store(0, Ordering::Release);
}

/// Whether Coroner took that signal.
pub(crate) fn is_taken(signal: i32) -> bool {
    TAKEN.load(Ordering::Acquire) & u64::from(bit(signal)) != 0
}

/// Whether the process has given its signals back because it is dying.
pub(crate) fn is_dying(pid: i32) -> bool {
    DYING.load(Ordering::Acquire) == pid
}

/// Writes the report of a crash that a handler of this thread was asked about first: it ends the process, or has a crash itself.
fn report_unfinished(installed: &'static Installed, crash: &Crash, ids: (i32, Tid)) {
    if crash.context == 0 {
        return;
    }
    installed.platform.forwarding.note_reported(ids.1);
    // SAFETY: that handler is running, so what Coroner's own was given for the first signal lies above it, on the same stack.
    let (info, context) = unsafe { (&*(crash.frame as *const SignalInfo), &*(crash.context as *const SignalContext)) };
    report_asked(installed, info, context, ids);
}

/// The calling thread ends the process by `exit`: if it is in a handler that was asked first about a crash, the report of that crash is
/// written.
pub(crate) fn report_before_exit(installed: &'static Installed, ids: (i32, Tid)) {
    let here = 0_u8;
    if let Some(crash) = installed.platform.forwarding.is_by(ids.1, &raw const here as u64, blocked().into()) {
        report_unfinished(installed, &crash, ids);
    }
}

/// Of the calling thread, outside of any handler: a handler that it left by a jump was right to, and that crash was none.
pub(crate) fn settle(installed: &Installed, tid: Tid) {
    let here = 0_u8;
    let number = installed.platform.forwarding.take_left(tid, &raw const here as u64, blocked().into());
    installed.run.state.set_crash_not_fatal(number);
}

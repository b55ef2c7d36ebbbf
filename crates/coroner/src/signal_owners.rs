//! Saying who has taken a crash signal from Coroner: in the log, in this run's tags, and so at the next launch.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use coroner_capture::{TakenSignal, look_at_signals};

use crate::scope;

/// The tag that says it.
pub(crate) const TAG: &str = "coroner.signals_taken";

/// How often it is looked at most.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Looks if the last look is a second ago at `now_ns`, by any clock.
pub(crate) fn look(now_ns: u64) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let last = LAST.load(Ordering::Relaxed);
    if now_ns.abs_diff(last) < INTERVAL_NS
        || LAST.compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    look_at_signals(&mut |taken| {
        let text = describe(&taken);
        log::warn!("coroner: {text}");
        let _ = scope::set_tag(TAG, &text);
    });
}

fn describe(taken: &TakenSignal) -> String {
    let who = match taken.handler {
        libc::SIG_DFL => "has the default action now".to_owned(),
        libc::SIG_IGN => "is ignored now".to_owned(),
        handler => format!("is handled by {} now", image_of(handler)),
    };
    let what = if taken.is_back { "Coroner has taken it back" } else { "its crashes are not reported" };
    format!("signal {} {who}: {what}", taken.signal)
}

/// The path of the image that a function is in.
fn image_of(function: usize) -> String {
    // SAFETY: all zero is valid; the name is that of a loaded image.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(function as *const libc::c_void, &raw mut found) == 0 || found.dli_fname.is_null() {
            return format!("{function:#x}");
        }
        CStr::from_ptr(found.dli_fname).to_string_lossy().into_owned()
    }
}

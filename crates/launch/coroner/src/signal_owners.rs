//! Detects which code has replaced Coroner's handler of a crash signal.
//!
//! The result is logged and stored in this run's tags, which the next launch reads.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use coroner_capture::{TakenSignal, look_at_signals};

use crate::fork_locks::lock;

/// Minimum time between two checks, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Checks the signals if the last check was at least a second before `now_ns`, by any clock.
///
/// Returns a description of all signals taken so far, if there are new ones.
pub(crate) fn look(now_ns: u64) -> Option<String> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let last = LAST.load(Ordering::Relaxed);
    if now_ns.abs_diff(last) < INTERVAL_NS
        || LAST.compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return None;
    }
    look_now()
}

/// Same as [`look`], whenever the last check was.
pub(crate) fn look_now() -> Option<String> {
    let mut all = lock(&TAKEN);
    add_taken(&mut all);
    IS_NEW.swap(false, Ordering::Relaxed).then(|| describe(&all))
}

/// Checks the signals before a fork, unless another thread does. The next [`look`] describes them.
pub(crate) fn look_before_fork() {
    if let Ok(mut all) = TAKEN.try_lock() {
        add_taken(&mut all);
    }
}

fn add_taken(all: &mut Vec<TakenSignal>) {
    look_at_signals(&mut |taken| {
        all.retain(|other| other.signal != taken.signal);
        all.push(taken);
        IS_NEW.store(true, Ordering::Relaxed);
    });
}

/// The taken signals of this run. Held over forks.
pub(crate) static TAKEN: Mutex<Vec<TakenSignal>> = Mutex::new(Vec::new());
/// Whether `TAKEN` has signals that were not described yet.
static IS_NEW: AtomicBool = AtomicBool::new(false);

/// Describes the taken signals, with one sentence per handler.
fn describe(all: &[TakenSignal]) -> String {
    let mut owners: BTreeMap<(String, bool), Vec<String>> = BTreeMap::new();
    for taken in all {
        let owner = match taken.handler {
            libc::SIG_DFL => "the default action".to_owned(),
            libc::SIG_IGN => "nothing (it is ignored)".to_owned(),
            handler => image_path(handler),
        };
        owners.entry((owner, taken.is_back)).or_default().push(taken.signal.to_string());
    }
    let sentences = owners.into_iter().map(|((owner, is_back), signals)| {
        let (signals, is) = match &signals[..] {
            [signal] => (format!("signal {signal}"), "is"),
            signals => (format!("signals {}", signals.join(", ")), "are"),
        };
        let what = if is_back { "Coroner has taken it back" } else { "such crashes will not be reported" };
        format!("{signals} {is} now handled by {owner}: {what}")
    });
    sentences.collect::<Vec<_>>().join("; ")
}

/// Returns the path of the image that contains a function.
fn image_path(function: usize) -> String {
    // SAFETY: zeros are valid; the name is that of a loaded image.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(function as *const libc::c_void, &raw mut found) == 0 || found.dli_fname.is_null() {
            return format!("{function:#x}");
        }
        CStr::from_ptr(found.dli_fname).to_string_lossy().into_owned()
    }
}

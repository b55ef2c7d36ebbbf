//! Detects handlers that replaced Coroner's. A library that is loaded later, or the app itself, may
//! install its own handler over Coroner's and never call it. Then a crash leaves no trace, so
//! Coroner checks from time to time and reports it.

use core::sync::atomic::{AtomicUsize, Ordering};

use coroner_process::signals::SignalAction;
use coroner_process::threads::{process_id, this_thread};
use coroner_walk::loaded_image;

use crate::ForkPolicy;
use crate::installed;
use crate::monitor::signal;
use crate::previous_handler;
use crate::taken_signals;

/// A crash signal that another handler has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenSignal {
    /// The signal's number.
    pub signal: i32,
    /// Address of the handler, or `SIG_DFL`, or `SIG_IGN`.
    pub handler: usize,
    /// Whether Coroner has taken the signal back; it calls that handler after its report.
    pub is_back: bool,
}

/// Checks who handles the crash signals, and calls `found` for each that was taken from Coroner
/// since the last check. With [`reinstall_handlers`](crate::InstallOptions::reinstall_handlers),
/// the signal is taken back.
///
/// A handler that chains to Coroner's also counts as having taken the signal: chaining can't be
/// detected. Nothing is checked while an earlier handler runs after a report: it may restore the
/// default action to end the process.
///
/// Not async-signal-safe. Makes some system calls; don't call it continuously.
pub fn look_at_signals(found: &mut dyn FnMut(TakenSignal)) {
    /// The other handler that was last found for each signal.
    static OTHERS: [AtomicUsize; 65] = [const { AtomicUsize::new(usize::MAX) }; 65];
    let Some(installed) = installed::get() else { return };
    let pid = process_id();
    let has_no_reports = cfg!(target_vendor = "apple") || installed.options.fork == ForkPolicy::Silent;
    if has_no_reports && !installed.is_own_process(pid) {
        return;
    }
    signal::settle(installed, this_thread());
    if taken_signals::is_dying(pid) || installed.platform.running_handlers.is_any_reported(pid) {
        return;
    }
    loaded_image::prepare();
    for (number, other) in (0..).zip(&OTHERS) {
        let is_wanted = installed.options.signals.contains(number) && taken_signals::is_taken(number);
        let Ok(now) = (if is_wanted { SignalAction::of(number) } else { continue }) else { continue };
        if taken_signals::is_handler(now.handler) {
            other.store(usize::MAX, Ordering::Relaxed);
            continue;
        }
        let is_back = installed.options.reinstall_handlers;
        if is_back {
            previous_handler::remember_later(number, &now);
            taken_signals::take_back(number);
        }
        if other.swap(now.handler, Ordering::Relaxed) != now.handler {
            found(TakenSignal { signal: number, handler: now.handler, is_back });
        }
    }
}

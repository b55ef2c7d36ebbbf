//! Who has the signals now: a library that is loaded later, or the app itself, may put a handler of its own over Coroner's and never
//! call it. Then a crash leaves no trace, so Coroner looks now and then, and says so.

use core::sync::atomic::{AtomicUsize, Ordering};

use coroner_process::signals::SignalAction;
use coroner_process::threads::this_thread;
use coroner_walk::loaded_image;

use crate::installed;
use crate::monitor::signal;
use crate::previous_handler;
use crate::taken_signals;

/// A signal of a crash that another handler has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenSignal {
    /// Its number.
    pub signal: i32,
    /// The address of the handler, or `SIG_DFL`, or `SIG_IGN`.
    pub handler: usize,
    /// Coroner has taken it back, and calls that handler after its report.
    pub is_back: bool,
}

/// Looks who has the signals of crashes, and calls `found` for each that somebody has taken from Coroner since the last look. With
/// [`reinstall_handlers`](crate::InstallOptions::reinstall_handlers) it is taken back.
///
/// A handler that chains to Coroner's has taken the signal, too: that can't be known.
///
/// Not async-signal-safe. Some system calls; for the caller not to do all the time.
pub fn look_at_signals(found: &mut dyn FnMut(TakenSignal)) {
    /// Of each signal, the other handler that was found last.
    static OTHERS: [AtomicUsize; 65] = [const { AtomicUsize::new(usize::MAX) }; 65];
    let Some(installed) =
        installed::get().filter(|installed| installed.run.pid == coroner_process::threads::process_id())
    else {
        return;
    };
    signal::settle(installed, this_thread());
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

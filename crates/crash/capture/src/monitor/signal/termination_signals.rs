//! Signals that end a process by default and aren't crashes: noted in the run state, so that the
//! next launch can report which signal ended the run. The process dies as it would have.
//!
//! If the app has a handler before the install, that handler keeps its signal. A handler that is
//! installed later has the signal, and may call Coroner's, which it found where it would have found
//! the default: runtimes (tokio, through signal-hook-registry) do so for a signal that they deal
//! with.

use coroner_process::context::SignalInfo;
use coroner_process::process::process_name;
use coroner_process::threads::wall_now;
use coroner_report::run_state::{ExitKind, Scalar};

use crate::installed::Installed;
use crate::previous_handler;
use crate::report_lock::REPORT_LOCK;
use crate::taken_signals::{is_ours, is_taken};

/// `SI_USER`, `SI_QUEUE` and `SI_TKILL` (asm-generic/siginfo.h): a process sent the signal, and the
/// siginfo identifies it.
const SENT: [i32; 3] = [0, -1, -6];

/// Notes a signal that is not a crash. Returns `true` if the signal goes to the disposition from
/// before: not if the current handler deals with it, or if the kernel would not have delivered it.
pub(super) fn note(installed: &Installed, info: &SignalInfo, pid: i32) -> bool {
    let signal = info.signo;
    let has_default = !previous_handler::of(signal).is_function();
    let others = has_default && is_taken(signal) && !is_ours(signal);
    // While a crash is being reported, the process dies of that crash. SIGTERM requests an end,
    // whoever deals with it.
    if installed.is_own_process(pid)
        && !REPORT_LOCK.is_busy(pid)
        && (signal == libc::SIGTERM || (has_default && !others))
    {
        let kind = if signal == libc::SIGTERM { ExitKind::SIGTERM } else { ExitKind::SIGNAL };
        let is_sent = cfg!(target_vendor = "apple") || SENT.contains(&info.code);
        let sender = info.sender().filter(|_| is_sent).map_or(0, |(process, _)| process as u64);
        let state = &installed.run.state;
        state.set_scalar(Scalar::EXIT_SIGNAL, signal as u64);
        state.set_scalar(Scalar::EXIT_SENDER, sender);
        state.set_scalar(Scalar::EXIT_HANDLED, (!has_default || others).into());
        state.set_scalar(Scalar::EXIT_TIME, wall_now());
        state.set_scalar(Scalar::EXIT, kind.0.into());
        let [name, rest] = process_name(sender as u32);
        state.set_scalar(Scalar::EXIT_SENDER_NAME, name);
        state.set_scalar(Scalar::EXIT_SENDER_NAME_REST, rest);
    }
    // The first process of a pid namespace is not killed by a default action (pid_namespaces(7)).
    !(others || has_default && pid == 1)
}

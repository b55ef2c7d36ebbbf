//! Starts Coroner's threads in the app.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Nice value of the delivery thread. An app thread that competes with it for a CPU gets about 90 %
/// of the time.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NICE: i32 = 10;

/// Starts a thread that leaves the process's signals to the app's threads.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(move || {
        #[cfg(unix)]
        leave_signals_to_the_app();
        work();
    })
}

/// Blocks the signals that other processes and timers send, except crash signals and the real-time
/// signals that stop threads.
///
/// An app may block such a signal in all its threads and wait for it in one. If it were delivered
/// to a Coroner thread instead, it would terminate the process.
#[cfg(unix)]
fn leave_signals_to_the_app() {
    use nix::sys::signal::{SigSet, Signal};

    let open = [
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGILL,
        Signal::SIGFPE,
        Signal::SIGABRT,
        Signal::SIGTRAP,
        Signal::SIGSYS,
        Signal::SIGKILL,
        Signal::SIGSTOP,
    ];
    let blocked: SigSet = Signal::iterator().filter(|signal| !open.contains(signal)).collect();
    let _ = blocked.thread_block();
}

/// Lowers the calling thread's priority until it ends, because a launch has more important work
/// than naming frames. On Linux an unprivileged process can't raise it again.
pub(crate) fn lower_priority() {
    #[cfg(target_vendor = "apple")]
    // SAFETY: changes only the calling thread.
    let refused = unsafe { libc::pthread_set_qos_class_self_np(libc::qos_class_t::QOS_CLASS_UTILITY, 0) } != 0;
    // On Linux this changes only the calling thread, unlike in POSIX. A higher nice value of the
    // app stays.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // SAFETY: they take numbers. (nix has no wrappers.)
    let refused = unsafe {
        libc::getpriority(libc::PRIO_PROCESS as _, 0) < NICE && libc::setpriority(libc::PRIO_PROCESS as _, 0, NICE) != 0
    };
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    let refused = true;
    if refused {
        log::debug!("coroner: can't lower the delivery thread's priority");
    }
}

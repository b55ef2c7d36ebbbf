//! Errors of an install.

use coroner_process::syscall::Errno;

use crate::run::RunError;

/// Why Coroner could not be installed. A failed install changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallError {
    /// Coroner is already installed.
    AlreadyInstalled,
    /// The run could not be created in the store.
    Run(RunError),
    /// The store's path is longer than `PATH_MAX`.
    PathTooLong,
    /// Not enough memory.
    Memory(Errno),
    /// The run state does not fit in the bytes that the options provide.
    StateTooSmall,
    /// No real-time signal is available to stop threads with.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    StopSignal(coroner_process::stop_the_world::PrepareError),
    /// The kernel refused a port or the task's exception ports (a `kern_return_t` of
    /// <mach/kern_return.h>).
    #[cfg(target_vendor = "apple")]
    Mach(i32),
    /// Coroner's own threads could not be started.
    #[cfg(target_vendor = "apple")]
    Thread(Errno),
    /// A signal handler could not be installed.
    Signal {
        /// The signal's number.
        signal: i32,
        /// The kernel's reason.
        errno: Errno,
    },
}

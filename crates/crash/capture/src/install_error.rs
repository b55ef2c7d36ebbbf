//! Why an install fails.

use coroner_process::syscall::Errno;

use crate::run::RunError;

/// Why Coroner could not be installed. Nothing is changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallError {
    /// It is installed already.
    AlreadyInstalled,
    /// The run could not be made in the store.
    Run(RunError),
    /// The path of the store is longer than `PATH_MAX`.
    PathTooLong,
    /// There was no memory.
    Memory(Errno),
    /// The run state did not fit in the bytes that the setup gives it.
    StateTooSmall,
    /// No real-time signal could be had to stop threads with.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    StopSignal(coroner_process::stop_the_world::PrepareError),
    /// The kernel refused a port, or the task's exception ports (a `kern_return_t` of <mach/kern_return.h>).
    #[cfg(target_vendor = "apple")]
    Mach(i32),
    /// Coroner's own threads could not be started.
    #[cfg(target_vendor = "apple")]
    Thread(Errno),
    /// A signal could not be taken.
    Signal {
        /// Its number.
        signal: i32,
        /// The kernel's reason.
        errno: Errno,
    },
}

//! The errors of an install.

use std::fmt;

#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
use coroner_process::stop_the_world::PrepareError;

use crate::store::StoreError;
use crate::system::Reason;

/// The reason that Coroner could not be installed.
///
/// The app can continue as if `install` had not been called.
#[derive(Debug)]
#[non_exhaustive]
pub enum InstallError {
    /// Coroner is already installed. [`installed`](crate::installed) returns its handle.
    AlreadyInstalled,
    /// No store directory was set and there is no default.
    ///
    /// There is no home directory and no `$STATE_DIRECTORY`, or the program runs with more rights
    /// than its caller (set-user-ID), or the system is Android.
    NoStoreDirectory,
    /// There is no memory for the installation.
    NoMemory,
    /// The store can't be used.
    Store(StoreError),
    /// A part of the crash path could not be prepared.
    CrashPath(CrashPathError),
}

/// The part of the crash path that could not be prepared. The text includes the system's error.
#[derive(Debug)]
pub struct CrashPathError(Reason);

impl CrashPathError {
    /// Returns the system's error number (errno(3)), if the failed call has one.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.errno()
    }

    #[cfg(not(supported))]
    fn errno(&self) -> Option<i32> {
        match &self.0 {
            Reason::Failed { error, .. } => error.raw_os_error(),
            Reason::AlreadyInstalled => None,
        }
    }

    #[cfg(supported)]
    fn errno(&self) -> Option<i32> {
        match &self.0 {
            Reason::Run(error) => Some(error.errno.0),
            Reason::Memory(errno) | Reason::Signal { errno, .. } => Some(errno.0),
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Reason::StopSignal(PrepareError::System(errno)) => Some(errno.0),
            #[cfg(all(supported, target_vendor = "apple"))]
            Reason::Thread(errno) => Some(errno.0),
            _ => None,
        }
    }
}

impl From<Reason> for InstallError {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::AlreadyInstalled => Self::AlreadyInstalled,
            reason => Self::CrashPath(CrashPathError(reason)),
        }
    }
}

impl fmt::Display for CrashPathError {
    #[cfg(not(supported))]
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Reason::Failed { step, error } => write!(out, "{step}: {error}"),
            Reason::AlreadyInstalled => InstallError::AlreadyInstalled.fmt(out),
        }
    }

    #[cfg(supported)]
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Reason::Run(error) => fmt::Display::fmt(&error.step, out)?,
            Reason::Memory(_) => out.write_str("can't allocate memory for the crash path")?,
            Reason::Signal { signal, .. } => write!(out, "can't handle signal {signal}")?,
            #[cfg(all(supported, target_vendor = "apple"))]
            Reason::Mach(code) => write!(out, "can't set the task's exception ports (kern_return_t {code})")?,
            #[cfg(all(supported, target_vendor = "apple"))]
            Reason::Thread(_) => out.write_str("can't start Coroner's threads")?,
            Reason::PathTooLong => out.write_str("the store's path is too long")?,
            Reason::StateTooSmall => out.write_str("`Limits` leave no room for the run's state")?,
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Reason::StopSignal(PrepareError::System(_)) => {
                out.write_str("can't prepare the signal that stops threads")?;
            }
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Reason::StopSignal(error) => write!(out, "can't prepare the signal that stops threads: {error}")?,
            other => write!(out, "can't prepare the crash path: {other:?}")?,
        }
        match self.errno() {
            Some(errno) => write!(out, ": {}", std::io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CrashPathError {}

impl fmt::Display for InstallError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyInstalled => out.write_str("Coroner is already installed in this process"),
            Self::NoStoreDirectory => out.write_str(
                "can't choose a store directory: no home directory and no `$STATE_DIRECTORY`; set one with `Config::store_dir`",
            ),
            Self::NoMemory => out.write_str("can't allocate memory for the installation"),
            Self::Store(error) => error.fmt(out),
            Self::CrashPath(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for InstallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::CrashPath(error) => Some(error),
            _ => None,
        }
    }
}

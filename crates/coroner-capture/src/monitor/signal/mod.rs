//! The signal monitor: handlers of the crash signals, and of SIGTERM.

#[cfg(target_vendor = "apple")]
mod darwin;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;

#[cfg(target_vendor = "apple")]
pub(crate) use darwin::*;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::*;

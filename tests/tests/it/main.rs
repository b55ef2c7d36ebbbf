//! End-to-end tests beside the table of `behaviours`: programs of this package that hang, panic,
//! crash or are killed.
//!
//! Tests run as threads of one process; what changes a process is done by the programs.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod common;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod crash_session;
#[cfg(target_os = "linux")]
mod deaths;
#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
mod hangs;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod interleavings;
#[cfg(target_os = "macos")]
mod locks;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod panics;
mod public_errors;
#[cfg(all(target_os = "linux", not(without_delivery)))]
mod sentry;

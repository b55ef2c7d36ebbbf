//! Integration tests of Coroner: apps, which are this program started again, and the next launch
//! after their crashes.
//!
//! Tests run as threads of one process. A test that installs Coroner in its own process uses
//! [`isolated`](coroner_test_support::isolated); the others start this program again with only
//! their module's `app`.
#![cfg(unix)]

#[cfg(target_os = "macos")]
mod all_threads;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod app_memory;
#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
mod backtrace;
#[cfg(target_os = "linux")]
mod changed_files;
#[cfg(all(target_os = "linux", feature = "otlp", feature = "sentry"))]
mod consent;
#[cfg(target_os = "linux")]
mod fork_beside_calls;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod install_beside_unloading;
#[cfg(target_os = "linux")]
mod living;
#[cfg(target_os = "linux")]
mod low_memory;
#[cfg(all(target_os = "linux", feature = "symbolicate"))]
mod naming_budget;
mod next_launch;
#[cfg(all(target_os = "linux", feature = "otlp"))]
mod otlp;
#[cfg(all(target_os = "linux", target_env = "gnu", not(target_feature = "crt-static")))]
mod replaced;
#[cfg(all(target_os = "macos", feature = "system-reports"))]
mod run_id_thread;
#[cfg(all(target_os = "linux", feature = "sentry"))]
mod sentry_scope;
#[cfg(target_os = "linux")]
mod set_user_id;
mod shared_store;
#[cfg(feature = "system-reports")]
mod system_reports;
#[cfg(target_os = "linux")]
mod terminations;
#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
mod unwind_ranges;

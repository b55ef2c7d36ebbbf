//! End-to-end tests: real processes that install Coroner and die, and the expected reports.
//!
//! * [`conditions`]: conditions that a process creates around install (full disk, blocked signals,
//!   poisoned malloc);
//! * `src/bin/crash_program.rs`: the process; it takes a store, a fault of `coroner-faults` or
//!   [`damaged`], and conditions;
//! * [`process`]: runs it with a timeout, and reads its reports;
//! * [`server`], `src/bin/sentry_app.rs`, `tests/it/sentry.rs`: delivery to a server that may
//!   misbehave;
//! * [`hang`], `src/bin/hang_program.rs`, `tests/it/hangs.rs`: hangs;
//! * [`session`], [`descriptors`], [`recoverable`], `src/bin/session_program.rs`,
//!   `tests/it/crash_session.rs`: apps that close descriptors, leave handlers by a jump, crash on
//!   several threads, or are killed while the report is written;
//! * [`calls`]: threads that check whether a nonfatal report disturbs them;
//! * [`expect`]: checks a report against the fault's entry in the table;
//! * [`report_json`]: keeps the JSON of each report that is read, for `tools/json-schema-check`;
//! * `tests/behaviours.rs`: the table of behaviours. A new case is one entry.
#![cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]

#[cfg(any(target_os = "linux", target_os = "android"))]
pub mod blocked_page;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub mod calls;
pub mod conditions;
pub mod damaged;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub mod descriptors;
#[cfg(target_os = "macos")]
mod exception_port;
pub mod expect;
pub mod hang;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod overrun;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod overwritten_image;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod passing_faults;
pub mod process;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub mod recoverable;
#[cfg(target_os = "linux")]
mod renderer_policy;
pub mod report_json;
#[cfg(all(target_os = "linux", not(without_delivery)))]
pub mod server;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub mod session;

//! End-to-end tests: real processes that install Coroner and die, and what their reports must say.
//!
//! * [`conditions`]: what a process does to itself around install (fills its disk, blocks signals, poisons malloc);
//! * `src/bin/crash_program.rs`: the process; it takes a store, a fault of `coroner-faults` or of [`damaged`], and conditions;
//! * [`process`]: runs it, with a limit of time, and reads the reports that it left;
//! * [`server`], `src/bin/sentry_app.rs`, `tests/it/sentry.rs`: delivery to a server, and to one that misbehaves;
//! * [`hang`], `src/bin/hang_program.rs`, `tests/it/hangs.rs`: threads that do not answer;
//! * [`session`], [`descriptors`], [`recoverable`], `src/bin/session_program.rs`, `tests/it/crash_session.rs`: apps that close
//!   descriptors, leave handlers by a jump, crash on several threads, or are killed while the report is written;
//! * [`calls`]: threads that see whether a report of a process that goes on disturbs them;
//! * [`expect`]: holds a report to what the fault's entry in the table says;
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

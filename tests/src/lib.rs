//! End-to-end tests: real processes that install Coroner and die, and what their reports must say.
//!
//! * [`conditions`]: what a process does to itself around install (fills its disk, blocks signals, poisons malloc);
//! * `src/bin/crash_program.rs`: the process; it takes a store, a fault of `coroner-faults` and conditions;
//! * [`process`]: runs it, with a limit of time, and reads the reports that it left;
//! * [`server`], `src/bin/sentry_app.rs`, `tests/sentry.rs`: delivery to a server, and to one that misbehaves;
//! * [`hang`], `src/bin/hang_program.rs`, `tests/hangs.rs`: threads that do not answer;
//! * [`expect`]: holds a report to what the fault's entry in the table says;
//! * `tests/behaviours.rs`: the table of behaviours. A new case is one entry.
#![cfg(any(target_os = "linux", target_os = "macos"))]

pub mod conditions;
#[cfg(target_os = "macos")]
mod exception_port;
pub mod expect;
pub mod hang;
pub mod process;
#[cfg(target_os = "linux")]
pub mod server;

//! The integration tests, linked as one program.
//!
//! A test that changes the process runs in a separate one.

mod common;
mod crashes;
mod last_set;
mod locks;
mod shadow_stack;
mod synthetic_reports;
mod waits;
mod waits_apple;
mod windows;

//! Integration tests of the Sentry client: the parts of an envelope by themselves, and a client
//! with a server's answers.
//!
//! Tests run as threads of one process; those that measure or limit the process run in a process of
//! their own.

#[cfg(target_os = "linux")]
mod attachments;
mod client;
mod client_report;
mod envelope;
mod event;
mod full_disk;
mod https;
mod outbox;
mod rate_limits;
mod session;
#[path = "../../examples/specimens.rs"]
#[allow(dead_code, reason = "its `main` prints them")]
mod specimens;

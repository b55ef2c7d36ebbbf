//! The C API of Coroner, declared in `include/coroner.h`.
//!
//! Every function catches panics, because unwinding into C is undefined behavior. Most return a
//! [`Status`]; [`coroner_last_error`](status::coroner_last_error) returns the reason for a failure
//! as text.
//!
//! `cargo xtask header` generates the header from these sources, including the doc comments: write
//! them for C developers.
//!
//! # General rules
//!
//! Unless noted:
//!
//! - `config` must be a live object from `coroner_config_new`: not freed and not passed to
//!   `coroner_install`.
//! - Strings must be NUL-terminated UTF-8. Coroner copies them; the caller keeps ownership.
//! - A struct with a `size` field must have that many bytes.
//! - `backtrace` must be NULL, or filled in and not released. `options` may be NULL.
//! - A callback must not unwind. If it isn't called before the function returns, it must be
//!   callable with its `context` on any thread until the process ends.
//!
//! A `# Safety` section lists only what a function requires beyond that.
#![deny(missing_docs)]

pub mod app_memory;
mod app_pointer;
pub mod backtrace;
pub mod config;
#[cfg(any(feature = "sentry", feature = "otlp"))]
pub mod consent;
pub mod exception;
pub mod hang;
pub mod hooks;
pub mod install;
pub mod scope;
mod sized;
pub mod status;
mod text;
pub mod unwind_range;

pub use status::Status;

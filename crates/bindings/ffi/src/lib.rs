//! The C ABI of Coroner: what `include/coroner.h` declares.
//!
//! Every function catches panics, since unwinding into C is undefined, and says with a [`Status`] how it went;
//! [`coroner_last_error`](status::coroner_last_error) has the reason in words. The header is made from these sources by
//! `cargo xtask header`, documentation and all, so what C programmers read stands here.
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
#[cfg(target_os = "linux")]
mod preload;
pub mod scope;
mod sized;
pub mod status;
mod text;
pub mod unwind_range;

pub use status::Status;

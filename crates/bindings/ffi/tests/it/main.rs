//! Integration tests of the C API.
//!
//! They call the functions from Rust, and compile and run programs in C and C++, which are started
//! again after their crashes.
//!
//! Tests run as threads of one process; those that install Coroner run in a separate process.

// A Rust program with `coroner-ffi` and this feature needs the linker's `--wrap`.
#[cfg(not(feature = "wrap-cxa-throw"))]
mod abi;
#[cfg(target_os = "linux")]
mod apple_header;
mod common;
mod examples;
#[cfg(all(
    any(target_os = "linux", target_os = "android"),
    any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw")
))]
mod exceptions;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod exports;
#[cfg(all(target_os = "linux", target_env = "gnu", feature = "interpose-cxa-throw"))]
mod hosts;
#[cfg(target_os = "linux")]
mod last_words;
#[cfg(target_os = "linux")]
mod metric_kit;
#[cfg(target_os = "linux")]
mod setters;
#[cfg(all(target_os = "linux", target_env = "gnu", feature = "interpose-cxa-throw"))]
mod workers;

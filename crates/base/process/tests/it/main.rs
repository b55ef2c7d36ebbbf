//! The integration tests, linked as one program.
//!
//! A test that changes the process runs in a separate process.

mod export_trie;
mod files;
mod headers;
mod identity;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod images;
mod memory;
mod memory_use;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod stop_the_world;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod support;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod tracer;

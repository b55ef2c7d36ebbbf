//! Reads other programs' crash files as Coroner reports, and writes a report as a minidump.
//!
//! | module (and feature) | reads |
//! |---|---|
//! | [`apple_report`] (`apple-report`) | `.ips`, `.crash`, sampled stacks; can symbolicate in place |
//! | [`dump`] | ELF core dumps, plain, compressed or inside apport's reports; minidumps |
//! | [`log`] | AddressSanitizer reports and Go and Rust panics in a log |
//! | [`swift_crash_log`] (`swift-crash-log`) | the JSON that Swift's runtime writes |
//! | [`tombstone`] | Android's tombstones, ANR traces and Java stack traces |
//!
//! [`minidump_writer`] (`minidump-writer`) writes a report as a minidump. [`snapshot`] contains
//! what the readers of whole processes share: saved memory, images, and the stack walk.
//!
//! Input is untrusted: a damaged file results in an error with its position, or in a report with an
//! entry in [`problems`](coroner_report::Report::problems); never in a panic. Each format is one
//! module and one feature.

#![deny(missing_docs)]

#[cfg(feature = "apple-report")]
pub mod apple_report;
mod content_id;
#[cfg(feature = "dump")]
pub mod dump;
#[cfg(feature = "log")]
pub mod log;
#[cfg(feature = "minidump-writer")]
pub mod minidump_writer;
#[cfg(feature = "dump")]
pub mod snapshot;
#[cfg(feature = "swift-crash-log")]
pub mod swift_crash_log;
#[cfg(feature = "tombstone")]
pub mod tombstone;

pub use content_id::content_id;

/// Maximum number of threads read from one file or process.
pub const MAX_THREADS: usize = 16_384;
/// Maximum number of images read from one file or process.
pub const MAX_IMAGES: usize = 16_384;

//! Crash files that other programs write, as Coroner reports; and a report as a minidump.
//!
//! | module (and feature) | reads |
//! |---|---|
//! | [`apple_report`] (`apple-report`) | `.ips`, `.crash` and sampled stacks of Apple's systems; can also add names to them in place |
//! | [`dump`] | ELF core dumps, plain, compressed or inside apport's reports; minidumps |
//! | [`log`] | reports of AddressSanitizer and panics of Go and Rust in a log |
//! | [`swift_crash_log`] (`swift-crash-log`) | the JSON that Swift's runtime writes |
//! | [`tombstone`] | Android's tombstones, ANR traces and Java stack traces |
//!
//! [`minidump_writer`] (`minidump-writer`) writes a report as a minidump. [`snapshot`] is what readers of whole processes share: saved memory,
//! images, and the walk of the stacks.
//!
//! Input is untrusted: a damaged file is an error that names what and where, or a report with an entry in
//! [`problems`](coroner_report::Report::problems); never a panic. A format is one module and one feature.

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

/// Most threads that are read of one file or process.
pub const MAX_THREADS: usize = 16_384;
/// Most images that are read of one file or process.
pub const MAX_IMAGES: usize = 16_384;

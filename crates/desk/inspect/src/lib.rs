//! Reports of processes from outside (Linux; empty on other systems).
//!
//! - [`read_process`] reads a running process; [`write_minidump`] writes its minidump.
//! - [`tracer`] runs a program and reports its crashes and those of its children.
//! - [`core_pattern`] is the kernel's handler of core dumps.
//!
//! ```no_run
//! # #[cfg(target_os = "linux")] {
//! use coroner_symbols::{Options, Symbolizer};
//!
//! let mut symbolizer = Symbolizer::new(Options::default());
//! let report = coroner_inspect::read_process(4711, &mut symbolizer)?;
//! println!("{}", report.to_text(&Default::default()));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(missing_docs)]

#[cfg(target_os = "linux")]
pub mod core_pattern;
#[cfg(target_os = "linux")]
mod live_process;
#[cfg(target_os = "linux")]
mod minidump;
#[cfg(target_os = "linux")]
mod ptrace_requests;
#[cfg(target_os = "linux")]
pub mod tracer;
#[cfg(target_os = "linux")]
mod wait_status;

#[cfg(target_os = "linux")]
pub use live_process::{ProcessError, read_process};
#[cfg(target_os = "linux")]
pub use minidump::{MinidumpError, write_minidump};

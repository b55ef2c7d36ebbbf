//! Crash time: the monitors that notice a death, and the pipeline that takes it from the first fault to the last byte on
//! disk.
//!
//! ```text
//!  install (normal life)                     crash time                                        next launch
//!  run directory, reserved report, maps ──►  monitor ─► latch ─► pipeline ─► report file  ──►  coroner
//! ```
//!
//! * [`install`] makes everything that a crash will need and touches it: the run's directory with its reserved report file
//!   and mapped state, stacks, tables, the rendezvous' signal. Nothing is made at crash time but, in a child made by fork
//!   or vfork, that child's own run.
//! * A monitor (`monitor/`, one file each) notices and hands over; `pipeline/` writes; `previous.rs` of the system's folder
//!   passes the signal on.
//! * `linux/`, `darwin/` and the monitors know the system; all else is the same everywhere and reaches a system's part by `crate::os`.
//!   Elsewhere than on the systems that have such a folder this crate is empty.
//!
//! # Limits
//! 4,096 threads besides the crashed one; 2,048 images; 16 crashes in one report; 8 reports of one run (of a process that
//! goes on after each); stack memory of 32 KiB. What is beyond is counted in the report's end.
//!
//! # The caller's duties
//! Install once, early, and before other handlers that are to come first; keep the store on a local file system.
#![no_std]
#![deny(missing_docs)]
#![cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]

#[cfg(target_vendor = "apple")]
use darwin as os;
#[cfg(any(target_os = "linux", target_os = "android"))]
use linux as os;

#[cfg(target_vendor = "apple")]
mod darwin;

mod alternate_stack;
mod facts;
#[cfg(feature = "fault-injection")]
pub mod fault_injection;
#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
mod fork;
mod forwarding;
mod global;
mod here;
mod ignore;
mod install;
mod itanium;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;
mod loaded;
mod monitor;
mod path;
mod pipeline;
pub mod ranges;
mod reader;
mod run;
mod setup;
mod stack_bounds;
// Without a definition of `__cxa_throw` no throw comes by; what is kept of them is empty then.
#[cfg_attr(not(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw")), allow(dead_code))]
mod throw;

pub use install::{
    InstallError, Run, attach_current_thread, ignore_next_signal, install, interposes_thread_creation, uninstall,
};
pub use monitor::{exception, hang};
pub use os::live;
pub use run::{RunError, RunStep};
pub use setup::{AlternateStacks, ExceptionSet, ForkPolicy, Setup, SignalSet};
pub use throw::throws_captured;

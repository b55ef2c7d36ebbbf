//! Crash capture: the monitors that detect a death, and the session that writes its report.
//!
//! ```text
//!  install (not async-signal-safe)              crash time                                           next launch
//!  run directory, reserved report, maps ──►  monitor ─► report lock ─► session ─► mapped report  ──►  coroner
//! ```
//!
//! * [`install`] creates and touches everything that a crash will need: the run's directory with
//!   its reserved report file and mapped state, stacks, tables, and the signal that stops threads.
//!   Nothing is created at crash time, except that a child made by fork or vfork creates its own
//!   run.
//! * A monitor (`monitor/`, one file each) detects the crash; `crash_entry.rs` in the system's
//!   folder acquires the report lock; `report_steps.rs` writes the report through `sections/`, one
//!   file each; `previous_handler.rs` and `forwarding.rs` pass the signal on.
//! * Only `linux/`, `darwin/` and the monitors depend on the operating system. All other code is
//!   portable and calls the system's part through `crate::os`. On systems without such a folder
//!   this crate is empty.
//!
//! # Limits
//! 4,096 threads besides the crashed one; 2,048 images; 16 crashes in one report; 8 reports per run
//! (if the process continues after each); 32 KiB of stack memory. The report's end section counts
//! what exceeds these limits.
//!
//! # Requirements
//! Install once, early, and before other handlers that should run first; keep the store on a local
//! file system.
#![no_std]
#![deny(missing_docs)]
#![cfg_attr(miri, allow(dead_code, unused_imports, reason = "what is assembly is not used there"))]

#[cfg(all(supported, target_vendor = "apple"))]
use darwin as os;
#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
use linux as os;

#[cfg(all(supported, target_vendor = "apple"))]
mod darwin;

#[cfg(supported)]
mod concurrent_crashes;
#[cfg(supported)]
mod crash_context;
#[cfg(all(supported, feature = "fault-injection"))]
pub mod fault_injection;
#[cfg(all(supported, any(target_os = "linux", target_os = "android", target_os = "macos")))]
mod fork;
#[cfg(supported)]
mod forwarding;
#[cfg(supported)]
pub mod guarded_call;
#[cfg(supported)]
mod handler_kind;
#[cfg(supported)]
mod ignored_signals;
#[cfg(supported)]
mod image_encoding;
#[cfg(supported)]
mod install;
#[cfg(supported)]
mod install_error;
#[cfg(supported)]
mod installed;
#[cfg(supported)]
mod limits;
#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
mod linux;
#[cfg(all(supported, test, miri, feature = "fault-injection"))]
mod miri;
#[cfg(supported)]
mod monitor;
#[cfg(supported)]
mod previous_handler;
#[cfg(supported)]
mod recrash;
#[cfg(supported)]
mod replaced_handlers;
#[cfg(supported)]
mod report_lock;
#[cfg(supported)]
mod report_steps;
mod run;
#[cfg(supported)]
mod running_handlers;
#[cfg(supported)]
mod runtime_faults;
#[cfg(supported)]
mod sections;
#[cfg(supported)]
mod session;
#[cfg(supported)]
mod stack_overflow;
#[cfg(supported)]
mod taken_signals;
#[cfg(supported)]
mod thread_description;
#[cfg(supported)]
mod workspace;
#[cfg(all(supported, any(target_vendor = "apple", test)))]
pub mod zombies;

#[cfg(supported)]
pub use coroner_process::alternate_stack::attach as attach_current_thread;
#[cfg(supported)]
pub use coroner_process::exception_set::ExceptionSet;
#[cfg(all(supported, target_vendor = "apple"))]
pub use coroner_process::identity::is_traced;
#[cfg(supported)]
pub use coroner_process::signal_set::SignalSet;
#[cfg(supported)]
pub use coroner_process::thread_stacks::{call_before_creation, interposes as interposes_thread_creation};
#[cfg(all(supported, not(target_vendor = "apple")))]
pub use install::after_fork;
#[cfg(supported)]
pub use install::{Run, begin_anew, ignore_next_signal, install, is_unused, restore_state, uninstall};
#[cfg(supported)]
pub use install_error::InstallError;
#[cfg(supported)]
pub use installed::is_own_process;
pub use run::{AlternateStacks, Budget, CleanRun, ForkPolicy, InstallLimits, InstallOptions, KEPT_VITALS};
#[cfg(supported)]
pub use run::{RunError, RunStep, app_memory, keep_output};

#[cfg(supported)]
pub use limits::FIRST_NON_FATAL;
#[cfg(supported)]
pub use monitor::{caught_panic, exception, exit, hang};
#[cfg(all(supported, not(target_vendor = "apple")))]
pub use os::finished_children;
#[cfg(all(supported, not(target_vendor = "apple")))]
pub use os::parent_exit::{is_on_its_own, is_unsettled_child, settle_parent};
#[cfg(supported)]
pub use replaced_handlers::{TakenSignal, look_at_signals};
#[cfg(supported)]
pub use report_lock::thread_word;

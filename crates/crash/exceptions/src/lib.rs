//! C++ and Objective-C exceptions: the descriptions of uncaught exceptions, and where they were
//! thrown.
//!
//! * A terminate handler describes a C++ exception and triggers a report; a handler of uncaught
//!   exceptions does the same for an `NSException`.
//! * The stack of a C++ throw is captured when it is thrown: Coroner intercepts `__cxa_throw` and
//!   `__cxa_rethrow` (features `interpose-cxa-throw` and `wrap-cxa-throw`).
//! * Objective-C objects are remembered when they are deallocated, on request, so that a report
//!   shows the class of a message's receiver.
//!
//! # Requirements
//! Call [`install`] after [`coroner_capture::install`], and [`uninstall`] before
//! [`coroner_capture::uninstall`].
//!
//! # Guarantees
//! Nothing in this crate runs at crash time: handlers run where a language's runtime gives up,
//! before any thread is stopped. No lock is taken, and memory is allocated only by `mmap`.
//! Exceptions continue as if Coroner were not there.
//!
//! # Limits
//! See the modules `terminate`, `objective_c`, `zombies` and `throws`.
#![no_std]
#![deny(missing_docs)]
#![cfg(all(
    any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "ios", target_os = "visionos"),
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64",
    target_endian = "little"
))]

use core::sync::atomic::{AtomicBool, Ordering};

mod itanium;
#[cfg(target_vendor = "apple")]
mod objective_c;
pub mod other_process;
mod terminate;
// Without a definition of `__cxa_throw` no throw is intercepted; the records of throws are then
// empty.
#[cfg_attr(not(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw")), allow(dead_code))]
mod throws;
#[cfg(target_vendor = "apple")]
mod zombies;

pub use throws::{ThrowStacks, throws_captured};

/// Selects the exceptions that are described.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Uncaught C++ exceptions, with the stacks of their throws if the program was built for it.
    pub cpp: bool,
    /// Uncaught Objective-C exceptions (Apple's systems; without effect elsewhere).
    pub objc: bool,
    /// Exceptions that AppKit catches and only logs (`-[NSApplication reportException:]`), reported
    /// as ones that the process survives (macOS; without effect elsewhere). This replaces that
    /// method.
    pub appkit: bool,
    /// Whether deallocated Objective-C objects are remembered by address and class, so that a
    /// report shows what a register pointed to (Apple's systems; without effect elsewhere). This
    /// replaces `-dealloc` of `NSObject`, `NSProxy` and `NSException`.
    pub zombies: bool,
    /// Maximum time in milliseconds for the app's own code (`what()`), if that is less than two
    /// seconds.
    pub deadline_ms: u32,
    /// Function that is called after a report of an exception that the process survives.
    pub on_survived: Option<fn()>,
}

impl Default for Options {
    fn default() -> Self {
        Options { cpp: true, objc: true, appkit: false, zombies: false, deadline_ms: 5000, on_survived: None }
    }
}

static ON: AtomicBool = AtomicBool::new(false);

fn is_on() -> bool {
    ON.load(Ordering::Acquire)
}

/// Replaces the runtimes' last-resort handlers, and captures throws from now on (not
/// async-signal-safe). Returns whether throws have stacks.
pub fn install(options: &Options) -> ThrowStacks {
    ON.store(true, Ordering::Release);
    let mut stacks = ThrowStacks::NotBuilt;
    if options.cpp {
        stacks = throws::install();
        terminate::install(options.deadline_ms);
    }
    #[cfg(target_vendor = "apple")]
    if options.objc {
        objective_c::install(options.appkit, options.on_survived);
    }
    #[cfg(target_vendor = "apple")]
    if options.zombies {
        zombies::install();
    }
    stacks
}

/// Replaces the terminate handler if Coroner is installed and the C++ runtime was loaded after
/// that, with an image that was loaded now.
#[cfg(all(target_vendor = "apple", any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw")))]
fn take_terminate_handler() {
    if throws::is_on() {
        terminate::install_if_absent();
    }
}

/// Restores the handlers that nobody else has replaced since, and captures no more throws (not
/// async-signal-safe).
pub fn uninstall() {
    ON.store(false, Ordering::Release);
    #[cfg(target_vendor = "apple")]
    zombies::uninstall();
    #[cfg(target_vendor = "apple")]
    objective_c::uninstall();
    terminate::uninstall();
    throws::uninstall();
}

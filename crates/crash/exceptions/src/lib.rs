//! Exceptions of C++ and Objective-C: what an exception that nobody caught says of itself, and where it was thrown.
//!
//! * A terminate handler describes a C++ exception and has a report written; a handler of uncaught exceptions
//!   does so for an `NSException`.
//! * The stack of a C++ throw is taken when it is thrown: `__cxa_throw` and `__cxa_rethrow` come by Coroner (features
//!   `interpose-cxa-throw` and `wrap-cxa-throw`).
//! * Objective-C objects are remembered when they are deallocated, on request, so that a report says what a message was sent to.
//!
//! # The caller's duties
//! [`install`] after [`coroner_capture::install`], [`uninstall`] before [`coroner_capture::uninstall`].
//!
//! # Guarantees
//! Nothing of this crate runs at crash time: handlers run in the place where a language's runtime gives up, before any thread is
//! stopped. No lock is taken and nothing is allocated but by `mmap`. Exceptions go on as if Coroner were not there.
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
mod terminate;
// Without a definition of `__cxa_throw` no throw comes by; what is kept of them is empty then.
#[cfg_attr(not(any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw")), allow(dead_code))]
mod throws;
#[cfg(target_vendor = "apple")]
mod zombies;

pub use throws::{ThrowStacks, throws_captured};

/// Which exceptions are described.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// C++ exceptions that nobody catches, with the stacks of their throws if the program was built so.
    pub cpp: bool,
    /// Objective-C exceptions that nobody catches (Apple's systems; without effect elsewhere).
    pub objc: bool,
    /// Exceptions that AppKit catches and only logs (`-[NSApplication reportException:]`), as ones that the process survives
    /// (macOS; without effect elsewhere). It replaces that method.
    pub appkit: bool,
    /// Objective-C objects that are deallocated are remembered by address and class, so that a report says what a register led to
    /// (Apple's systems; without effect elsewhere). It replaces `-dealloc` of `NSObject`, `NSProxy` and `NSException`.
    pub zombies: bool,
    /// How long the app's own code (`what()`) may take, in milliseconds, if that is less than two seconds.
    pub deadline_ms: u32,
    /// Is called after a report of an exception that the process survives.
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

/// Takes the places of the runtimes' last resorts, and captures throws from now on (not async-signal-safe). Says whether throws have
/// stacks.
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

/// Takes the terminate handler's place, if Coroner is installed and the C++ runtime came after that, with an image that was loaded now.
#[cfg(all(target_vendor = "apple", any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw")))]
fn take_terminate_handler() {
    if throws::is_on() {
        terminate::install_if_absent();
    }
}

/// Gives the places back that nobody else took since, and captures no throws any more (not async-signal-safe).
pub fn uninstall() {
    ON.store(false, Ordering::Release);
    #[cfg(target_vendor = "apple")]
    zombies::uninstall();
    #[cfg(target_vendor = "apple")]
    objective_c::uninstall();
    terminate::uninstall();
    throws::uninstall();
}

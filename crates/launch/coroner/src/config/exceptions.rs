//! Options for which exceptions and panics are reported.

use super::group::group;

/// The panics to report. Other panics become breadcrumbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PanicPolicy {
    /// Uncaught panics, which end the process or a thread.
    #[default]
    UncaughtOnly,
    /// All panics.
    ///
    /// Caught ones become non-fatal reports
    /// ([`Limits::reports_per_hour`](crate::Limits::reports_per_hour)).
    ///
    /// For a server whose runtime catches panics of request handlers, like tokio.
    All,
}

group! {
    /// Options for exceptions and panics.
    ///
    /// By default, uncaught exceptions of C++ and Objective-C and uncaught Rust panics are
    /// reported. Change this
    /// * in a server whose runtime catches panics of request handlers
    ///   ([`panic_policy`](Self::panic_policy)),
    /// * in a macOS or iOS app, for exceptions that AppKit catches and for objects that are used
    ///   after their deallocation ([`appkit`](Self::appkit), [`zombies`](Self::zombies)),
    /// * if another library reports a language's exceptions (`false` for that language).
    ///
    /// ```
    /// use coroner::{Config, Exceptions, PanicPolicy};
    ///
    /// let config = Config::new("com.example.shop").exceptions(Exceptions::new().panic_policy(PanicPolicy::All));
    /// ```
    // Without its feature, an option has no effect.
    #[cfg_attr(not(all(feature = "exceptions", feature = "panics")), allow(dead_code))]
    Exceptions
    fields {}
    options {
        /// Sets whether Rust panics are recorded. Default: yes. Needs the feature `panics`.
        ///
        /// Panics that end the process or a thread are reported with message, location and stack;
        /// panics that the app catches become breadcrumbs. The previous panic hook is still called.
        panics: bool = true,
        /// Sets which panics are reported: uncaught ones or all.
        ///
        /// Default: [`PanicPolicy::UncaughtOnly`].
        panic_policy: PanicPolicy = PanicPolicy::default(),
        /// Sets whether uncaught C++ exceptions are reported with type, message and causes.
        ///
        /// Default: yes. Needs the feature `exceptions`. Otherwise the abort that follows is
        /// reported. With the feature `interpose-cxa-throw` or `wrap-cxa-throw` the report also
        /// contains the throw's stack. The previous terminate handler is still called.
        cpp: bool = true,
        /// Sets whether uncaught Objective-C exceptions are reported (macOS, iOS).
        ///
        /// Default: yes. Needs the feature `exceptions`. The report contains name, reason, user
        /// info and the throw's stack. The previous handler is still called.
        objc: bool = true,
        /// Sets whether to report exceptions that AppKit catches and only logs. Default: no.
        ///
        /// macOS only. They are reported as non-fatal. This replaces `-[NSApplication
        /// reportException:]` with a method that reports and then calls the original.
        appkit: bool = false,
        /// Sets whether to remember deallocated Objective-C objects (macOS, iOS). Default: no.
        ///
        /// Coroner remembers their addresses and classes and keeps no object alive. If the crashed
        /// thread used such an object after its deallocation, the report contains the object's
        /// class, the message that was sent to it, and the contents of the `NSException` that was
        /// deallocated last. This replaces `-dealloc` of `NSObject`, `NSProxy` and `NSException`
        /// with a method that records the object and then calls the original, and takes 576 KiB of
        /// memory. Needs the feature `exceptions`.
        zombies: bool = false,
    }
}

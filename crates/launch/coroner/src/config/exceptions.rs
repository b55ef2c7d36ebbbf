//! Options for which exceptions and panics are reported.

use super::group::group;

/// Selects the panics that are reported instead of being left as breadcrumbs only.
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
    /// This suits a server whose runtime catches the panics of handlers, as tokio does.
    All,
}

group! {
    /// Options for exceptions and panics.
    ///
    /// By default, uncaught ones of Rust, C++ and Objective-C are reported. You need this
    /// * in a server whose runtime catches the panics of handlers
    ///   ([`panic_policy`](Self::panic_policy)),
    /// * in an app for macOS or iOS, for exceptions that AppKit catches and for objects that are
    ///   used after their deallocation ([`appkit`](Self::appkit), [`zombies`](Self::zombies)),
    /// * where another library reports the exceptions of a language (`false` for that one).
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
        /// Sets whether Rust panics are recorded. Default: yes. It needs the feature `panics`.
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
        /// Otherwise they are reported as the abort that follows. The stack of the throw is
        /// included if the feature `interpose-cxa-throw` or `wrap-cxa-throw` is on. The previous
        /// terminate handler is still called. Default: yes. It needs the feature `exceptions`.
        cpp: bool = true,
        /// Sets whether uncaught Objective-C exceptions are reported (macOS, iOS).
        ///
        /// The report contains name, reason, user info and the stack of the throw. The previous
        /// handler is still called. Default: yes. It needs the feature `exceptions`.
        objc: bool = true,
        /// Sets whether to report exceptions that AppKit catches and only logs (macOS). Default:
        /// no.
        ///
        /// They are reported as non-fatal. It replaces `-[NSApplication reportException:]` by a
        /// method that reports and then calls the original.
        appkit: bool = false,
        /// Sets whether to remember deallocated Objective-C objects (macOS, iOS). Default: no.
        ///
        /// Their addresses and classes are remembered. If the crashed thread used such an object
        /// after its deallocation, the report contains the object's class and the message that was
        /// sent to it, and the contents of the `NSException` that was deallocated last. No object
        /// is kept alive. It replaces `-dealloc` of `NSObject`, `NSProxy` and `NSException` by a
        /// method that records the object and then calls the original, and takes 576 KiB of memory.
        /// It needs the feature `exceptions`.
        zombies: bool = false,
    }
}

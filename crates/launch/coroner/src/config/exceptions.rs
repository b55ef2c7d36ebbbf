//! Which exceptions and panics are reported.

use super::group::group;

/// Which panics are reported, and not only left as breadcrumbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PanicPolicy {
    /// Those that nobody catches: they end the process or a thread.
    #[default]
    UncaughtOnly,
    /// Those that are caught, too, as reports that the process survives
    /// ([`Limits::reports_per_hour`](crate::Limits::reports_per_hour)): a server's handlers under a runtime that
    /// catches their panics, as tokio does.
    All,
}

group! {
    /// Which exceptions and panics are reported as such. By default those that nobody catches: of Rust, C++ and Objective-C. You need this
    /// * in a server, where the runtime catches the panics of handlers ([`panic_policy`](Self::panic_policy)),
    /// * in an app for macOS or iOS, for exceptions that AppKit catches and for objects that are used after their deallocation
    ///   ([`appkit`](Self::appkit), [`zombies`](Self::zombies)),
    /// * where another library reports the exceptions of a language (`false` for that one).
    ///
    /// ```
    /// use coroner::{Config, Exceptions, PanicPolicy};
    ///
    /// let config = Config::new("com.example.shop").exceptions(Exceptions::new().panic_policy(PanicPolicy::All));
    /// ```
    // Without a feature its options are without effect.
    #[cfg_attr(not(all(feature = "exceptions", feature = "panics")), allow(dead_code))]
    Exceptions
    fields {}
    options {
        /// Whether panics of Rust are taken in: those that end the process or a thread are reported with message, place and stack,
        /// those that the app catches become breadcrumbs. The panic hook that was there before is still called. Default: yes. It needs the
        /// feature `panics`.
        panics: bool = true,
        /// Which panics are reported: those that nobody catches, or all. Default: [`PanicPolicy::UncaughtOnly`].
        panic_policy: PanicPolicy = PanicPolicy::default(),
        /// Whether C++ exceptions that nobody catches are reported with type, message and causes, and not as the abort that follows; it needs
        /// the feature `exceptions`. The stack of the throw is there
        /// where the feature `interpose-cxa-throw` or `wrap-cxa-throw` is on. The terminate handler that was there before is still
        /// called. Default: yes.
        cpp: bool = true,
        /// Whether Objective-C exceptions that nobody catches are reported with name, reason, user info and the stack of the throw
        /// (macOS, iOS); it needs the feature `exceptions`. The handler that was there before is still called. Default: yes.
        objc: bool = true,
        /// Whether exceptions that AppKit catches and only logs (`-[NSApplication reportException:]`) are reported, as ones that the
        /// process survives (macOS). It replaces that method by one that reports and goes on in it. Default: no.
        appkit: bool = false,
        /// Whether Objective-C objects that are deallocated are remembered, by address and class, so that a report says of what class an object was
        /// that the crashed thread used after that, and which message was sent to it; and what the `NSException` said that was deallocated last (macOS, iOS). No
        /// object is kept. It replaces `-dealloc` of `NSObject`, `NSProxy` and `NSException` by one that notes and goes on in it, and takes 576 KiB
        /// of memory; it needs the feature `exceptions`. Default: no.
        zombies: bool = false,
    }
}

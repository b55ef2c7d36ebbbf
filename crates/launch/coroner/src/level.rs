//! Severity levels.

use coroner_report::run_state;

/// The severity of an event or a breadcrumb, with Sentry's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// Details that only help a developer who debugs the app.
    Debug,
    /// Normal operation, such as a page that was opened.
    Info,
    /// Something unexpected that did not stop the operation.
    Warning,
    /// An operation failed, and the app continues.
    Error,
    /// The app can't continue.
    Fatal,
}

impl From<Level> for run_state::Level {
    fn from(level: Level) -> Self {
        match level {
            Level::Debug => Self::DEBUG,
            Level::Info => Self::INFO,
            Level::Warning => Self::WARNING,
            Level::Error => Self::ERROR,
            Level::Fatal => Self::FATAL,
        }
    }
}

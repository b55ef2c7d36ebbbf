//! Severity levels.

use coroner_report::run_state;

/// The severity of an event or a breadcrumb, with Sentry's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// For debugging only.
    Debug,
    /// Informational.
    Info,
    /// Unexpected, but not a failure.
    Warning,
    /// A failure.
    Error,
    /// A failure that ended the process.
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

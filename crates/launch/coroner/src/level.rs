//! How grave something is.

use coroner_report::run_state;

/// How grave an event or a breadcrumb is. The names are Sentry's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// For those who look for a bug.
    Debug,
    /// Usual.
    Info,
    /// Not as it should be.
    Warning,
    /// Something failed.
    Error,
    /// The process ended with it.
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

//! Errors from reading dumps.

/// The reason why a file can't be read as a dump.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The file is neither a core dump nor a minidump.
    #[error("neither a core dump nor a minidump")]
    NotADump,
    /// The dump's processor or system is not supported.
    #[error("{0}: only x86_64 and arm64 processes are supported")]
    Unsupported(String),
    /// The minidump's operating system is not supported.
    #[error("a minidump of a {0} process: only Windows, Linux, Android, macOS and iOS are supported")]
    System(String),
    /// The file is damaged or truncated.
    #[error("{what}")]
    Damaged {
        /// Description of the damage, with its position.
        what: String,
    },
}

pub(super) fn damaged(what: impl Into<String>) -> DumpError {
    DumpError::Damaged { what: what.into() }
}

//! Why a dump can't be read.

/// Why a file can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// It is neither a core dump nor a minidump.
    #[error("neither a core dump nor a minidump")]
    NotADump,
    /// It is of a processor or a system whose stacks can't be walked here.
    #[error("{0}: only processes of x86_64 and arm64 can be read")]
    Unsupported(String),
    /// It is compressed in a way that is not unpacked here.
    #[error("it is compressed: unpack it with `{by} -d` first")]
    Compressed {
        /// By which program.
        by: &'static str,
    },
    /// It is damaged, or cut off.
    #[error("{what}")]
    Damaged {
        /// What is wrong, and where.
        what: String,
    },
}

pub(super) fn damaged(what: impl Into<String>) -> DumpError {
    DumpError::Damaged { what: what.into() }
}

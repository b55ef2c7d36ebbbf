//! What can be wrong with a symbol file, and where in it.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Why a symbol file, or a part of it, couldn't be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum SymbolError {
    /// The file couldn't be opened, mapped or listed.
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is of no format that is understood here.
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Its first bytes, at most 4.
        magic: Vec<u8>,
    },
    /// The file is of a known format, but breaks its rules.
    Malformed {
        /// The file.
        path: PathBuf,
        /// The byte in the file where the offending structure begins.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
}

impl SymbolError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// The byte in the file where the offending structure begins, if the file could be read at all.
    pub fn offset(&self) -> Option<u64> {
        match self {
            Self::Malformed { offset, .. } => Some(*offset),
            Self::UnknownFormat { .. } => Some(0),
            Self::Io { .. } => None,
        }
    }
}

impl fmt::Display for SymbolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::UnknownFormat { path, magic } => {
                write!(f, "{}: neither ELF, Mach-O nor breakpad symbols (begins with", path.display())?;
                if magic.is_empty() {
                    return f.write_str(" nothing: the file is empty)");
                }
                for byte in magic {
                    write!(f, " {byte:02x}")?;
                }
                f.write_str(")")
            }
            Self::Malformed { path, offset, what } => {
                write!(f, "{}: at byte {offset} ({offset:#x}): {what}", path.display())
            }
        }
    }
}

impl std::error::Error for SymbolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A broken rule at a place of a file whose name the caller knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// The byte in the file.
    pub(crate) offset: u64,
    /// What is wrong there.
    pub(crate) what: String,
}

impl Malformed {
    pub(crate) fn new(offset: u64, what: impl Into<String>) -> Self {
        Self { offset, what: what.into() }
    }

    pub(crate) fn in_file(self, path: &Path) -> SymbolError {
        SymbolError::Malformed { path: path.into(), offset: self.offset, what: self.what }
    }
}

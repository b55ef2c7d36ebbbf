//! What can be wrong with a symbol file, and where in it.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a symbol file, or a part of it, couldn't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SymbolError {
    /// The file couldn't be opened, mapped or listed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is of no format that is understood here.
    #[error("{}: neither ELF, Mach-O nor breakpad symbols (begins with {})", path.display(), beginning(magic))]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Its first bytes, at most 4.
        magic: Vec<u8>,
    },
    /// The file is of a known format, but breaks its rules.
    #[error("{}: at byte {offset} ({offset:#x}): {what}", path.display())]
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

fn beginning(magic: &[u8]) -> String {
    let bytes: Vec<String> = magic.iter().map(|byte| format!("{byte:02x}")).collect();
    if bytes.is_empty() { "nothing: the file is empty".to_owned() } else { bytes.join(" ") }
}

/// A broken rule at a place of a file whose name the caller knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) offset: u64,
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

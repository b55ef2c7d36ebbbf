//! Errors in symbol files, with their position.

use std::{
    io,
    path::{Path, PathBuf},
};

/// The reason why a symbol file, or a part of it, couldn't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SymbolError {
    /// The file couldn't be opened, mapped or listed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has an unknown format.
    #[error("{}: not an ELF, Mach-O, PE or breakpad file (starts with {})", path.display(), beginning(magic))]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Its first bytes, at most 4.
        magic: Vec<u8>,
    },
    /// The file has a known format, but is malformed.
    #[error("{}: at byte {offset} ({offset:#x}): {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The file offset of the malformed structure.
        offset: u64,
        /// Description of the error.
        what: String,
    },
}

impl SymbolError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// Returns the file offset of the malformed structure, if the file could be read at all.
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

/// An error at a position in a file whose path the caller knows.
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

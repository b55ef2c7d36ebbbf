//! The error of a store operation.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// An operation on the store failed.
#[derive(Debug)]
pub struct StoreError {
    /// The operation, as in "can't … `path`".
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl StoreError {
    pub(crate) fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { doing, path: path.to_owned(), source }
    }

    /// Returns the file or directory of the failed operation.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "can't {} `{}`: {}", self.doing, self.path.display(), self.source)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

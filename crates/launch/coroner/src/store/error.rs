//! The error of a store operation.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// A failed operation on the store.
#[derive(Debug)]
pub struct StoreError {
    /// The operation, which completes "can't … `path`".
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl StoreError {
    pub(crate) fn at(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { operation, path: path.to_owned(), source }
    }

    /// Returns the file or directory of the failed operation.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "can't {} `{}`: {}", self.operation, self.path.display(), self.source)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

//! An open directory, and all operations in it by names relative to it.
//!
//! No function follows a symbolic link, because other users may be able to write to the store's
//! location, and reading `report` must never read a file that another user linked there. Files are
//! opened by `openat` with `O_NOFOLLOW`, so that replacing a directory with a link between two
//! steps has no effect, either. Files are created with mode 0600 and directories with 0700.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

#[cfg(unix)]
mod by_descriptor;
#[cfg(not(unix))]
mod by_path;

#[cfg(unix)]
use by_descriptor as os;
#[cfg(not(unix))]
use by_path as os;
use os::private_directories;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use os::punch_hole;
pub(crate) use os::{Directory, Status, try_lock, user};

/// Maximum depth of [`Directory::remove_tree`]. A run contains files and at most one folder of
/// attachments.
const MAX_TREE_DEPTH: usize = 8;

/// Suffix of the names of incomplete files.
const TEMPORARY: &str = ".new";

impl Directory {
    /// Opens the directory at `path`. Creates it and its parents if they don't exist.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        match Self::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                private_directories().create(path)?;
                Self::open(path)
            }
            opened => opened,
        }
    }

    /// Whether `name` exists and is not a regular file.
    pub(crate) fn is_other_than_file(&self, name: &OsStr) -> bool {
        self.status_of(name).is_ok_and(|status| status.kind != FileType::RegularFile)
    }

    /// Reads the regular file `name`, which may be at most `limit` bytes long.
    pub(crate) fn read(&self, name: &OsStr, limit: u64) -> io::Result<Vec<u8>> {
        let file = self.file(name, false)?;
        let length = file.metadata()?.len();
        if length > limit {
            let message = format!("is {length} bytes long; the limit is {limit}");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        let mut bytes = Vec::with_capacity(length as usize);
        // The file may grow while it is read; `take` enforces the limit.
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the start of the regular file `name`, at most `length` bytes.
    pub(crate) fn read_start(&self, name: &OsStr, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file(name, false)?.take(length).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes `bytes` to `name` durably and atomically.
    ///
    /// A reader, and the next launch after a power failure, sees the old file or the complete new
    /// one.
    pub(crate) fn write_atomically(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        self.replace(name, bytes, true)?;
        self.sync()
    }

    /// Writes `bytes` to `name` atomically, without waiting for the disk.
    ///
    /// After a power failure the file may be empty.
    pub(crate) fn write_quickly(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        self.replace(name, bytes, false)
    }

    fn replace(&self, name: &OsStr, bytes: &[u8], sync: bool) -> io::Result<()> {
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}{TEMPORARY}", std::process::id()));
        let written = self.write_new(&temporary, bytes, sync).and_then(|()| self.rename(&temporary, self, name));
        if written.is_err() {
            // On a full disk the file is incomplete and must not take up space.
            let _ = self.remove_file(&temporary);
        }
        written
    }

    /// Removes temporary files that are older than an hour.
    ///
    /// They are left by processes that were killed in [`write_atomically`](Self::write_atomically).
    pub(crate) fn clear_temporaries(&self) -> io::Result<()> {
        const MIN_AGE: Duration = Duration::from_hours(1);
        for name in self.names()? {
            let bytes = name.as_encoded_bytes();
            if bytes.starts_with(b".") && bytes.ends_with(TEMPORARY.as_bytes()) {
                let Ok(status) = self.status_of(&name) else { continue };
                let age = SystemTime::now().duration_since(status.modified).unwrap_or(Duration::ZERO);
                if status.kind == FileType::RegularFile && age > MIN_AGE {
                    let _ = self.remove_file(&name);
                }
            }
        }
        Ok(())
    }

    /// Writes the file `name`, replacing an earlier attempt's. With `sync`, waits until it is on
    /// disk.
    fn write_new(&self, name: &OsStr, bytes: &[u8], sync: bool) -> io::Result<()> {
        match self.remove_file(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = self.new_file(name)?;
        file.write_all(bytes)?;
        if sync { file.sync_all() } else { Ok(()) }
    }

    /// Removes `name` and, if it is a directory, its contents.
    ///
    /// Symbolic links are removed, not followed.
    pub(crate) fn remove_tree(&self, name: &OsStr) -> io::Result<()> {
        self.remove_tree_to(name, MAX_TREE_DEPTH)
    }

    fn remove_tree_to(&self, name: &OsStr, depth: usize) -> io::Result<()> {
        if self.status_of(name)?.kind != FileType::Directory {
            return self.remove_file(name);
        }
        if depth == 0 {
            return Err(io::Error::other(format!("`{}` is nested too deeply", name.display())));
        }
        let inner = self.subdirectory(name)?;
        for entry in inner.names()? {
            inner.remove_tree_to(&entry, depth - 1)?;
        }
        self.remove_directory(name)
    }

    /// Returns the space on disk of all files below `name`, in bytes.
    pub(crate) fn tree_bytes(&self, name: &OsStr) -> io::Result<u64> {
        self.tree_bytes_to(name, MAX_TREE_DEPTH)
    }

    fn tree_bytes_to(&self, name: &OsStr, depth: usize) -> io::Result<u64> {
        let status = self.status_of(name)?;
        let mut bytes = status.disk_bytes;
        if status.kind == FileType::Directory && depth > 0 {
            let inner = self.subdirectory(name)?;
            for entry in inner.names()? {
                bytes = bytes.saturating_add(inner.tree_bytes_to(&entry, depth - 1).unwrap_or(0));
            }
        }
        Ok(bytes)
    }
}

/// The kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileType {
    RegularFile,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Device,
    Unknown,
}

/// Returns a file kind's name with its article.
pub(crate) fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::Device => "a device",
        FileType::Unknown => "an unknown kind of file",
    }
}

#[cfg(test)]
mod tests;

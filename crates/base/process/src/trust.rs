//! Decides whether files in a directory of this program may be used: the rule of the store, of a
//! run's files and of the outboxes.
//!
//! A directory that others could once write to may contain files of theirs, hard links to files
//! that they read, or files that they wrote. The caller opens an entry with `O_NOFOLLOW`, passes
//! what `fstat` returns for the descriptor, and replaces an entry that fails.

use core::fmt;

/// Permission bits for writing by the group and by others.
pub const OTHERS_WRITE: u32 = 0o022;

const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// The parts of `struct stat` that the rule needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Kind and permissions (`st_mode`).
    pub mode: u32,
    /// User ID of the owner.
    pub owner: u32,
    /// Number of names.
    pub links: u64,
}

/// Reason not to use an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// The entry is of another kind.
    Kind,
    /// The entry belongs to this user.
    Owner(u32),
    /// The file has this number of names. Whoever created another one may read or change it.
    Links(u64),
    /// The group or others may write to the entry.
    Writable,
}

impl Entry {
    /// Checks a directory of `user`, to which nobody else may write.
    ///
    /// # Errors
    /// The reason not to use the directory. [`Distrust::Writable`] is the last one checked.
    pub fn check_directory(self, user: u32) -> Result<(), Distrust> {
        self.check(DIRECTORY, user, 1)
    }

    /// Checks a regular file of `user` with one name, to which nobody else may write.
    ///
    /// # Errors
    /// The reason not to use the file. [`Distrust::Writable`] is the last one checked.
    pub fn check_file(self, user: u32) -> Result<(), Distrust> {
        self.check(REGULAR, user, self.links)
    }

    fn check(self, kind: u32, user: u32, links: u64) -> Result<(), Distrust> {
        match self {
            _ if self.mode & KIND != kind => Err(Distrust::Kind),
            _ if self.owner != user => Err(Distrust::Owner(self.owner)),
            _ if links > 1 => Err(Distrust::Links(links)),
            _ if self.mode & OTHERS_WRITE != 0 => Err(Distrust::Writable),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Distrust {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind => out.write_str("is of another kind"),
            Self::Owner(owner) => write!(out, "belongs to user {owner}"),
            Self::Links(links) => write!(out, "has {links} names"),
            Self::Writable => out.write_str("can be written by others"),
        }
    }
}

impl core::error::Error for Distrust {}

#[cfg(test)]
mod tests;

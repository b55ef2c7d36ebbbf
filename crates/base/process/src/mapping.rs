//! A mapping of this process, in the form that all systems share.

/// What may be done with a mapping's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
    /// It may be executed.
    pub execute: bool,
    /// It is shared (`MAP_SHARED`) with other processes. Not asked on Darwin.
    pub shared: bool,
}

impl Permissions {
    /// No access at all, as a stack's guard page has.
    pub fn is_guard(self) -> bool {
        !(self.read || self.write || self.execute)
    }
}

/// One mapping of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Address of its first byte.
    pub start: u64,
    /// Address behind its last byte.
    pub end: u64,
    /// What may be done with its memory.
    pub permissions: Permissions,
    /// Where in its file it starts, in bytes; 0 without a file, and on Darwin.
    pub file_offset: u64,
    /// Which file it is.
    pub file: FileId,
}

/// Which file is mapped, as the kernel lists it; all zero without a file, and on Darwin.
///
/// Not always what stat(2) says: a file of overlayfs or btrfs can have other numbers there. Two mappings of one file have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileId {
    /// The device's numbers: major << 24 | minor.
    pub device: u64,
    /// The number in the file system.
    pub inode: u64,
}

impl FileId {
    /// Whether there is a file.
    pub fn is_file(self) -> bool {
        self.inode != 0
    }
}

impl Mapping {
    /// Whether an address is in it.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

//! A mapping of this process, in a form shared by all systems.

/// Access rights of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// The memory is readable.
    pub read: bool,
    /// The memory is writable.
    pub write: bool,
    /// The memory is executable.
    pub execute: bool,
    /// The mapping is shared with other processes (`MAP_SHARED`). Always false on Darwin.
    pub shared: bool,
}

impl Permissions {
    /// Whether no access is allowed, as in a stack's guard page.
    pub fn is_guard(self) -> bool {
        !(self.read || self.write || self.execute)
    }
}

/// A mapping of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Access rights.
    pub permissions: Permissions,
    /// Offset in the mapped file, in bytes; 0 without a file, and on Darwin.
    pub file_offset: u64,
    /// Identity of the mapped file.
    pub file: FileId,
}

/// Identity of a mapped file, as listed by the kernel; all zero without a file, and on Darwin.
///
/// Not always the numbers of stat(2): a file on overlayfs or btrfs can have others there. Two
/// mappings of one file have the same identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileId {
    /// The device numbers: major << 24 | minor.
    pub device: u64,
    /// The inode.
    pub inode: u64,
}

impl FileId {
    /// Whether there is a file.
    pub fn is_file(self) -> bool {
        self.inode != 0
    }
}

impl Mapping {
    /// Whether the mapping contains `address`.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

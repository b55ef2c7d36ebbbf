//! A symbol file's bytes, shared by everything that was parsed from it.

use std::{
    fs::File,
    ops::{Deref, Range},
    path::Path,
    sync::Arc,
};

use crate::error::SymbolError;

/// The bytes of a whole file, or bytes decompressed from one; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    storage: Arc<Storage>,
    range: Range<usize>,
}

#[derive(Debug)]
enum Storage {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl Storage {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl Bytes {
    /// Maps a regular file. Folders, devices and pipes are refused: the latter two could block for
    /// ever.
    pub(crate) fn open(path: &Path) -> Result<Self, SymbolError> {
        let io = |source| SymbolError::io(path, source);
        let check = |metadata: std::fs::Metadata| match metadata.is_file() {
            true => Ok(metadata.len()),
            false => Err(io(std::io::Error::other("not a regular file"))),
        };
        // Before opening, because opening a device may have effects; and after it, because the file
        // may have been replaced by a pipe, which must not block.
        check(std::fs::metadata(path).map_err(io)?)?;
        let mut options = File::options();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        let file = options.read(true).open(path).map_err(io)?;
        let length = check(file.metadata().map_err(io)?)?;
        if length == 0 {
            return Ok(Self::owned(Vec::new()));
        }
        // SAFETY: the map is private and read-only. Changes to the file by others can change the
        // bytes that are read, and all readers treat them as hostile. A truncation in place causes
        // SIGBUS, as documented for the crate.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        let range = 0..map.len();
        Ok(Self { storage: Arc::new(Storage::Mapped(map)), range })
    }

    /// Returns how much of the process's memory the bytes use; 0 for a mapping.
    pub(crate) fn owned_size(&self) -> usize {
        match &*self.storage {
            Storage::Mapped(_) => 0,
            Storage::Owned(bytes) => bytes.capacity(),
        }
    }

    pub(crate) fn owned(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { storage: Arc::new(Storage::Owned(bytes)), range }
    }

    /// Returns a part of these bytes; `None` if it extends beyond them.
    pub(crate) fn slice(&self, offset: u64, size: u64) -> Option<Self> {
        let start = usize::try_from(offset).ok()?.checked_add(self.range.start)?;
        let end = usize::try_from(size).ok()?.checked_add(start)?;
        (end <= self.range.end).then(|| Self { storage: Arc::clone(&self.storage), range: start..end })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // The range was checked against the storage on creation.
        &self.storage.bytes()[self.range.clone()]
    }
}

/// Reads little- or big-endian values at an offset; `None` beyond the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) big_endian: bool,
}

impl Fields<'_> {
    fn array<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let start = usize::try_from(offset).ok()?;
        let mut field: [u8; N] = self.bytes.get(start..start.checked_add(N)?)?.try_into().ok()?;
        if self.big_endian {
            field.reverse();
        }
        Some(field)
    }

    pub(crate) fn u16(&self, offset: u64) -> Option<u16> {
        self.array(offset).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&self, offset: u64) -> Option<u32> {
        self.array(offset).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&self, offset: u64) -> Option<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }
}

//! A loaded image with the data that naming and options need.

#[cfg(supported)]
use std::fs::File;
#[cfg(supported)]
use std::path::Path;
use std::path::PathBuf;
use std::sync::OnceLock;

use coroner_unwind::AddressRange;
#[cfg(supported)]
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

#[derive(Debug)]
pub(super) struct LoadedImage {
    pub path: PathBuf,
    pub build_id: Vec<u8>,
    /// All mapped addresses of the image.
    pub range: AddressRange,
    pub slide: u64,
    pub in_app: bool,
    /// Whether its symbols are read from memory instead of from its file.
    pub named_in_memory: bool,
    /// The image's symbols, opened when something is named.
    pub symbols: OnceLock<Option<SymbolTable>>,
}

/// A file that is mapped for reading.
#[derive(Debug)]
pub(super) struct MappedFile(&'static [u8]);

#[cfg(supported)]
impl MappedFile {
    pub(super) fn open(path: &Path) -> Option<MappedFile> {
        let file = File::open(path).ok()?;
        let length = usize::try_from(file.metadata().ok()?.len()).ok()?;
        // SAFETY: the kernel chooses the address, so no existing mapping is touched. It refuses an
        // empty file.
        let at = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }.ok()?;
        // SAFETY: mapped with that length until the drop, which ends the last use. The file runs in
        // this process. Tools that install programs replace such a file by renaming instead of
        // overwriting it, because the kernel rejects writes to a program mapped as code (ETXTBSY).
        Some(MappedFile(unsafe { std::slice::from_raw_parts(at.cast(), length) }))
    }
}

impl std::ops::Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

#[cfg(supported)]
impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: `open` mapped it, and the borrows from `deref` have ended.
        let _ = unsafe { munmap(self.0.as_ptr().cast_mut().cast(), self.0.len()) };
    }
}

/// The location of an image's symbols.
#[derive(Debug)]
pub(super) enum SymbolTable {
    /// The image's file, mapped.
    File(MappedFile),
    /// The symbols in memory: for the vdso, which is not a file, and for Mach-O images.
    Memory,
}

//! A loaded image as names and options see it.

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
    /// All mapped addresses.
    pub range: AddressRange,
    pub slide: u64,
    pub in_app: bool,
    /// Whether its symbols are read where it is loaded and not in its file.
    pub named_in_memory: bool,
    /// Its symbols, opened when something is named.
    pub symbols: OnceLock<Option<SymbolTable>>,
}

/// A file, mapped to be read.
#[derive(Debug)]
pub(super) struct MappedFile(&'static [u8]);

#[cfg(supported)]
impl MappedFile {
    pub(super) fn open(path: &Path) -> Option<MappedFile> {
        let file = File::open(path).ok()?;
        let length = usize::try_from(file.metadata().ok()?.len()).ok()?;
        // SAFETY: at an address of the kernel's choice: nothing that exists is touched. It refuses an empty file.
        let at = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }.ok()?;
        // SAFETY: mapped for that length until the drop, which ends the last use. The file is one that runs in this process; it is replaced by
        // renaming, not written over, by every tool that installs programs (the kernel refuses writing to it while it is mapped as code,
        // ETXTBSY, for programs).
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
        // SAFETY: `open` mapped it, and the borrows that `deref` gave are over.
        let _ = unsafe { munmap(self.0.as_ptr().cast_mut().cast(), self.0.len()) };
    }
}

/// Where an image's symbols are.
#[derive(Debug)]
pub(super) enum SymbolTable {
    /// Its file, mapped.
    File(MappedFile),
    /// The symbols in memory: of the vdso, which is no file, and of Mach-O images, which keep theirs there.
    Memory,
}

//! A loaded image with the data that naming and options need.

#[cfg(supported)]
use std::fs::File;
#[cfg(supported)]
use std::num::NonZeroUsize;
#[cfg(supported)]
use std::path::Path;
use std::path::PathBuf;
#[cfg(supported)]
use std::ptr::NonNull;
use std::sync::OnceLock;

#[cfg(supported)]
use coroner_process::memory::Windowed;
use coroner_unwind::AddressRange;
#[cfg(supported)]
use coroner_walk::LiveReader;
#[cfg(supported)]
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

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
///
/// It is read only by guarded loads or copies of the kernel, because somebody may cut the file.
#[derive(Debug)]
pub(super) struct MappedFile {
    #[cfg_attr(not(supported), allow(dead_code, reason = "no file is mapped"))]
    pub address: u64,
    #[cfg_attr(not(supported), allow(dead_code, reason = "no file is mapped"))]
    pub length: usize,
}

#[cfg(supported)]
impl MappedFile {
    pub(super) fn open(path: &Path) -> Option<MappedFile> {
        // A pipe in the place of the file must not block.
        let mut options = File::options();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        let metadata = |file: &File| file.metadata().ok().filter(std::fs::Metadata::is_file);
        let file = options.read(true).open(path).ok()?;
        let length = NonZeroUsize::new(usize::try_from(metadata(&file)?.len()).ok()?)?;
        // SAFETY: the kernel chooses the address, so no existing mapping is touched.
        let at = unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE, &file, 0) }.ok()?;
        Some(MappedFile { address: at.as_ptr() as u64, length: length.get() })
    }

    /// Returns a reader for the mapping.
    pub(super) fn reader() -> Option<Box<Windowed<LiveReader, 4>>> {
        LiveReader::new_after_query().map(|memory| Box::new(Windowed::new(memory)))
    }
}

#[cfg(supported)]
impl Drop for MappedFile {
    fn drop(&mut self) {
        if let Some(at) = NonNull::new(self.address as *mut _) {
            // SAFETY: `open` mapped it, and nothing refers to it.
            let _ = unsafe { munmap(at, self.length) };
        }
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

#[cfg(all(test, supported))]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_an_images_place_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.so");
        let text = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a path that ends in a zero.
        assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
        assert!(MappedFile::open(&path).is_none());
    }
}

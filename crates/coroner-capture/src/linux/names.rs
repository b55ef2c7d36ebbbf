//! Where an image's symbols are at crash time: in its file, which has all of them, else in memory, which has those that are
//! exported.

use core::ffi::CStr;

use coroner_process::files::{self, close};
use coroner_process::images::Image;
use coroner_process::memory::Memory;
use coroner_process::syscall::{Errno, Result, syscall};
use coroner_scan::{ElfLoaded, Extent, NameScan, Problem, ScanError};

use crate::sections::symbol_names::{AT_ONCE, MAX_SYMBOLS};

/// The longest path that is opened (`PATH_MAX`), with its NUL.
const PATH: usize = 4096;

/// `e_shoff` and the fields behind it: what the linker writes of sections says which build a file is, where it has no id.
const SECTIONS: core::ops::Range<usize> = 40..64;

/// A file that is open for the time of one image's scan.
#[derive(Debug)]
pub(crate) struct Source {
    file: Option<i32>,
    mapped: Extent,
}

impl Source {
    pub(crate) const NONE: Source = Source { file: None, mapped: Extent { address: 0, size: 0 } };

    /// Gives back what is open.
    pub(crate) fn close(self) {
        if let Some(file) = self.file {
            close(file);
        }
        if self.mapped.size > 0 {
            // SAFETY: a mapping of `scan`'s own, which nothing refers to any more.
            unsafe { files::unmap(self.mapped.address as usize, self.mapped.size as usize) };
        }
    }

    /// Scans an image's symbols. The names are read from the same place, so this must live until they were.
    pub(crate) fn scan<M: Memory>(
        &mut self,
        images: &coroner_walk::ImageList,
        image: &Image,
        scan: &mut NameScan<AT_ONCE>,
        memory: &mut M,
    ) -> core::result::Result<(), ScanError> {
        if self.open(images.path(image)).is_ok() && is_same(image, self.mapped, memory) {
            let build_id = Some(image.build_id()).filter(|id| !id.is_empty());
            match scan.elf_file(memory, self.mapped, build_id, MAX_SYMBOLS) {
                // What was found until then is right.
                Ok(()) | Err(ScanError { problem: Problem::Limit, .. }) => return Ok(()),
                Err(_) => {}
            }
        }
        let loaded = ElfLoaded { load_address: image.range.start, slide: image.slide, size: image.range.len() };
        scan.elf_loaded(memory, loaded, MAX_SYMBOLS)
    }

    /// Maps a file.
    fn open(&mut self, path: &[u8]) -> Result<()> {
        let mut bytes = [0; PATH];
        // A path that is not absolute is none (`[vdso]`).
        if path.first() != Some(&b'/') {
            return Err(Errno(libc::ENOENT));
        }
        for (to, from) in bytes.iter_mut().zip(path) {
            *to = *from;
        }
        let path = CStr::from_bytes_until_nul(&bytes).map_err(|_| Errno(libc::ENAMETOOLONG))?;
        // Whatever the path leads to by now: opening it neither waits nor becomes this process's terminal.
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = files::open(libc::AT_FDCWD, path, flags, 0)?;
        self.file = Some(file);
        // SAFETY: no memory is touched. Async-signal-safe: one system call.
        let size = unsafe { syscall!(libc::SYS_lseek, file, 0, libc::SEEK_END) }?;
        let (protection, kind) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice. It is read through guarded loads only: the file may be
        // cut meanwhile. Async-signal-safe: one system call.
        let address = unsafe { syscall!(libc::SYS_mmap, 0, size, protection, kind, file, 0) }?;
        self.mapped = Extent { address: address as u64, size: size as u64 };
        // Forgotten first: the deadline may interrupt this here, and a number that is closed twice may be another file's by then.
        self.file = None;
        close(file);
        Ok(())
    }
}

/// Whether a file is that of an image without a build id, as far as it can be known: the same file header. (One with an id is known
/// by that.)
fn is_same<M: Memory>(image: &Image, file: Extent, memory: &mut M) -> bool {
    if !image.build_id().is_empty() {
        return true;
    }
    let mut header = |address: u64| {
        let mut bytes = [0; 64];
        memory.read(address, &mut bytes).is_ok().then_some(bytes)
    };
    let (theirs, ours) = (header(file.address), header(image.range.start));
    let sections = |header: Option<[u8; 64]>| header.filter(|header| header.get(SECTIONS) != Some(&[0; 24][..]));
    sections(theirs).is_some() && theirs == ours
}

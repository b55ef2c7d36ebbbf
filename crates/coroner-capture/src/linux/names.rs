//! Where an image's symbols are at crash time: in its file, which has all of them, else in memory, which has those that are
//! exported.

use coroner_machine::images::Image;
use coroner_machine::memory::Memory;
use coroner_machine::syscall::{Result, syscall};
use coroner_scan::{ElfLoaded, Extent, NameScan, Problem, ScanError};

use crate::os::files;
use crate::os::images::Loaded;
use crate::pipeline::names::{AT_ONCE, MOST_SYMBOLS};

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
    /// No file.
    pub(crate) const NONE: Source = Source { file: None, mapped: Extent { address: 0, size: 0 } };

    /// Gives back what is open.
    pub(crate) fn close(self) {
        if let Some(file) = self.file {
            files::close(file);
        }
        if self.mapped.size > 0 {
            // SAFETY: a mapping of `scan`'s own, which nothing refers to any more. Async-signal-safe: one system call.
            let _ = unsafe { syscall!(libc::SYS_munmap, self.mapped.address, self.mapped.size) };
        }
    }

    /// Scans an image's symbols. The names are read from the same place, so this must live until they were.
    pub(crate) fn scan<M: Memory>(
        &mut self,
        images: &Loaded,
        image: &Image,
        scan: &mut NameScan<AT_ONCE>,
        memory: &mut M,
    ) -> core::result::Result<(), ScanError> {
        if self.open(images.path(image)).is_ok() && is_same(image, self.mapped, memory) {
            let build_id = Some(image.build_id()).filter(|id| !id.is_empty());
            match scan.elf_file(memory, self.mapped, build_id, MOST_SYMBOLS) {
                // What was found until then is right.
                Ok(()) | Err(ScanError { problem: Problem::Limit, .. }) => return Ok(()),
                Err(_) => {}
            }
        }
        let loaded = ElfLoaded { load_address: image.range.start, slide: image.slide, size: image.range.size() };
        scan.elf_loaded(memory, loaded, MOST_SYMBOLS)
    }

    /// Maps a file.
    fn open(&mut self, path: &[u8]) -> Result<()> {
        let mut bytes = [0; PATH];
        // A path that is not absolute is none (`[vdso]`); the last byte stays the NUL.
        let fits = path.first() == Some(&b'/') && path.len() < PATH;
        let Some(to) = bytes.get_mut(..path.len()).filter(|_| fits) else {
            return Err(coroner_machine::syscall::Errno(libc::ENOENT));
        };
        for (to, from) in to.iter_mut().zip(path) {
            *to = *from;
        }
        // Whatever the path leads to by now: opening it neither waits nor becomes this process's terminal.
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = files::open(libc::AT_FDCWD, bytes.as_ptr(), flags, 0)?;
        self.file = Some(file);
        // SAFETY: no memory is touched. Async-signal-safe: one system call.
        let size = unsafe { syscall!(libc::SYS_lseek, file, 0, libc::SEEK_END) }?;
        let (protection, kind) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice. It is read through guarded loads only: the file may be
        // cut meanwhile. Async-signal-safe: one system call.
        let address = unsafe { syscall!(libc::SYS_mmap, 0, size, protection, kind, file, 0) }?;
        self.mapped = Extent { address: address as u64, size: size as u64 };
        files::close(file);
        self.file = None;
        Ok(())
    }
}

/// Whether a file is that of an image without a build id, as far as can be told: the same file header. (One with an id is known
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

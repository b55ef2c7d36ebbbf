//! Source of an image's symbols at crash time: its file, which contains all of them, or else
//! memory, which contains the exported ones.

use core::ffi::CStr;

use coroner_process::files::{self, Descriptor, File};
use coroner_process::images::{DELETED_MARK, FileId, Image, ImageKind, Mapping};
use coroner_process::memory::Memory;
use coroner_process::mounts;
use coroner_process::symtab::{ElfLoaded, Extent, NameScan, Problem, ScanError};
use coroner_process::syscall::{Errno, Result, syscall};

use crate::limits::{ADDRESSES_PER_SCAN, MAX_SYMBOLS};

/// Maximum length of a path that is opened (`PATH_MAX`), with its NUL, in bytes.
const PATH: usize = 4096;

/// `e_shoff` and the fields after it: what the linker writes about sections identifies the build of
/// a file without a build ID.
const SECTIONS: core::ops::Range<usize> = 40..64;

/// A file that is open during one image's scan.
#[derive(Debug)]
pub(crate) struct Source {
    file: Option<File>,
    mapped: Extent,
}

/// Buffers for two paths, which would take much of a small alternate stack.
pub(crate) type Paths = [[u8; PATH]; 2];

impl Source {
    pub(crate) const NONE: Source = Source { file: None, mapped: Extent { address: 0, size: 0 } };

    /// Releases what is open.
    pub(crate) fn close(&mut self) {
        drop(self.file.take());
        let mapped = core::mem::replace(&mut self.mapped, Extent { address: 0, size: 0 });
        if mapped.size > 0 {
            // SAFETY: a mapping of `open`'s own, which nothing refers to any more.
            unsafe { files::unmap(mapped.address as usize, mapped.size as usize) };
        }
    }

    /// Returns `true` if the file at an image's path is no longer the mapped one: it was replaced,
    /// deleted or moved. Returns `false` if that is not known, and for a file on a server, which
    /// may not respond.
    ///
    /// The kernel's entry for the mapping is compared with stat(2). If these differ, it is compared
    /// with the kernel's entry for a mapping of the file at the path: on overlayfs and btrfs
    /// stat(2) returns different numbers.
    pub(crate) fn is_replaced(&mut self, images: &coroner_walk::ImageList, image: &Image, paths: &mut Paths) -> bool {
        let [bytes, moved] = paths;
        let path = images.path(image);
        let Some(loaded) = file_of_mapping(images, image.range.start) else { return false };
        if mounts::needs_server(loaded.device) {
            // A file of memfd_create(2) isn't on a mounted file system, needs no server, and can't
            // be found later.
            let path = images.mappings.path_at(image.range.start, moved).unwrap_or_default();
            return path.starts_with(b"/memfd:") && path.ends_with(DELETED_MARK);
        }
        // Not opened: that could block, or not be allowed.
        let mut status_of = |path: &[u8]| files::status_of_target(c_path(path, bytes)?);
        let status = status_of(path).or_else(|error| status_of(archive_of(path).ok_or(error)?).map_err(|_| error));
        match status {
            Ok(status) if is_file_of(&status, loaded) => false,
            Ok(_) => {
                let opened = self.open_path(path, bytes);
                let there = opened.is_ok().then(|| file_of_mapping(images, self.mapped.address)).flatten();
                self.close();
                there.is_some_and(|there| there != loaded)
            }
            Err(Errno(libc::ENOENT | libc::ENOTDIR)) => {
                let path = images.mappings.path_at(image.range.start, moved).unwrap_or_default();
                // A moved file has another name by now; one that can't be reached any more (chroot)
                // has the same.
                path.ends_with(DELETED_MARK)
                    || (path != images.path(image) && self.is_moved(images, path, loaded, bytes))
            }
            // It is not known.
            Err(_) => false,
        }
    }

    /// Returns `true` if `path` leads to the mapping's file.
    fn is_moved(
        &mut self,
        images: &coroner_walk::ImageList,
        path: &[u8],
        loaded: FileId,
        bytes: &mut [u8; PATH],
    ) -> bool {
        let opened = self.open_path(path, bytes);
        let there = opened.is_ok().then(|| file_of_mapping(images, self.mapped.address)).flatten();
        self.close();
        there == Some(loaded)
    }

    /// Scans an image's symbols. The names are read from the same place, so `self` must live until
    /// then.
    pub(crate) fn scan<M: Memory>(
        &mut self,
        images: &coroner_walk::ImageList,
        image: &Image,
        is_replaced: bool,
        paths: &mut Paths,
        scan: &mut NameScan<ADDRESSES_PER_SCAN>,
        memory: &mut M,
    ) -> core::result::Result<(), ScanError> {
        let file = if is_replaced {
            self.open_replaced(images, image, paths, memory)
        } else {
            self.open_image(images, image, paths, memory)
        };
        if let Some(file) = file
            && is_same(image, file, memory)
        {
            let build_id = Some(image.build_id()).filter(|id| !id.is_empty());
            match scan.elf_file(memory, file, build_id, MAX_SYMBOLS) {
                // What was found until then is correct.
                Ok(()) | Err(ScanError { problem: Problem::Limit, .. }) => return Ok(()),
                Err(_) => {}
            }
        }
        let loaded = ElfLoaded { load_address: image.range.start, slide: image.slide, size: image.range.len() };
        scan.elf_loaded(memory, loaded, MAX_SYMBOLS)
    }

    /// Maps the image's file.
    fn open_image<M: Memory>(
        &mut self,
        images: &coroner_walk::ImageList,
        image: &Image,
        [bytes, _]: &mut Paths,
        memory: &mut M,
    ) -> Option<Extent> {
        if file_of_mapping(images, image.range.start).is_some_and(|loaded| mounts::needs_server(loaded.device)) {
            return None;
        }
        self.open_path(images.path(image), bytes).ok()?;
        self.image_in_file(images, image, memory)
    }

    /// Maps the file that an image was loaded from, though it is no longer at its path: by the name
    /// that it was given since, by what the process was executed from, or by the mapping itself,
    /// which the kernel allows to those with `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`
    /// (proc_pid_map_files(5)).
    fn open_replaced<M: Memory>(
        &mut self,
        images: &coroner_walk::ImageList,
        image: &Image,
        [path, moved]: &mut Paths,
        memory: &mut M,
    ) -> Option<Extent> {
        let mapping = images.mappings.at(image.range.start).ok()??;
        for place in 0..3_u8 {
            let opened = match place {
                0 => match images.mappings.path_at(image.range.start, moved) {
                    Ok(name) => self.open(name, path),
                    Err(error) => Err(error),
                },
                1 if image.kind == ImageKind::Main => self.open(b"/proc/self/exe", path),
                1 => continue,
                _ => {
                    let mut link = [0; MAP_FILE];
                    let length = name_map_file(&mapping, &mut link);
                    self.open(link.get(..length).unwrap_or_default(), path)
                }
            };
            if opened.is_ok() && file_of_mapping(images, self.mapped.address) == Some(mapping.file) {
                return self.image_in_file(images, image, memory);
            }
            self.close();
        }
        None
    }

    /// Returns where the image is in the mapped file. The image may be only a part of the file:
    /// Android's linker loads libraries out of an APK, and names them
    /// `base.apk!/lib/arm64-v8a/libapp.so`, or `base.apk` if an app opened the file for it
    /// (`ANDROID_DLEXT_USE_LIBRARY_FD_OFFSET`).
    fn image_in_file<M: Memory>(
        &self,
        images: &coroner_walk::ImageList,
        image: &Image,
        memory: &mut M,
    ) -> Option<Extent> {
        const ARCHIVE: [u8; 4] = *b"PK\x03\x04";
        let mut magic = [0; 4];
        if memory.read(self.mapped.address, &mut magic).is_err() || magic != ARCHIVE {
            return Some(self.mapped);
        }
        // The file offset of the image's first page according to the kernel, minus its offset in
        // the library.
        let mapping = images.mappings.at(image.range.start).ok()??;
        let first = image.segments().iter().min_by_key(|segment| segment.address)?;
        let before = first.address.wrapping_add(image.slide).wrapping_sub(image.range.start);
        let start = image.range.start.wrapping_sub(mapping.start).wrapping_add(mapping.file_offset);
        let start = start.wrapping_sub(first.file_offset.wrapping_sub(before));
        let size = self.mapped.size.checked_sub(start)?;
        Some(Extent { address: self.mapped.address.wrapping_add(start), size })
    }

    /// Maps the file that an image's path leads to, which may be in an archive.
    fn open_path(&mut self, path: &[u8], bytes: &mut [u8; PATH]) -> Result<()> {
        self.open(path, bytes).or_else(|error| self.open(archive_of(path).ok_or(error)?, bytes))
    }

    /// Maps a file.
    fn open(&mut self, path: &[u8], bytes: &mut [u8; PATH]) -> Result<()> {
        let path = c_path(path, bytes)?;
        // Whatever the path leads to by now: opening it neither blocks nor becomes this process's
        // terminal.
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let file = files::open(Descriptor::WORKING_DIRECTORY, path, flags, 0)?;
        let number = file.number();
        self.file = Some(file);
        // SAFETY: no memory is touched. Async-signal-safe: one system call.
        let size = unsafe { syscall!(libc::SYS_lseek, number, 0, libc::SEEK_END) };
        let (protection, kind) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice. It is read through guarded
        // loads only: the file may be truncated in the meantime. Async-signal-safe: one system
        // call.
        let mapped = size
            .and_then(|size| Ok((unsafe { syscall!(libc::SYS_mmap, 0, size, protection, kind, number, 0) }?, size)));
        // Taken first: the deadline may interrupt this here, and a descriptor that is closed
        // twice may be another file's by then.
        drop(self.file.take());
        let (address, size) = mapped?;
        self.mapped = Extent { address: address as u64, size: size as u64 };
        Ok(())
    }
}

/// Length in bytes of a path in `/proc/self/map_files`: two addresses in hexadecimal digits.
const MAP_FILE: usize = MAP_FILES.len() + 16 + 1 + 16;
const MAP_FILES: &[u8] = b"/proc/self/map_files/";

/// Writes the path of a mapping's file in `/proc/self/map_files`; returns its length.
fn name_map_file(mapping: &Mapping, into: &mut [u8; MAP_FILE]) -> usize {
    let mut length = 0_usize;
    let mut push = |byte: u8| {
        if let Some(to) = into.get_mut(length) {
            *to = byte;
            length = length.wrapping_add(1);
        }
    };
    for byte in MAP_FILES {
        push(*byte);
    }
    for (number, end) in [(mapping.start, Some(b'-')), (mapping.end, None)] {
        let digits = (64 - number.leading_zeros()).div_ceil(4).max(1);
        for place in (0..digits).rev() {
            let digit = (number >> (4 * place) & 0xf) as u8;
            push(if digit < 10 { b'0' + digit } else { b'a' - 10 + digit });
        }
        if let Some(byte) = end {
            push(byte);
        }
    }
    length
}

/// Copies the path with a NUL to `bytes`. A path that is not absolute isn't a file (`[vdso]`).
fn c_path<'b>(path: &[u8], bytes: &'b mut [u8; PATH]) -> Result<&'b CStr> {
    if path.first() != Some(&b'/') {
        return Err(Errno(libc::EINVAL));
    }
    if path.len() >= bytes.len() {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    for (to, from) in bytes.iter_mut().zip(path.iter().chain(&[0])) {
        *to = *from;
    }
    CStr::from_bytes_until_nul(bytes).map_err(|_| Errno(libc::ENAMETOOLONG))
}

/// Returns the archive of a path into one: `base.apk` of `base.apk!/lib/arm64-v8a/libapp.so`.
fn archive_of(path: &[u8]) -> Option<&[u8]> {
    path.get(..path.windows(2).position(|two| two == b"!/")?)
}

/// Returns `true` if a file's numbers are those in the kernel's entry for a mapping.
fn is_file_of(status: &libc::stat, mapped: FileId) -> bool {
    // `major` and `minor` of sys/sysmacros.h.
    let device = status.st_dev;
    let major = (device >> 32 & 0xffff_f000) | (device >> 8 & 0xfff);
    let minor = (device >> 12 & 0xffff_ff00) | (device & 0xff);
    mapped == FileId { device: major << 24 | minor, inode: status.st_ino }
}

/// Returns the file that is mapped at an address.
fn file_of_mapping(images: &coroner_walk::ImageList, address: u64) -> Option<FileId> {
    Some(images.mappings.at(address).ok()??.file).filter(|file| file.is_file())
}

/// Returns `true` if a file is that of an image without a build ID, as far as can be determined: it
/// has the same file header. (An image with a build ID is identified by the ID.)
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

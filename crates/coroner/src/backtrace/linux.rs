//! Linux: images are ELF, in files but for the vdso.

use std::path::PathBuf;

use coroner_process::images::{Image, ImageKind, Images};
use coroner_process::memory::Memory;
use coroner_scan::{ElfLoaded, NameScan, ScanError};
use coroner_walk::LiveReader;

use super::images::LoadedImage;

/// The path of an image's file.
pub(super) fn path(table: &Images, image: &Image, _memory: &mut LiveReader) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(table.path(image)))
}

/// The vdso is no file.
pub(super) fn is_named_in_memory(image: &Image) -> bool {
    image.kind == ImageKind::Vdso
}

/// Looks for names in the symbols that an image has in memory.
pub(super) fn scan_memory<M: Memory, const N: usize>(
    scan: &mut NameScan<N>,
    memory: &mut M,
    image: &LoadedImage,
    limit: u32,
) -> Result<(), ScanError> {
    let loaded = ElfLoaded { load_address: image.range.start, slide: image.slide, size: image.range.len() };
    scan.elf_loaded(memory, loaded, limit)
}

/// Whether an image that is named in memory is still where it was: the vdso always is.
pub(super) fn is_loaded<M: Memory>(_memory: &mut M, _image: &LoadedImage) -> bool {
    true
}

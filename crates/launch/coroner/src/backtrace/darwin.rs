//! Apple's systems: images are Mach-O, and have their symbols in memory.

use std::path::PathBuf;

use coroner_process::images::{Image, Images, MAX_PATH};
use coroner_process::memory::Memory;
use coroner_process::registers::Registers;
use coroner_process::symtab::{MachO, NameScan, Placement, Problem, ScanError};
use coroner_unwind::SwiftAsync;
use coroner_walk::{LiveReader, stop_thread, swift_tasks};

use super::loaded_image::{LoadedImage, MappedFile};
use super::{NotCaptured, ThreadId};

/// Calls `with` with a stopped thread's registers and how to handle marks of Swift async frames.
///
/// The kernel stops the thread and interrupts none of its calls.
pub(super) fn with_stopped(
    thread: ThreadId,
    _by_ptrace: bool,
    _timeout: u64,
    mut memory: LiveReader,
    with: &mut impl FnMut(&Registers, SwiftAsync),
) -> Result<(), NotCaptured> {
    let stopped = stop_thread::stop(thread)?;
    let marks = swift_tasks::for_stopped_thread(&stopped, &mut memory);
    with(&stopped.context().registers(), marks);
    Ok(())
}

/// Returns no error: the kernel stops threads without a signal.
pub(super) fn can_answer(_thread: ThreadId) -> Result<(), NotCaptured> {
    Ok(())
}

pub(super) fn path(table: &Images, image: &Image, memory: &mut LiveReader) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(table.path(image, memory, &mut [0; MAX_PATH])))
}

/// Returns the path of an image's file. The file is not read.
pub(super) fn candidate_paths(image: &LoadedImage) -> Vec<PathBuf> {
    vec![image.path.clone()]
}

/// Returns `false`: the symbols are read from memory, not from a mapped file.
pub(super) fn is_loaded_from(_image: &LoadedImage, _map: &MappedFile) -> bool {
    false
}

/// Returns `true`: each image has its symbols in `__LINKEDIT`, and images in the shared cache have
/// no separate file.
pub(super) fn is_named_in_memory(_image: &Image) -> bool {
    true
}

/// Reads the image at an image's address, if it is still the same.
fn loaded<M: Memory>(memory: &mut M, image: &LoadedImage) -> Result<MachO, ScanError> {
    let there = MachO::read(memory, image.range.start, Placement::Loaded)?;
    let is_it = there.uuid.as_ref().map_or(&[][..], |uuid| uuid) == image.build_id;
    is_it.then_some(there).ok_or(ScanError { offset: 0, problem: Problem::OtherId })
}

/// Searches the symbols that an image has in memory for names.
pub(super) fn scan_memory<M: Memory, const N: usize>(
    scan: &mut NameScan<N>,
    memory: &mut M,
    image: &LoadedImage,
    limit: u32,
) -> Result<(), ScanError> {
    let image = loaded(memory, image)?;
    scan.macho(memory, &image, limit)
}

/// Whether an image is still loaded at its address.
pub(super) fn is_loaded<M: Memory>(memory: &mut M, image: &LoadedImage) -> bool {
    loaded(memory, image).is_ok()
}

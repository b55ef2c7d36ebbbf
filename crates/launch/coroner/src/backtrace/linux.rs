//! Linux: images are ELF files, except for the vdso.

use std::path::PathBuf;

use coroner_process::images::{Image, ImageKind, Images, Mapping, Mappings};
use coroner_process::memory::Memory;
use coroner_process::registers::Registers;
use coroner_process::symtab::{ElfLoaded, NameScan, ScanError};
use coroner_unwind::SwiftAsync;
use coroner_walk::{LiveReader, stop_thread, swift_tasks};

use super::loaded_image::{LoadedImage, MappedFile};
use super::{NotCaptured, ThreadId};

/// Calls `with` with a stopped thread's registers and how to handle marks of Swift async frames.
pub(super) fn with_stopped(
    thread: ThreadId,
    by_ptrace: bool,
    timeout: u64,
    _memory: LiveReader,
    with: &mut impl FnMut(&Registers, SwiftAsync),
) -> Result<(), NotCaptured> {
    // 0 means the calling thread to the kernel, and a negative number is invalid.
    if thread <= 0 {
        return Err(NotCaptured::ThreadGone);
    }
    let marks = swift_tasks::for_this_thread();
    let mut trace = || {
        let is_tried = !has_seccomp_filter();
        let traced = is_tried.then(|| stop_thread::trace(thread, timeout, |registers| with(registers, marks)));
        traced.filter(|traced| !traced.is_err_and(NotCaptured::is_trace_refused))
    };
    if by_ptrace && let Some(traced) = trace() {
        return traced;
    }
    match stop_thread::stop(thread, timeout) {
        Ok(stopped) => {
            with(&stopped.context().registers(), marks);
            Ok(())
        }
        Err(NotCaptured::SignalUnsafe) if !by_ptrace => trace().unwrap_or(Err(NotCaptured::SignalUnsafe)),
        Err(reason) => Err(reason),
    }
}

/// Returns an error if a thread can't answer the signal that stops threads, because it blocks it.
pub(super) fn can_answer(thread: ThreadId) -> Result<(), NotCaptured> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status"));
    let is_blocked = status.is_ok_and(|status| stop_thread::blocks_stop_signal(&status));
    if is_blocked { Err(NotCaptured::NoAnswer) } else { Ok(()) }
}

/// Whether this thread has a seccomp filter; also `true` if that can't be read.
///
/// A filter may kill the process for calling ptrace(2), and for checking with `PR_GET_SECCOMP`.
fn has_seccomp_filter() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status");
    status.map_or(true, |status| status.lines().any(|line| line.starts_with("Seccomp:") && !line.ends_with('0')))
}

pub(super) fn path(table: &Images, image: &Image, _memory: &mut LiveReader) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(table.path(image)))
}

/// Returns the possible paths of an image's file.
///
/// If the file was replaced while the process ran, these are the kernel's links to the executed and
/// to the mapped file, which need `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`.
pub(super) fn candidate_paths(image: &LoadedImage) -> Vec<PathBuf> {
    let mut places = vec![image.path.clone(), PathBuf::from("/proc/self/exe")];
    if let Some(mapping) = mapping_at(image.range.start) {
        places.push(format!("/proc/self/map_files/{:x}-{:x}", mapping.start, mapping.end).into());
    }
    places
}

/// Whether a file that has been mapped is the one that the image was loaded from.
pub(super) fn is_loaded_from(image: &LoadedImage, map: &MappedFile) -> bool {
    let file = |address| mapping_at(address).map(|mapping| mapping.file).filter(|file| file.is_file());
    file(image.range.start).is_some_and(|loaded| file(map.address) == Some(loaded))
}

fn mapping_at(address: u64) -> Option<Mapping> {
    let mappings = Mappings::open().ok()?;
    let mapping = mappings.at(address).ok().flatten();
    mappings.close();
    mapping
}

/// Whether the image is the vdso, which is not a file.
pub(super) fn is_named_in_memory(image: &Image) -> bool {
    image.kind == ImageKind::Vdso
}

/// Searches the symbols that an image has in memory for names.
pub(super) fn scan_memory<M: Memory, const N: usize>(
    scan: &mut NameScan<N>,
    memory: &mut M,
    image: &LoadedImage,
    limit: u32,
) -> Result<(), ScanError> {
    let loaded = ElfLoaded { load_address: image.range.start, slide: image.slide, size: image.range.len() };
    scan.elf_loaded(memory, loaded, limit)
}

/// Whether an image that is named in memory is still loaded: the vdso always is.
pub(super) fn is_loaded<M: Memory>(_memory: &mut M, _image: &LoadedImage) -> bool {
    true
}

//! Linux: images are ELF, in files but for the vdso.

use std::path::PathBuf;

use coroner_process::images::{Image, ImageKind, Images};
use coroner_process::memory::Memory;
use coroner_process::registers::Registers;
use coroner_scan::{ElfLoaded, NameScan, ScanError};
use coroner_unwind::SwiftAsync;
use coroner_walk::{LiveReader, stop_thread, swift_tasks};

use super::images::LoadedImage;
use super::{NotCaptured, ThreadId};

/// Calls `with` with a thread's registers, and what is done at marks of Swift's async frames, while it stands still.
pub(super) fn with_stopped(
    thread: ThreadId,
    by_ptrace: bool,
    _memory: LiveReader,
    with: &mut impl FnMut(&Registers, SwiftAsync),
) -> Result<(), NotCaptured> {
    let marks = swift_tasks::of_this_thread();
    if by_ptrace && !has_seccomp_filter() {
        let traced = stop_thread::trace(thread, |registers| with(registers, marks));
        if !traced.is_err_and(NotCaptured::is_trace_refused) {
            return traced;
        }
    }
    let stopped = stop_thread::stop(thread)?;
    with(&stopped.context().registers(), marks);
    Ok(())
}

/// Whether a filter of system calls is in force on this thread, or that can't be read: it may kill the process for a call of
/// ptrace(2), and for asking it by `PR_GET_SECCOMP`.
fn has_seccomp_filter() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status");
    status.map_or(true, |status| status.lines().any(|line| line.starts_with("Seccomp:") && !line.ends_with('0')))
}

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

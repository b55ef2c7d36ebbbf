//! Linux: threads are interrupted by the rendezvous' signal; images are ELF, in files but for the vdso.

use std::path::PathBuf;

use coroner_capture::live::{self, Reader};
use coroner_machine::images::{self, Image, ImageKind, Images, ListState};
use coroner_machine::memory::Memory;
use coroner_scan::{ElfLoaded, NameScan, ScanError};
use coroner_unwind::SwiftAsync;

use super::images::{LoadedImage, range};

use coroner_machine::rendezvous::Interrupted;
pub use coroner_machine::rendezvous::NotCaptured;

/// The number that the system gives a thread (`gettid`).
pub type ThreadId = i32;

/// How long a thread may take to answer: it must be given a processor first.
const PATIENCE_NS: u64 = 100_000_000;

/// Stops another thread until the result is dropped.
pub(super) fn interrupt(thread: ThreadId) -> Result<Interrupted<'static>, NotCaptured> {
    live::interrupt(thread, PATIENCE_NS)
}

/// What the calling thread's walk does at marks of Swift's async frames, if they are wanted. (Its compiler makes none here.)
#[inline]
pub(super) fn swift_async() -> SwiftAsync {
    SwiftAsync::Follow
}

/// The same for another thread.
pub(super) fn swift_async_of(_thread: &Interrupted<'_>, _memory: &mut Reader) -> SwiftAsync {
    SwiftAsync::Follow
}

/// What tells loaded images from others.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Where the dynamic linker's list is.
    debug: u64,
    /// Of that list.
    fingerprint: u64,
    /// What tells the images from others at their places, which the list does not.
    witnesses: Vec<images::Witness>,
    /// Of all of that.
    identity: u64,
    /// The list stood still while it was read. If not, what was read is not held for what is there.
    settled: bool,
}

impl State {
    /// Brings a table up to date. The list may change while it is read: it is read again until it is, afterwards, the one that was
    /// read. That it is the same before and after doesn't do: a library that is loaded into the place of one that was
    /// unloaded meanwhile makes the same list again, and the table was made between the two.
    pub(super) fn refresh(table: &mut Images, memory: &mut Reader) -> State {
        let mut state = State { debug: table.debug_address(), ..State::default() };
        for left in (0..16).rev() {
            let found = table.refresh(memory);
            state.debug = table.debug_address();
            state.fingerprint = found.fingerprint;
            state.witnesses.clear();
            table.witnesses(memory, |witness| state.witnesses.push(witness));
            // An entry without an image is being unloaded: the next one in its place may have the same numbers. One that stays
            // is something else, and is lived with.
            state.settled = (found.refused == 0 || left == 0) && found.list != ListState::Changing;
            if state.settled && state.is_current(memory) {
                break;
            }
            state.settled = false;
        }
        state.identity = state.witnesses.iter().fold(state.fingerprint, |identity, witness| {
            (identity ^ witness.value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        state
    }

    /// Whether the images are still these.
    pub(super) fn is_current<M: Memory>(&self, memory: &mut M) -> bool {
        self.settled
            && images::fingerprint(memory, self.debug) == self.fingerprint
            && self.witnesses.iter().all(|witness| witness.holds(memory))
    }

    pub(super) fn identity(&self) -> u64 {
        self.identity
    }
}

/// The path of an image's file.
pub(super) fn path(table: &Images, image: &Image, _memory: &mut Reader) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(table.path(image)))
}

/// Where an image's unwind data are.
pub(super) fn unwind_data(image: &Image) -> coroner_unwind::Image {
    coroner_unwind::Image {
        base: image.range.start,
        bias: image.slide,
        eh_frame_hdr: range(image.eh_frame_hdr),
        eh_frame: range(image.eh_frame),
        ..coroner_unwind::Image::default()
    }
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

//! Apple's systems: the kernel stops a thread where it is; images are Mach-O, and keep their symbols in memory.

use std::path::PathBuf;

use coroner_capture::live::{self, Reader};
use coroner_machine::images::{self, Image, Images, MOST_PATH};
use coroner_machine::memory::Memory;
use coroner_machine::threads::{Interrupted, Tid};
use coroner_scan::{MachO, NameScan, Placement, Problem, ScanError};
use coroner_unwind::ImageFormat;

use super::images::{LoadedImage, range};

/// The number that the system gives a thread (`pthread_threadid_np`).
pub type ThreadId = Tid;

/// Why another thread was not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotCaptured {
    /// There is no such thread: it ended.
    ThreadGone,
    /// It was stopped, but its registers could not be read.
    RegistersUnreadable,
}

/// Stops another thread until the result is dropped.
pub(super) fn interrupt(thread: ThreadId) -> Result<Interrupted, NotCaptured> {
    live::interrupt(thread).ok_or(NotCaptured::ThreadGone)
}

pub(super) use live::{swift_async, swift_async_of};

/// What tells loaded images from others: dyld's list, which says when it changed last.
#[derive(Debug, Default)]
pub(super) struct State {
    debug: u64,
    fingerprint: u64,
    /// The list stood still while it was read. If not, what was read is not held for what is there.
    settled: bool,
}

impl State {
    /// Brings a table up to date. The list may change while it is read: it is read again until it is the same before and
    /// after.
    pub(super) fn refresh(table: &mut Images, memory: &mut Reader) -> State {
        let mut state = State { debug: table.debug_address(), ..State::default() };
        for _ in 0..16 {
            let before = images::fingerprint(memory, state.debug);
            table.refresh(memory);
            state.debug = table.debug_address();
            state.fingerprint = images::fingerprint(memory, state.debug);
            state.settled = state.fingerprint == before;
            if state.settled {
                break;
            }
        }
        state
    }

    /// Whether the images are still these.
    pub(super) fn is_current<M: Memory>(&self, memory: &mut M) -> bool {
        self.settled && images::fingerprint(memory, self.debug) == self.fingerprint
    }

    pub(super) fn identity(&self) -> u64 {
        self.fingerprint
    }
}

/// The path of an image's file.
pub(super) fn path(table: &Images, image: &Image, memory: &mut Reader) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(table.path(image, memory, &mut [0; MOST_PATH])))
}

/// Where an image's unwind data are.
pub(super) fn unwind_data(image: &Image) -> coroner_unwind::Image {
    coroner_unwind::Image {
        format: ImageFormat::MachO,
        base: image.range.start,
        bias: image.slide,
        unwind_info: range(image.unwind_info),
        eh_frame: range(image.eh_frame),
        stubs: range(image.stubs),
        stub_helper: range(image.stub_helper),
        text_section: image.text_section.start,
        ..coroner_unwind::Image::default()
    }
}

/// Each keeps its symbols in `__LINKEDIT`; those of the shared cache are in no file of their own.
pub(super) fn is_named_in_memory(_image: &Image) -> bool {
    true
}

/// What is loaded where an image was, if that is the image still.
fn loaded<M: Memory>(memory: &mut M, image: &LoadedImage) -> Result<MachO, ScanError> {
    let there = MachO::read(memory, image.range.start, Placement::Loaded)?;
    let is_it = there.uuid.as_ref().map_or(&[][..], |uuid| uuid) == image.build_id;
    is_it.then_some(there).ok_or(ScanError { offset: 0, problem: Problem::OtherId })
}

/// Looks for names in the symbols that an image has in memory.
pub(super) fn scan_memory<M: Memory, const N: usize>(
    scan: &mut NameScan<N>,
    memory: &mut M,
    image: &LoadedImage,
    limit: u32,
) -> Result<(), ScanError> {
    let image = loaded(memory, image)?;
    scan.macho(memory, &image, limit)
}

/// Whether an image is still where it was.
pub(super) fn is_loaded<M: Memory>(memory: &mut M, image: &LoadedImage) -> bool {
    loaded(memory, image).is_ok()
}

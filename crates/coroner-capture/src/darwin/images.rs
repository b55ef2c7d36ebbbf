//! The loaded images, for the unwinder and for the report.

use core::sync::atomic::{AtomicBool, Ordering};

use coroner_machine::images::{self, ImageKind, ListState, MOST_PATH, Mappings};
use coroner_machine::memory::{LoadGuarded, Memory};
use coroner_machine::syscall::{Errno, Result};
use coroner_report::wire::{self, Encoder, Image, Segment, UnwindKind, UnwindSection};
use coroner_unwind::ImageFormat;

use crate::loaded::{self, range};

/// Images that one report can hold.
const CAPACITY: usize = 2048;

/// The most bytes that are kept of an image's message.
const LONGEST_MESSAGE: usize = 4096;

/// The images of this process as they were listed last.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub table: images::Images,
    pub mappings: Mappings,
    pub generation: u64,
    /// Images that found no room.
    pub dropped: usize,
    /// The table is held as it is. (Where another thread was at it, it is not ours to let go.)
    held: bool,
}

/// The watched table can't be given back, dyld's callbacks go on: a later install uses it again.
struct Kept {
    taken: AtomicBool,
    table: core::cell::UnsafeCell<Option<images::Images>>,
}

// SAFETY: `taken` lets one in.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept { taken: AtomicBool::new(false), table: core::cell::UnsafeCell::new(None) };

impl Loaded {
    /// Makes the table, or takes that of an earlier install (normal life). dyld keeps it fresh from now on.
    pub(crate) fn map() -> Result<Loaded> {
        if KEPT.taken.swap(true, Ordering::AcqRel) {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: `taken` is ours.
        let kept = unsafe { (*KEPT.table.get()).take() };
        let table = if let Some(table) = kept {
            table
        } else {
            let table = images::Images::map(CAPACITY).inspect_err(|_| KEPT.taken.store(false, Ordering::Release))?;
            table.watch();
            table
        };
        match Mappings::open() {
            Ok(mappings) => Ok(Loaded { table, mappings, generation: 0, dropped: 0, held: false }),
            Err(errno) => {
                // SAFETY: `taken` is ours.
                unsafe { *KEPT.table.get() = Some(table) };
                KEPT.taken.store(false, Ordering::Release);
                Err(errno)
            }
        }
    }

    /// Normal life: lists the images for the first time.
    pub(crate) fn take_at_install(&mut self) {
        // SAFETY: dyld's list and the images' headers are good memory, as long as nobody unloads a bundle at this very moment; those
        // of the shared cache, and all with Objective-C or Swift in them, dyld never unloads.
        self.take(&mut unsafe { LoadGuarded::new() });
    }

    /// Lists the images anew. What is known of an image from before is used again. At crash time the list then stays as it is
    /// until [`Loaded::release`].
    pub(crate) fn take(&mut self, memory: &mut impl Memory) {
        self.generation = self.generation.wrapping_add(1);
        let refresh = self.table.refresh_and_hold(memory);
        self.dropped = refresh.dropped;
        self.held |= refresh.list != ListState::Busy;
    }

    /// The list may change again.
    pub(crate) fn release(&mut self) {
        if core::mem::take(&mut self.held) {
            self.table.release();
        }
    }

    /// Touches what a crash may need (normal life).
    pub(crate) fn touch(&mut self) {
        self.release();
        self.table.touch();
    }

    /// Gives everything back (normal life).
    pub(crate) fn unmap(self) {
        self.mappings.close();
        // SAFETY: `taken` is ours.
        unsafe { *KEPT.table.get() = Some(self.table) };
        KEPT.taken.store(false, Ordering::Release);
    }

    /// Whether an image stays where it is, whatever other threads unload: the program, dyld, all of the shared cache, the one
    /// that this code is in, and the C library that it is linked with.
    pub(crate) fn stays(image: &images::Image) -> bool {
        let here = Self::stays as *const () as u64;
        let c_library = libc::pthread_create as *const () as u64;
        image.in_shared_cache
            || image.kind != ImageKind::Library
            || [here, c_library].iter().any(|address| image.range.contains(*address))
    }

    /// Encodes what images say of the death: the messages in their `__DATA,__crash_info` sections, which libSystem's `abort`,
    /// Swift's runtime, libdispatch and others fill in (`crashreporter_annotations_t` of CrashReporterClient.h).
    pub(crate) fn annotate(&self, encoder: &mut Encoder<'_>) {
        /// The layout has been the same since this version.
        const VERSION: u64 = 4;
        /// Where `message` and `message2` stand.
        const MESSAGES: [u64; 2] = [8, 32];
        // SAFETY: Coroner's secondary thread makes faults good while a report is written.
        let mut memory = unsafe { LoadGuarded::new() };
        for image in self.table.iter().filter(|image| image.crash_info.size() >= 40) {
            let at = image.crash_info.start;
            if memory.read_u64(at).is_ok_and(|version| version >= VERSION) {
                for offset in MESSAGES {
                    let mut text = [0; LONGEST_MESSAGE];
                    let address = memory.read_u64(at.wrapping_add(offset)).unwrap_or(0);
                    let text = images::read_text(&mut memory, address, &mut text);
                    if !text.is_empty() {
                        let mut path = [0; MOST_PATH];
                        let source = self.table.path(image, &mut memory, &mut path);
                        wire::Annotation { source, text }.encode(encoder);
                    }
                }
            }
        }
    }

    /// Encodes one image. False where it does not fit.
    pub(crate) fn encode(&self, image: &images::Image, encoder: &mut Encoder<'_>) -> bool {
        let mut segments = [Segment::default(); images::MAX_SEGMENTS];
        let mut unwind = [UnwindSection::default(); 2];
        let text = image.text().next().unwrap_or_default();
        let mut path = [0; MOST_PATH];
        // SAFETY: Coroner's secondary thread makes faults good while a report is written, and at install dyld's strings are
        // good memory.
        let path = self.table.path(image, &mut unsafe { LoadGuarded::new() }, &mut path);
        let mut version = Version::of(image.version);
        Image {
            kind: wire::ImageKind::MACHO,
            path,
            load_address: image.range.start,
            slide: image.slide,
            size: image.range.size(),
            text: (text.start, text.size()),
            build_id: image.build_id(),
            segments: loaded::segments(image, &mut segments),
            unwind: loaded::unwind_sections(image, &mut unwind),
            is_main: image.kind == ImageKind::Main,
            version: version.as_bytes(),
            cpu: Some(image.cpu),
        }
        .encode(encoder)
    }
}

/// A library's version as people write it: `1319.100.3`.
struct Version {
    digits: [u8; 16],
    length: usize,
    is_there: bool,
}

impl Version {
    fn of(version: u32) -> Version {
        let mut text = Version { digits: [0; 16], length: 0, is_there: version != 0 };
        for (index, part) in [version >> 16, version >> 8 & 0xff, version & 0xff].into_iter().enumerate() {
            if index > 0 {
                text.push(b'.');
            }
            for scale in [10_000, 1000, 100, 10] {
                if part >= scale {
                    text.push(b'0' + (part / scale % 10) as u8);
                }
            }
            text.push(b'0' + (part % 10) as u8);
        }
        text
    }

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.digits.get_mut(self.length) {
            *place = byte;
            self.length += 1;
        }
    }

    fn as_bytes(&mut self) -> Option<&[u8]> {
        self.digits.get(..self.length).filter(|_| self.is_there)
    }
}

/// An image's unwind data; empty where it has none.
pub(crate) fn unwind_data(image: &images::Image) -> [(UnwindKind, images::AddressRange); 2] {
    [(UnwindKind::UNWIND_INFO, image.unwind_info), (UnwindKind::EH_FRAME, image.eh_frame)]
}

/// What the unwinder needs of the image whose code is at `address`.
pub(crate) fn for_unwinder(image: &images::Image, address: u64) -> Option<coroner_unwind::Image> {
    let text = image.text().find(|range| range.contains(address))?;
    Some(coroner_unwind::Image {
        format: ImageFormat::MachO,
        text: range(text),
        base: image.range.start,
        bias: image.slide,
        eh_frame: range(image.eh_frame),
        unwind_info: range(image.unwind_info),
        stubs: range(image.stubs),
        stub_helper: range(image.stub_helper),
        text_section: image.text_section.start,
        ..coroner_unwind::Image::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_written_as_people_write_it() {
        assert_eq!(Version::of(0x0527_6403).as_bytes(), Some(&b"1319.100.3"[..]));
        assert_eq!(Version::of(0x0001_0000).as_bytes(), Some(&b"1.0.0"[..]));
        assert_eq!(Version::of(0xffff_ffff).as_bytes(), Some(&b"65535.255.255"[..]));
        assert_eq!(Version::of(0).as_bytes(), None);
    }
}

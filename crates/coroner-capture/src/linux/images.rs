//! The loaded images, for the unwinder and for the report.

use coroner_machine::images::{self, ImageKind, Mappings};
use coroner_machine::memory::Memory;
use coroner_machine::syscall::Result;
use coroner_report::wire::{self, Encoder, Image, Segment, UnwindKind, UnwindSection};

use crate::loaded::{self, range};

/// Images that one report can hold.
const CAPACITY: usize = 2048;

/// The images of this process as they were listed last.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub table: images::Images,
    pub mappings: Mappings,
    pub generation: u64,
    /// Images that found no room.
    pub dropped: usize,
}

impl Loaded {
    /// Makes the table (normal life); nothing is listed yet.
    pub(crate) fn map() -> Result<Loaded> {
        Ok(Loaded { table: images::Images::map(CAPACITY)?, mappings: Mappings::open()?, generation: 0, dropped: 0 })
    }

    /// Lists the images anew. What is known of an image from before is used again.
    pub(crate) fn take(&mut self, memory: &mut impl Memory) {
        self.generation = self.generation.wrapping_add(1);
        let refresh = self.table.refresh(memory);
        self.dropped = refresh.dropped;
    }

    /// Touches what a crash may need (normal life).
    pub(crate) fn touch(&mut self) {
        self.table.touch();
    }

    /// Gives everything back (normal life).
    pub(crate) fn unmap(self) {
        self.mappings.close();
        self.table.unmap();
    }

    /// The path of an image's file, in the bytes of its file system.
    pub(crate) fn path(&self, image: &images::Image) -> &[u8] {
        self.table.path(image)
    }

    /// Whether an image stays where it is, whatever other threads unload: the program, the dynamic linker, the kernel's own, the
    /// one that this code is in, and the C library that it is linked with.
    pub(crate) fn stays(image: &images::Image) -> bool {
        let here = Self::stays as *const () as u64;
        let c_library = libc::getauxval as *const () as u64;
        image.kind != ImageKind::Library || [here, c_library].iter().any(|address| image.range.contains(*address))
    }

    /// Encodes one image. False where it does not fit.
    pub(crate) fn encode(&self, image: &images::Image, encoder: &mut Encoder<'_>) -> bool {
        let mut segments = [Segment::default(); images::MAX_SEGMENTS];
        let mut unwind = [UnwindSection::default(); 2];
        // From the first executable segment to the end of the last: what a symbol table is about.
        let (mut start, mut end) = (u64::MAX, 0);
        for text in image.text() {
            start = start.min(text.start);
            end = end.max(text.end);
        }
        Image {
            kind: wire::ImageKind::ELF,
            path: self.table.path(image),
            load_address: image.range.start,
            slide: image.slide,
            size: image.range.size(),
            text: if end > start { (start, end - start) } else { (0, 0) },
            build_id: image.build_id(),
            segments: loaded::segments(image, &mut segments),
            unwind: loaded::unwind_sections(image, &mut unwind),
            is_main: image.kind == ImageKind::Main,
            ..Image::default()
        }
        .encode(encoder)
    }
}

/// An image's unwind data; empty where it has none.
pub(crate) fn unwind_data(image: &images::Image) -> [(UnwindKind, images::AddressRange); 2] {
    [(UnwindKind::EH_FRAME_HDR, image.eh_frame_hdr), (UnwindKind::EH_FRAME, image.eh_frame)]
}

/// What the unwinder needs of the image whose code is at `address`.
pub(crate) fn for_unwinder(image: &images::Image, address: u64) -> Option<coroner_unwind::Image> {
    let text = image.text().find(|range| range.contains(address))?;
    Some(coroner_unwind::Image {
        text: range(text),
        base: image.range.start,
        bias: image.slide,
        eh_frame_hdr: range(image.eh_frame_hdr),
        eh_frame: range(image.eh_frame),
        ..coroner_unwind::Image::default()
    })
}

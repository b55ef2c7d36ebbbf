//! The loaded images, for the unwinder and for the report.

use coroner_machine::images::{self, ImageKind, Mappings};
use coroner_machine::memory::Memory;
use coroner_machine::syscall::Result;
use coroner_report::wire::{self, Encoder, Image, Segment, UnwindKind, UnwindSection};
use coroner_unwind::AddressRange;

/// Images that one report can hold.
const CAPACITY: usize = 2048;

/// The images of this process as they were listed last.
#[derive(Debug)]
pub(crate) struct Loaded {
    table: images::Images,
    pub mappings: Mappings,
    generation: u64,
    dropped: usize,
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

    /// The images, in the order of their addresses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &images::Image> {
        self.table.iter()
    }

    /// The image that holds an address.
    pub(crate) fn image_at(&self, address: u64) -> Option<&images::Image> {
        self.table.find(address)
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

    /// Whether all of these bytes are in an image's unwind data, and which image it is.
    pub(crate) fn unwind_data_at(&self, address: u64, length: u64) -> Option<&images::Image> {
        let is_in = |range: images::AddressRange| {
            range.start <= address
                && length <= range.end.saturating_sub(range.start).saturating_sub(address - range.start)
        };
        self.table.find(address).filter(|image| is_in(image.eh_frame_hdr) || is_in(image.eh_frame))
    }

    /// Images that found no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped as u64
    }

    /// Encodes one image. False where it does not fit.
    pub(crate) fn encode(&self, image: &images::Image, encoder: &mut Encoder<'_>) -> bool {
        let mut segments = [Segment::default(); images::MAX_SEGMENTS];
        let mut count = 0;
        for (to, segment) in segments.iter_mut().zip(image.segments()) {
            let range = image.segment_range(segment);
            *to = Segment {
                address: range.start,
                size: segment.size,
                file_offset: segment.file_offset,
                protection: (segment.flags & 7) as u8,
            };
            count += 1;
        }
        let mut unwind = [UnwindSection::default(); 2];
        let mut unwinds = 0;
        for (kind, range) in [(UnwindKind::EH_FRAME_HDR, image.eh_frame_hdr), (UnwindKind::EH_FRAME, image.eh_frame)] {
            if !range.is_empty()
                && let Some(place) = unwind.get_mut(unwinds)
            {
                *place = UnwindSection { kind, address: range.start, size: range.size() };
                unwinds += 1;
            }
        }
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
            segments: segments.get(..count).unwrap_or_default(),
            unwind: unwind.get(..unwinds).unwrap_or_default(),
            is_main: image.kind == ImageKind::Main,
            ..Image::default()
        }
        .encode(encoder)
    }
}

impl coroner_unwind::Images for &Loaded {
    fn find(&self, address: u64) -> Option<coroner_unwind::Image> {
        for_unwinder(self.table.find(address)?, address)
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        if let Some(image) = self.table.find(address) {
            return Some(image.is_executable(address));
        }
        let mapping = self.mappings.at(address).ok()?;
        Some(mapping.is_some_and(|mapping| mapping.permissions.execute))
    }

    fn generation(&self) -> u64 {
        self.generation
    }
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

fn range(range: images::AddressRange) -> AddressRange {
    AddressRange { start: range.start, end: range.end }
}

//! The loaded images, for the unwinder and for the report.

use coroner_machine::images::{self, ImageKind, Mappings};
use coroner_machine::memory::{LoadGuarded, Memory};
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

    /// Normal life, before anything makes bad loads good: lists the images while the dynamic linker takes none away. It holds the lock
    /// that keeps it from unmapping (`dl_load_write_lock` in glibc, `g_dl_mutex` in bionic; musl unloads nothing) for as long as
    /// dl_iterate_phdr(3) calls back.
    pub(crate) fn take_at_install(&mut self) {
        unsafe extern "C" fn take(
            _: *mut libc::dl_phdr_info,
            _: libc::size_t,
            taken: *mut libc::c_void,
        ) -> libc::c_int {
            // SAFETY: the pointer is that of the call below, which waits for this one.
            let (loaded, done) = unsafe { &mut *taken.cast::<(&mut Loaded, bool)>() };
            // SAFETY: the dynamic linker's list and the headers of images that can't be unloaded now are good memory.
            loaded.take(&mut unsafe { LoadGuarded::new() });
            *done = true;
            1
        }
        let mut taken = (&mut *self, false);
        // SAFETY: the function takes what it is given, and does not unwind.
        unsafe { libc::dl_iterate_phdr(Some(take), (&raw mut taken).cast()) };
        if !taken.1 {
            // SAFETY: nobody loads or unloads in a program whose dynamic linker knows of no image.
            self.take(&mut unsafe { LoadGuarded::new() });
        }
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

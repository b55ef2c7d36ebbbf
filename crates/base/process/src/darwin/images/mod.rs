//! The loaded images: the program, its libraries (also in the shared cache), the dynamic linker.
//!
//! The list is read from dyld's own debugger interface, `dyld_all_image_infos`
//! (<mach-o/dyld_images.h>), whose address the kernel has (`TASK_DYLD_INFO`). Data about an image
//! is kept in a preallocated table and reused while its header and path stay the same: a crash
//! reads only what was loaded since the last refresh.
//!
//! The caller's duties: [`Images::map`] and [`Images::refresh_by_copies`] outside crash time;
//! [`Images::watch`] keeps the table up to date through dyld's callbacks. Guarantees: no lock and
//! no call into dyld at crash time, whose lock the crashed thread may hold
//! (`_dyld_get_image_header` and similar functions take it); every read goes through the caller's
//! memory. Limits: while dyld changes its array, the array's address is null, and the table stays
//! as it was.

mod all_image_infos;
mod image_table;
mod load_commands;
mod mappings;

pub use crate::mapping::{FileId, Mapping, Permissions};
pub use image_table::{Images, ListState, MAX_PATH, Refresh, fingerprint};
pub use mappings::Mappings;

pub use crate::{AddressRange, ImageKind, Segment};

/// Maximum number of segments kept per image.
pub const MAX_SEGMENTS: usize = 12;

/// A loaded image, without its path, which [`Images::path`] returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Image {
    /// Kind of the image.
    pub kind: ImageKind,
    /// Range from the header to the end of the last segment.
    ///
    /// For an image in the shared cache, whose segments are interleaved with those of other images,
    /// only `__TEXT`.
    pub range: AddressRange,
    /// Difference between the addresses in memory and as linked (wraps).
    pub slide: u64,
    /// `__TEXT,__unwind_info`; empty if it has none.
    pub unwind_info: AddressRange,
    /// `__TEXT,__eh_frame`; empty if it has none.
    pub eh_frame: AddressRange,
    /// `__TEXT,__stubs`; empty if it has none.
    pub stubs: AddressRange,
    /// `__TEXT,__stub_helper`; empty if it has none.
    pub stub_helper: AddressRange,
    /// `__TEXT,__text`.
    pub text_section: AddressRange,
    /// `__crash_info`, with a system library's message about a crash; empty if there is none.
    ///
    /// In `__DATA` or, on iOS 26, in `__DATA_DIRTY`. The message of an abort, for example.
    pub crash_info: AddressRange,
    /// Version in `LC_ID_DYLIB`: 16 bits, 8 bits, 8 bits. 0 if there is none.
    pub version: u32,
    /// CPU type and subtype in the header.
    pub cpu: (i32, i32),
    /// Whether the image is in the shared cache.
    pub in_shared_cache: bool,
    has_uuid: bool,
    uuid: [u8; 16],
    segment_count: u32,
    segments: [Segment; MAX_SEGMENTS],
    /// Number of segments beyond [`MAX_SEGMENTS`].
    pub segments_dropped: u32,
    /// Address of the path in dyld's memory.
    path: u64,
}

impl Image {
    /// Returns the kept segments.
    ///
    /// Without `__PAGEZERO`, and without the `__LINKEDIT` that the images in the shared cache
    /// share.
    pub fn segments(&self) -> &[Segment] {
        self.segments.get(..self.segment_count as usize).unwrap_or(&[])
    }

    /// Returns the 16 bytes of `LC_UUID`; empty if there is none.
    pub fn build_id(&self) -> &[u8] {
        if self.has_uuid { &self.uuid } else { &[] }
    }

    /// Returns the range of a segment.
    pub fn segment_range(&self, segment: &Segment) -> AddressRange {
        segment.range(self.slide)
    }

    /// Returns the ranges of executable code, segment by segment.
    pub fn text(&self) -> impl Iterator<Item = AddressRange> {
        self.segments().iter().filter(|segment| segment.is_executable()).map(|segment| segment.range(self.slide))
    }

    /// Whether an address is in an executable segment.
    pub fn is_executable(&self, address: u64) -> bool {
        self.text().any(|range| range.contains(address))
    }
}

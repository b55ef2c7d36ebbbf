//! The loaded images: the program, its libraries (those of the shared cache, too), the dynamic linker.
//!
//! The list is read from dyld's own debugger interface, `dyld_all_image_infos` (<mach-o/dyld_images.h>), whose address the
//! kernel has (`TASK_DYLD_INFO`). What is learned of an image is kept in a preallocated table and used again while header
//! and path stay the same: a crash reads only what was loaded since the last refresh.
//!
//! The caller's duties: [`Images::map`] and [`Images::refresh_by_copies`] outside crash time; [`Images::watch`] keeps the table
//! fresh by dyld's callbacks. Guarantees: no lock and no call into dyld at crash time, whose lock the crashed thread may
//! hold (`_dyld_get_image_header` and its kin take it); every read goes through the caller's memory. Limits: while dyld
//! changes its array, the array's address is null, and the table stays as it was.

mod all_image_infos;
mod image_table;
mod load_commands;
mod mappings;

pub use crate::mapping::{FileId, Mapping, Permissions};
pub use image_table::{Images, ListState, MAX_PATH, Refresh, fingerprint};
pub use mappings::Mappings;

pub use crate::{AddressRange, ImageKind, Segment};

/// Most segments that are kept of one image.
pub const MAX_SEGMENTS: usize = 12;

/// A loaded image. All facts but the path, which [`Images::path`] gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Image {
    /// What it is.
    pub kind: ImageKind,
    /// From its header to the end of its last segment; of an image of the shared cache, whose segments lie apart among those
    /// of others, `__TEXT` alone.
    pub range: AddressRange,
    /// What to add to an address as linked to get where it is (wraps).
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
    /// `__crash_info`, of `__DATA` or, on iOS 26, of `__DATA_DIRTY`: what the system's libraries say of a death (an abort's message); empty if it has none.
    pub crash_info: AddressRange,
    /// Its version as `LC_ID_DYLIB` has it: 16 bits, 8 bits, 8 bits. 0 if it has none.
    pub version: u32,
    /// CPU type and subtype of its header.
    pub cpu: (i32, i32),
    /// Whether it lies in the shared cache.
    pub in_shared_cache: bool,
    has_uuid: bool,
    uuid: [u8; 16],
    segment_count: u32,
    segments: [Segment; MAX_SEGMENTS],
    /// Segments beyond [`MAX_SEGMENTS`].
    pub segments_dropped: u32,
    /// Where dyld keeps its path.
    path: u64,
}

impl Image {
    /// The segments that were kept, without `__PAGEZERO` and without the `__LINKEDIT` that images of the shared cache share.
    pub fn segments(&self) -> &[Segment] {
        self.segments.get(..self.segment_count as usize).unwrap_or(&[])
    }

    /// The 16 bytes of `LC_UUID`; empty if it has none.
    pub fn build_id(&self) -> &[u8] {
        if self.has_uuid { &self.uuid } else { &[] }
    }

    /// Where a segment is.
    pub fn segment_range(&self, segment: &Segment) -> AddressRange {
        segment.range(self.slide)
    }

    /// Where executable code is, segment by segment.
    pub fn text(&self) -> impl Iterator<Item = AddressRange> {
        self.segments().iter().filter(|segment| segment.is_executable()).map(|segment| segment.range(self.slide))
    }

    /// Whether an address is in an executable segment.
    pub fn is_executable(&self, address: u64) -> bool {
        self.text().any(|range| range.contains(address))
    }
}

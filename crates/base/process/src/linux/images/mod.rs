//! The loaded images: the program, its shared objects, the dynamic linker, the vdso. The same on glibc, musl and bionic.
//!
//! The list is read from the dynamic linker's own debugger interface, the `r_debug` structure and its chain of `link_map`s
//! (`link.h`), as a debugger would read it. What is learned of an image is kept in a preallocated table and used again
//! while entry, name and build id stay the same: a crash reads only what was loaded since the last refresh.
//!
//! The caller's duties: [`Images::map`] and a first [`Images::refresh_by_linker`] outside a signal handler, with a
//! [`Memory`] that can't fault ([`CheckedMemory`](crate::memory::CheckedMemory)) where no handler recovers from bad loads;
//! [`Images::refresh`] at crash time, with guarded loads. One thread uses a table at a time.
//!
//! Guarantees: no address is believed. Every read goes through the caller's memory: an image's base need not be `l_addr`
//! (prelink, linker scripts, `-Ttext-segment`), an image may be unmapped in the midst of a read, its headers may be
//! protected. Headers that are not at `l_addr` are found by dl_iterate_phdr(3) outside crash time, and by the kernel's list
//! of mappings at crash time, when the dynamic linker's lock may be held. An entry counts only if program headers lead to
//! its dynamic section, and if entry and name are still the same after the image was read. A chain whose back link is wrong
//! was changed meanwhile and is walked again. Of a list that is damaged, images that were known stay while their memory is what it was.
//!
//! Limits: an image without program headers in any of its segments is known only if a refresh by the linker met it. bionic
//! has no dynamic section in the program's own entry, which the auxiliary vector makes superfluous.

mod auxiliary_vector;
mod dynamic_symbol;
mod image_stamp;
mod image_table;
mod link_map;
mod mappings;
mod program_headers;

pub use crate::mapping::{FileId, Mapping, Permissions};
pub use auxiliary_vector::AuxiliaryVector;
pub use image_stamp::ImageStamp;
pub use image_table::{Images, Refresh};
pub use link_map::ListState;
#[doc(hidden)]
pub use mappings::each_of_text;
pub use mappings::{DELETED_MARK, Mappings};

use crate::memory::Memory;
pub use crate::{AddressRange, ImageKind, Segment};

/// A number that identifies a state of the dynamic linker's list: it changes when an image is loaded or unloaded.
/// `debug` is [`Images::debug_address`]. Reads a line of memory per image and takes no lock. While the dynamic linker says that it
/// is changing the list, the number differs from those before and after.
///
/// The list does not show that an image was unloaded and another one loaded at the same place, by the same entry: see
/// [`Images::stamps`] for that.
pub fn fingerprint<M: Memory>(memory: &mut M, debug: u64) -> u64 {
    /// More entries than any process has.
    const MAX_COUNT: usize = 1 << 14;
    let mut hash = link_map::Fingerprint::new(debug);
    let list = link_map::walk(memory, debug, MAX_COUNT, |_, entry| hash.add(entry));
    hash.finish(list)
}

/// Most loadable segments that are kept of one image; linkers write two to five.
pub const MAX_SEGMENTS: usize = 8;

/// Most bytes that are kept of a build id: those of SHA-256. Linkers write 8, 16 or 20.
pub const MAX_BUILD_ID: usize = 32;

/// A loaded image. All facts but the path, which [`Images::path`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Image {
    /// What it is.
    pub kind: ImageKind,
    /// The mapped addresses, from the first page of the first segment to the end of the last; other mappings may lie
    /// between two segments.
    pub range: AddressRange,
    /// What to add to an address as linked to get where it is (wraps).
    pub slide: u64,
    /// Where its dynamic section is; 0 if it has none.
    pub dynamic: u64,
    /// Where its `.eh_frame_hdr` is; empty if it has none.
    pub eh_frame_hdr: AddressRange,
    /// Where its `.eh_frame` is, as far as it can be known: from its start, which `.eh_frame_hdr` gives, to the end of its
    /// segment. Empty if unknown.
    pub eh_frame: AddressRange,
    /// Where its `.sframe` is; empty if it has none.
    pub sframe: AddressRange,
    /// The address of the build id in memory, and its length; 0 if there is none.
    build_id_at: u64,
    build_id_length: u32,
    build_id: [u8; MAX_BUILD_ID],
    segment_count: u32,
    segments: [Segment; MAX_SEGMENTS],
    /// Segments beyond [`MAX_SEGMENTS`].
    pub segments_dropped: u32,
}

impl Image {
    /// The segments that were kept.
    pub fn segments(&self) -> &[Segment] {
        self.segments.get(..self.segment_count as usize).unwrap_or(&[])
    }

    /// The GNU build id (of one longer than [`MAX_BUILD_ID`] its first bytes); empty if there is none.
    pub fn build_id(&self) -> &[u8] {
        self.build_id.get(..(self.build_id_length as usize).min(MAX_BUILD_ID)).unwrap_or(&[])
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

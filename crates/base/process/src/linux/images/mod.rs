//! The loaded images: the program, its shared objects, the dynamic linker, the vDSO.
//!
//! The same on glibc, musl and bionic. The list is read from the dynamic linker's own debugger
//! interface, the `r_debug` structure and its chain of `link_map`s (`link.h`), as a debugger would
//! read it. Data about an image is kept in a preallocated table and reused while entry, name and
//! build id stay the same: a crash reads only what was loaded since the last refresh.
//!
//! The caller's duties: [`Images::map`] and a first [`Images::refresh_by_linker`] outside a signal
//! handler, with a [`Memory`] that can't fault ([`CheckedMemory`](crate::memory::CheckedMemory)) if
//! no handler recovers from bad loads; [`Images::refresh`] at crash time, with guarded loads. One
//! thread uses a table at a time.
//!
//! Guarantees: no address is trusted. Every read goes through the caller's memory: an image's base
//! may differ from `l_addr` (prelink, linker scripts, `-Ttext-segment`), an image may be unmapped
//! in the middle of a read, its headers may be protected. Headers that are not at `l_addr` are
//! found by dl_iterate_phdr(3) outside crash time, and by the kernel's list of mappings at crash
//! time, when the dynamic linker's lock may be held. An entry counts only if program headers lead
//! to its dynamic section, and if entry and name are still the same after the image was read. A
//! chain with a wrong back link was changed meanwhile and is walked again. If the list is damaged,
//! known images are kept while their memory is unchanged.
//!
//! Limits: an image without program headers in any of its segments is known only if a refresh by
//! the linker found it. bionic has no dynamic section in the program's own entry, which the
//! auxiliary vector makes unnecessary.

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

/// Returns a number that identifies a state of the dynamic linker's list.
///
/// The number changes when an image is loaded or unloaded. `debug` is [`Images::debug_address`].
/// Reads a line of memory per image and takes no lock. While the dynamic linker has marked the list
/// as changing, the number differs from those before and after.
///
/// The list doesn't show that an image was unloaded and another one loaded at the same place, with
/// the same entry: see [`Images::stamps`] for that.
pub fn fingerprint<M: Memory>(memory: &mut M, debug: u64) -> u64 {
    /// Maximum number of entries: more than in any process.
    const MAX_COUNT: usize = 1 << 14;
    let mut hash = link_map::Fingerprint::new(debug);
    let list = link_map::walk(memory, debug, MAX_COUNT, |_, entry| hash.add(entry));
    hash.finish(list)
}

/// Maximum number of loadable segments kept per image; linkers write two to five.
pub const MAX_SEGMENTS: usize = 8;

/// Maximum number of build id bytes that are kept: those of SHA-256. Linkers write 8, 16 or 20.
pub const MAX_BUILD_ID: usize = 32;

/// A loaded image, without its path, which [`Images::path`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Image {
    /// Kind of the image.
    pub kind: ImageKind,
    /// The mapped addresses, from the first page of the first segment to the end of the last.
    ///
    /// There may be other mappings between two segments.
    pub range: AddressRange,
    /// Difference between the addresses in memory and as linked (wraps).
    pub slide: u64,
    /// Address of the dynamic section; 0 if there is none.
    pub dynamic: u64,
    /// Range of `.eh_frame_hdr`; empty if there is none.
    pub eh_frame_hdr: AddressRange,
    /// Range of `.eh_frame`, as far as it is known; empty if unknown.
    ///
    /// From its start, which `.eh_frame_hdr` contains, to the end of its segment.
    pub eh_frame: AddressRange,
    /// Range of `.sframe`; empty if there is none.
    pub sframe: AddressRange,
    /// The address of the build id in memory, and its length; 0 if there is none.
    build_id_at: u64,
    build_id_length: u32,
    build_id: [u8; MAX_BUILD_ID],
    segment_count: u32,
    segments: [Segment; MAX_SEGMENTS],
    /// Number of segments beyond [`MAX_SEGMENTS`].
    pub segments_dropped: u32,
}

impl Image {
    /// Returns the kept segments.
    pub fn segments(&self) -> &[Segment] {
        self.segments.get(..self.segment_count as usize).unwrap_or(&[])
    }

    /// Returns the GNU build id; empty if there is none.
    ///
    /// If it is longer than [`MAX_BUILD_ID`], its first bytes.
    pub fn build_id(&self) -> &[u8] {
        self.build_id.get(..(self.build_id_length as usize).min(MAX_BUILD_ID)).unwrap_or(&[])
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

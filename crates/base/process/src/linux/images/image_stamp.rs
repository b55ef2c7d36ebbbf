//! Stamps: words of memory that distinguish an image from another one at the same place.

use super::link_map::{self, LinkMap, NAME_PIECE};
use super::{Image, Images};
use crate::memory::Memory;

/// Offset of `e_shoff` in the file header.
///
/// It is the file offset of the section headers, which is rarely the same in two builds.
const SECTION_HEADERS: u64 = 40;

/// Maximum number of bytes of a name that are read.
const MAX_NAME: u64 = 512;

/// A word of memory that shows whether an image is still the same.
///
/// The dynamic linker's list alone doesn't: if a library is unloaded and another one with the same
/// layout is loaded in its place, the list has the same numbers again, in an entry at the same
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageStamp {
    /// Address of the word.
    pub address: u64,
    /// Mask of the relevant bits.
    pub mask: u64,
    /// Value of the relevant bits.
    pub value: u64,
}

impl ImageStamp {
    /// Creates a stamp for a word at `address` that begins with these bytes, at most eight.
    fn of_bytes(address: u64, bytes: &[u8]) -> ImageStamp {
        let (mut value, mut mask) = ([0; 8], [0; 8]);
        for ((value, mask), byte) in value.iter_mut().zip(&mut mask).zip(bytes) {
            (*value, *mask) = (*byte, u8::MAX);
        }
        ImageStamp { address, mask: u64::from_le_bytes(mask), value: u64::from_le_bytes(value) }
    }

    /// Whether the memory still has this value.
    #[inline]
    pub fn holds<M: Memory>(&self, memory: &mut M) -> bool {
        memory.read_u64(self.address).is_ok_and(|word| word & self.mask == self.value)
    }
}

impl Images {
    /// Calls `each` with the stamps of every image that can be unloaded.
    ///
    /// The stamp is the beginning of the build id. For an image without one, the stamps are its
    /// name in the list, and its file offset of the section headers.
    pub fn stamps<M: Memory>(&self, memory: &mut M, mut each: impl FnMut(ImageStamp)) {
        for (image, link_map) in self.listed() {
            if let Some(stamp) = image.build_id_stamp() {
                each(stamp);
                continue;
            }
            let headers = image.range.start.wrapping_add(SECTION_HEADERS);
            if let Ok(value) = memory.read_u64(headers) {
                each(ImageStamp { address: headers, mask: u64::MAX, value });
            }
            if let Some(entry) = LinkMap::read(memory, link_map) {
                name_stamps(memory, entry.name, &mut each);
            }
        }
    }
}

impl Image {
    /// Returns a stamp for the first bytes of the build id, as read into the table.
    fn build_id_stamp(&self) -> Option<ImageStamp> {
        let id = Some(self.build_id()).filter(|id| !id.is_empty())?;
        Some(ImageStamp::of_bytes(self.build_id_at, id))
    }
}

/// Creates stamps for the words of a name.
///
/// The last one ends at the NUL: the bytes after it don't belong to the name.
fn name_stamps<M: Memory>(memory: &mut M, name: u64, each: &mut impl FnMut(ImageStamp)) {
    let mut piece = [0; NAME_PIECE];
    let mut offset = 0_u64;
    while offset < MAX_NAME {
        let Some((bytes, ended)) = link_map::read_name_piece(memory, name.wrapping_add(offset), &mut piece) else {
            return;
        };
        let mut at = name.wrapping_add(offset);
        for part in bytes.chunks(8) {
            each(ImageStamp::of_bytes(at, part));
            at = at.wrapping_add(8);
        }
        if ended || bytes.is_empty() {
            return;
        }
        offset = offset.wrapping_add(bytes.len() as u64);
    }
}

//! Stamps: words of memory by which an image is distinguished from another one at its place.

use super::link_map::{self, LinkMap, NAME_PIECE};
use super::{Image, Images};
use crate::memory::Memory;

/// `e_shoff` in the file header: where the section headers are in the file, which is hardly ever the same in two builds.
const SECTION_HEADERS: u64 = 40;

/// Most words of a name that are looked at.
const MAX_NAME: u64 = 512;

/// A word of memory that says whether an image is still the one that it was.
///
/// The dynamic linker's list alone doesn't: where a library is unloaded and another one with the same layout is loaded in its
/// place, the list has the same numbers again, in an entry at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageStamp {
    /// Where the word is.
    pub address: u64,
    /// The bits of it that count.
    pub mask: u64,
    /// What they are.
    pub value: u64,
}

impl ImageStamp {
    /// The word at `address` begins with these bytes, eight at most.
    fn of_bytes(address: u64, bytes: &[u8]) -> ImageStamp {
        let (mut value, mut mask) = ([0; 8], [0; 8]);
        for ((value, mask), byte) in value.iter_mut().zip(&mut mask).zip(bytes) {
            (*value, *mask) = (*byte, u8::MAX);
        }
        ImageStamp { address, mask: u64::from_le_bytes(mask), value: u64::from_le_bytes(value) }
    }

    /// Whether memory still says so.
    #[inline]
    pub fn holds<M: Memory>(&self, memory: &mut M) -> bool {
        memory.read_u64(self.address).is_ok_and(|word| word & self.mask == self.value)
    }
}

impl Images {
    /// Calls `each` with the words that every image which can be unloaded is known by: the beginning of its build id. Without one it is
    /// the name in the list, and where the file has its section headers.
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
    /// The first bytes of the build id, as they were when the image was looked into.
    fn build_id_stamp(&self) -> Option<ImageStamp> {
        let id = Some(self.build_id()).filter(|id| !id.is_empty())?;
        Some(ImageStamp::of_bytes(self.build_id_at, id))
    }
}

/// The words of a name, the last one up to its NUL: what is behind it in memory is no part of it.
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

//! ELF as it lies in memory: program headers and what they lead to, read through guarded memory.
//!
//! Everything read here may be corrupt or vanish while it is read: each offset and count is bounded, and what can't be
//! read is left out. Formats: the System V gABI (chapters "Object Files", "Program Header", "Note Section"), the LSB for
//! `PT_GNU_EH_FRAME`, and the pointer encodings of the LSB's "DWARF Extensions".

use crate::memory::{Memory, Unreadable};

/// The first bytes of a 64-bit little-endian file: magic, `ELFCLASS64`, `ELFDATA2LSB`.
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];

pub(crate) const PT_LOAD: u32 = 1;
pub(crate) const PT_DYNAMIC: u32 = 2;
pub(crate) const PT_NOTE: u32 = 4;
pub(crate) const PT_PHDR: u32 = 6;
pub(crate) const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// A segment's flag "may be executed".
pub(crate) const PF_X: u32 = 1;

/// Most program headers that are looked at; linkers write about a dozen.
const MAX_HEADERS: u16 = 64;

/// `DT_DEBUG`: where the dynamic linker tells debuggers of its list.
const DT_DEBUG: u64 = 21;
/// Most entries of a dynamic section that are looked at.
const MAX_DYNAMIC: u64 = 1024;

/// `NT_GNU_BUILD_ID`.
const NT_GNU_BUILD_ID: u32 = 3;
/// Most bytes of a note segment that are looked at.
const MAX_NOTES: u64 = 64 * 1024;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let field = bytes.get(at..).and_then(|tail| tail.first_chunk());
    field.map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|tail| tail.first_chunk());
    field.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(|tail| tail.first_chunk());
    field.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// What of the file header leads on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    /// `e_entry`, unslid.
    pub(crate) entry: u64,
    /// Where the program headers are.
    pub(crate) headers: HeaderTable,
}

/// Where program headers are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderTable {
    /// Address of the first.
    pub(crate) address: u64,
    /// How many.
    pub(crate) count: u16,
}

impl FileHeader {
    /// The file header at `address`, if a 64-bit little-endian one is there.
    pub(crate) fn read<M: Memory>(memory: &mut M, address: u64) -> Option<FileHeader> {
        let mut bytes = [0; 64];
        memory.read(address, &mut bytes).ok()?;
        // e_phentsize must be that of Elf64_Phdr.
        if !bytes.starts_with(&MAGIC) || u16_at(&bytes, 54) != ProgramHeader::SIZE as u16 {
            return None;
        }
        let address = address.wrapping_add(u64_at(&bytes, 32));
        Some(FileHeader { entry: u64_at(&bytes, 24), headers: HeaderTable { address, count: u16_at(&bytes, 56) } })
    }
}

/// One program header. Addresses are as linked (unslid).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramHeader {
    pub(crate) kind: u32,
    pub(crate) flags: u32,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) file_size: u64,
    pub(crate) memory_size: u64,
    pub(crate) align: u64,
}

impl ProgramHeader {
    /// `sizeof(Elf64_Phdr)`.
    const SIZE: u64 = 56;
}

impl HeaderTable {
    /// Calls `each` with every header.
    ///
    /// Fails if one can't be read: the image is being unmapped, and half its headers are of no use.
    pub(crate) fn each<M: Memory>(
        self,
        memory: &mut M,
        mut each: impl FnMut(&ProgramHeader),
    ) -> Result<(), Unreadable> {
        for index in 0..self.count.min(MAX_HEADERS) {
            let mut bytes = [0; ProgramHeader::SIZE as usize];
            memory.read(self.address.wrapping_add(u64::from(index).wrapping_mul(ProgramHeader::SIZE)), &mut bytes)?;
            each(&ProgramHeader {
                kind: u32_at(&bytes, 0),
                flags: u32_at(&bytes, 4),
                offset: u64_at(&bytes, 8),
                address: u64_at(&bytes, 16),
                file_size: u64_at(&bytes, 32),
                memory_size: u64_at(&bytes, 40),
                align: u64_at(&bytes, 48),
            });
        }
        Ok(())
    }

    /// The first header of a kind.
    pub(crate) fn find<M: Memory>(self, memory: &mut M, kind: u32) -> Option<ProgramHeader> {
        let mut found = None;
        self.each(memory, |header| {
            if header.kind == kind && found.is_none() {
                found = Some(*header);
            }
        })
        .ok()?;
        found
    }
}

/// Looks through the notes of one `PT_NOTE` segment for the GNU build id; answers its address and length.
pub(crate) fn find_build_id<M: Memory>(memory: &mut M, start: u64, size: u64, align: u64) -> Option<(u64, u32)> {
    // Notes are aligned to 4, or to 8 where the segment says so (the x86-64 psABI's property notes).
    let align = if align == 8 { 8_u64 } else { 4 };
    let round = |size: u64| size.wrapping_add(align.wrapping_sub(1)) & !align.wrapping_sub(1);
    let size = size.min(MAX_NOTES);
    let mut at = 0_u64;
    while at.wrapping_add(12) <= size {
        // {u32 namesz, u32 descsz, u32 type, name, desc}
        let mut bytes = [0; 16];
        memory.read(start.wrapping_add(at), bytes.get_mut(..12)?).ok()?;
        let (name, length, kind) = (u32_at(&bytes, 0), u32_at(&bytes, 4), u32_at(&bytes, 8));
        let name_at = at.wrapping_add(12);
        let value_at = round(name_at.wrapping_add(u64::from(name)));
        let end = value_at.wrapping_add(u64::from(length));
        if end > size {
            return None;
        }
        if kind == NT_GNU_BUILD_ID && name == 4 && length > 0 {
            let mut owner = [0; 4];
            memory.read(start.wrapping_add(name_at), &mut owner).ok()?;
            if owner == *b"GNU\0" {
                return Some((start.wrapping_add(value_at), length));
            }
        }
        at = round(end);
    }
    None
}

/// The start of `.eh_frame`, which the `.eh_frame_hdr` at `start` points to.
pub(crate) fn eh_frame_of_header<M: Memory>(memory: &mut M, start: u64) -> Option<u64> {
    // {u8 version = 1, u8 eh_frame_ptr_enc, u8 fde_count_enc, u8 table_enc, eh_frame_ptr, …}
    let mut bytes = [0; 12];
    memory.read(start, &mut bytes).ok()?;
    let [1, encoding, ..] = bytes else { return None };
    // DW_EH_PE: the low half is the format, the high half what it is relative to.
    let value = match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => u64_at(&bytes, 4),
        0x02 => u64::from(u16_at(&bytes, 4)),
        0x0a => i64::from(u16_at(&bytes, 4) as i16) as u64,
        0x03 => u64::from(u32_at(&bytes, 4)),
        0x0b => i64::from(u32_at(&bytes, 4) as i32) as u64,
        _ => return None,
    };
    match encoding & 0xf0 {
        0x00 => Some(value),
        // pcrel
        0x10 => Some(start.wrapping_add(4).wrapping_add(value)),
        // datarel
        0x30 => Some(start.wrapping_add(value)),
        _ => None,
    }
}

/// The value of `DT_DEBUG` in the dynamic section at `start`: 0 before the dynamic linker has written it, nothing in a
/// program without a dynamic linker.
pub(crate) fn debug_entry<M: Memory>(memory: &mut M, start: u64, size: u64) -> Option<u64> {
    for index in 0..(size / 16).min(MAX_DYNAMIC) {
        match memory.read_pair(start.wrapping_add(index.wrapping_mul(16))).ok()? {
            (0, _) => return None,
            (DT_DEBUG, value) => return Some(value),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Snapshot, SnapshotRange};

    fn with<R>(bytes: &[u8], f: impl FnOnce(&mut Snapshot<'_>) -> R) -> R {
        f(&mut Snapshot { ranges: &[SnapshotRange { address: 0x1000, bytes }] })
    }

    /// A note with its name and value padded to 4.
    fn note<const N: usize>(name: [u8; 4], kind: u32, value: [u8; N]) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[0] = 4;
        bytes[4..8].copy_from_slice(&(N as u32).to_le_bytes());
        bytes[8..12].copy_from_slice(&kind.to_le_bytes());
        bytes[12..16].copy_from_slice(&name);
        bytes[16..16 + N].copy_from_slice(&value);
        bytes
    }

    #[test]
    fn the_build_id_is_found_behind_other_notes() {
        let mut bytes = [0; 76];
        // An ABI tag of 17 bytes, padded to 20: the next note starts at 36.
        bytes[..36].copy_from_slice(&note(*b"GNU\0", 1, [7; 17])[..36]);
        bytes[36..].copy_from_slice(&note(*b"GNU\0", NT_GNU_BUILD_ID, [9; 20]));
        assert_eq!(with(&bytes, |m| find_build_id(m, 0x1000, 76, 4)), Some((0x1000 + 36 + 16, 20)));
        // One byte short, the note is not whole.
        assert_eq!(with(&bytes, |m| find_build_id(m, 0x1000, 71, 4)), None);
        // Another owner's note of the same number is none.
        bytes[36 + 12..36 + 16].copy_from_slice(b"Go\0\0");
        assert_eq!(with(&bytes, |m| find_build_id(m, 0x1000, 76, 4)), None);
    }

    #[test]
    fn notes_with_absurd_sizes_end_the_search() {
        let mut bytes = note(*b"GNU\0", 1, [0; 20]);
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(with(&bytes, |m| find_build_id(m, 0x1000, u64::MAX, 4)), None);
        bytes[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(with(&bytes, |m| find_build_id(m, 0x1000, u64::MAX, 8)), None);
    }

    #[test]
    fn eh_frame_pointers_of_every_encoding_linkers_write() {
        let header = |encoding: u8, value: u64| {
            let mut bytes = [0; 12];
            bytes[..2].copy_from_slice(&[1, encoding]);
            bytes[4..].copy_from_slice(&value.to_le_bytes());
            with(&bytes, |m| eh_frame_of_header(m, 0x1000))
        };
        assert_eq!(header(0x1b, u64::from((-0x104_i32) as u32)), Some(0xf00));
        assert_eq!(header(0x3b, 0x40), Some(0x1040));
        assert_eq!(header(0x00, 0x1234_5678_9abc), Some(0x1234_5678_9abc));
        assert_eq!(header(0x01, 5), None, "uleb128 is written by nobody here");
        assert_eq!(with(&[2; 12], |m| eh_frame_of_header(m, 0x1000)), None, "an unknown version");
    }

    #[test]
    fn a_header_table_that_ends_in_nowhere_is_refused() {
        let mut bytes = [0; 64 + 56];
        bytes[..6].copy_from_slice(&MAGIC);
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64] = PT_DYNAMIC as u8;
        let header = with(&bytes, |m| FileHeader::read(m, 0x1000)).unwrap();
        assert_eq!(header.headers, HeaderTable { address: 0x1040, count: 1 });
        assert!(with(&bytes, |m| header.headers.find(m, PT_DYNAMIC)).is_some());
        let longer = HeaderTable { count: 2, ..header.headers };
        assert!(with(&bytes, |m| longer.each(m, |_| ())).is_err());
        assert!(with(&bytes[..63], |m| FileHeader::read(m, 0x1000)).is_none());
    }

    #[test]
    fn the_dynamic_section_ends_at_its_null_entry() {
        let words = [1_u64, 2, DT_DEBUG, 0xabc, 0, 0, DT_DEBUG, 0xbad];
        let mut bytes = [0; 64];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        assert_eq!(with(&bytes, |m| debug_entry(m, 0x1000, 64)), Some(0xabc));
        assert_eq!(with(&bytes, |m| debug_entry(m, 0x1000 + 32, 32)), None);
    }
}

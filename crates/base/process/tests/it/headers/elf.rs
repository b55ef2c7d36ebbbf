//! ELF headers and notes, valid and invalid.

use coroner_process::elf::{FileHeader, HeaderTable, PT_DYNAMIC, debug_entry, eh_frame_of_header, find_build_id};
use coroner_process::memory::{Snapshot, SnapshotRange};

/// The first bytes of a 64-bit little-endian ELF file.
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
const DT_DEBUG: u64 = 21;
const NT_GNU_BUILD_ID: u32 = 3;

fn with<R>(bytes: &[u8], f: impl FnOnce(&mut Snapshot<'_>) -> R) -> R {
    f(&mut Snapshot { ranges: &[SnapshotRange { address: 0x1000, bytes }] })
}

/// Returns a note with its name and value padded to 4.
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
fn the_build_id_is_found_after_other_notes() {
    let mut bytes = [0; 76];
    // An ABI tag of 17 bytes, padded to 20: the next note starts at 36.
    bytes[..36].copy_from_slice(&note(*b"GNU\0", 1, [7; 17])[..36]);
    bytes[36..].copy_from_slice(&note(*b"GNU\0", NT_GNU_BUILD_ID, [9; 20]));
    assert_eq!(with(&bytes, |m| find_build_id(m, 0x1000, 76, 4)), Some((0x1000 + 36 + 16, 20)));
    // One byte short: the note is not whole.
    assert_eq!(with(&bytes, |m| find_build_id(m, 0x1000, 71, 4)), None);
    // Another owner's note with the same number doesn't count.
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
fn a_header_table_that_leaves_the_image_is_rejected() {
    let mut bytes = [0; 64 + 56];
    bytes[..6].copy_from_slice(&MAGIC);
    bytes[32] = 64;
    bytes[54] = 56;
    bytes[56] = 1;
    bytes[64] = PT_DYNAMIC as u8;
    let header = with(&bytes, |m| FileHeader::read(m, 0x1000)).unwrap();
    let table = header.headers(0x1000);
    assert_eq!(table, HeaderTable { address: 0x1040, count: 1 });
    assert!(with(&bytes, |m| table.find(m, PT_DYNAMIC)).is_some());
    let longer = HeaderTable { count: 2, ..table };
    assert!(with(&bytes, |m| longer.each(m, |_| ())).is_err());
    assert!(with(&bytes[..63], |m| FileHeader::read(m, 0x1000)).is_none());
}

#[test]
fn the_dynamic_section_ends_at_its_null_entry() {
    let words = [1_u64, 2, DT_DEBUG, 0xabc, 0, 0, DT_DEBUG, 0xbad];
    let mut bytes = [0; 64];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    assert_eq!(with(&bytes, |m| debug_entry(m, 0x1000, 64)), Some(0xabc));
    assert_eq!(with(&bytes, |m| debug_entry(m, 0x1000 + 32, 32)), None);
}

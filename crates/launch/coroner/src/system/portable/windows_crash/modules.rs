//! Reads the loaded images from the loader's list in the process environment block.
//!
//! The list is read without its lock, so each word is read through the kernel and may be wrong.

use coroner_report::wire::{Encoder, Image, ImageKind};

use super::memory::{self, u16_at, u32_at, u64_at};

/// Maximum number of modules, more than a process has. Ends a list that loops.
const MAX_MODULES: usize = 1024;
/// Maximum length of a path in UTF-16 units.
const MAX_PATH: usize = 1024;

/// Working memory.
pub(super) struct Room {
    wide: [u8; 2 * MAX_PATH],
    path: [u8; 3 * MAX_PATH],
    identity: [u8; 28],
}

impl Room {
    pub(super) fn new() -> Self {
        Self { wide: [0; 2 * MAX_PATH], path: [0; 3 * MAX_PATH], identity: [0; 28] }
    }
}

/// Returns the address of this process's environment block: `ProcessEnvironmentBlock` of the
/// thread's (winternl.h, `TEB`).
fn environment_block() -> u64 {
    let block: u64;
    // SAFETY: on x86-64, gs points to the thread's environment block, which contains the address at
    // 0x60.
    unsafe { std::arch::asm!("mov {}, gs:[0x60]", out(reg) block, options(nostack, preserves_flags, readonly)) };
    block
}

/// Encodes the images, the program first. Returns `false` if there was no room for some.
pub(super) fn encode(encoder: &mut Encoder<'_>, room: &mut Room) -> bool {
    // `Ldr`, and in it `InLoadOrderModuleList`, the head of a ring.
    let Some(head) = u64_at(environment_block() + 0x18).map(|list| list + 0x10) else { return false };
    let mut at = u64_at(head);
    for number in 0..MAX_MODULES {
        let Some(entry) = at.filter(|entry| *entry != head) else { break };
        if let Some(image) = image_path(entry, room, number == 0)
            && !image.encode(encoder)
        {
            return false;
        }
        at = u64_at(entry);
    }
    true
}

/// Reads an image from its `LDR_DATA_TABLE_ENTRY`.
fn image_path(entry: u64, room: &mut Room, is_main: bool) -> Option<Image<'_>> {
    let base = u64_at(entry + 0x30)?;
    let name = entry + 0x48;
    let length = usize::from(u16_at(name)?).min(room.wide.len()) & !1;
    let wide = room.wide.get_mut(..length)?;
    // An image whose path can't be read is included without it.
    let length = if u64_at(name + 8).is_some_and(|at| memory::read(at, wide)) { utf8(wide, &mut room.path) } else { 0 };
    // "PE Format", headers of PE32+.
    let headers = base + u64::from(u32_at(base + 0x3c)?);
    let optional = headers + 24;
    if u32_at(headers)? != u32::from_le_bytes(*b"PE\0\0") || u16_at(optional)? != 0x20b {
        return None;
    }
    let (time, size) = (u32_at(headers + 8)?, u32_at(optional + 56)?);
    let (code_size, code) = (u32_at(optional + 4)?, u32_at(optional + 20)?);
    let (stamp, rest) = room.identity.split_at_mut_checked(8)?;
    if let Some(to) = stamp.first_chunk_mut::<4>() {
        *to = time.to_le_bytes();
    }
    if let Some(to) = stamp.last_chunk_mut::<4>() {
        *to = size.to_le_bytes();
    }
    let identity = if code_view(base, optional, rest).is_some() { 28 } else { 8 };
    Some(Image {
        kind: ImageKind::PE,
        path: room.path.get(..length)?,
        load_address: base,
        // Addresses in the file are relative to its first byte: the preferred address is
        // overwritten in memory.
        slide: base,
        size: size.into(),
        text: (base + u64::from(code), code_size.into()),
        build_id: room.identity.get(..identity)?,
        is_main,
        ..Image::default()
    })
}

/// Reads GUID and age of the CodeView data (`RSDS`) from the debug directory.
fn code_view(base: u64, optional: u64, into: &mut [u8]) -> Option<()> {
    const DEBUG: u64 = 6;
    const CODE_VIEW: u32 = 2;
    const ENTRY: u64 = 28;
    if u64::from(u32_at(optional + 108)?) <= DEBUG {
        return None;
    }
    let directory = optional + 112 + DEBUG * 8;
    let (at, size) = (u32_at(directory)?, u32_at(directory + 4)?);
    let entries = (0..u64::from(size) / ENTRY).take(16).map(|number| base + u64::from(at) + number * ENTRY);
    for entry in entries.filter(|_| at != 0) {
        let data = base + u64::from(u32_at(entry + 20)?);
        if u32_at(entry + 12)? == CODE_VIEW && u32_at(data)? == u32::from_le_bytes(*b"RSDS") {
            return memory::read(data + 4, into).then_some(());
        }
    }
    None
}

/// Converts little-endian UTF-16, and returns the number of bytes.
fn utf8(wide: &[u8], into: &mut [u8]) -> usize {
    let units = wide.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
    let mut length = 0;
    for letter in char::decode_utf16(units) {
        let letter = letter.unwrap_or(char::REPLACEMENT_CHARACTER);
        let Some(room) = into.get_mut(length..length + letter.len_utf8()) else { break };
        length += letter.encode_utf8(room).len();
    }
    length
}

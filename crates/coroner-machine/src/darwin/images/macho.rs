//! A Mach-O image in memory: header and load commands (<mach-o/loader.h>), read through guarded memory.

use super::{AddressRange, Image, ImageKind, Segment};
use crate::memory::{Memory, Unreadable};

/// `MH_MAGIC_64`.
const MAGIC: u32 = 0xfeed_facf;
const MH_EXECUTE: u32 = 2;
const MH_DYLINKER: u32 = 7;
/// `MH_DYLIB_IN_CACHE`.
const IN_CACHE: u32 = 0x8000_0000;
const LC_SEGMENT_64: u32 = 0x19;
const LC_UUID: u32 = 0x1b;
const LC_ID_DYLIB: u32 = 0xd;

/// `struct mach_header_64`.
const HEADER: u64 = 32;
/// `struct segment_command_64` and `struct section_64`.
const SEGMENT: usize = 72;
const SECTION: usize = 80;
/// More load commands than any image has, and more bytes of them.
const MOST_COMMANDS: u32 = 4096;
const MOST_BYTES: u64 = 1 << 20;
/// More sections than a segment has.
const MOST_SECTIONS: u32 = 256;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|tail| tail.first_chunk::<4>());
    word.map_or(0, |word| u32::from_le_bytes(*word))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|tail| tail.first_chunk::<8>());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

/// A name of 16 bytes, as segments and sections have it.
fn is_named(bytes: &[u8], at: usize, name: &[u8]) -> bool {
    let Some(field) = bytes.get(at..).and_then(|tail| tail.get(..16)) else { return false };
    let length = field.iter().position(|byte| *byte == 0).unwrap_or(16);
    field.get(..length) == Some(name)
}

/// What the headers say of the image at `header`.
///
/// # Errors
/// Where there is none, or its headers can't be read.
pub(super) fn parse<M: Memory>(memory: &mut M, header: u64, path: u64) -> Result<Image, Unreadable> {
    let mut head = [0; HEADER as usize];
    memory.read(header, &mut head)?;
    if u32_at(&head, 0) != MAGIC {
        return Err(Unreadable { address: header });
    }
    let (commands, bytes, flags) = (u32_at(&head, 16).min(MOST_COMMANDS), u32_at(&head, 20), u32_at(&head, 24));
    let end = header.saturating_add(HEADER).saturating_add(u64::from(bytes).min(MOST_BYTES));
    let mut image = Image {
        kind: match u32_at(&head, 12) {
            MH_EXECUTE => ImageKind::Main,
            MH_DYLINKER => ImageKind::DynamicLinker,
            _ => ImageKind::Library,
        },
        cpu: (u32_at(&head, 4) as i32, u32_at(&head, 8) as i32),
        in_shared_cache: flags & IN_CACHE != 0,
        path,
        ..Image::default()
    };
    // The slide is known once `__TEXT`, which begins with the header, is: sections are kept as linked until then.
    let mut at = header.saturating_add(HEADER);
    let mut text_end = 0;
    let mut last_end = 0;
    for _ in 0..commands {
        let mut command = [0; SEGMENT];
        memory.read(at, command.get_mut(..8).unwrap_or_default())?;
        let (kind, size) = (u32_at(&command, 0), u64::from(u32_at(&command, 4)));
        if size < 8 || at.saturating_add(size) > end {
            break;
        }
        match kind {
            LC_SEGMENT_64 if size >= SEGMENT as u64 => {
                memory.read(at, &mut command)?;
                let (address, length) = (u64_at(&command, 24), u64_at(&command, 32));
                if is_named(&command, 8, b"__TEXT") {
                    image.slide = header.wrapping_sub(address);
                    text_end = address.saturating_add(length);
                }
                let protection = u32_at(&command, 60);
                // `VM_PROT_*`: read 1, write 2, execute 4.
                let flags = (protection & 1) << 2 | protection & 2 | (protection >> 2) & 1;
                let shared = image.in_shared_cache && is_named(&command, 8, b"__LINKEDIT");
                if flags != 0 && !shared {
                    last_end = last_end.max(address.saturating_add(length));
                    keep(&mut image, Segment { address, size: length, file_offset: u64_at(&command, 40), flags });
                }
                sections(memory, &mut image, at, size, u32_at(&command, 64))?;
            }
            LC_UUID if size >= 24 => {
                memory.read(at.saturating_add(8), &mut image.uuid)?;
                image.has_uuid = true;
            }
            LC_ID_DYLIB if size >= 24 => {
                memory.read(at, command.get_mut(..24).unwrap_or_default())?;
                image.version = u32_at(&command, 16);
            }
            _ => {}
        }
        at = at.saturating_add(size);
    }
    let end = if image.in_shared_cache { text_end } else { last_end };
    image.range = AddressRange { start: header, end: end.wrapping_add(image.slide).max(header) };
    let slide = image.slide;
    for range in [
        &mut image.unwind_info,
        &mut image.eh_frame,
        &mut image.stubs,
        &mut image.stub_helper,
        &mut image.text_section,
        &mut image.crash_info,
    ] {
        if !range.is_empty() {
            *range = AddressRange { start: range.start.wrapping_add(slide), end: range.end.wrapping_add(slide) };
        }
    }
    Ok(image)
}

fn keep(image: &mut Image, segment: Segment) {
    match image.segments.get_mut(image.segment_count as usize) {
        Some(place) => {
            *place = segment;
            image.segment_count += 1;
        }
        None => image.segments_dropped = image.segments_dropped.saturating_add(1),
    }
}

/// Finds the sections that matter among those behind a segment's command at `at`.
fn sections<M: Memory>(memory: &mut M, image: &mut Image, at: u64, size: u64, count: u32) -> Result<(), Unreadable> {
    let room = size.saturating_sub(SEGMENT as u64) / SECTION as u64;
    for index in 0..u64::from(count.min(MOST_SECTIONS)).min(room) {
        let mut section = [0; SECTION];
        memory.read(at + SEGMENT as u64 + index * SECTION as u64, &mut section)?;
        let (address, length) = (u64_at(&section, 32), u64_at(&section, 40));
        let range = AddressRange { start: address, end: address.saturating_add(length) };
        let in_text = is_named(&section, 16, b"__TEXT");
        let named = |name: &[u8]| is_named(&section, 0, name);
        let place = match () {
            () if in_text && named(b"__unwind_info") => &mut image.unwind_info,
            () if in_text && named(b"__eh_frame") => &mut image.eh_frame,
            () if in_text && named(b"__stubs") => &mut image.stubs,
            () if in_text && named(b"__stub_helper") => &mut image.stub_helper,
            () if in_text && named(b"__text") => &mut image.text_section,
            () if !in_text && named(b"__crash_info") => &mut image.crash_info,
            () => continue,
        };
        *place = range;
    }
    Ok(())
}

//! Parses an image's load commands: segments, UUID, version, unwind data.
//!
//! Everything is read through the caller's [`Memory`], and may disappear while it is read.

use super::{AddressRange, Image, ImageKind, Segment};
use crate::macho::{BadCommand, Header, LC_SEGMENT_64, LC_UUID, SectionHeader};
use crate::memory::{Memory, Unreadable, u32_at};

const MH_EXECUTE: u32 = 2;
const MH_DYLINKER: u32 = 7;
/// `MH_DYLIB_IN_CACHE`.
const IN_CACHE: u32 = 0x8000_0000;
const LC_ID_DYLIB: u32 = 0xd;

/// Parses the headers of the image at `header`.
///
/// # Errors
/// [`Unreadable`] if there is no image, or its headers can't be read.
pub(super) fn parse<M: Memory>(memory: &mut M, header: u64, path: u64) -> Result<Image, Unreadable> {
    let unreadable = Unreadable { address: header };
    let mut bytes = [0; Header::SIZE];
    memory.read(header, &mut bytes)?;
    let head = Header::parse(&bytes).ok_or(unreadable)?;
    let mut image = Image {
        kind: match head.file_type {
            MH_EXECUTE => ImageKind::Main,
            MH_DYLINKER => ImageKind::DynamicLinker,
            _ => ImageKind::Library,
        },
        cpu: (head.cpu_type as i32, head.cpu_subtype as i32),
        in_shared_cache: head.flags & IN_CACHE != 0,
        path,
        ..Image::default()
    };
    // The slide is known once `__TEXT`, which begins with the header, has been read: sections are
    // kept as linked until then.
    let (mut text_end, mut last_end) = (0, 0);
    let mut commands = head.commands(header);
    loop {
        let command = match commands.next(memory) {
            Ok(Some(command)) => command,
            Err(BadCommand::Unreadable) => return Err(unreadable),
            // The data read so far is kept.
            Ok(None) | Err(BadCommand::BeyondEnd | BadCommand::TooSmall) => break,
        };
        // A command that is shorter than its kind requires is ignored; one that can't be read means
        // that the image is gone.
        let read = match command.kind {
            LC_SEGMENT_64 => command.segment(memory).and_then(|segment| {
                let end = segment.address.saturating_add(segment.size);
                if segment.is_named(b"__TEXT") {
                    image.slide = header.wrapping_sub(segment.address);
                    text_end = end;
                }
                // `VM_PROT_*`: read 1, write 2, execute 4.
                let protection = segment.protection;
                let flags = (protection & 1) << 2 | protection & 2 | (protection >> 2) & 1;
                let shared = image.in_shared_cache && segment.is_named(b"__LINKEDIT");
                if flags != 0 && !shared {
                    last_end = last_end.max(end);
                    let (address, size, file_offset) = (segment.address, segment.size, segment.file_offset);
                    keep(&mut image, Segment { address, size, file_offset, flags });
                }
                command.each_section(memory, segment.section_count, |section| keep_section(&mut image, &section))
            }),
            LC_UUID => command.bytes::<24, M>(memory).map(|bytes| {
                if let Some(uuid) = bytes.last_chunk() {
                    image.uuid = *uuid;
                    image.has_uuid = true;
                }
            }),
            LC_ID_DYLIB => command.bytes::<24, M>(memory).map(|bytes| image.version = u32_at(&bytes, 16)),
            _ => Ok(()),
        };
        if read == Err(BadCommand::Unreadable) {
            return Err(unreadable);
        }
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
            *range = range.slid(slide);
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

/// Stores the range of a section, if it is relevant.
fn keep_section(image: &mut Image, section: &SectionHeader) {
    let in_text = section.is_in(b"__TEXT");
    let place = match () {
        () if in_text && section.is_named(b"__unwind_info") => &mut image.unwind_info,
        () if in_text && section.is_named(b"__eh_frame") => &mut image.eh_frame,
        () if in_text && section.is_named(b"__stubs") => &mut image.stubs,
        () if in_text && section.is_named(b"__stub_helper") => &mut image.stub_helper,
        () if in_text && section.is_named(b"__text") => &mut image.text_section,
        () if !in_text && section.is_named(b"__crash_info") => &mut image.crash_info,
        () => return,
    };
    *place = AddressRange { start: section.address, end: section.address.saturating_add(section.size) };
}

//! Parses an image's program headers: segments, build id, unwind data.
//!
//! Everything is read through the caller's [`Memory`], and may disappear while it is read.

use super::{AddressRange, Image, ImageKind, MAX_BUILD_ID, MAX_SEGMENTS, Segment};
use crate::elf::{self, FileHeader, HeaderTable};
use crate::memory::Memory;

/// Returns the slide of a program whose header table is where the kernel reports it.
pub(super) fn slide_of_headers<M: Memory>(memory: &mut M, table: HeaderTable, entry: u64) -> u64 {
    if let Some(own) = table.find(memory, elf::PT_PHDR) {
        return table.address.wrapping_sub(own.address);
    }
    // A static program has no PT_PHDR. Its file header is right before the table, and contains the
    // entry point.
    let at = table.address.wrapping_sub(FileHeader::SIZE as u64);
    let header = FileHeader::read(memory, at);
    match header.filter(|header| header.headers(at) == table) {
        Some(header) => entry.wrapping_sub(header.entry),
        // No file header is mapped: a program linked to a fixed address by a script.
        None => 0,
    }
}

impl Image {
    /// Reads an image through its header table. `None` if the table can't be read, or loads
    /// nothing.
    pub(super) fn read<M: Memory>(memory: &mut M, table: HeaderTable, slide: u64, page: u64) -> Option<Image> {
        let mut image = Image {
            kind: ImageKind::Library,
            range: AddressRange { start: u64::MAX, end: 0 },
            slide,
            dynamic: 0,
            eh_frame_hdr: AddressRange::default(),
            eh_frame: AddressRange::default(),
            sframe: AddressRange::default(),
            build_id_at: 0,
            build_id_length: 0,
            build_id: [0; MAX_BUILD_ID],
            segment_count: 0,
            segments: [Segment::default(); MAX_SEGMENTS],
            segments_dropped: 0,
        };
        // Linkers write one or two note segments; gold and mold write two, with the build id in the
        // second.
        let mut notes = [elf::ProgramHeader::default(); 4];
        let mut note_count = 0_usize;
        let (mut lowest, mut highest) = (u64::MAX, 0_u64);
        table
            .each(memory, |header| {
                let start = header.address.wrapping_add(slide);
                match header.kind {
                    elf::PT_LOAD => {
                        lowest = lowest.min(header.address);
                        highest = highest.max(header.address.saturating_add(header.memory_size));
                        image.add_segment(header);
                    }
                    elf::PT_DYNAMIC => image.dynamic = start,
                    elf::PT_GNU_EH_FRAME => {
                        image.eh_frame_hdr = AddressRange { start, end: start.saturating_add(header.memory_size) };
                    }
                    elf::PT_GNU_SFRAME => {
                        image.sframe = AddressRange { start, end: start.saturating_add(header.memory_size) };
                    }
                    elf::PT_NOTE => {
                        if let Some(note) = notes.get_mut(note_count) {
                            *note = *header;
                            note_count = note_count.saturating_add(1);
                        }
                    }
                    _ => {}
                }
            })
            .ok()?;
        if lowest >= highest {
            return None;
        }
        let page = page.max(4096);
        let mask = page.wrapping_sub(1);
        image.range.start = (lowest & !mask).wrapping_add(slide);
        image.range.end = (highest.saturating_add(mask) & !mask).wrapping_add(slide);
        if image.range.is_empty() {
            return None;
        }
        for note in notes.iter().take(note_count) {
            let start = note.address.wrapping_add(slide);
            if image.build_id_length == 0
                && let Some((at, length)) = elf::find_build_id(memory, start, note.memory_size, note.align)
            {
                image.read_build_id(memory, at, length);
            }
        }
        image.find_eh_frame(memory);
        Some(image)
    }

    fn add_segment(&mut self, header: &elf::ProgramHeader) {
        let segment = Segment {
            address: header.address,
            size: header.memory_size,
            file_offset: header.offset,
            flags: header.flags,
        };
        if let Some(to) = self.segments.get_mut(self.segment_count as usize) {
            *to = segment;
            self.segment_count = self.segment_count.saturating_add(1);
            return;
        }
        self.segments_dropped = self.segments_dropped.saturating_add(1);
        // Frames are looked up in code segments: drop a data segment instead.
        if segment.flags & elf::PF_X != 0
            && let Some(to) = self.segments.iter_mut().rev().find(|kept| kept.flags & elf::PF_X == 0)
        {
            *to = segment;
        }
    }

    fn read_build_id<M: Memory>(&mut self, memory: &mut M, at: u64, length: u32) {
        let mut bytes = [0; MAX_BUILD_ID];
        let kept = bytes.get_mut(..(length as usize).min(MAX_BUILD_ID)).unwrap_or(&mut []);
        if memory.read(at, kept).is_ok() {
            self.build_id = bytes;
            self.build_id_at = at;
            self.build_id_length = length;
        }
    }

    /// Whether the build id that was read is still there.
    ///
    /// An image without one counts as the same while its dynamic section can be read.
    pub(super) fn has_same_build_id<M: Memory>(&self, memory: &mut M) -> bool {
        if self.build_id_length == 0 {
            return memory.read_u64(self.dynamic).is_ok();
        }
        let mut bytes = [0; MAX_BUILD_ID];
        let kept = bytes.get_mut(..(self.build_id_length as usize).min(MAX_BUILD_ID)).unwrap_or(&mut []);
        memory.read(self.build_id_at, kept).is_ok() && bytes == self.build_id
    }

    /// Finds `.eh_frame`, from its start, which its header contains, to the end of its segment.
    ///
    /// The header often precedes it, so the header's own end is useless.
    fn find_eh_frame<M: Memory>(&mut self, memory: &mut M) {
        if self.eh_frame_hdr.is_empty() {
            return;
        }
        let Some(start) = elf::eh_frame_of_header(memory, self.eh_frame_hdr.start) else { return };
        let ranges = self.segments().iter().map(|segment| self.segment_range(segment));
        let end = ranges.filter(|range| range.contains(start)).map(|range| range.end).next();
        if let Some(end) = end {
            self.eh_frame = AddressRange { start, end };
        }
    }
}

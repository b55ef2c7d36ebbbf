//! The dynamic linker's list for debuggers, and reading the images that it names.
//!
//! `struct r_debug {int r_version; struct link_map *r_map; ElfW(Addr) r_brk; int r_state; ElfW(Addr) r_ldbase;}`, followed in
//! version 2 (glibc 2.35, for dlmopen) by `struct r_debug_extended *r_next`; `struct link_map {ElfW(Addr) l_addr; char
//! *l_name; ElfW(Dyn) *l_ld; struct link_map *l_next, *l_prev;}` (`link.h`).

use super::table::ListState;
use super::{AddressRange, Image, ImageKind, MAX_BUILD_ID, MAX_SEGMENTS, Segment};
use crate::linux::elf::{self, FileHeader, HeaderTable, PF_X};
use crate::memory::Memory;

/// `RT_CONSISTENT`: no change is under way.
const RT_CONSISTENT: u32 = 0;

/// Most namespaces that are looked at (glibc has 16).
const MAX_NAMESPACES: usize = 64;

/// How often a chain that changes underfoot is walked.
const WALKS: u32 = 4;

/// Bytes of a name that are read at once.
pub(super) const NAME_PIECE: usize = 64;

/// How far below its dynamic section an image's header is looked for, if it is not where the entry says.
const MAX_SEARCH: u64 = 16 << 20;

/// One entry of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkMap {
    /// Its own address.
    pub(super) at: u64,
    /// `l_addr`.
    pub(super) slide: u64,
    /// `l_name`: the address of the name.
    pub(super) name: u64,
    /// `l_ld`.
    pub(super) dynamic: u64,
    next: u64,
    previous: u64,
}

impl LinkMap {
    pub(super) fn read<M: Memory>(memory: &mut M, at: u64) -> Option<LinkMap> {
        // By words and not as one piece: a guarded load costs a nanosecond, a copy of any size tens of them.
        let (slide, name) = memory.read_pair(at).ok()?;
        let (dynamic, next) = memory.read_pair(at.wrapping_add(16)).ok()?;
        let previous = memory.read_u64(at.wrapping_add(32)).ok()?;
        Some(LinkMap { at, slide, name, dynamic, next, previous })
    }

    /// Whether the entry still says what it said (its links may change).
    pub(super) fn is_unchanged<M: Memory>(&self, memory: &mut M) -> bool {
        LinkMap::read(memory, self.at)
            .is_some_and(|now| now.slide == self.slide && now.name == self.name && now.dynamic == self.dynamic)
    }
}

/// What [`fingerprint`](super::fingerprint) is made of: the list's entries, one after the other, and what the linker says of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    pub(super) fn new(debug: u64) -> Self {
        Self(debug)
    }

    pub(super) fn add(&mut self, entry: &LinkMap) {
        for word in [entry.at, entry.slide, entry.dynamic] {
            self.mix(word);
        }
    }

    pub(super) fn finish(mut self, list: ListState) -> u64 {
        if matches!(list, ListState::Changing | ListState::Broken) {
            self.mix(1);
        }
        self.0
    }

    fn mix(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// Calls `each` with the entries of all namespaces; an entry may be told twice. No chain is followed beyond `most`
/// entries.
pub(super) fn walk<M: Memory>(
    memory: &mut M,
    debug: u64,
    most: usize,
    mut each: impl FnMut(&mut M, &LinkMap),
) -> ListState {
    let mut at = debug;
    let mut state = ListState::Absent;
    for _ in 0..MAX_NAMESPACES {
        if at == 0 {
            break;
        }
        let mut words = [[0; 8]; 4];
        if memory.read(at, words.as_flattened_mut()).is_err() {
            return ListState::Broken;
        }
        let [version, head, _, changing] = words.map(u64::from_le_bytes);
        let walked = if !walk_chain(memory, head, most, &mut each) {
            ListState::Broken
        } else if changing as u32 == RT_CONSISTENT {
            ListState::Consistent
        } else {
            ListState::Changing
        };
        state = match (state, walked) {
            (ListState::Broken, _) | (_, ListState::Broken) => ListState::Broken,
            (ListState::Changing, _) | (_, ListState::Changing) => ListState::Changing,
            (_, walked) => walked,
        };
        if (version as u32) < 2 {
            break;
        }
        at = memory.read_u64(at.wrapping_add(40)).unwrap_or(0);
    }
    state
}

/// Walks one namespace's chain; true if it was whole.
fn walk_chain<M: Memory>(memory: &mut M, head: u64, most: usize, each: &mut impl FnMut(&mut M, &LinkMap)) -> bool {
    for left in (0..WALKS).rev() {
        let (mut at, mut previous) = (head, 0);
        let mut whole = true;
        // A cycle comes back to the last entry whose number was a power of two (Brent).
        let mut milestone = 0;
        for number in 1..=most {
            if at == 0 || at == milestone {
                break;
            }
            if number.is_power_of_two() {
                milestone = at;
            }
            let Some(entry) = LinkMap::read(memory, at) else {
                whole = false;
                break;
            };
            if entry.previous != previous {
                // Entries were put in or taken out here, or this one was freed meanwhile: begin again. In a process that
                // stands still it never gets better, so the last walk takes what it finds.
                whole = false;
                if left > 0 {
                    break;
                }
            }
            each(memory, &entry);
            (previous, at) = (at, entry.next);
        }
        if whole {
            // A cycle that the back links hide, or more images than anybody has.
            return at == 0;
        }
    }
    false
}

/// Reads at most a piece of a name, up to its NUL or the end of the page (so that no more is read than must be there);
/// answers the bytes and whether the name ends with them.
pub(super) fn read_name_piece<'p, M: Memory>(
    memory: &mut M,
    at: u64,
    piece: &'p mut [u8; NAME_PIECE],
) -> Option<(&'p [u8], bool)> {
    let to_page_end = 4096_u64.wrapping_sub(at & 4095);
    let count = to_page_end.min(NAME_PIECE as u64) as usize;
    let bytes = piece.get_mut(..count)?;
    memory.read(at, bytes).ok()?;
    let bytes = piece.get(..count)?;
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => Some((bytes.get(..end)?, true)),
        None => Some((bytes, false)),
    }
}

/// Whether the name at `at` is `name`, to its end.
pub(super) fn is_named<M: Memory>(memory: &mut M, mut at: u64, name: &[u8]) -> bool {
    let mut rest = name;
    loop {
        let mut piece = [0; NAME_PIECE];
        let Some((bytes, ended)) = read_name_piece(memory, at, &mut piece) else { return false };
        let Some(after) = rest.strip_prefix(bytes) else { return false };
        if ended {
            return after.is_empty();
        }
        rest = after;
        at = at.saturating_add(bytes.len() as u64);
    }
}

/// The header table of the image whose file header is at `header`.
pub(super) fn headers_at<M: Memory>(memory: &mut M, header: u64) -> Option<HeaderTable> {
    FileHeader::read(memory, header).map(|header| header.headers)
}

/// The file header and header table of an entry's image, if that image is really there: its dynamic section must be the
/// entry's.
pub(super) fn find_headers<M: Memory>(memory: &mut M, entry: &LinkMap, page: u64) -> Option<(u64, HeaderTable)> {
    let is_it = |memory: &mut M, table: HeaderTable| {
        table.find(memory, elf::PT_DYNAMIC).is_some_and(|at| at.address.wrapping_add(entry.slide) == entry.dynamic)
    };
    if let Some(table) = headers_at(memory, entry.slide) {
        return is_it(memory, table).then_some((entry.slide, table));
    }
    // Linked to start at an address other than 0 (prelink, linker scripts, Android's packed relocations): the header is
    // somewhere below the dynamic section. But if that is gone, so is the image.
    memory.read_u64(entry.dynamic).ok()?;
    let page = page.max(4096);
    let mut at = entry.dynamic & !page.wrapping_sub(1);
    let lowest = at.saturating_sub(MAX_SEARCH);
    while at > lowest {
        if let Some(table) = headers_at(memory, at)
            && is_it(memory, table)
        {
            return Some((at, table));
        }
        at = at.saturating_sub(page);
    }
    None
}

/// The slide of a program whose header table is where the kernel says.
pub(super) fn slide_of_headers<M: Memory>(memory: &mut M, table: HeaderTable, entry: u64) -> u64 {
    if let Some(own) = table.find(memory, elf::PT_PHDR) {
        return table.address.wrapping_sub(own.address);
    }
    // A static program has no PT_PHDR. Its file header is right before the table, and names the entry point.
    let header = FileHeader::read(memory, table.address.wrapping_sub(64));
    match header.filter(|header| header.headers == table) {
        Some(header) => entry.wrapping_sub(header.entry),
        // No file header is mapped: a program linked to a fixed address by a script.
        None => 0,
    }
}

impl Image {
    /// Reads what an image's header table says and leads to. Nothing if the table can't be read, or loads nothing.
    pub(super) fn read<M: Memory>(memory: &mut M, table: HeaderTable, slide: u64, page: u64) -> Option<Image> {
        let mut image = Image {
            kind: ImageKind::Library,
            range: AddressRange { start: u64::MAX, end: 0 },
            slide,
            dynamic: 0,
            eh_frame_hdr: AddressRange::default(),
            eh_frame: AddressRange::default(),
            build_id_at: 0,
            build_id_length: 0,
            build_id: [0; MAX_BUILD_ID],
            segment_count: 0,
            segments: [Segment::default(); MAX_SEGMENTS],
            segments_dropped: 0,
        };
        // Linkers write one or two note segments; two with the build id in the second is what gold and mold do.
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
        // Text is what frames are looked up in: better lose data.
        if segment.flags & PF_X != 0
            && let Some(to) = self.segments.iter_mut().rev().find(|kept| kept.flags & PF_X == 0)
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

    /// Whether the build id that was read is still there. An image without one counts as the same while its dynamic
    /// section can be read.
    pub(super) fn has_same_build_id<M: Memory>(&self, memory: &mut M) -> bool {
        if self.build_id_length == 0 {
            return memory.read_u64(self.dynamic).is_ok();
        }
        let mut bytes = [0; MAX_BUILD_ID];
        let kept = bytes.get_mut(..(self.build_id_length as usize).min(MAX_BUILD_ID)).unwrap_or(&mut []);
        memory.read(self.build_id_at, kept).is_ok() && bytes == self.build_id
    }

    /// `.eh_frame` from its start, which its header gives, to the end of the segment that holds it; the header often
    /// stands before it, so that its own end says nothing.
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

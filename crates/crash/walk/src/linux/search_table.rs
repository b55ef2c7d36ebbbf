//! Search table for the `.eh_frame` of a program without `PT_GNU_EH_FRAME`, as linked by
//! `gcc -static`: found through its section headers, which are only in its file. The table is built
//! at install, once per process; without it, stacks in such a program are guesses.

use core::sync::atomic::{AtomicU64, Ordering};

use coroner_process::AddressRange;
use coroner_process::elf::{FileHeader, SectionHeader};
use coroner_process::files::{self, Descriptor};
use coroner_process::images::{Image, ImageKind};
use coroner_process::memory::Memory;
use coroner_unwind::{FrameSection, build_search_table};

/// Range of the section and of its table; 0 for none. The table's end is stored last.
static SECTION: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static TABLE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn load([start, end]: &[AtomicU64; 2]) -> AddressRange {
    AddressRange { end: end.load(Ordering::Acquire), start: start.load(Ordering::Acquire) }
}

fn store([start, end]: &[AtomicU64; 2], range: AddressRange) {
    start.store(range.start, Ordering::Release);
    end.store(range.end, Ordering::Release);
}

/// Returns an image's search table and its `.eh_frame`: from its program headers, or those that
/// were built.
pub(super) fn find(image: &Image) -> (AddressRange, AddressRange) {
    let table = load(&TABLE);
    if image.kind != ImageKind::Main || !image.eh_frame_hdr.is_empty() || table.is_empty() {
        return (image.eh_frame_hdr, image.eh_frame);
    }
    (table, load(&SECTION))
}

/// Builds the table if the program needs one (not async-signal-safe).
pub(super) fn prepare<M: Memory>(memory: &mut M, program: &Image) {
    if program.kind != ImageKind::Main || !program.eh_frame_hdr.is_empty() || !load(&TABLE).is_empty() {
        return;
    }
    let Some(section) = find_section(memory, program) else { return };
    // 16 bytes per entry, which itself has at least 16 bytes.
    let size = (section.end.wrapping_sub(section.start) as usize).saturating_add(64);
    let Ok(at) = files::map_untouched(size) else { return };
    // SAFETY: a fresh mapping of that size, all zero, that is passed to nobody else.
    let table = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, size) };
    let image = coroner_unwind::Image { eh_frame: section, ..coroner_unwind::Image::default() };
    let frames = FrameSection::eh_frame(&image);
    match build_search_table(memory, &frames, at as u64, table) {
        Ok(used) => {
            store(&SECTION, section);
            store(&TABLE, AddressRange { start: at as u64, end: at as u64 + used as u64 });
        }
        // SAFETY: the slice is used no more.
        Err(_) => unsafe { files::unmap(at, size) },
    }
}

/// Finds the section that is loaded as data and begins with a CIE: `.eh_frame`, whatever its name
/// is.
fn find_section<M: Memory>(memory: &mut M, program: &Image) -> Option<AddressRange> {
    let file = files::open(Descriptor::WORKING_DIRECTORY, c"/proc/self/exe", libc::O_RDONLY, 0).ok()?;
    find_section_in(&file, memory, program)
}

/// Reads the section headers by system calls: a mapping of a file that somebody cuts would fault.
fn find_section_in<M: Memory>(file: &Descriptor, memory: &mut M, program: &Image) -> Option<AddressRange> {
    let header = FileHeader::parse(&read_at(file, 0)?)?;
    (0..u64::from(header.section_count)).find_map(|index| {
        let at = index.checked_mul(SectionHeader::SIZE as u64)?.checked_add(header.sections_offset)?;
        let section = SectionHeader::parse(&read_at(file, at)?);
        let is_data = section.flags & 0x6 == 0x2; // SHF_ALLOC without SHF_EXECINSTR
        let start = section.address.wrapping_add(program.slide);
        let end = start.checked_add(section.size)?;
        (is_data && end <= program.range.end && is_cie(memory, start)).then_some(AddressRange { start, end })
    })
}

fn read_at<const N: usize>(file: &Descriptor, offset: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (files::read_at(file, &mut bytes, offset) == Ok(N)).then_some(bytes)
}

/// Returns `true` if there is a CIE at `address` in the form that compilers write: an ID of 0,
/// version 1, an augmentation that begins with `z`.
fn is_cie<M: Memory>(memory: &mut M, address: u64) -> bool {
    let mut bytes = [0; 10];
    memory.read(address, &mut bytes).is_ok()
        && matches!(bytes, [length, 0, 0, 0, 0, 0, 0, 0, 1, b'z'] if (12..=64).contains(&length))
}

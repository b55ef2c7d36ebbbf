//! 64-bit little-endian ELF, read through [`Memory`].
//!
//! Reads the file header, program and section headers, the dynamic section and notes, of loaded
//! images (the image list, live backtraces) and of files that are mapped or in a buffer (symbol
//! tables).
//!
//! The caller has no duties; everything read may be corrupt, or disappear while it is read.
//! Guarantees: no allocation, no panic, and every count is bounded. Limits: files with more than
//! [`MAX_HEADERS`] program headers are read in part, and `PN_XNUM` is not followed.
//!
//! Formats: the System V gABI (chapters "Object Files", "Program Header", "Note Section", "Dynamic
//! Section"), the LSB for `PT_GNU_EH_FRAME`, and the pointer encodings of the LSB's "DWARF
//! Extensions".

use crate::memory::{Memory, Unreadable, read_out_of_line, u16_at, u32_at, u64_at};

/// The first bytes of a 64-bit little-endian file: magic, `ELFCLASS64`, `ELFDATA2LSB`.
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];

/// `PT_LOAD`: a segment that is mapped.
pub const PT_LOAD: u32 = 1;
/// `PT_DYNAMIC`: the dynamic section.
pub const PT_DYNAMIC: u32 = 2;
/// `PT_NOTE`: notes, including the build id.
pub const PT_NOTE: u32 = 4;
/// `PT_PHDR`: the program headers themselves.
pub const PT_PHDR: u32 = 6;
/// `PT_GNU_EH_FRAME`: `.eh_frame_hdr`.
pub const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
/// `PT_GNU_SFRAME`: `.sframe`.
pub const PT_GNU_SFRAME: u32 = 0x6474_e554;
/// `PT_GNU_RELRO`: data that only relocation writes, and that is protected after it.
pub const PT_GNU_RELRO: u32 = 0x6474_e552;

/// The segment flag "executable".
pub const PF_X: u32 = 1;

/// Maximum number of program headers read; linkers write about a dozen.
pub const MAX_HEADERS: u16 = 64;

/// `DT_DEBUG`: the address of the dynamic linker's `r_debug`.
const DT_DEBUG: u64 = 21;
/// Maximum number of dynamic section entries read.
const MAX_DYNAMIC: u64 = 1024;

/// `NT_GNU_BUILD_ID`.
const NT_GNU_BUILD_ID: u32 = 3;
/// Maximum number of bytes read from a note segment.
const MAX_NOTES: u64 = 64 * 1024;

/// The file header (`Elf64_Ehdr`). Offsets are in the file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileHeader {
    /// `e_entry`: the address of the first instruction, as linked.
    pub entry: u64,
    /// `e_phoff`: offset of the program headers.
    pub headers_offset: u64,
    /// `e_phnum`; 0 if program headers don't have the size of `Elf64_Phdr`.
    pub header_count: u16,
    /// `e_shoff`: offset of the section headers.
    pub sections_offset: u64,
    /// `e_shnum`; 0 if section headers don't have the size of `Elf64_Shdr`.
    pub section_count: u16,
    /// Whether `e_type` is `ET_REL`: the file was not linked.
    pub is_relocatable: bool,
    /// `e_shstrndx`: index of the section with the section names.
    pub names_section: u16,
}

impl FileHeader {
    /// `sizeof(Elf64_Ehdr)`.
    pub const SIZE: usize = 64;

    /// Parses a header; `None` if it is not that of a 64-bit little-endian file.
    pub fn parse(bytes: &[u8; FileHeader::SIZE]) -> Option<FileHeader> {
        if !bytes.starts_with(&MAGIC) {
            return None;
        }
        let count = |size_at: usize, size: usize, at: usize| {
            if usize::from(u16_at(bytes, size_at)) == size { u16_at(bytes, at) } else { 0 }
        };
        Some(FileHeader {
            entry: u64_at(bytes, 24),
            headers_offset: u64_at(bytes, 32),
            header_count: count(54, ProgramHeader::SIZE, 56),
            sections_offset: u64_at(bytes, 40),
            section_count: count(58, SectionHeader::SIZE, 60),
            is_relocatable: u16_at(bytes, 16) == 1,
            names_section: u16_at(bytes, 62),
        })
    }

    /// Reads the header at `address`; `None` if there is none, or it can't be read.
    pub fn read<M: Memory>(memory: &mut M, address: u64) -> Option<FileHeader> {
        let mut bytes = [0; FileHeader::SIZE];
        read_out_of_line(memory, address, &mut bytes).ok()?;
        FileHeader::parse(&bytes)
    }

    /// Returns the location of the program headers, if this header is at `address`.
    pub fn headers(&self, address: u64) -> HeaderTable {
        HeaderTable { address: address.wrapping_add(self.headers_offset), count: self.header_count }
    }
}

/// Location of program headers in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderTable {
    /// Address of the first header.
    pub address: u64,
    /// Number of headers.
    pub count: u16,
}

/// A program header (`Elf64_Phdr`). Addresses are as linked, sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramHeader {
    /// `p_type`.
    pub kind: u32,
    /// `p_flags`.
    pub flags: u32,
    /// `p_offset`: offset in the file.
    pub offset: u64,
    /// `p_vaddr`.
    pub address: u64,
    /// `p_filesz`.
    pub file_size: u64,
    /// `p_memsz`.
    pub memory_size: u64,
    /// `p_align`.
    pub align: u64,
}

impl ProgramHeader {
    /// `sizeof(Elf64_Phdr)`.
    pub const SIZE: usize = 56;

    fn parse(bytes: &[u8; ProgramHeader::SIZE]) -> ProgramHeader {
        ProgramHeader {
            kind: u32_at(bytes, 0),
            flags: u32_at(bytes, 4),
            offset: u64_at(bytes, 8),
            address: u64_at(bytes, 16),
            file_size: u64_at(bytes, 32),
            memory_size: u64_at(bytes, 40),
            align: u64_at(bytes, 48),
        }
    }
}

impl HeaderTable {
    /// Calls `each` with every header.
    ///
    /// Not inlined, so that `xtask signal-safety` can follow the call in its loop.
    ///
    /// # Errors
    /// [`Unreadable`] if a header can't be read: the image is being unmapped, and a part of its
    /// headers is useless.
    #[inline(never)]
    pub fn each<M: Memory>(self, memory: &mut M, mut each: impl FnMut(&ProgramHeader)) -> Result<(), Unreadable> {
        // Several at a time: a kernel copy costs the same whatever its size.
        const AT_ONCE: usize = 16;
        let mut bytes = [[0; ProgramHeader::SIZE]; AT_ONCE];
        let mut left = usize::from(self.count.min(MAX_HEADERS));
        let mut at = self.address;
        while left > 0 {
            let piece = bytes.get_mut(..left.min(AT_ONCE)).unwrap_or_default();
            read_out_of_line(memory, at, piece.as_flattened_mut())?;
            for header in piece.iter() {
                each(&ProgramHeader::parse(header));
            }
            at = at.wrapping_add(piece.as_flattened().len() as u64);
            left = left.saturating_sub(AT_ONCE);
        }
        Ok(())
    }

    /// Returns the first header of a kind; `None` if there is none, or the headers can't be read.
    ///
    /// Not inlined, so that `xtask signal-safety` can follow the call in its loop.
    #[inline(never)]
    pub fn find<M: Memory>(self, memory: &mut M, kind: u32) -> Option<ProgramHeader> {
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

/// A section header (`Elf64_Shdr`). Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectionHeader {
    /// `sh_type`.
    pub kind: u32,
    /// `sh_flags`.
    pub flags: u64,
    /// `sh_addr`: as linked.
    pub address: u64,
    /// `sh_offset`: offset in the file.
    pub offset: u64,
    /// `sh_size`.
    pub size: u64,
    /// `sh_link`: for a symbol table, the index of its string section.
    pub link: u32,
    /// `sh_addralign`.
    pub align: u64,
}

impl SectionHeader {
    /// `sizeof(Elf64_Shdr)`.
    pub const SIZE: usize = 64;

    /// Parses a header.
    pub fn parse(bytes: &[u8; SectionHeader::SIZE]) -> SectionHeader {
        SectionHeader {
            kind: u32_at(bytes, 4),
            flags: u64_at(bytes, 8),
            address: u64_at(bytes, 16),
            offset: u64_at(bytes, 24),
            size: u64_at(bytes, 32),
            link: u32_at(bytes, 40),
            align: u64_at(bytes, 48),
        }
    }
}

/// Returns the address and length of the GNU build id in the notes at `start`.
///
/// The notes are `size` bytes long and aligned to `align`. `None` if there is no build id.
#[inline(never)]
pub fn find_build_id<M: Memory>(memory: &mut M, start: u64, size: u64, align: u64) -> Option<(u64, u32)> {
    // Notes are aligned to 4, or to 8 if the segment is (the x86-64 psABI's property notes).
    let align = if align == 8 { 8_u64 } else { 4 };
    let round = |size: u64| size.wrapping_add(align.wrapping_sub(1)) & !align.wrapping_sub(1);
    let size = size.min(MAX_NOTES);
    let mut at = 0_u64;
    while at.wrapping_add(12) <= size {
        // {u32 namesz, u32 descsz, u32 type, name, desc}
        let mut bytes = [0; 16];
        read_out_of_line(memory, start.wrapping_add(at), bytes.get_mut(..12)?).ok()?;
        let (name, length, kind) = (u32_at(&bytes, 0), u32_at(&bytes, 4), u32_at(&bytes, 8));
        let name_at = at.wrapping_add(12);
        let value_at = round(name_at.wrapping_add(u64::from(name)));
        let end = value_at.wrapping_add(u64::from(length));
        if end > size {
            return None;
        }
        if kind == NT_GNU_BUILD_ID && name == 4 && length > 0 {
            let mut owner = [0; 4];
            read_out_of_line(memory, start.wrapping_add(name_at), &mut owner).ok()?;
            if owner == *b"GNU\0" {
                return Some((start.wrapping_add(value_at), length));
            }
        }
        at = round(end);
    }
    None
}

/// Returns the start of `.eh_frame`, to which the `.eh_frame_hdr` at `start` points.
///
/// `None` if that can't be read, or has a version or encoding that no linker writes.
pub fn eh_frame_of_header<M: Memory>(memory: &mut M, start: u64) -> Option<u64> {
    // {u8 version = 1, u8 eh_frame_ptr_enc, u8 fde_count_enc, u8 table_enc, eh_frame_ptr, …}
    let mut bytes = [0; 12];
    memory.read(start, &mut bytes).ok()?;
    let [1, encoding, ..] = bytes else { return None };
    // DW_EH_PE: the low half is the format, the high half is the base.
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

/// Calls `each` with tag and value of the dynamic section's entries.
///
/// Ends at the end of the section at `start`, or when `each` returns false.
///
/// # Errors
/// [`Unreadable`] if an entry can't be read.
pub fn each_dynamic<M: Memory>(
    memory: &mut M,
    start: u64,
    size: u64,
    mut each: impl FnMut(u64, u64) -> bool,
) -> Result<(), Unreadable> {
    for index in 0..(size / 16).min(MAX_DYNAMIC) {
        let (tag, value) = memory.read_pair(start.wrapping_add(index.wrapping_mul(16)))?;
        if tag == 0 || !each(tag, value) {
            break;
        }
    }
    Ok(())
}

/// Returns the value of `DT_DEBUG` in the dynamic section at `start`.
///
/// 0 before the dynamic linker has written it, `None` if the program has no dynamic linker.
///
/// Not inlined, so that `xtask signal-safety` knows its loop by name.
#[inline(never)]
pub fn debug_entry<M: Memory>(memory: &mut M, start: u64, size: u64) -> Option<u64> {
    let mut debug = None;
    each_dynamic(memory, start, size, |tag, value| {
        if tag == DT_DEBUG {
            debug = Some(value);
        }
        debug.is_none()
    })
    .ok()?;
    debug
}

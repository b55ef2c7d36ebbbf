//! The ELF images of a saved process.
//!
//! They are found from its mapped files, their saved headers, and its auxiliary vector.
//!
//! Sources: Linux `include/uapi/linux/auxvec.h`, gABI 4.1.

use std::collections::BTreeMap;

use coroner_report::model::{Address, Bytes, Image, Segment, TextRange};
use coroner_report::wire::ImageKind;
use object::elf;

use super::SavedMemory;
use super::user_regs::{half, word};
use crate::MAX_IMAGES;

/// Maximum size of an image's headers, and of its notes with the build id, in bytes.
const MAX_HEADERS_BYTES: usize = 1 << 20;
/// The name in reports for the code that the kernel maps into each process.
const VDSO: &str = "[vdso]";

const AT_PHDR: u64 = 3;
const AT_ENTRY: u64 = 9;
/// Key of the address of random bytes, which the kernel puts on the first thread's stack.
pub const AT_RANDOM: u64 = 25;
/// Key of the vdso's address in the auxiliary vector.
pub const AT_SYSINFO_EHDR: u64 = 33;

type Header64 = elf::FileHeader64<object::Endianness>;

/// A mapped part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile {
    /// Address of its first byte.
    pub start: u64,
    /// Address after its last byte.
    pub end: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The file's path.
    pub path: String,
    /// Whether the part is executable.
    pub is_code: bool,
}

/// Returns the value of `key` in an auxiliary vector.
pub fn auxiliary(desc: &[u8], key: u64) -> Option<u64> {
    let mut pairs = desc.as_chunks::<16>().0.iter().map(|pair| (word(pair, 0), word(pair, 8)));
    pairs.find(|(found, _)| *found == Some(key)).and_then(|(_, value)| value)
}

/// Returns the loaded images: files with code that are mapped from their first byte on, and the
/// vdso.
pub fn images(files: &[MappedFile], auxiliary: &[u8], memory: &SavedMemory<'_>) -> Vec<Image> {
    let auxiliary = |key| self::auxiliary(auxiliary, key);
    // If a file is mapped several times, its parts belong to the image with the highest start below
    // them.
    let mut by_start: BTreeMap<u64, Vec<&MappedFile>> = BTreeMap::new();
    for file in files {
        if file.offset == 0 && by_start.len() < MAX_IMAGES {
            let of_before = by_start.values().next_back().is_some_and(|parts: &Vec<&MappedFile>| {
                // The page with the headers may be mapped a second time: directly after the first,
                // or where a small program's data begin.
                let is_inside =
                    |facts: Facts| file.start - parts[0].start < facts.extent.1.saturating_sub(facts.extent.0);
                let last = parts.last().is_some_and(|last| last.path == file.path && last.end == file.start);
                let is_same = || parts[0].path == file.path;
                last || is_same() && Facts::find(parts[0], memory).map_or(!file.is_code, is_inside)
            });
            if !of_before {
                by_start.insert(file.start, vec![file]);
                continue;
            }
        }
        if let Some((_, parts)) = by_start.range_mut(..=file.start).next_back()
            && parts[0].path == file.path
        {
            parts.push(file);
        }
    }
    let mut images: Vec<Image> = by_start.values().filter_map(|parts| image(parts, memory)).collect();
    let main = auxiliary(AT_PHDR).or_else(|| auxiliary(AT_ENTRY));
    if let Some(main) = main.and_then(|address| images.iter_mut().find(|image| image.contains(Address(address)))) {
        main.is_main = true;
    }
    if let Some(vdso) = auxiliary(AT_SYSINFO_EHDR) {
        let end = vdso.saturating_add(0x2000);
        let part = MappedFile { start: vdso, end, offset: 0, path: VDSO.to_owned(), is_code: false };
        images.extend(image(&[&part], memory));
    }
    images
}

/// Returns the image made up of `parts`, if it is one.
///
/// Its properties come from its saved headers, else from those in its file if that is laid out as
/// the parts are, else from the parts.
fn image(parts: &[&MappedFile], memory: &SavedMemory<'_>) -> Option<Image> {
    let (first, end) = (parts[0], parts.iter().map(|part| part.end).max()?);
    let saved = saved_headers(first, memory);
    let facts = Facts::find(first, memory).filter(|facts| saved.is_some() || facts.fit(parts));
    let facts = facts.or_else(|| Facts::from_parts(parts))?;
    let replaced = facts.build_id.is_empty() && saved.is_some_and(|saved| !begins_with(&first.path, saved));
    let (low, high) = facts.extent;
    let slide = first.start.wrapping_sub(low);
    let text = facts.text.unwrap_or((low, 0));
    Some(Image {
        kind: ImageKind::ELF,
        path: first.path.clone(),
        load_address: Address(first.start),
        slide: Address(slide),
        size: (high - low).max(if first.path == VDSO { 0 } else { end - first.start }),
        text: TextRange { address: Address(text.0.wrapping_add(slide)), size: text.1 },
        build_id: Bytes::from(facts.build_id),
        replaced,
        segments: facts
            .segments
            .iter()
            .map(|(address, size, offset, protection)| Segment {
                address: Address(address.wrapping_add(slide)),
                size: *size,
                file_offset: *offset,
                protection: *protection,
            })
            .collect(),
        ..Image::default()
    })
}

fn saved_headers<'b>(first: &MappedFile, memory: &SavedMemory<'b>) -> Option<&'b [u8]> {
    memory.at(first.start).filter(|bytes| bytes.starts_with(b"\x7fELF"))
}

/// Whether the file at `path` starts with the loaded headers. For an image without a build id, only
/// this distinguishes it from a replacement. Returns `true` if the file is missing, because then
/// nothing is read from it.
fn begins_with(path: &str, saved: &[u8]) -> bool {
    use std::io::Read;
    /// Bytes that no program has reason to change: the headers, without relocated data.
    const COMPARED_BYTES: usize = 4096;
    let is_file = path.starts_with('/') && std::fs::metadata(path).is_ok_and(|about| about.is_file());
    let Some(file) = is_file.then(|| std::fs::File::open(path).ok()).flatten() else { return true };
    let mut bytes = Vec::new();
    // What was read before an error is used.
    let _ = file.take(saved.len().min(COMPARED_BYTES) as u64).read_to_end(&mut bytes);
    // Memory after the end of a small file contains zeros.
    saved.starts_with(&bytes) && bytes.len() > size_of::<Header64>()
}

/// An ELF file's properties.
#[derive(Debug, Default)]
struct Facts {
    /// Lowest address, and the address after the highest.
    extent: (u64, u64),
    /// Address and size of the code.
    text: Option<(u64, u64)>,
    /// Address, size, file offset, access rights.
    segments: Vec<(u64, u64, u64, u8)>,
    build_id: Vec<u8>,
}

impl Facts {
    /// Returns the properties of the image that starts with `first`: from its saved headers, or
    /// from its file, because the kernel omits what can be read from there.
    fn find(first: &MappedFile, memory: &SavedMemory<'_>) -> Option<Facts> {
        match saved_headers(first, memory) {
            Some(_) => Facts::read(|offset, length| memory.bytes(first.start.checked_add(offset)?, length)),
            None => Facts::read_from_file(&first.path),
        }
    }

    /// Whether the mapped parts are those of this file's segments. Otherwise the file was replaced,
    /// or the dump is of another machine.
    fn fit(&self, parts: &[&MappedFile]) -> bool {
        const PAGE: u64 = 0x1000;
        let slide = parts[0].start.wrapping_sub(self.extent.0);
        parts.iter().all(|part| {
            let mut segments = self.segments.iter();
            segments.any(|(address, size, offset, _)| {
                let start = (address & !(PAGE - 1)).wrapping_add(slide);
                let is_inside = part.start >= start && part.start < address.wrapping_add(*size).wrapping_add(slide);
                is_inside && part.start - start == part.offset.wrapping_sub(offset & !(PAGE - 1))
            })
        })
    }

    /// Returns the properties of an image without its headers. `None` for a file without code.
    fn from_parts(parts: &[&MappedFile]) -> Option<Facts> {
        let first = parts[0].start;
        let code = parts.iter().find(|part| part.is_code)?;
        let segment = |part: &&MappedFile| {
            (part.start - first, part.end - part.start, part.offset, if part.is_code { 5 } else { 4 })
        };
        Some(Facts {
            extent: (0, parts.iter().map(|part| part.end - first).max()?),
            text: Some((code.start - first, code.end - code.start)),
            segments: parts.iter().map(segment).collect(),
            build_id: Vec::new(),
        })
    }

    fn read_from_file(path: &str) -> Option<Facts> {
        use std::io::{Read, Seek, SeekFrom};
        if !path.starts_with('/') || !std::fs::metadata(path).ok()?.is_file() {
            return None;
        }
        let file = std::fs::File::open(path).ok()?;
        Facts::read(|offset, length| {
            let mut bytes = vec![0; length.min(MAX_HEADERS_BYTES)];
            let mut file = &file;
            file.seek(SeekFrom::Start(offset)).ok()?;
            file.read_exact(&mut bytes).ok()?;
            Some(bytes)
        })
    }

    /// Parses the headers. `read` returns bytes at an offset from the file's first byte, as it was
    /// loaded.
    fn read(read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<Facts> {
        const HEADER: usize = size_of::<Header64>();
        let start = read(0, HEADER)?;
        if !start.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        // Little-endian, fields of `Elf64_Ehdr`: e_phoff, e_phentsize, e_phnum.
        let offset = word(&start, 32)?;
        let (size, count) = (u16::from_le_bytes([start[54], start[55]]), u16::from_le_bytes([start[56], start[57]]));
        if size != 56 || count == 0 {
            return None;
        }
        let headers = read(offset, usize::from(size) * usize::from(count))?;
        let mut facts = Facts { extent: (u64::MAX, 0), ..Facts::default() };
        let mut notes_at = Vec::new();
        for header in headers.chunks_exact(usize::from(size)) {
            // `Elf64_Phdr`: p_type, p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz,
            // p_align.
            let (kind, flags) = (half(header, 0)?, half(header, 4)?);
            let (offset, address) = (word(header, 8)?, word(header, 16)?);
            let (in_file, in_memory) = (word(header, 32)?, word(header, 40)?);
            match kind {
                1 => {
                    let end = address.checked_add(in_memory)?;
                    facts.extent = (facts.extent.0.min(address & !0xfff), facts.extent.1.max(end));
                    // Access rights in reports: 1 execute, 2 write, 4 read, as in `p_flags`.
                    facts.segments.push((address, in_memory, offset, (flags & 7) as u8));
                    if flags & 1 != 0 && facts.text.is_none() {
                        facts.text = Some((address, in_memory));
                    }
                }
                4 => notes_at.push((offset, usize::try_from(in_file).ok()?.min(MAX_HEADERS_BYTES))),
                _ => {}
            }
        }
        if facts.segments.is_empty() {
            return None;
        }
        facts.build_id =
            notes_at.into_iter().find_map(|(offset, size)| build_id(&read(offset, size)?)).unwrap_or_default();
        Some(facts)
    }
}

/// Returns the `NT_GNU_BUILD_ID` in a list of notes.
fn build_id(mut list: &[u8]) -> Option<Vec<u8>> {
    const NT_GNU_BUILD_ID: u32 = 3;
    while list.len() >= 12 {
        let (name, desc, kind) = (half(list, 0)?, half(list, 4)?, half(list, 8)?);
        let (name_size, desc_size) = (usize::try_from(name).ok()?, usize::try_from(desc).ok()?);
        let name_end = 12_usize.checked_add(name_size)?;
        let desc_at = name_end.checked_next_multiple_of(4)?;
        let desc_end = desc_at.checked_add(desc_size)?;
        if kind == NT_GNU_BUILD_ID && list.get(12..name_end)? == b"GNU\0" {
            return Some(list.get(desc_at..desc_end)?.to_vec());
        }
        list = list.get(desc_end.checked_next_multiple_of(4)?..)?;
    }
    None
}

//! ELF symbol tables: a file's `.symtab` or `.dynsym`, or a loaded image's dynamic symbols.
//!
//! [`crate::elf`] reads the headers. Source: gABI 4.1, `elf.h`.

use crate::elf::{self, FileHeader, HeaderTable, SectionHeader};
use crate::memory::{Memory, u16_at, u32_at, u64_at};

use super::{CHUNK, Candidate, Extent, NameAt, Problem, Queries, ScanError, Window};

/// A loaded ELF image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfLoaded {
    /// The address of the image's first byte: the ELF header.
    pub load_address: u64,
    /// Difference between the addresses in memory and in the file.
    pub slide: u64,
    /// Bytes from the image's first byte to the end of its last segment.
    pub size: u64,
}

/// A scan's outcome, and the string table that contains the names.
pub(crate) struct Scanned {
    pub(crate) strings: Extent,
    pub(crate) outcome: Result<(), ScanError>,
}

impl Scanned {
    fn failed(error: ScanError) -> Self {
        Self { strings: Extent { address: 0, size: 0 }, outcome: Err(error) }
    }
}

const SHT_SYMTAB: u32 = 2;
const SHT_NOTE: u32 = 7;
const SHT_DYNSYM: u32 = 11;
const SHF_ALLOC: u64 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Size of an `Elf64_Sym`.
const SYMBOL: usize = 24;
const PROGRAM_HEADER: u64 = elf::ProgramHeader::SIZE as u64;

/// The ELF header, checked to be 64-bit and little-endian.
fn header<M: Memory>(memory: &mut M, file: Extent) -> Result<FileHeader, ScanError> {
    FileHeader::parse(&file.array(memory, 0)?).ok_or(ScanError { offset: 0, problem: Problem::NotThisFormat })
}

fn section_header<M: Memory>(memory: &mut M, table: Extent, index: u64) -> Result<SectionHeader, ScanError> {
    let at = index.saturating_mul(SectionHeader::SIZE as u64);
    Ok(SectionHeader::parse(&table.array(memory, at)?))
}

pub(crate) fn scan_file<const N: usize, M: Memory>(
    queries: &mut Queries<N>,
    memory: &mut M,
    file: Extent,
    build_id: Option<&[u8]>,
    limit: u32,
    chunk: &mut [u8; CHUNK],
) -> Scanned {
    match tables_of_file(queries, memory, file, build_id) {
        Ok((symbols, strings)) => Scanned { strings, outcome: scan_symbols(queries, memory, symbols, limit, chunk) },
        Err(error) => Scanned::failed(error),
    }
}

/// Returns the symbol table to use and its strings.
///
/// Offers the starts and ends of loaded sections to the queries.
fn tables_of_file<const N: usize, M: Memory>(
    queries: &mut Queries<N>,
    memory: &mut M,
    file: Extent,
    build_id: Option<&[u8]>,
) -> Result<(Extent, Extent), ScanError> {
    let header = header(memory, file)?;
    let count = u64::from(header.section_count);
    let beyond = |offset| ScanError { offset, problem: Problem::BeyondEnd };
    if count == 0 {
        return Err(ScanError { offset: 58, problem: Problem::BadHeader });
    }
    let table =
        file.part(header.sections_offset, count.saturating_mul(SectionHeader::SIZE as u64)).ok_or(beyond(40))?;
    let mut symbols = None;
    let mut same_id = build_id.is_none();
    for index in 0..count {
        let section = section_header(memory, table, index)?;
        match section.kind {
            SHT_SYMTAB => symbols = Some(section),
            SHT_DYNSYM if symbols.is_none() => symbols = Some(section),
            SHT_NOTE if !same_id => {
                if let (Some(notes), Some(id)) = (file.part(section.offset, section.size), build_id) {
                    same_id = notes_have_id(memory, notes, section.align, id);
                }
            }
            _ => {}
        }
        if section.flags & SHF_ALLOC != 0 {
            queries.boundary(section.address);
            queries.boundary(section.address.saturating_add(section.size));
        }
    }
    if !same_id {
        return Err(ScanError { offset: 0, problem: Problem::OtherId });
    }
    let Some(symbols) = symbols else { return Ok(Default::default()) };
    let strings = section_header(memory, table, u64::from(symbols.link))?;
    Ok((
        file.part(symbols.offset, symbols.size).ok_or(beyond(symbols.offset))?,
        file.part(strings.offset, strings.size).ok_or(beyond(strings.offset))?,
    ))
}

/// Whether the GNU build id in these notes is `id`.
fn notes_have_id<M: Memory>(memory: &mut M, notes: Extent, align: u64, id: &[u8]) -> bool {
    let Some((at, length)) = elf::find_build_id(memory, notes.address, notes.size, align) else { return false };
    let mut theirs = [0; 64];
    let Some(theirs) = theirs.get_mut(..id.len()) else { return false };
    length as usize == id.len() && memory.read(at, theirs).is_ok() && theirs == id
}

pub(crate) fn scan_loaded<const N: usize, M: Memory>(
    queries: &mut Queries<N>,
    memory: &mut M,
    image: ElfLoaded,
    limit: u32,
    chunk: &mut [u8; CHUNK],
) -> Scanned {
    match tables_of_image(memory, image) {
        Ok((symbols, strings)) => Scanned { strings, outcome: scan_symbols(queries, memory, symbols, limit, chunk) },
        Err(error) => Scanned::failed(error),
    }
}

/// Returns the tables of `DT_SYMTAB` and `DT_STRTAB` of a loaded image.
fn tables_of_image<M: Memory>(memory: &mut M, image: ElfLoaded) -> Result<(Extent, Extent), ScanError> {
    let whole = Extent { address: image.load_address, size: image.size };
    let header = header(memory, whole)?;
    let bad = |offset| ScanError { offset, problem: Problem::BadHeader };
    let headers = whole.part(header.headers_offset, u64::from(header.header_count).saturating_mul(PROGRAM_HEADER));
    let headers = HeaderTable { address: headers.ok_or(bad(32))?.address, count: header.header_count };
    let dynamic = headers.find(memory, elf::PT_DYNAMIC).ok_or(bad(32))?;
    let base = image.load_address.wrapping_sub(image.slide);
    let dynamic = whole.part(dynamic.address.wrapping_sub(base), dynamic.memory_size).ok_or(bad(32))?;
    let (mut symbols, mut strings, mut strings_size, mut hash, mut gnu_hash) = (0, 0, 0, 0, 0);
    elf::each_dynamic(memory, dynamic.address, dynamic.size, |tag, value| {
        match tag {
            DT_SYMTAB => symbols = value,
            DT_STRTAB => strings = value,
            DT_STRSZ => strings_size = value,
            DT_HASH => hash = value,
            DT_GNU_HASH => gnu_hash = value,
            _ => {}
        }
        true
    })
    .map_err(|_| ScanError { offset: dynamic.address.wrapping_sub(whole.address), problem: Problem::Unreadable })?;
    // glibc rewrites these to addresses in memory; musl, the vDSO and Android keep the file's. Both
    // are in the image.
    let offset = |value: u64| {
        let absolute = value.wrapping_sub(image.load_address);
        if absolute < image.size { absolute } else { value.wrapping_sub(base) }
    };
    let count = if hash != 0 {
        let words: [u8; 8] = whole.array(memory, offset(hash))?;
        u64::from(u32_at(&words, 4))
    } else if gnu_hash != 0 {
        gnu_hash_count(memory, whole, offset(gnu_hash))?
    } else {
        return Err(bad(32));
    };
    let symbols_at = offset(symbols);
    let symbols = whole.part(symbols_at, count.saturating_mul(SYMBOL as u64));
    let strings = whole.part(offset(strings), strings_size);
    match (symbols, strings) {
        (Some(symbols), Some(strings)) => Ok((symbols, strings)),
        _ => Err(ScanError { offset: symbols_at, problem: Problem::BeyondEnd }),
    }
}

/// Returns the number of dynamic symbols, from the last chain of the GNU hash table.
///
/// No header contains it.
fn gnu_hash_count<M: Memory>(memory: &mut M, whole: Extent, table: u64) -> Result<u64, ScanError> {
    let header: [u8; 16] = whole.array(memory, table)?;
    let (buckets, first_hashed, bloom) = (u32_at(&header, 0), u32_at(&header, 4), u32_at(&header, 8));
    let buckets_at = table.saturating_add(16).saturating_add(u64::from(bloom).saturating_mul(8));
    let chains_at = buckets_at.saturating_add(u64::from(buckets).saturating_mul(4));
    let mut last = 0u32;
    for index in 0..u64::from(buckets) {
        let word: [u8; 4] = whole.array(memory, buckets_at.saturating_add(index.saturating_mul(4)))?;
        last = last.max(u32::from_le_bytes(word));
    }
    if last < first_hashed {
        return Ok(u64::from(first_hashed));
    }
    loop {
        let index = u64::from(last.wrapping_sub(first_hashed));
        // Ends at the image's end at the latest, because reading beyond it is an error.
        let word: [u8; 4] = whole.array(memory, chains_at.saturating_add(index.saturating_mul(4)))?;
        last = last.saturating_add(1);
        if u32::from_le_bytes(word) & 1 == 1 {
            return Ok(u64::from(last));
        }
    }
}

fn scan_symbols<const N: usize, M: Memory>(
    queries: &mut Queries<N>,
    memory: &mut M,
    symbols: Extent,
    limit: u32,
    chunk: &mut [u8; CHUNK],
) -> Result<(), ScanError> {
    let limited = u64::from(limit).saturating_mul(SYMBOL as u64);
    let used = Extent { size: symbols.size.min(limited), ..symbols };
    let mut window = Window::new(memory, used, chunk);
    let mut offset = 0u64;
    while offset < used.size {
        let entries = window.entries(offset)?;
        let (entries, rest) = entries.as_chunks::<SYMBOL>();
        if entries.is_empty() {
            break;
        }
        offset = offset.saturating_add((entries.len() as u64).saturating_mul(SYMBOL as u64));
        offset = offset.saturating_add(rest.len() as u64);
        for entry in entries {
            offer(queries, entry);
        }
    }
    if symbols.size > used.size {
        return Err(ScanError { offset: used.size, problem: Problem::Limit });
    }
    Ok(())
}

/// Offers a symbol table entry to the queries.
///
/// `st_name` 0..4, `st_info` 4, `st_shndx` 6..8, `st_value` 8..16, `st_size` 16..24.
#[inline]
fn offer<const N: usize>(queries: &mut Queries<N>, entry: &[u8; SYMBOL]) {
    let svma = u64_at(entry, 8);
    let info = entry[4];
    let section = u16_at(entry, 6);
    // SHN_UNDEF, and the reserved indexes (SHN_ABS, SHN_COMMON) except SHN_XINDEX, which stands for
    // a large one.
    if section == 0 || (section >= 0xff00 && section != 0xffff) {
        return;
    }
    // STT_NOTYPE, STT_FUNC and STT_GNU_IFUNC; by STB_LOCAL, STB_GLOBAL, STB_WEAK.
    let rank = match (info & 0xf, info >> 4) {
        (0, _) => 1,
        (2 | 10, 0) => 2,
        (2 | 10, 2) => 3,
        (2 | 10, _) => 4,
        _ => return,
    };
    let name = u32_at(entry, 0);
    if name != 0 {
        queries.offer(svma, u64_at(entry, 16), Candidate { rank, name: NameAt::String(name) });
    }
}

//! Function names for addresses, without allocation: one pass over a symbol table finds them all.
//!
//! For the dying process itself, after everything else is on disk, so that frames of system
//! libraries have names even if no server has their symbols; and for live backtraces.
//!
//! The caller's duties: it provides all memory beforehand ([`NameScan`] is a plain value of known
//! size, made for a `static`), and a [`Memory`] that returns errors for bad addresses.
//!
//! Guarantees: no allocation, no lock, no call but the memory's, no panic. Symbol tables can be
//! corrupt: every offset is checked against its table, work is bounded by the caller's limit of
//! entries, and an export trie with cycles ends at a bounded depth and length. A wrong table gives
//! wrong names, never a fault.
//!
//! Limits: names are the linker's, still mangled, and inlined calls have none.
//!
//! A linear pass beats an index here. 64 addresses in 165,000 symbols are found in the time that it
//! takes to read the table once; building any index requires the same reading, a sort, and memory.
//!
//! # Use
//! ```
//! # use coroner_process::symtab::{Extent, LookupAddress, NameScan};
//! # use coroner_process::memory::{Snapshot, SnapshotRange};
//! # let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
//! # let ranges = [SnapshotRange { address: 0x1000, bytes: &file }];
//! # let mut memory = Snapshot { ranges: &ranges };
//! # let mapped = Extent { address: 0x1000, size: file.len() as u64 };
//! # #[cfg(target_os = "linux")] {
//! static SCAN: std::sync::Mutex<NameScan<64>> = std::sync::Mutex::new(NameScan::new());
//!
//! let mut scan = SCAN.lock().unwrap();
//! scan.clear();
//! scan.push(LookupAddress::of_return_address(0x4321), 7);
//! // `mapped`: where the image's file is mapped. Its build id must be the loaded image's.
//! scan.elf_file(&mut memory, mapped, None, 1_000_000).unwrap();
//! scan.for_each_name(&mut memory, &mut [0; 512], |named| {
//!     assert_eq!(named.tag, 7);
//!     let _ = (named.name, named.symbol_svma);
//! });
//! # }
//! ```

mod elf_symbols;
mod export_trie;
mod extent;
mod lookup_address;
mod macho_symbols;
mod nearest_symbol;

use crate::memory::Memory;

pub use elf_symbols::ElfLoaded;
use extent::Window;
pub use extent::{CHUNK, Extent};
pub use lookup_address::LookupAddress;
pub use macho_symbols::{MachO, Nlist, Placement, Section};
use nearest_symbol::{Candidate, NameAt, Queries};

/// Why a table couldn't be scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanError {
    /// Offset from the start of the file, the image or the table that [`Problem`] is about.
    pub offset: u64,
    /// The problem.
    pub problem: Problem,
}

/// The problem that stopped a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The memory there can't be read (unmapped, or the file was truncated).
    Unreadable,
    /// A structure extends beyond the end of its container.
    BeyondEnd,
    /// There is no ELF or Mach-O header of a 64-bit little-endian image.
    NotThisFormat,
    /// A header field has an impossible value.
    BadHeader,
    /// The file's id differs from the image's.
    OtherId,
    /// A LEB128 number has more than 64 bits.
    NumberTooLarge,
    /// An export trie is deeper than [`MAX_TRIE_DEPTH`], or has a cycle.
    TooDeep,
    /// The limit of entries was reached: the names found are right, but may not be all.
    Limit,
}

impl core::fmt::Display for Problem {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Unreadable => "can't be read",
            Self::BeyondEnd => "a structure reaches beyond the end",
            Self::NotThisFormat => "no 64-bit little-endian header of this format",
            Self::BadHeader => "a header field has an impossible value",
            Self::OtherId => "the file's id is another than the image's",
            Self::NumberTooLarge => "a LEB128 number has more than 64 bits",
            Self::TooDeep => "an export trie is too deep or has a cycle",
            Self::Limit => "more entries than the limit",
        })
    }
}

impl core::fmt::Display for ScanError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "at {:#x}: {}", self.offset, self.problem)
    }
}

impl core::error::Error for ScanError {}

/// Maximum depth of an export trie that is followed.
///
/// Each level takes at least a byte of the name; Apple's deepest tries have about 50 levels.
pub const MAX_TRIE_DEPTH: usize = 128;

/// A name for one of the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// The caller's tag for the address.
    pub tag: u32,
    /// The linker's name, still mangled, truncated to the caller's buffer.
    ///
    /// Without the underscore that Mach-O puts before it.
    pub name: &'a [u8],
    /// Start address of the symbol.
    pub symbol_svma: u64,
}

/// Up to `N` addresses of one image, and their names: about 12 KiB plus 64 bytes per address.
#[derive(Debug)]
pub struct NameScan<const N: usize> {
    queries: Queries<N>,
    /// The string table of the last scan.
    strings: Extent,
    trie: Extent,
    /// Whether the last scan was of a Mach-O image, whose names have an extra underscore.
    underscore: bool,
    chunk: [u8; CHUNK],
}

impl<const N: usize> Default for NameScan<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> NameScan<N> {
    /// Creates an empty scan. `const`, so that it can be a `static` that exists before a crash.
    pub const fn new() -> Self {
        let none = Extent { address: 0, size: 0 };
        Self { queries: Queries::new(), strings: none, trie: none, underscore: false, chunk: [0; CHUNK] }
    }

    /// Removes all addresses, to begin with the next image.
    pub fn clear(&mut self) {
        self.queries.clear();
        self.strings = Extent { address: 0, size: 0 };
        self.trie = self.strings;
    }

    /// Adds an address. Its name is returned together with `tag`. `false` if there are already `N`.
    pub fn push(&mut self, address: LookupAddress, tag: u32) -> bool {
        self.queries.push(address.svma(), tag)
    }

    /// Returns the number of addresses.
    pub fn len(&self) -> usize {
        self.queries.len()
    }

    /// Whether there are no addresses.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Scans the `.symtab` (else the `.dynsym`) of an ELF file that is mapped at `file`.
    ///
    /// The file may also be readable there by other means. It must have the given build id, if one
    /// is given: the file at an image's path may be a newer one.
    ///
    /// # Errors
    /// [`ScanError`], with offsets from the file's start. After [`Problem::Limit`], names are
    /// available all the same.
    pub fn elf_file<M: Memory>(
        &mut self,
        memory: &mut M,
        file: Extent,
        build_id: Option<&[u8]>,
        limit: u32,
    ) -> Result<(), ScanError> {
        self.queries.prepare();
        self.underscore = false;
        let result = elf_symbols::scan_file(&mut self.queries, memory, file, build_id, limit, &mut self.chunk);
        self.strings = result.strings;
        self.queries.finish();
        result.outcome
    }

    /// Scans the dynamic symbols of a loaded ELF image.
    ///
    /// Finds exported functions only, but doesn't need the file (the vDSO, a library that was
    /// deleted, a sandbox without file access).
    ///
    /// # Errors
    /// [`ScanError`], with offsets from the image's first byte.
    pub fn elf_loaded<M: Memory>(&mut self, memory: &mut M, image: ElfLoaded, limit: u32) -> Result<(), ScanError> {
        self.queries.prepare();
        self.underscore = false;
        let result = elf_symbols::scan_loaded(&mut self.queries, memory, image, limit, &mut self.chunk);
        self.strings = result.strings;
        self.queries.finish();
        result.outcome
    }

    /// Scans a Mach-O image, loaded or in a file.
    ///
    /// Uses `LC_SYMTAB`, bounded by `LC_FUNCTION_STARTS`, and the export trie for addresses without
    /// a symbol.
    ///
    /// # Errors
    /// [`ScanError`], with offsets from the table that it is about. A damaged table doesn't prevent
    /// the use of the others: names are available after every error except those of
    /// [`MachO::read`].
    pub fn macho<M: Memory>(&mut self, memory: &mut M, image: &MachO, limit: u32) -> Result<(), ScanError> {
        self.queries.prepare();
        self.underscore = true;
        self.strings = image.strings;
        self.trie = image.export_trie;
        let queries = &mut self.queries;
        let chunk = &mut self.chunk;
        let symbols = image.for_each_symbol(memory, chunk, limit, |symbol| {
            queries.offer(symbol.svma, 0, Candidate { rank: symbol.rank(), name: NameAt::String(symbol.name) });
        });
        let starts = image.for_each_function_start(memory, chunk, limit, |svma| queries.boundary(svma));
        let sections = image.for_each_section(memory, |section| {
            queries.boundary(section.svma);
            queries.boundary(section.svma.saturating_add(section.size));
        });
        let exports = export_trie::walk(memory, self.trie, chunk, limit, &mut [], |node, address, _| {
            let svma = image.text_svma.wrapping_add(address);
            queries.offer(svma, 0, Candidate { rank: 1, name: NameAt::TrieNode(node) });
        });
        self.queries.finish();
        symbols.and(starts).and(sections).and(exports)
    }

    /// Calls `each` with every name found, in the order of the addresses.
    ///
    /// Addresses without a name are left out. `buffer` holds the name; a longer one is truncated.
    pub fn for_each_name<M: Memory>(&mut self, memory: &mut M, buffer: &mut [u8], mut each: impl FnMut(Named<'_>)) {
        let mut in_trie = false;
        for query in self.queries.iter() {
            let NameAt::String(offset) = query.found.name else {
                in_trie |= matches!(query.found.name, NameAt::TrieNode(_));
                continue;
            };
            // Names are far apart, so a window of 12 KiB would be read for each. 256 bytes cover
            // most names in one read.
            let Some(length) = read_name(memory, self.strings, u64::from(offset), buffer) else { continue };
            let name = strip_underscore(buffer.get(..length).unwrap_or(&[]), self.underscore);
            if !name.is_empty() {
                each(Named { tag: query.tag, name, symbol_svma: query.start });
            }
        }
        if !in_trie {
            return;
        }
        let queries = &self.queries;
        let underscore = self.underscore;
        // The same walk again, this time with names; it can't fail differently, and if it does,
        // names are missing.
        let _ = export_trie::walk(memory, self.trie, &mut self.chunk, u32::MAX, buffer, |node, _, name| {
            for query in queries.iter() {
                let name = strip_underscore(name, underscore);
                if query.found.name == NameAt::TrieNode(node) && !name.is_empty() {
                    each(Named { tag: query.tag, name, symbol_svma: query.start });
                }
            }
        });
    }
}

/// Calls `each` with every exported address and its name, truncated to the size of `name`.
///
/// Addresses are relative to the header.
///
/// # Errors
/// [`ScanError`], with offsets from the start of the trie.
pub fn walk_export_trie<M: Memory>(
    memory: &mut M,
    trie: Extent,
    chunk: &mut [u8; CHUNK],
    limit: u32,
    name: &mut [u8],
    mut each: impl FnMut(u64, &[u8]),
) -> Result<(), ScanError> {
    export_trie::walk(memory, trie, chunk, limit, name, |_, address, name| each(address, name))
}

fn strip_underscore(name: &[u8], underscore: bool) -> &[u8] {
    match name.split_first() {
        Some((b'_', rest)) if underscore => rest,
        _ => name,
    }
}

/// Reads the string at an offset, up to its NUL or the buffer's end; returns its length.
///
/// `None` if nothing can be read.
fn read_name<M: Memory>(memory: &mut M, strings: Extent, offset: u64, buffer: &mut [u8]) -> Option<usize> {
    const STEP: usize = 256;
    let mut length = 0usize;
    loop {
        let at = offset.checked_add(length as u64)?;
        let left = strings.size.checked_sub(at)?;
        let size = (STEP as u64).min(left).min(buffer.len().saturating_sub(length) as u64) as usize;
        if size == 0 {
            return Some(length);
        }
        let part = buffer.get_mut(length..length.saturating_add(size))?;
        if strings.read(memory, at, part).is_err() {
            // The pages after the name may be gone: read byte by byte up to its end.
            let mut byte = [0];
            for to in part.iter_mut() {
                let at = offset.checked_add(length as u64)?;
                strings.read(memory, at, &mut byte).ok()?;
                let [value] = byte;
                if value == 0 {
                    return Some(length);
                }
                *to = value;
                length = length.saturating_add(1);
            }
            continue;
        }
        match part.iter().position(|&byte| byte == 0) {
            Some(end) => return Some(length.saturating_add(end)),
            None => length = length.saturating_add(size),
        }
    }
}

//! Code that a compiler generated at run time and registered for debuggers: ART's, LLVM's (and
//! compilers based on it), Mono's.
//!
//! The interface is GDB's ("JIT Compilation Interface" of its manual): a variable
//! `__jit_debug_descriptor` that some image exports, which points to a list of entries, each with
//! an ELF file in memory. The file's sections give the place of the code, its unwind data and its
//! symbols.
//!
//! # Guarantees
//! Nothing is trusted: everything is read through the caller's memory, and a list with a loop ends
//! at a bounded length. Async-signal-safe if that memory is.
//!
//! # Limits
//! The image must export the variable, as shared libraries do; a program with the compiler linked
//! in does so with `-rdynamic`. A list that another thread was changing when it was stopped may
//! lack an entry. Compressed sections are not read.

use core::sync::atomic::{AtomicU64, Ordering};

use coroner_process::AddressRange;
use coroner_process::elf::{FileHeader, SectionHeader};
use coroner_process::images::Images;
use coroner_process::memory::Memory;

use crate::jit_code::JitCode;

/// Maximum number of list entries that are checked: ART has one for each of thousands of methods.
const MAX_ENTRIES: u32 = 1 << 16;
/// Maximum number of sections of a file that are checked.
const MAX_SECTIONS: u64 = 64;
/// `SHF_ALLOC`, `SHF_EXECINSTR`, `SHF_COMPRESSED`.
const ALLOCATED: u64 = 0x2;
const EXECUTABLE: u64 = 0x4;
const COMPRESSED: u64 = 0x800;
/// `SHT_NOBITS`.
const NO_BITS: u32 = 8;

/// Address of the images' descriptor, or [`UNKNOWN`] or [`NONE`].
#[derive(Debug)]
pub(crate) struct JitDescriptor(AtomicU64);

/// The descriptor wasn't searched for yet; there is no descriptor.
const UNKNOWN: u64 = 0;
const NONE: u64 = 1;

impl JitDescriptor {
    pub(crate) const fn new() -> JitDescriptor {
        JitDescriptor(AtomicU64::new(UNKNOWN))
    }

    /// Makes the next lookup search for the descriptor again, since images may have been loaded.
    pub(crate) fn forget(&self) {
        self.0.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Returns the registered code that contains `address`.
    pub(crate) fn find<M: Memory>(&self, images: &Images, memory: &mut M, address: u64) -> Option<JitCode> {
        let descriptor = match self.0.load(Ordering::Relaxed) {
            UNKNOWN => {
                let found = find_descriptor(images, memory).unwrap_or(NONE);
                self.0.store(found, Ordering::Relaxed);
                found
            }
            known => known,
        };
        if descriptor == NONE {
            return None;
        }
        let mut entry = first_entry(memory, descriptor)?;
        for _ in 0..MAX_ENTRIES {
            if entry == 0 {
                break;
            }
            // struct jit_code_entry {next, previous, file address, u64 file size}
            let [next, _, start, size] = read_words(memory, entry)?;
            let file = AddressRange { start, end: start.saturating_add(size) };
            if let Some(code) = read_file(memory, file, address) {
                return Some(code);
            }
            entry = next;
        }
        None
    }
}

/// Returns the first entry of the list; `None` if this isn't a descriptor of version 1.
#[inline(never)]
fn first_entry<M: Memory>(memory: &mut M, descriptor: u64) -> Option<u64> {
    // struct jit_descriptor {u32 version, u32 action, relevant entry, first entry}
    let [version, _, first] = read_words(memory, descriptor)?;
    (version as u32 == 1).then_some(first)
}

/// Reads `N` words. Not inlined, like the others here, so that `xtask signal-safety` can follow the
/// calls: if one function has several calls of the same one, the compiler keeps the address in a
/// register.
#[inline(never)]
fn read_words<M: Memory, const N: usize>(memory: &mut M, address: u64) -> Option<[u64; N]> {
    let mut bytes = [[0; 8]; N];
    memory.read(address, bytes.as_flattened_mut()).ok()?;
    Some(bytes.map(u64::from_le_bytes))
}

#[inline(never)]
fn find_descriptor<M: Memory>(images: &Images, memory: &mut M) -> Option<u64> {
    for image in images.iter() {
        if let Some(at) = image.dynamic_symbol(memory, "__jit_debug_descriptor")
            // A library that only contains the variable has an empty list.
            && first_entry(memory, at).is_some_and(|first| first != 0)
        {
            return Some(at);
        }
    }
    None
}

/// Returns the file's description of the code at `address`; `None` if it has none there.
#[inline(never)]
fn read_file<M: Memory>(memory: &mut M, file: AddressRange, address: u64) -> Option<JitCode> {
    let header = FileHeader::read(memory, file.start)?;
    let sections = file.start.checked_add(header.sections_offset)?;
    let mut found = coroner_unwind::Image { base: file.start, ..coroner_unwind::Image::default() };
    // Code first, so that files of other code cost little.
    for index in 0..u64::from(header.section_count).min(MAX_SECTIONS) {
        let (section, _) = read_section(memory, sections, index)?;
        let text = AddressRange { start: section.address, end: section.address.saturating_add(section.size) };
        if section.flags & EXECUTABLE != 0 && text.contains(address) {
            found.text = text;
        }
    }
    if found.text.is_empty() {
        return None;
    }
    find_unwind_data(memory, file, header, &mut found)?;
    // Symbols of a file that was not linked are relative to their section.
    let symbol_slide = if header.is_relocatable { found.text.start } else { 0 };
    Some(JitCode { unwind: found, file, symbol_slide })
}

/// Finds the file's unwind data.
#[inline(never)]
fn find_unwind_data<M: Memory>(
    memory: &mut M,
    file: AddressRange,
    header: FileHeader,
    found: &mut coroner_unwind::Image,
) -> Option<()> {
    let sections = file.start.checked_add(header.sections_offset)?;
    let (names, _) = read_section(memory, sections, header.names_section.into())?;
    for index in 0..u64::from(header.section_count).min(MAX_SECTIONS) {
        let (section, name) = read_section(memory, sections, index)?;
        if section.kind == NO_BITS || section.flags & COMPRESSED != 0 {
            continue;
        }
        // A loaded section is at its address, and is relocated there.
        let start = if section.flags & ALLOCATED != 0 && section.address != 0 {
            section.address
        } else {
            file.start.wrapping_add(section.offset)
        };
        let range = AddressRange { start, end: start.saturating_add(section.size) };
        let mut text = [0; 13];
        let name_at = file.start.wrapping_add(names.offset).wrapping_add(name.into());
        if memory.read(name_at, &mut text).is_err() {
            continue;
        }
        if text.starts_with(b".eh_frame\0") {
            found.eh_frame = range;
        } else if &text == b".debug_frame\0" {
            found.debug_frame = range;
        }
    }
    Some(())
}

/// Reads a section header; also returns the offset of its name among the names.
#[inline(never)]
fn read_section<M: Memory>(memory: &mut M, sections: u64, index: u64) -> Option<(SectionHeader, u32)> {
    let mut bytes = [0; SectionHeader::SIZE];
    memory.read(sections.wrapping_add(index.wrapping_mul(SectionHeader::SIZE as u64)), &mut bytes).ok()?;
    let name = bytes.first_chunk().copied().map_or(0, u32::from_le_bytes);
    Some((SectionHeader::parse(&bytes), name))
}

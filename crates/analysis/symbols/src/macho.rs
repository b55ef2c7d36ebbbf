//! Functions in a Mach-O file.
//!
//! They come from `LC_SYMTAB`, `LC_FUNCTION_STARTS`, the export trie and Objective-C metadata.
//!
//! The tables are parsed by [`coroner_process::symtab`], which names addresses at crash time; here
//! the same parser runs with the file as its memory.

use coroner_process::memory::{Snapshot, SnapshotRange};
use coroner_process::symtab::{MachO, Placement, ScanError};

use crate::{
    error::Malformed,
    mapped_file::{Bytes, Fields},
    objc,
    symbol_table::{BindingRank, SymbolSource, TableBuilder},
};

const MH_MAGIC_64: &[u8] = &[0xcf, 0xfa, 0xed, 0xfe];
const MH_MAGIC_32: &[u8] = &[0xce, 0xfa, 0xed, 0xfe];
const FAT_MAGIC: u32 = 0xcafe_babe;
const FAT_MAGIC_64: u32 = 0xcafe_babf;
const CPU_ARCH_ABI64: u32 = 0x0100_0000;
/// Maximum number of slices. Java classes have the same magic as fat files, and a version of 45 or
/// more in place of the count.
const MAX_SLICES: u32 = 40;
/// Maximum number of symbols read from one table: 64-bit Mach-O has no more than 4 GiB of them.
const MAX_SYMBOLS: u32 = 1 << 28;

/// Returns the 64-bit images in a thin or fat file with their offsets; `None` for another format.
pub(crate) fn slices(bytes: &Bytes) -> Result<Option<Vec<(u64, Bytes)>>, Malformed> {
    if bytes.starts_with(MH_MAGIC_64) {
        return Ok(Some(vec![(0, bytes.clone())]));
    }
    if bytes.starts_with(MH_MAGIC_32) {
        return Err(Malformed::new(0, "32-bit Mach-O files are not supported"));
    }
    let header = Fields { bytes, big_endian: true };
    let (Some(magic @ (FAT_MAGIC | FAT_MAGIC_64)), Some(count)) = (header.u32(0), header.u32(4)) else {
        return Ok(None);
    };
    if count > MAX_SLICES {
        return Ok(None);
    }
    let (size, wide) = if magic == FAT_MAGIC { (20, false) } else { (32, true) };
    let mut slices = Vec::new();
    for index in 0..u64::from(count) {
        let at = 8 + index * size;
        let field = |narrow: u64, broad: u64| {
            if wide { header.u64(at + broad) } else { header.u32(at + narrow).map(u64::from) }
        };
        let (Some(cpu), Some(offset), Some(length)) = (header.u32(at), field(8, 8), field(12, 16)) else {
            return Err(Malformed::new(at, format!("the fat header of {count} slices ends within slice {index}")));
        };
        if cpu & CPU_ARCH_ABI64 == 0 {
            continue;
        }
        let slice = bytes.slice(offset, length).ok_or_else(|| {
            Malformed::new(
                at,
                format!(
                    "slice {index} ({length} bytes at {offset:#x}) extends past the end of the file ({} bytes)",
                    bytes.len()
                ),
            )
        })?;
        if slice.starts_with(MH_MAGIC_64) {
            slices.push((offset, slice));
        }
    }
    if slices.is_empty() {
        return Err(Malformed::new(0, "the fat file has no 64-bit Mach-O image"));
    }
    Ok(Some(slices))
}

/// Parses the image with the file as its memory: addresses of tables are file offsets.
fn read(bytes: &[u8]) -> Result<MachO, Malformed> {
    let ranges = [SnapshotRange { address: 0, bytes }];
    let mut memory = Snapshot { ranges: &ranges };
    MachO::read(&mut memory, 0, Placement::File { size: bytes.len() as u64 })
        .map_err(|error| malformed(error, 0, "Mach-O", bytes))
}

/// Returns the svma of `__TEXT`; 0 if the headers can't be parsed.
pub(crate) fn base_svma(bytes: &[u8]) -> u64 {
    read(bytes).map_or(0, |image| image.text_svma)
}

/// Converts a scan error. In a truncated file its offset may be after the end and is clamped.
fn malformed(error: ScanError, table_at: u64, of: &str, bytes: &[u8]) -> Malformed {
    let offset = table_at.saturating_add(error.offset).min(bytes.len() as u64);
    Malformed::new(offset, format!("{of}: {}", error.problem))
}

/// Checks that load commands, their tables and debug sections lie within the file.
pub(crate) fn check_layout(bytes: &[u8]) -> Result<(), Malformed> {
    let image = read(bytes)?;
    if image.file_end > bytes.len() as u64 {
        let what = format!("the segments end at {:#x}, but the file ends at {:#x}", image.file_end, bytes.len());
        return Err(Malformed::new(bytes.len() as u64, what));
    }
    let ranges = [SnapshotRange { address: 0, bytes }];
    let mut problem = None;
    let mut memory = Snapshot { ranges: &ranges };
    let sections = image.for_each_section(&mut memory, |section| {
        let end = u64::from(section.file_offset).saturating_add(section.size);
        // Other sections in a dSYM have a size but no bytes.
        if section.segment.starts_with(b"__DWARF\0") && end > bytes.len() as u64 {
            let name = String::from_utf8_lossy(&section.name).trim_end_matches('\0').to_owned();
            problem = Some(Malformed::new(
                u64::from(section.file_offset).min(bytes.len() as u64),
                format!(
                    "section {name} ({} bytes at {:#x}) extends past the end of the file ({} bytes)",
                    section.size,
                    section.file_offset,
                    bytes.len()
                ),
            ));
        }
    });
    sections.map_err(|error| malformed(error, 0, "Mach-O", bytes))?;
    problem.map_or(Ok(()), Err)
}

/// Collects all symbols of the image. Errors are added to `problems`; everything that could be read
/// is used.
pub(crate) fn collect(builder: &mut TableBuilder, bytes: &Bytes, problems: &mut Vec<Malformed>) {
    let image = match read(bytes) {
        Ok(image) => image,
        Err(problem) => return problems.push(problem),
    };
    let ranges = [SnapshotRange { address: 0, bytes }];
    let mut memory = Snapshot { ranges: &ranges };
    let mut chunk = Box::new([0; coroner_process::symtab::CHUNK]);
    let mut note = |outcome: Result<(), ScanError>, table_at: u64, of: &str| {
        if let Err(error) = outcome {
            problems.push(malformed(error, table_at, of, bytes));
        }
    };

    let before = builder.added();
    let strings = bytes.slice(image.strings.address, image.strings.size);
    if let Some(pool) = strings.and_then(|strings| builder.pool(strings)) {
        let outcome = image.for_each_symbol(&mut memory, &mut chunk, MAX_SYMBOLS, |symbol| {
            let rank = match symbol.rank() {
                0..=2 => BindingRank::Label,
                3 => BindingRank::Local,
                4 => BindingRank::Weak,
                _ => BindingRank::Global,
            };
            builder.add(symbol.svma, 0, SymbolSource::Symtab, rank, TableBuilder::name_at(pool, symbol.name));
        });
        note(outcome, image.symbols.address, "LC_SYMTAB");
    }
    builder.count(SymbolSource::Symtab, builder.added() - before);

    let before = builder.added();
    let outcome = image.for_each_function_start(&mut memory, &mut chunk, MAX_SYMBOLS, |svma| {
        builder.boundary(svma);
    });
    builder.count(SymbolSource::FunctionStarts, builder.added() - before);
    note(outcome, image.function_starts.address, "LC_FUNCTION_STARTS");

    let outcome = image.for_each_section(&mut memory, |section| {
        builder.boundary(section.svma);
        builder.boundary(section.svma.saturating_add(section.size));
    });
    note(outcome, 0, "sections");

    let before = builder.added();
    let mut name = vec![0; 16 << 10];
    let outcome = coroner_process::symtab::walk_export_trie(
        &mut memory,
        image.export_trie,
        &mut chunk,
        MAX_SYMBOLS,
        &mut name,
        |address, name| {
            if let Some(name) = builder.make_name(name) {
                let svma = image.text_svma.wrapping_add(address);
                builder.add(svma, 0, SymbolSource::ExportTrie, BindingRank::Global, name);
            }
        },
    );
    note(outcome, image.export_trie.address, "export trie");
    builder.count(SymbolSource::ExportTrie, builder.added() - before);

    let before = builder.added();
    objc::collect(builder, bytes, &image, problems);
    builder.count(SymbolSource::ObjcMetadata, builder.added() - before);
}

#[cfg(test)]
mod tests;

//! Functions in an ELF file, from `.symtab`, `.dynsym`, `.gnu_debugdata` and its PLT stubs.

use std::collections::HashMap;

use object::{
    Architecture, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget, elf,
    read::elf::{FileHeader, SectionHeader, SectionTable, Sym, SymbolTable},
};

use crate::{
    error::Malformed,
    mapped_file::{Bytes, Fields},
    symbol_table::{BindingRank, SymbolSource, TableBuilder},
};

/// Checks that the ELF header, the program and section headers and all sections lie within the
/// file.
///
/// The library that then parses the file reports what is wrong, but not where.
pub(crate) fn check_layout(bytes: &[u8]) -> Result<(), Malformed> {
    let (Some(&class), Some(&data)) = (bytes.get(4), bytes.get(5)) else {
        return Err(Malformed::new(0, format!("the file ends within the ELF identification ({} bytes)", bytes.len())));
    };
    let wide = match class {
        1 => false,
        2 => true,
        other => {
            return Err(Malformed::new(4, format!("unknown ELF class {other}: expected 1 (32-bit) or 2 (64-bit)")));
        }
    };
    let big_endian = match data {
        1 => false,
        2 => true,
        other => {
            return Err(Malformed::new(
                5,
                format!("unknown ELF data encoding {other}: expected 1 (little-endian) or 2 (big-endian)"),
            ));
        }
    };
    let fields = Fields { bytes, big_endian };
    let header = |at: u64| {
        let what = format!("the file ends within the ELF header ({} bytes)", bytes.len());
        Malformed::new(at.min(bytes.len() as u64), what)
    };
    let word = |at: u64| if wide { fields.u64(at) } else { fields.u32(at).map(u64::from) };
    let inside = |offset: u64, size: u64| offset.checked_add(size).is_some_and(|end| end <= bytes.len() as u64);

    let (phoff_at, shoff_at, sizes_at) = if wide { (32, 40, 54) } else { (28, 32, 42) };
    let program_headers = word(phoff_at).ok_or_else(|| header(phoff_at))?;
    let section_headers = word(shoff_at).ok_or_else(|| header(shoff_at))?;
    let half = |index: u64| fields.u16(sizes_at + 2 * index).ok_or_else(|| header(sizes_at + 2 * index));
    let (program_header_size, program_header_count) = (half(0)?, half(1)?);
    let (section_header_size, section_header_count) = (half(2)?, half(3)?);
    if !inside(program_headers, u64::from(program_header_size) * u64::from(program_header_count)) {
        return Err(Malformed::new(
            phoff_at,
            format!("{program_header_count} program headers at {program_headers:#x} extend past the end of the file"),
        ));
    }
    if section_headers == 0 {
        return Ok(());
    }
    let (size_at, expected) = if wide { (32, 64) } else { (20, 40) };
    if section_header_size != expected {
        return Err(Malformed::new(
            sizes_at + 4,
            format!("section headers are {section_header_size} bytes each; expected {expected}"),
        ));
    }
    let section_header_size = u64::from(section_header_size);
    let mut count = u64::from(section_header_count);
    if count == 0 {
        // More than 65,279 sections: the count is in the first header's size.
        count = word(section_headers.saturating_add(size_at)).unwrap_or(0);
    }
    if !count.checked_mul(section_header_size).is_some_and(|size| inside(section_headers, size)) {
        return Err(Malformed::new(
            shoff_at,
            format!(
                "{count} section headers at {section_headers:#x} extend past the end of the file ({} bytes)",
                bytes.len()
            ),
        ));
    }
    for index in 0..count {
        let at = section_headers + index * section_header_size;
        let offset_at = at + if wide { 24 } else { 16 };
        let (Some(kind), Some(offset), Some(size)) = (fields.u32(at + 4), word(offset_at), word(at + size_at)) else {
            return Err(Malformed::new(at, "the file ends within a section header"));
        };
        // SHT_NULL and SHT_NOBITS have no bytes in the file.
        if kind != 0 && kind != 8 && !inside(offset, size) {
            return Err(Malformed::new(
                at,
                format!(
                    "section {index} ({size} bytes at {offset:#x}) extends past the end of the file ({} bytes)",
                    bytes.len()
                ),
            ));
        }
    }
    Ok(())
}

/// Whether the bytes are an ELF file whose headers lie within it.
pub(crate) fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF") && check_layout(bytes).is_ok()
}

/// Collects all symbols in the file. Malformed sections are added to `problems` and skipped.
pub(crate) fn collect(
    builder: &mut TableBuilder,
    file: &object::File<'_>,
    bytes: &Bytes,
    problems: &mut Vec<Malformed>,
) {
    add_tables(builder, file, bytes, &[SymbolSource::Symtab, SymbolSource::Dynsym]);
    let before = builder.added();
    add_plt(builder, file);
    builder.count(SymbolSource::Plt, builder.added() - before);
    add_section_ends(builder, file);
    let left = builder.left();
    match mini_debug_info(file, left) {
        Ok(None) => {}
        Ok(Some(unpacked)) => match object::File::parse(&*unpacked) {
            Ok(mini) => add_tables(builder, &mini, &unpacked, &[SymbolSource::MiniDebugInfo]),
            Err(error) => {
                let at = section_offset(file, ".gnu_debugdata");
                problems.push(Malformed::new(at, format!("invalid ELF file in .gnu_debugdata: {error}")));
            }
        },
        Err(_) if left < MINI_DEBUG_INFO_MEMORY => builder.overflow(),
        Err(problem) => problems.push(problem),
    }
}

/// Adds the symbol table, and the dynamic one if two sources are given.
fn add_tables(builder: &mut TableBuilder, file: &object::File<'_>, bytes: &Bytes, sources: &[SymbolSource]) {
    let architecture = file.architecture();
    for &source in sources {
        let before = builder.added();
        let dynamic = source == SymbolSource::Dynsym;
        match file {
            object::File::Elf32(file) => {
                let table = if dynamic { file.elf_dynamic_symbol_table() } else { file.elf_symbol_table() };
                let versions = file.elf_section_table().gnu_versym(file.endian(), file.data()).ok().flatten();
                let versions = versions.filter(|_| dynamic).map_or(&[][..], |(versions, _)| versions);
                add_symbols(
                    builder,
                    file.endian(),
                    file.elf_section_table(),
                    table,
                    versions,
                    bytes,
                    (architecture, source),
                );
            }
            object::File::Elf64(file) => {
                let table = if dynamic { file.elf_dynamic_symbol_table() } else { file.elf_symbol_table() };
                let versions = file.elf_section_table().gnu_versym(file.endian(), file.data()).ok().flatten();
                let versions = versions.filter(|_| dynamic).map_or(&[][..], |(versions, _)| versions);
                add_symbols(
                    builder,
                    file.endian(),
                    file.elf_section_table(),
                    table,
                    versions,
                    bytes,
                    (architecture, source),
                );
            }
            _ => {}
        }
        builder.count(source, builder.added() - before);
    }
}

/// Adds a table's symbols. Names are only referred to: reading them would touch every page of the
/// string table.
fn add_symbols<'data, Elf: FileHeader>(
    builder: &mut TableBuilder,
    endian: Elf::Endian,
    sections: &SectionTable<'data, Elf>,
    table: &SymbolTable<'data, Elf>,
    versions: &[elf::Versym<Elf::Endian>],
    bytes: &Bytes,
    (architecture, source): (Architecture, SymbolSource),
) {
    let Ok(section) = sections.section(table.string_section()) else { return };
    let strings = bytes.slice(section.sh_offset(endian).into(), section.sh_size(endian).into());
    let Some(pool) = strings.and_then(|strings| builder.pool(strings)) else { return };
    let marks_code = has_mapping_symbols(architecture);
    builder.reserve(table.len());
    for (index, symbol) in table.iter().enumerate() {
        let (mut start, size): (u64, u64) = (symbol.st_value(endian).into(), symbol.st_size(endian).into());
        let section = symbol.st_shndx(endian);
        // Undefined, absolute and common symbols have no address in the image; SHN_XINDEX stands
        // for a high section number.
        let placed = section != elf::SHN_UNDEF && (section.0 < elf::SHN_LORESERVE || section == elf::SHN_XINDEX);
        let offset = symbol.st_name(endian);
        if !placed || offset == 0 || start == 0 && size == 0 {
            continue;
        }
        // glibc keeps some names only for old programs, such as `cfree`, beside those for current
        // programs, such as `free`.
        let is_hidden = versions.get(index).is_some_and(|version| version.0.get(endian).is_hidden());
        let rank = match (symbol.st_type(), symbol.st_bind()) {
            // Thread-local symbols have offsets, not addresses; section and file symbols don't name
            // functions.
            (elf::STT_FUNC | elf::STT_GNU_IFUNC, _) if is_hidden => BindingRank::Local,
            (elf::STT_FUNC | elf::STT_GNU_IFUNC, elf::STB_LOCAL) => BindingRank::Local,
            (elf::STT_FUNC | elf::STT_GNU_IFUNC, elf::STB_WEAK) => BindingRank::Weak,
            (elf::STT_FUNC | elf::STT_GNU_IFUNC, _) => BindingRank::Global,
            (elf::STT_NOTYPE | elf::STT_OBJECT, _) => BindingRank::Label,
            _ => continue,
        };
        if architecture == Architecture::Arm && rank != BindingRank::Label {
            // Bit 0 marks Thumb code and is not part of the address.
            start &= !1;
        }
        if marks_code && rank == BindingRank::Label && table.symbol_name(endian, symbol).is_ok_and(is_mapping_symbol) {
            continue;
        }
        builder.add(start, size, source, rank, TableBuilder::name_at(pool, offset));
    }
}

fn has_mapping_symbols(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::Arm | Architecture::Aarch64 | Architecture::Riscv32 | Architecture::Riscv64)
}

/// Whether a name is a mapping symbol: `$a`, `$t`, `$d`, `$x` and so on mark the start of code or
/// data and name nothing.
fn is_mapping_symbol(name: &[u8]) -> bool {
    matches!(name, [b'$', b'a' | b't' | b'd' | b'x'] | [b'$', b'a' | b't' | b'd' | b'x', b'.', ..])
}

/// Adds the ends of sections: a label without a size extends at most to its section's end.
fn add_section_ends(builder: &mut TableBuilder, file: &object::File<'_>) {
    for section in file.sections() {
        let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { continue };
        if sh_flags.contains(elf::SHF_ALLOC) {
            builder.boundary(section.address());
            builder.boundary(section.address().saturating_add(section.size()));
        }
    }
}

pub(crate) fn section_offset(file: &object::File<'_>, name: &str) -> u64 {
    file.section_by_name(name).and_then(|section| section.file_range()).map_or(0, |(offset, _)| offset)
}

/// Returns the maximum decompressed size of `.gnu_debugdata`: Android's libart has 3 MB, and XZ
/// does not reach a ratio of 200 for symbols.
#[cfg(feature = "minidebuginfo")]
fn unpack_limit(packed: usize) -> u64 {
    (packed as u64).saturating_mul(200).min(1 << 30)
}

/// Returns `None`: without the feature the section is ignored.
#[cfg(not(feature = "minidebuginfo"))]
pub(crate) fn mini_debug_info(_: &object::File<'_>, _: usize) -> Result<Option<Bytes>, Malformed> {
    Ok(None)
}

/// Memory in bytes with which intact `.gnu_debugdata` can be decompressed.
///
/// If it can't be decompressed in this much, it counts as malformed.
const MINI_DEBUG_INFO_MEMORY: usize = 128 << 20;

/// Returns the ELF file in `.gnu_debugdata`, if any, decompressed in at most `left` bytes.
#[cfg(feature = "minidebuginfo")]
pub(crate) fn mini_debug_info(file: &object::File<'_>, left: usize) -> Result<Option<Bytes>, Malformed> {
    use std::io::Read as _;

    let Some(section) = file.section_by_name(".gnu_debugdata") else { return Ok(None) };
    let at = section_offset(file, ".gnu_debugdata");
    let malformed = |what: String| Malformed::new(at, what);
    let packed = section.data().map_err(|error| malformed(format!(".gnu_debugdata: {error}")))?;
    // A third each is for the data, the dictionary and growth.
    let limit = unpack_limit(packed.len()).min(left as u64 / 3);
    let mut unpacked = Vec::new();
    // `xz -9` uses a dictionary of 64 MiB.
    lzma_rust2::XzReader::new_mem_limit(packed, true, (80 << 10).min(u32::try_from(left / 3072).unwrap_or(u32::MAX)))
        .take(limit + 1)
        .read_to_end(&mut unpacked)
        .map_err(|error| malformed(format!(".gnu_debugdata is not a valid XZ stream: {error}")))?;
    if unpacked.len() as u64 > limit {
        return Err(malformed(format!(".gnu_debugdata of {} bytes decompresses to more than {limit}", packed.len())));
    }
    if let Err(problem) = check_layout(&unpacked) {
        return Err(malformed(format!("decompressed .gnu_debugdata, at byte {}: {}", problem.offset, problem.what)));
    }
    Ok(Some(Bytes::owned(unpacked)))
}

/// Names PLT stubs by the symbols that their slots are bound to. Stubs are recognised by their
/// code, because the order of stubs differs from that of relocations in `.plt.got` and `.plt.sec`.
fn add_plt(builder: &mut TableBuilder, file: &object::File<'_>) {
    let stubs_of: fn(&[u8], u64) -> Vec<Stub> = match file.architecture() {
        Architecture::X86_64 => x86_64_stubs,
        Architecture::Aarch64 => aarch64_stubs,
        _ => return,
    };
    let mut slots: Option<HashMap<u64, Vec<u8>>> = None;
    for name in [".plt", ".plt.sec", ".plt.got", ".iplt"] {
        let Some(section) = file.section_by_name(name) else { continue };
        let Ok(code) = section.data() else { continue };
        if slots.is_none() {
            slots = bound_slots(file, builder.left());
        }
        let Some(slots) = &slots else { return builder.overflow() };
        for stub in stubs_of(code, section.address()) {
            let Some(target) = slots.get(&stub.slot) else { continue };
            let Some(name) = builder.make_name(&[target, &b"@plt"[..]].concat()) else { return };
            builder.add(stub.start, stub.size, SymbolSource::Plt, BindingRank::Local, name);
        }
    }
}

/// Size of an entry in a map that has just grown, without the name's bytes.
const SLOT_SIZE: usize = 128;

/// Returns the symbol of each slot's relocation, which the dynamic linker resolves. `None` if that
/// takes more memory than is left.
fn bound_slots(file: &object::File<'_>, left: usize) -> Option<HashMap<u64, Vec<u8>>> {
    let mut slots = HashMap::new();
    let mut size = 0;
    let (Some(relocations), Some(symbols)) = (file.dynamic_relocations(), file.dynamic_symbol_table()) else {
        return Some(slots);
    };
    for (slot, relocation) in relocations {
        let RelocationTarget::Symbol(index) = relocation.target() else { continue };
        if let Ok(name) = symbols.symbol_by_index(index).and_then(|symbol| symbol.name_bytes())
            && !name.is_empty()
        {
            size += SLOT_SIZE + name.len();
            if size > left {
                return None;
            }
            slots.insert(slot, name.to_vec());
        }
    }
    Some(slots)
}

#[derive(Debug, PartialEq, Eq)]
struct Stub {
    start: u64,
    size: u64,
    /// The svma of the pointer that the stub jumps through.
    slot: u64,
}

/// Finds x86_64 PLT stubs.
///
/// Stubs have the form `[endbr64] [bnd] jmp *disp32(%rip)`, in 16-byte entries, or 8-byte ones
/// where the linker packs `.plt.got`.
fn x86_64_stubs(code: &[u8], address: u64) -> Vec<Stub> {
    let mut stubs = Vec::new();
    let mut at = 0;
    while let Some(entry) = code.get(at..) {
        if entry.len() < 6 {
            break;
        }
        let mut prefix = 0;
        if entry.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
            prefix += 4;
        }
        if entry.get(prefix) == Some(&0xf2) {
            prefix += 1;
        }
        let Some([0xff, 0x25, a, b, c, d]) = entry.get(prefix..prefix + 6) else {
            at += 8;
            continue;
        };
        let displacement = i64::from(i32::from_le_bytes([*a, *b, *c, *d]));
        let start = address.wrapping_add(at as u64);
        let next_instruction = start.wrapping_add(prefix as u64 + 6);
        let slot = next_instruction.wrapping_add_signed(displacement);
        // A `.plt` entry continues with `push index; jmp PLT0`; an 8-byte one is padded with a
        // 2-byte no-op.
        let packed = prefix == 0 && matches!(entry.get(6..8), Some([0x66, 0x90]));
        let size = if packed { 8 } else { 16 };
        stubs.push(Stub { start, size, slot });
        at += size as usize;
    }
    stubs
}

/// Finds arm64 PLT stubs.
///
/// Stubs have the form `[bti c;] adrp x16, page; ldr x17, [x16, offset]; add x16, x16, offset; br
/// x17`, each 16 bytes (or 24 with BTI).
fn aarch64_stubs(code: &[u8], address: u64) -> Vec<Stub> {
    let instructions: Vec<u32> =
        code.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
    let mut stubs: Vec<Stub> = Vec::new();
    for (index, pair) in instructions.windows(2).enumerate() {
        let [adrp, ldr] = *pair else { continue };
        // adrp x16, …   and   ldr x17, [x16, #imm12 * 8]
        if adrp & 0x9f00_001f != 0x9000_0010 || ldr & 0xffc0_03ff != 0xf940_0211 {
            continue;
        }
        let pc = address.wrapping_add(index as u64 * 4);
        let immediate = ((adrp >> 5 & 0x7_ffff) << 2 | adrp >> 29 & 3) as i32;
        let pages = i64::from(immediate << 11 >> 11);
        let slot = (pc & !0xfff).wrapping_add_signed(pages << 12).wrapping_add(u64::from(ldr >> 10 & 0xfff) * 8);
        let landing_pad = index.checked_sub(1).is_some_and(|before| instructions[before] == 0xd503_245f);
        let start = if landing_pad { pc - 4 } else { pc };
        if let Some(previous) = stubs.last_mut() {
            previous.size = previous.size.min(start.wrapping_sub(previous.start));
        }
        stubs.push(Stub { start, size: if landing_pad { 24 } else { 16 }, slot });
    }
    stubs
}

#[cfg(test)]
mod tests;

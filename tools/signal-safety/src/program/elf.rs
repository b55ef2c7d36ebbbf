//! Reads ELF sections and relocations: which values the dynamic linker stores where.

use anyhow::Context;
use object::elf;
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, ObjectSymbolTable as _, RelocationFlags, RelocationTarget,
    SectionKind,
};

use super::{Machine, Program, Region, Slot};

impl Program {
    pub(super) fn read_elf_sections(&mut self, file: &object::File<'_>) {
        self.binds_at_start = binds_at_start(file);
        for section in file.sections() {
            let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { continue };
            let allocated = sh_flags.0 & elf::SHF_ALLOC.0 != 0;
            if !allocated || section.kind() == SectionKind::Tls || section.kind() == SectionKind::UninitializedTls {
                continue;
            }
            self.regions.push(Region {
                name: section.name().unwrap_or_default().to_owned(),
                start: section.address(),
                bytes: section.data().unwrap_or_default().to_vec(),
                size: section.size(),
                is_code: section.kind() == SectionKind::Text,
            });
        }
    }

    pub(super) fn read_elf_slots(&mut self, file: &object::File<'_>) -> anyhow::Result<()> {
        let symbols = file.dynamic_symbol_table();
        for (at, relocation) in file.dynamic_relocations().into_iter().flatten() {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            let lazy_tls = match self.machine {
                Machine::X86_64 => [elf::R_X86_64_TLSDESC, elf::R_X86_64_DTPMOD64].contains(&r_type),
                Machine::Aarch64 => [elf::R_AARCH64_TLSDESC, elf::R_AARCH64_TLS_DTPMOD].contains(&r_type),
            };
            let slot = if lazy_tls {
                Slot::LazyThreadLocal
            } else {
                match relocation.target() {
                    RelocationTarget::Symbol(index) => {
                        let symbol = symbols
                            .as_ref()
                            .context("a relocation without symbols")?
                            .symbol_by_index(index)
                            .context("a relocation refers to a missing symbol")?;
                        if symbol.is_undefined() {
                            Slot::Import(symbol.name()?.to_owned())
                        } else {
                            Slot::Own(symbol.address().wrapping_add(relocation.addend() as u64))
                        }
                    }
                    // R_*_RELATIVE, and IRELATIVE, whose resolver is not the called function but is
                    // close enough.
                    _ => Slot::Own(relocation.addend() as u64),
                }
            };
            self.slots.insert(at, slot);
        }
        self.read_relative_table();
        Ok(())
    }

    /// Reads `SHT_RELR`: compact relative relocations (generic ABI, "Relative Relocation Table").
    ///
    /// An even word is an address, an odd one a bitmap of the 63 words after the previous ones.
    fn read_relative_table(&mut self) {
        let Some(table) = self.regions.iter().find(|region| region.name == ".relr.dyn").cloned() else { return };
        let mut places = Vec::new();
        let mut next = 0_u64;
        for word in table.bytes.as_chunks::<8>().0 {
            let word = u64::from_le_bytes(*word);
            if word & 1 == 0 {
                places.push(word);
                next = word + 8;
            } else {
                places.extend((0..63).filter(|bit| word >> (bit + 1) & 1 == 1).map(|bit| next + 8 * bit));
                next += 63 * 8;
            }
        }
        for place in places {
            if let Some(value) = self.word(place) {
                self.slots.insert(place, Slot::Own(value));
            }
        }
    }
}

/// Whether imports are bound at start.
///
/// `DT_FLAGS` has `DF_BIND_NOW`, or `DT_FLAGS_1` has `DF_1_NOW`. A program without a dynamic
/// section has no imports.
fn binds_at_start(file: &object::File<'_>) -> bool {
    let Some(section) = file.section_by_name(".dynamic") else { return true };
    section.data().unwrap_or_default().as_chunks::<16>().0.iter().any(|entry| {
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default());
        let (tag, value) = (elf::DynamicTag(word(0) as i64), word(8));
        tag == elf::DT_BIND_NOW
            || (tag == elf::DT_FLAGS && value & elf::DF_BIND_NOW.0 != 0)
            || (tag == elf::DT_FLAGS_1 && value & elf::DF_1_NOW.0 != 0)
    })
}

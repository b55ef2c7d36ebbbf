//! A linked ELF or Mach-O program or library.
//!
//! It provides functions by address, and the values that the dynamic linker stores in each
//! pointer-sized slot of its data.

mod elf;
mod macho;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, bail};
use object::{Object as _, ObjectSymbol as _};

/// A supported machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    /// AMD64.
    X86_64,
    /// AArch64.
    Aarch64,
}

/// A function of the program, or code without a symbol (a linkage stub).
#[derive(Clone, Debug)]
pub(super) struct Function {
    /// The first address.
    pub(super) start: u64,
    /// The address after the last byte.
    pub(super) end: u64,
    /// The demangled name without the hash.
    pub(super) name: String,
}

/// The content of a slot after loading.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    /// An address in this program.
    Own(u64),
    /// The address of a symbol in another library.
    Import(String),
    /// A resolver of a thread-local variable that may be allocated on first use.
    LazyThreadLocal,
}

/// A range of the program's bytes.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) name: String,
    pub(super) start: u64,
    pub(super) bytes: Vec<u8>,
    size: u64,
    pub(super) is_code: bool,
}

impl Region {
    /// Whether the address is in the region.
    pub(super) fn contains(&self, address: u64) -> bool {
        address >= self.start && address < self.start + self.size
    }
}

/// A linked program.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) machine: Machine,
    pub(super) regions: Vec<Region>,
    functions: BTreeMap<u64, Function>,
    slots: BTreeMap<u64, Slot>,
    /// Data symbols: start and size.
    data: BTreeMap<u64, u64>,
    /// Whether the dynamic linker binds all imports before the program starts.
    ///
    /// If so, no first call enters it.
    pub(super) binds_at_start: bool,
    is_macho: bool,
}

impl Program {
    /// Reads a linked program.
    ///
    /// # Errors
    /// An error if the file can't be read, is not ELF or Mach-O for a known machine, or has no
    /// symbol table.
    pub(super) fn read(path: &Path) -> anyhow::Result<Program> {
        let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let file = object::File::parse(&*bytes).with_context(|| format!("not an object file: {}", path.display()))?;
        let machine = match file.architecture() {
            object::Architecture::X86_64 => Machine::X86_64,
            object::Architecture::Aarch64 => Machine::Aarch64,
            other => bail!("{}: no decoder for {other:?}", path.display()),
        };
        let mut program = Program {
            machine,
            regions: Vec::new(),
            functions: BTreeMap::new(),
            slots: BTreeMap::new(),
            data: BTreeMap::new(),
            binds_at_start: true,
            is_macho: file.format() == object::BinaryFormat::MachO,
        };
        match file.format() {
            object::BinaryFormat::Elf => program.read_elf_sections(&file),
            object::BinaryFormat::MachO => program.read_macho_sections(&file),
            other => bail!("{}: {other:?} is not read", path.display()),
        }
        program.read_symbols(&file);
        if program.functions.is_empty() {
            bail!("{} has no symbol table", path.display());
        }
        if program.is_macho {
            program.read_macho_slots(&bytes)?;
        } else {
            program.read_elf_slots(&file)?;
        }
        Ok(program)
    }

    fn read_symbols(&mut self, file: &object::File<'_>) {
        // Skip arm64's mapping symbols ($x, $d), section symbols, and the labels that the compiler
        // puts at the end of naked functions: they are private to the assembler in ELF (`.L`), but
        // in Mach-O they appear at the next function's address.
        let named = |name: &str| !name.is_empty() && !name.starts_with('$') && !name.starts_with(".L");
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            let Ok(name) = symbol.name() else { continue };
            // Mach-O prefixes the names of C and Rust symbols with an underscore.
            let name = if self.is_macho { name.strip_prefix('_').unwrap_or(name) } else { name };
            if symbol.is_undefined() || !named(name) {
                continue;
            }
            let address = symbol.address();
            let is_code = self.regions.iter().any(|region| region.is_code && region.contains(address));
            match symbol.kind() {
                object::SymbolKind::Text if is_code => {
                    let name = demangled(name);
                    let function = Function { start: address, end: address + symbol.size(), name };
                    match self.functions.get_mut(&address) {
                        // Folded functions share an address: keep the first name and the longest
                        // extent.
                        Some(known) => {
                            known.end = known.end.max(function.end);
                            if function.name < known.name {
                                known.name = function.name;
                            }
                        }
                        None => {
                            self.functions.insert(address, function);
                        }
                    }
                }
                // Mach-O has no symbol sizes: such an object ends where the next one begins.
                object::SymbolKind::Data if symbol.size() > 0 || self.is_macho => {
                    self.data.insert(address, symbol.size());
                }
                _ => {}
            }
        }
        // Assembly without `.size` extends to the next function.
        let starts: Vec<u64> = self.functions.keys().copied().collect();
        for (index, start) in starts.iter().enumerate() {
            let region_end =
                self.regions.iter().find(|region| region.contains(*start)).map_or(*start, |r| r.start + r.size);
            let next = starts.get(index + 1).copied().unwrap_or(u64::MAX).min(region_end);
            if let Some(function) = self.functions.get_mut(start)
                && function.end == function.start
            {
                function.end = next;
            }
        }
    }

    /// Whether it is a Mach-O file.
    pub(super) fn is_macho(&self) -> bool {
        self.is_macho
    }

    /// Returns all functions, by address.
    pub(super) fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.values()
    }

    /// Returns the function that contains the address.
    pub(super) fn function_at(&self, address: u64) -> Option<&Function> {
        self.functions.range(..=address).next_back().map(|(_, function)| function).filter(|f| address < f.end)
    }

    /// Returns at most 16 bytes of the code without a symbol at an address, such as a linkage stub.
    pub(super) fn nameless_code_at(&self, address: u64) -> Option<Function> {
        let region = self.regions.iter().find(|region| region.is_code && region.contains(address))?;
        (region.name.starts_with(".plt") || region.name == "__stubs").then(|| Function {
            start: address,
            end: (address + 16).min(region.start + region.size),
            name: format!("linkage stub at {address:#x}"),
        })
    }

    /// Whether the address is in code.
    pub(super) fn is_code(&self, address: u64) -> bool {
        self.regions.iter().any(|region| region.is_code && region.contains(address))
    }

    /// Whether the address is in data of the program.
    pub(super) fn is_data(&self, address: u64) -> bool {
        self.regions.iter().any(|region| !region.is_code && region.contains(address))
    }

    /// Whether the address is in the global offset table, which has independent slots.
    pub(super) fn is_offset_table(&self, address: u64) -> bool {
        let is_table = |name: &str| name.starts_with(".got") || macho::OFFSET_TABLES.contains(&name);
        self.regions.iter().any(|region| is_table(&region.name) && region.contains(address))
    }

    /// Returns what the dynamic linker stores at exactly this address.
    pub(super) fn slot(&self, address: u64) -> Option<&Slot> {
        self.slots.get(&address)
    }

    /// All slots.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.values()
    }

    /// Returns the slots of the data object at an address.
    ///
    /// The object's size is its symbol's; an object without a symbol (a vtable, a constant) ends
    /// where the next referenced object begins.
    pub(super) fn slots_of_object(&self, address: u64, referenced: &BTreeSet<u64>) -> Vec<Slot> {
        let symbol = self.data.range(..=address).next_back().filter(|(start, size)| address < **start + **size);
        let (start, end) = match symbol {
            Some((start, size)) => (*start, start + size),
            None => {
                let region_end =
                    self.regions.iter().find(|region| region.contains(address)).map_or(address, |r| r.start + r.size);
                let next = referenced.range(address + 1..).next().copied().unwrap_or(u64::MAX);
                let next_symbol = self.data.range(address + 1..).next().map_or(u64::MAX, |(start, _)| *start);
                (address, region_end.min(next).min(next_symbol))
            }
        };
        self.slots.range(start..end).map(|(_, slot)| slot.clone()).collect()
    }

    /// Returns the little-endian word in the file at an address.
    fn word(&self, address: u64) -> Option<u64> {
        let region = self.regions.iter().find(|region| region.contains(address))?;
        let offset = usize::try_from(address - region.start).ok()?;
        Some(u64::from_le_bytes(region.bytes.get(offset..offset + 8)?.try_into().ok()?))
    }

    /// Returns a function's bytes.
    pub(super) fn code(&self, function: &Function) -> &[u8] {
        let Some(region) = self.regions.iter().find(|region| region.is_code && region.contains(function.start)) else {
            return &[];
        };
        let start = (function.start - region.start) as usize;
        let end = ((function.end - region.start) as usize).min(region.bytes.len());
        region.bytes.get(start..end).unwrap_or_default()
    }
}

/// Demangles a symbol's name, without the compiler's hash.
fn demangled(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

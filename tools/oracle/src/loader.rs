//! Loads an ELF shared object or a Mach-O dylib without an operating system.
//!
//! It does what a dynamic linker would: segments are mapped at a chosen base, relocations are
//! applied, and every symbol that the image doesn't define is bound to a host function.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    collections::{BTreeMap, HashMap},
    ops::Range,
    ptr::NonNull,
    slice,
};

use anyhow::{Context, bail, ensure};
use coroner_process::{
    memory::{Memory, Unreadable},
    registers::Arch,
};
use object::{
    BinaryFormat, Endianness, Object, ObjectSection, ObjectSegment, ObjectSymbol, RelocationFlags, RelocationTarget,
    SymbolKind, elf, macho,
    read::macho::{LoadCommandVariant, MachHeader as _, MachOFile64},
};

const PAGE: u64 = 0x4000;

/// The address of the emulator's functions, one every [`HOST_STEP`] bytes.
pub(super) const HOST_BASE: u64 = 0x7000_0000_0000;
pub(super) const HOST_STEP: u64 = 16;
/// The heap's address.
pub(super) const HEAP_BASE: u64 = 0x6000_0000_0000;
/// The heap's length.
pub(super) const HEAP_LENGTH: u64 = 64 << 20;
/// The address above the stack's last byte.
pub(super) const STACK_END: u64 = 0x7fff_f000_0000;
/// The stack's length.
pub(super) const STACK_LENGTH: u64 = 4 << 20;

/// A range of guest memory.
pub(super) struct Region {
    pub(super) address: u64,
    pub(super) executable: bool,
    layout: Layout,
    host: NonNull<u8>,
}

// SAFETY: a region owns its memory.
unsafe impl Send for Region {}

impl Region {
    fn new(range: Range<u64>, executable: bool) -> anyhow::Result<Region> {
        let length = usize::try_from(range.end - range.start)?.next_multiple_of(PAGE as usize).max(PAGE as usize);
        let layout = Layout::from_size_align(length, PAGE as usize)?;
        // SAFETY: the length isn't zero.
        let host = unsafe { alloc_zeroed(layout) };
        let host = NonNull::new(host).unwrap_or_else(|| handle_alloc_error(layout));
        Ok(Region { address: range.start, executable, layout, host })
    }

    pub(super) fn length(&self) -> usize {
        self.layout.size()
    }

    pub(super) fn host(&self) -> *mut u8 {
        self.host.as_ptr()
    }

    /// The bytes. The guest also writes them, but only while it runs, when no borrow exists.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is allocated, initialized and has this length.
        unsafe { slice::from_raw_parts(self.host.as_ptr(), self.layout.size()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.host.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { dealloc(self.host.as_ptr(), self.layout) };
    }
}

/// The guest's memory, as read by a walker.
pub(super) struct Regions(pub(super) Vec<Region>);

impl Regions {
    /// The bytes at `address`, if they are in one region.
    pub(super) fn get(&self, address: u64, length: usize) -> Option<&[u8]> {
        self.0.iter().find_map(|region| {
            let offset = usize::try_from(address.checked_sub(region.address)?).ok()?;
            region.bytes().get(offset..)?.get(..length)
        })
    }

    /// The bytes at `address` for writing.
    pub(super) fn get_mut(&mut self, address: u64, length: usize) -> Option<&mut [u8]> {
        self.0.iter_mut().find_map(|region| {
            let offset = usize::try_from(address.checked_sub(region.address)?).ok()?;
            region.bytes_mut().get_mut(offset..)?.get_mut(..length)
        })
    }

    /// The word at `address`.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        self.get(address, 8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)))
    }

    fn add_word(&mut self, address: u64, value: u64) -> anyhow::Result<()> {
        let old = self.word(address).with_context(|| format!("relocation at {address:#x}, outside the image"))?;
        self.set_word(address, old.wrapping_add(value))
    }

    pub(super) fn set_word(&mut self, address: u64, value: u64) -> anyhow::Result<()> {
        let place = self.get_mut(address, 8).with_context(|| format!("no memory at {address:#x}"))?;
        place.copy_from_slice(&value.to_le_bytes());
        Ok(())
    }
}

/// The walker's view of memory; any number of walkers may read it.
#[derive(Clone, Copy)]
pub(super) struct Guest<'a>(pub(super) &'a Regions);

impl Memory for Guest<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let bytes = self.0.get(address, into.len()).ok_or(Unreadable { address })?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}

/// A section by its name in the format, at its address in the guest.
#[derive(Clone)]
pub(super) struct Section {
    pub(super) range: Range<u64>,
    pub(super) bytes: Vec<u8>,
}

/// A loaded program.
pub(super) struct Program {
    pub(super) arch: Arch,
    pub(super) format: BinaryFormat,
    /// Actual minus stated addresses.
    pub(super) bias: u64,
    /// The executable segment's address range.
    pub(super) text: Range<u64>,
    pub(super) sections: HashMap<String, Section>,
    pub(super) regions: Regions,
    /// Function starts by address, with names.
    pub(super) functions: BTreeMap<u64, String>,
    /// Names of host functions, by number from [`HOST_BASE`].
    pub(super) host: Vec<String>,
    /// The address of `oracle_main`.
    pub(super) entry: u64,
    /// Mach-O's lazily bound pointers, by the number that `__stub_helper` passes to [`BINDER`].
    pub(super) lazy: HashMap<u64, Lazy>,
}

/// A pointer that is bound at the first call through it.
#[derive(Clone, Copy)]
pub(super) struct Lazy {
    /// The pointer's address.
    pub(super) place: u64,
    /// The address of the symbol to which it is bound.
    pub(super) target: u64,
}

/// The function in Apple's C library that `__stub_helper` jumps to.
///
/// It pops two words off the stack and jumps to the function that it has bound.
pub(super) const BINDER: &str = "dyld_stub_binder";

impl Program {
    /// Loads a file.
    ///
    /// # Errors
    /// An error if the file is not a program of the oracle, or has an unknown kind of relocation.
    pub(super) fn load(data: &[u8]) -> anyhow::Result<Program> {
        let file = object::File::parse(data)?;
        let arch = match file.architecture() {
            object::Architecture::X86_64 => Arch::X86_64,
            object::Architecture::Aarch64 => Arch::Aarch64,
            other => bail!("architecture {other:?}"),
        };
        let format = file.format();
        let bias: u64 = if format == BinaryFormat::MachO { 0x1_0000_0000 } else { 0x5555_5555_0000 };
        let (mut low, mut high) = (u64::MAX, 0);
        for segment in file.segments() {
            low = low.min(segment.address());
            high = high.max(segment.address() + segment.size());
        }
        ensure!(low < high && high < 1 << 30, "an image of {low:#x}..{high:#x}");
        // One region for all segments: memory between them is zero, as if mapped.
        let mut image = Region::new(bias + (low & !(PAGE - 1))..bias + high, true)?;
        let mut text = 0..0;
        for segment in file.segments() {
            let bytes = segment.data()?;
            let at = usize::try_from(bias + segment.address() - image.address)?;
            image.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            let executable = match segment.flags() {
                object::SegmentFlags::Elf { p_flags, .. } => p_flags.0 & elf::PF_X.0 != 0,
                object::SegmentFlags::MachO { initprot, .. } => initprot.0 & macho::VM_PROT_EXECUTE.0 != 0,
                _ => false,
            };
            if executable {
                ensure!(text.is_empty(), "two executable segments");
                text = bias + segment.address()..bias + segment.address() + segment.size();
            }
        }
        let mut sections = HashMap::new();
        for section in file.sections() {
            let start = bias + section.address();
            sections.insert(
                section.name()?.to_owned(),
                Section { range: start..start + section.size(), bytes: section.data().unwrap_or_default().to_vec() },
            );
        }
        let prefix = if format == BinaryFormat::MachO { "_" } else { "" };
        let plain = |name: &str| name.strip_prefix(prefix).unwrap_or(name).to_owned();
        let mut functions = BTreeMap::new();
        let mut defined = HashMap::new();
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            if symbol.is_undefined() || symbol.address() == 0 {
                continue;
            }
            let (name, address) = (plain(symbol.name()?), bias + symbol.address());
            if symbol.kind() == SymbolKind::Text && text.contains(&address) && !name.starts_with('$') {
                functions.insert(address, format!("{:#}", rustc_demangle::demangle(&name)));
            }
            defined.insert(name, address);
        }
        let entry = *defined.get("oracle_main").context("no oracle_main")?;
        let stack = Region::new(STACK_END - STACK_LENGTH..STACK_END, false)?;
        let heap = Region::new(HEAP_BASE..HEAP_BASE + HEAP_LENGTH, false)?;
        let mut program = Program {
            arch,
            format,
            bias,
            text,
            sections,
            regions: Regions(vec![stack, image, heap]),
            functions,
            host: Vec::new(),
            entry,
            lazy: HashMap::new(),
        };
        let mut host = HashMap::new();
        let mut resolve = |name: &str| -> u64 {
            let name = plain(name);
            *defined.get(&name).unwrap_or_else(|| {
                host.entry(name.clone()).or_insert_with(|| {
                    program.host.push(name);
                    HOST_BASE + HOST_STEP * (program.host.len() as u64 - 1)
                })
            })
        };
        match &file {
            object::File::MachO64(file) => {
                let helper = program.sections.get("__stub_helper").map_or(0..0, |section| section.range.clone());
                bind_macho(file, data, bias, &mut program.regions, &mut resolve, &mut |memory, lazy| {
                    // The pointer leads to its entry in the helper, if there is one, and the entry
                    // has the number.
                    let entry = memory.word(lazy.place).filter(|entry| helper.contains(entry));
                    let number = match arch {
                        Arch::X86_64 => entry.map(|entry| entry + 1),
                        Arch::Aarch64 => entry.map(|entry| entry + 8),
                    };
                    let number = number.and_then(|number| memory.get(number, 4)?.try_into().ok());
                    match number.map(|number| u64::from(u32::from_le_bytes(number))) {
                        // zig's linker leaves all numbers at 0 on arm64: then only one pointer can
                        // be identified.
                        Some(number) if !program.lazy.contains_key(&number) => {
                            program.lazy.insert(number, lazy);
                            Ok(())
                        }
                        _ => memory.set_word(lazy.place, lazy.target),
                    }
                })?;
            }
            _ => relocate_elf(&file, bias, &mut program.regions, &mut resolve)?,
        }
        program.add_host_page()?;
        Ok(program)
    }

    /// Returns the return address of signal handlers, after the host functions.
    pub(super) fn trampoline(&self) -> u64 {
        HOST_BASE + HOST_STEP * self.host.len() as u64
    }

    /// Adds the host functions.
    ///
    /// Each is a return instruction that the emulator's hook detects, except the binder, which
    /// jumps.
    fn add_host_page(&mut self) -> anyhow::Result<()> {
        let mut page = Region::new(HOST_BASE..HOST_BASE + HOST_STEP * (self.host.len() as u64 + 1), true)?;
        // The binder: add rsp, 16; jmp r11 / add sp, sp, #16; br x16.
        let (ret, bound): (&[u8], &[u8]) = match self.arch {
            Arch::X86_64 => (&[0xc3], &[0x48, 0x83, 0xc4, 0x10, 0x41, 0xff, 0xe3]),
            Arch::Aarch64 => (&[0xc0, 0x03, 0x5f, 0xd6], &[0xff, 0x43, 0x00, 0x91, 0x00, 0x02, 0x1f, 0xd6]),
        };
        for (index, place) in page.bytes_mut().as_chunks_mut::<{ HOST_STEP as usize }>().0.iter_mut().enumerate() {
            let code = if self.host.get(index).is_some_and(|name| name == BINDER) { bound } else { ret };
            place[..code.len()].copy_from_slice(code);
        }
        // mov rax, 15; syscall / mov x8, #139; svc #0: rt_sigreturn, as in the C library or the
        // vDSO.
        let sigreturn: &[u8] = match self.arch {
            Arch::X86_64 => &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05],
            Arch::Aarch64 => &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4],
        };
        let at = usize::try_from(self.trampoline() - HOST_BASE)?;
        page.bytes_mut()[at..at + sigreturn.len()].copy_from_slice(sigreturn);
        self.regions.0.push(page);
        Ok(())
    }

    /// Returns the function at `address`, as `name+offset`.
    pub(super) fn describe(&self, address: u64) -> String {
        match self.function(address) {
            Some((name, offset)) => format!("{name}+{offset:#x}"),
            None => format!("{address:#x}"),
        }
    }

    /// Returns the function at `address`, and the offset in it.
    pub(super) fn function(&self, address: u64) -> Option<(&str, u64)> {
        for (name, section) in &self.sections {
            if matches!(name.as_str(), ".plt" | ".plt.sec" | ".plt.got" | "__stubs" | "__stub_helper")
                && section.range.contains(&address)
            {
                return Some((name, address - section.range.start));
            }
        }
        if !self.text.contains(&address) {
            return None;
        }
        let (start, name) = self.functions.range(..=address).next_back()?;
        Some((name, address - start))
    }
}

fn relocate_elf(
    file: &object::File<'_>,
    bias: u64,
    memory: &mut Regions,
    resolve: &mut dyn FnMut(&str) -> u64,
) -> anyhow::Result<()> {
    let symbols = file.dynamic_symbol_table().context("no dynamic symbols")?;
    for (address, relocation) in file.dynamic_relocations().into_iter().flatten() {
        let place = bias + address;
        let RelocationFlags::Elf { r_type } = relocation.flags() else { bail!("a relocation that isn't ELF's") };
        let symbol = |resolve: &mut dyn FnMut(&str) -> u64| -> anyhow::Result<u64> {
            let RelocationTarget::Symbol(index) = relocation.target() else { return Ok(0) };
            object::ObjectSymbolTable::symbol_by_index(&symbols, index)?.name().map(resolve).map_err(Into::into)
        };
        let addend = relocation.addend() as u64;
        let x86 = file.architecture() == object::Architecture::X86_64;
        match (x86, r_type) {
            (true, elf::R_X86_64_RELATIVE) | (false, elf::R_AARCH64_RELATIVE) => {
                memory.set_word(place, bias.wrapping_add(addend))?;
            }
            (true, elf::R_X86_64_64 | elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT)
            | (false, elf::R_AARCH64_ABS64 | elf::R_AARCH64_GLOB_DAT | elf::R_AARCH64_JUMP_SLOT) => {
                let target = symbol(resolve)?;
                memory.set_word(place, target.wrapping_add(addend))?;
            }
            // Thread-local storage, which only std uses internally and the programs never reach.
            (true, elf::R_X86_64_DTPMOD64 | elf::R_X86_64_DTPOFF64 | elf::R_X86_64_TPOFF64)
            | (false, elf::R_AARCH64_TLSDESC | elf::R_AARCH64_TLS_TPREL | elf::R_AARCH64_TLS_DTPMOD) => {}
            (_, other) => bail!("relocation type {other:?} at {address:#x}"),
        }
    }
    Ok(())
}

fn bind_macho(
    file: &MachOFile64<'_, Endianness>,
    data: &[u8],
    bias: u64,
    memory: &mut Regions,
    resolve: &mut dyn FnMut(&str) -> u64,
    put_off: &mut dyn FnMut(&mut Regions, Lazy) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let endian = file.endian();
    let segments: Vec<u64> = file.segments().map(|segment| bias + segment.address()).collect();
    let place = |index: u8, offset: u64| -> anyhow::Result<u64> {
        segments.get(usize::from(index)).map(|start| start + offset).context("a fixup in no segment")
    };
    let mut commands = file.macho_header().load_commands(endian, data, 0)?;
    while let Some(command) = commands.next()? {
        match command.variant()? {
            LoadCommandVariant::DyldInfo(info) => {
                for rebase in info.rebases(endian, data, 8)? {
                    let rebase = rebase?;
                    memory.add_word(place(rebase.segment_index, rebase.segment_offset)?, bias)?;
                }
                let binds = info.binds(endian, data, 8)?.chain(info.weak_binds(endian, data, 8)?);
                let mut target = |symbol: &[u8], addend: i64| -> anyhow::Result<u64> {
                    Ok(resolve(std::str::from_utf8(symbol)?).wrapping_add(addend as u64))
                };
                for bind in binds {
                    let bind = bind?;
                    let target = target(bind.symbol, bind.addend)?;
                    memory.set_word(place(bind.segment_index, bind.segment_offset)?, target)?;
                }
                for bind in info.lazy_binds(endian, data, 8)? {
                    let bind = bind?;
                    let target = target(bind.symbol, bind.addend)?;
                    put_off(memory, Lazy { place: place(bind.segment_index, bind.segment_offset)?, target })?;
                }
            }
            LoadCommandVariant::LinkeditData(linkedit) if linkedit.cmd.get(endian) == macho::LC_DYLD_CHAINED_FIXUPS => {
                bail!("chained fixups: the programs are linked without them");
            }
            _ => {}
        }
    }
    Ok(())
}

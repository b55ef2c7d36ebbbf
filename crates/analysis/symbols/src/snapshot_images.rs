//! Unwind data from image files, for stack walks in a process's saved memory.
//!
//! The memory is from a core, a minidump or a tombstone.
//!
//! Saved memory contains the stacks, and often nothing else: a minidump has no code, and a core
//! omits what can be read from the mapped files. [`SnapshotImages`] lays out the files at their
//! load addresses beside that memory, and locates their unwind data:
//!
//! - A PE file's headers and read-only sections (with `.pdata`): from the image's own file, as
//!   readable memory only.
//! - Code, `.eh_frame` and `.eh_frame_hdr`, `.sframe`, `__unwind_info`: from the image's own file.
//! - A search table where the linker created none (`PT_GNU_EH_FRAME`): built here from the section
//!   headers.
//! - `.debug_frame`: from the image's file or its debug file, also compressed; else from the ELF
//!   file in `.gnu_debugdata` (Android's system libraries).
//!
//! A debug file without the image's own file provides `.debug_frame` and the location of code.
//!
//! # Example
//! ```no_run
//! # use coroner_process::{memory::{Memory, Snapshot}, registers::X86_64Registers};
//! # use coroner_symbols::{ImageKey, SnapshotImages, Symbolizer};
//! # use coroner_unwind::{Options, RuleCache, Walker, X86_64};
//! # fn walk(symbolizer: &mut Symbolizer, loaded: &[(ImageKey, u64)], saved: impl Memory, registers: &X86_64Registers) {
//! let mut images = SnapshotImages::new();
//! for (key, load_address) in loaded {
//!     images.add(symbolizer.files(key), *load_address);
//! }
//! let mut cache = RuleCache::new();
//! let mut walker =
//!     Walker::<X86_64, _, _>::new(registers, images.memory(saved), &images, &mut cache, Options::default());
//! while let Some(frame) = walker.next_frame() {
//!     println!("{:#x} ({})", frame.pc, frame.found.name());
//! }
//! # }
//! ```

use coroner_process::memory::{Memory, Unreadable};
use coroner_unwind::{AddressRange, BuildError, FrameSection, Image, ImageFormat, Images, build_search_table};
use object::{
    Object, ObjectSection, elf,
    read::elf::{FileHeader, ProgramHeader},
};

use crate::{
    debug_sections::section,
    elf::mini_debug_info,
    error::{Malformed, SymbolError},
    file_kind::{Arch, FileKind},
    mapped_file::Bytes,
    symbol_file::SymbolFile,
};

/// Address for sections that were never loaded and for tables built here.
///
/// The address is not valid in a process on either architecture.
const SYNTHETIC_BASE: u64 = 0xa000_0000_0000_0000;
/// Alignment of what is placed at [`SYNTHETIC_BASE`].
const ALIGNMENT: u64 = 0x1000;

/// The unwind data found for an image.
#[derive(Debug, Default)]
pub struct UnwindData {
    /// Whether the image's own file was found, so that its code can be read.
    pub has_code: bool,
    /// Whether there is `.eh_frame` or `__eh_frame`, or its search table.
    pub eh_frame: bool,
    /// Whether there is `__unwind_info`.
    pub compact_unwind: bool,
    /// Whether there is `.debug_frame`.
    pub debug_frame: bool,
    /// Errors in the files; the intact parts are used anyway.
    pub problems: Vec<SymbolError>,
}

/// The images of a process whose memory was saved, each with its file.
///
/// Implements [`Images`] for a stack walk; [`Self::memory`] returns the memory that the walk reads.
#[derive(Debug, Default)]
pub struct SnapshotImages {
    /// Sorted by the start of their code.
    images: Vec<Image>,
    /// Sorted by address. If two overlap, because a file is not what it should be, the one that
    /// starts later is read.
    parts: Vec<Part>,
    /// The process's memory ranges, sorted by address, and whether they were executable.
    memory: Vec<(AddressRange, bool)>,
    /// Ranges that [`Self::memory`] may lack although they were mapped.
    unlisted: Vec<AddressRange>,
    /// Number of bytes placed at [`SYNTHETIC_BASE`].
    made: u64,
}

/// Bytes at their address in the process.
#[derive(Debug)]
struct Part {
    start: u64,
    bytes: Bytes,
}

/// The parts of a file, with the addresses in the file itself.
#[derive(Default)]
struct Layout {
    /// Code.
    text: Vec<AddressRange>,
    /// Read-only data, by address.
    read_only: Vec<(u64, Bytes)>,
}

impl SnapshotImages {
    /// Creates a value without images.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an image loaded at `load_address`, with all of its files.
    ///
    /// `load_address` is the address of its ELF or Mach-O header. The files are those of
    /// [`Symbolizer::files`](crate::Symbolizer::files) or [`SymbolFile::open`]. Files that don't
    /// specify where code is, and files for 32-bit processors, are ignored.
    pub fn add(&mut self, files: &[SymbolFile], load_address: u64) -> UnwindData {
        let mut data = UnwindData::default();
        let is_object = |file: &&SymbolFile| {
            matches!(file.arch(), Arch::X86_64 | Arch::Aarch64) && file.kind() != FileKind::Breakpad && file.is_file()
        };
        let objects: Vec<&SymbolFile> = files.iter().filter(is_object).collect();
        // A debug file has the headers of its image, but not the bytes.
        let Some(&first) = objects.iter().find(|file| has_code(file)).or(objects.first()) else { return data };
        let Ok(parsed) = object::File::parse(first.bytes()) else { return data };
        let slide = load_address.wrapping_sub(first.base_svma());
        data.has_code = has_code(first);
        #[cfg(feature = "pe")]
        if first.kind() == FileKind::Pe {
            data.has_code = self.add_pe(&parsed, first, load_address);
            return data;
        }
        let layout = match &parsed {
            object::File::Elf64(file) => elf_layout(file.elf_header(), file.endian(), first, data.has_code),
            object::File::MachO64(_) => mach_layout(&parsed, first),
            _ => return data,
        };
        let at = |name: &str| {
            let section = parsed.section_by_name(name);
            section.map_or(AddressRange::default(), |section| {
                let start = section.address().wrapping_add(slide);
                AddressRange { start, end: start.saturating_add(section.size()) }
            })
        };
        let is_mach = first.kind() == FileKind::MachO;
        let mut image = Image {
            format: if is_mach { ImageFormat::MachO } else { ImageFormat::Elf },
            base: load_address,
            bias: slide,
            text_section: at(if is_mach { "__text" } else { ".text" }).start,
            data: at(".got").start,
            ..Image::default()
        };
        if data.has_code {
            image.eh_frame = at(if is_mach { "__eh_frame" } else { ".eh_frame" });
            image.eh_frame_hdr = elf_search_table(&parsed, slide).unwrap_or_else(|| at(".eh_frame_hdr"));
            image.sframe = at(".sframe");
            image.unwind_info = at("__unwind_info");
            image.stubs = at("__stubs");
            image.stub_helper = at("__stub_helper");
        }
        for (start, bytes) in layout.read_only {
            self.insert(start.wrapping_add(slide), bytes);
        }
        if image.eh_frame_hdr.is_empty() && !image.eh_frame.is_empty() {
            match self.build_search_table_for(&FrameSection::eh_frame(&image)) {
                Ok(table) => image.eh_frame_hdr = table,
                Err(what) => data.problems.push(malformed(first, what)),
            }
        }
        self.add_debug_frame(&objects, &mut image, &mut data);
        data.eh_frame = !image.eh_frame.is_empty() || !image.eh_frame_hdr.is_empty();
        data.compact_unwind = !image.unwind_info.is_empty();
        data.debug_frame = !image.debug_frame.is_empty();
        for text in layout.text {
            let start = text.start.wrapping_add(slide);
            let end = start.saturating_add(text.len());
            let index = self.images.partition_point(|image| image.text.start < start);
            self.images.insert(index, Image { text: AddressRange { start, end }, ..image });
        }
        data
    }

    /// Adds a PE file's read-only data; returns whether it contains unwind data, which is parsed
    /// elsewhere.
    #[cfg(feature = "pe")]
    fn add_pe(&mut self, parsed: &object::File<'_>, file: &SymbolFile, load_address: u64) -> bool {
        /// Number of bytes at the start of the file that contain the headers.
        const HEADERS: u64 = 0x400;
        let mut has_unwind_data = false;
        for section in parsed.sections() {
            let object::SectionFlags::Coff { characteristics } = section.flags() else { continue };
            let Some((offset, size)) = section.file_range().filter(|(_, size)| *size > 0) else { continue };
            if characteristics.0 & object::pe::IMAGE_SCN_MEM_WRITE.0 != 0 {
                continue;
            }
            if let Some(bytes) = file.slice(offset, size) {
                has_unwind_data |= section.name() == Ok(".pdata");
                let rva = section.address().wrapping_sub(parsed.relative_address_base());
                self.insert(load_address.wrapping_add(rva), bytes);
            }
        }
        if has_unwind_data && let Some(bytes) = file.slice(0, HEADERS) {
            self.insert(load_address, bytes);
        }
        has_unwind_data
    }

    /// Adds all of the process's memory ranges, inside and outside images, with whether they were
    /// executable, except that `unlisted` ranges may be missing: GDB's cores omit code.
    ///
    /// Code generated at run time by compilers and interpreters is not in an image: its callers are
    /// found by frame pointers, and by a stack scan if the walk allows it. Addresses elsewhere, or
    /// in memory that isn't executable, are not accepted as return addresses.
    pub fn add_memory(
        &mut self,
        ranges: impl IntoIterator<Item = (AddressRange, bool)>,
        unlisted: impl IntoIterator<Item = AddressRange>,
    ) {
        self.memory.extend(ranges);
        self.memory.sort_by_key(|(range, _)| range.start);
        self.unlisted.extend(unlisted);
    }

    /// Returns the memory for a walk: the saved memory and, where it has no data, the files.
    pub fn memory<M: Memory>(&self, saved: M) -> SnapshotMemory<'_, M> {
        SnapshotMemory { saved, images: self }
    }

    fn add_debug_frame(&mut self, files: &[&SymbolFile], image: &mut Image, data: &mut UnwindData) {
        let found = files.iter().find_map(|file| match debug_frame(file) {
            Ok(bytes) if !bytes.is_empty() => Some((*file, bytes)),
            Ok(_) => None,
            Err(problem) => {
                data.problems.push(problem.in_file(file.path()));
                None
            }
        });
        let Some((file, bytes)) = found else { return };
        image.debug_frame = self.put(bytes);
        match self.build_search_table_for(&FrameSection::debug_frame(image)) {
            Ok(table) => image.debug_frame_hdr = table,
            Err(what) => {
                data.problems.push(malformed(file, what));
                image.debug_frame = AddressRange::default();
            }
        }
    }

    /// Builds a search table for a section that is laid out already.
    fn build_search_table_for(&mut self, section: &FrameSection) -> Result<AddressRange, BuildError> {
        let address = self.free_address();
        let mut table = Vec::new();
        loop {
            let built = build_search_table(&mut Files(self), section, address, &mut table);
            match built {
                Ok(length) => {
                    table.truncate(length);
                    return Ok(self.put(Bytes::owned(table)));
                }
                Err(BuildError::TooSmall(needed)) if needed > table.len() => table.resize(needed, 0),
                Err(error) => return Err(error),
            }
        }
    }

    fn free_address(&self) -> u64 {
        SYNTHETIC_BASE.saturating_add(self.made)
    }

    /// Places bytes at a free address.
    fn put(&mut self, bytes: Bytes) -> AddressRange {
        let (start, length) = (self.free_address(), bytes.len() as u64);
        self.made = self.made.saturating_add(length).next_multiple_of(ALIGNMENT).saturating_add(ALIGNMENT);
        self.insert(start, bytes);
        AddressRange { start, end: start.saturating_add(length) }
    }

    fn insert(&mut self, start: u64, bytes: Bytes) {
        let index = self.parts.partition_point(|part| part.start <= start);
        self.parts.insert(index, Part { start, bytes });
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let part = self.parts.get(self.parts.partition_point(|part| part.start <= address).checked_sub(1)?)?;
        let from = usize::try_from(address - part.start).ok()?;
        into.copy_from_slice(part.bytes.get(from..from.checked_add(into.len())?)?);
        Some(())
    }
}

impl Images for SnapshotImages {
    fn find(&self, address: u64) -> Option<Image> {
        self.images.as_slice().find(address)
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        if self.find(address).is_some() {
            return Some(true);
        }
        let after = self.memory.partition_point(|(range, _)| range.start <= address);
        let listed = after.checked_sub(1).and_then(|index| self.memory.get(index));
        match listed.filter(|(range, _)| range.contains(address)) {
            Some((_, executable)) => Some(*executable),
            None if self.memory.is_empty() || self.unlisted.iter().any(|range| range.contains(address)) => None,
            None => Some(false),
        }
    }
}

/// A process's saved memory combined with the files of its images.
#[derive(Debug)]
pub struct SnapshotMemory<'a, M> {
    saved: M,
    images: &'a SnapshotImages,
}

impl<M: Memory> Memory for SnapshotMemory<'_, M> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.saved.read(address, into).or_else(|error| self.images.read(address, into).ok_or(error))
    }
}

/// The files only.
struct Files<'a>(&'a SnapshotImages);

impl Memory for Files<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.0.read(address, into).ok_or(Unreadable { address })
    }
}

fn malformed(file: &SymbolFile, error: BuildError) -> SymbolError {
    let what = match error {
        BuildError::Section(problem) => format!("malformed call frame information: {problem:x?}"),
        BuildError::TooSmall(_) => "the call frame information changed while it was read".into(),
    };
    Malformed::new(0, what).in_file(file.path())
}

/// Whether the file contains its code's bytes; a debug file does not.
fn has_code(file: &SymbolFile) -> bool {
    let Ok(parsed) = object::File::parse(file.bytes()) else { return false };
    if file.kind() == FileKind::MachO {
        let header = file
            .bytes()
            .first_chunk::<16>()
            .map(|header| u32::from_le_bytes([header[12], header[13], header[14], header[15]]));
        return header != Some(object::macho::MH_DSYM.0);
    }
    let without_bytes = |section: &object::Section<'_, '_>| {
        let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { return false };
        sh_flags.contains(elf::SHF_EXECINSTR) && section.size() > 0 && section.file_range().is_none()
    };
    !parsed.sections().any(|section| without_bytes(&section))
}

fn elf_layout<Elf: FileHeader>(header: &Elf, endian: Elf::Endian, file: &SymbolFile, has_code: bool) -> Layout {
    let mut layout = Layout::default();
    for segment in header.program_headers(endian, file.bytes()).unwrap_or_default() {
        if segment.p_type(endian) != elf::PT_LOAD {
            continue;
        }
        let (start, size): (u64, u64) = (segment.p_vaddr(endian).into(), segment.p_memsz(endian).into());
        let flags = segment.p_flags(endian);
        if flags.contains(elf::PF_X) {
            layout.text.push(AddressRange { start, end: start.saturating_add(size) });
        }
        if has_code
            && !flags.contains(elf::PF_W)
            && let Some(bytes) = file.slice(segment.p_offset(endian).into(), segment.p_filesz(endian).into())
        {
            layout.read_only.push((start, bytes));
        }
    }
    layout
}

fn mach_layout(parsed: &object::File<'_>, file: &SymbolFile) -> Layout {
    use object::ObjectSegment;
    let mut layout = Layout::default();
    for segment in parsed.segments().filter(|segment| segment.name() == Ok(Some("__TEXT"))) {
        let (offset, size) = segment.file_range();
        layout
            .text
            .push(AddressRange { start: segment.address(), end: segment.address().saturating_add(segment.size()) });
        if let Some(bytes) = file.slice(offset, size) {
            layout.read_only.push((segment.address(), bytes));
        }
    }
    layout
}

/// Returns the range of `PT_GNU_EH_FRAME`, which the process itself would use.
fn elf_search_table(parsed: &object::File<'_>, slide: u64) -> Option<AddressRange> {
    let object::File::Elf64(file) = parsed else { return None };
    let endian = file.endian();
    let segment = file.elf_program_headers().iter().find(|segment| segment.p_type(endian) == elf::PT_GNU_EH_FRAME)?;
    let start = segment.p_vaddr(endian).wrapping_add(slide);
    Some(AddressRange { start, end: start.saturating_add(segment.p_memsz(endian)) })
}

/// Returns the decompressed `.debug_frame` of the file itself, or of the ELF file in
/// `.gnu_debugdata`. Empty if there is none.
fn debug_frame(file: &SymbolFile) -> Result<Bytes, Malformed> {
    const NAME: &str = ".debug_frame";
    let none = || Bytes::owned(Vec::new());
    if file.kind() != FileKind::Elf {
        return Ok(none());
    }
    let Ok(parsed) = object::File::parse(file.bytes()) else { return Ok(none()) };
    let own = section(&parsed, file.shared_bytes(), NAME)?;
    if !own.is_empty() {
        return Ok(own);
    }
    let Some(unpacked) = mini_debug_info(&parsed, usize::MAX)? else { return Ok(none()) };
    match object::File::parse(&*unpacked) {
        Ok(mini) => section(&mini, &unpacked, NAME),
        Err(error) => Err(Malformed::new(0, format!("invalid ELF file in .gnu_debugdata: {error}"))),
    }
}

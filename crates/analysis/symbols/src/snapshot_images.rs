//! Unwind data of image files, for walks of what was saved of a process: a core, a minidump, a tombstone.
//!
//! The saved memory has the stacks, and often nothing else: a minidump has no code, a core leaves out what can be read in the files that were
//! mapped. [`SnapshotImages`] lays the files out as they were loaded, beside that memory, and says where their unwind data are:
//!
//! | what | from |
//! |---|---|
//! | a PE file's headers and read-only sections (with `.pdata`) | the image's own file; only to be read |
//! | code, `.eh_frame` and `.eh_frame_hdr`, `.sframe`, `__unwind_info` | the image's own file |
//! | a search table where the linker made none (`PT_GNU_EH_FRAME`) | made here, by the section headers |
//! | `.debug_frame` | the image's file or its debug file, compressed too; else the ELF file in `.gnu_debugdata` (Android's system libraries) |
//!
//! A debug file alone, without the image's own, gives `.debug_frame`, and says where code is.
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

/// Where sections are put that were never loaded, and tables that are made here: addresses that no process has on either processor.
const MADE: u64 = 0xa000_0000_0000_0000;
/// They begin at multiples of this.
const ALIGNMENT: u64 = 0x1000;

/// What was found of an image's unwind data.
#[derive(Debug, Default)]
pub struct UnwindData {
    /// Its own file was there, so that its code can be read.
    pub has_code: bool,
    /// It has `.eh_frame` or `__eh_frame`, or the search table of one.
    pub eh_frame: bool,
    /// It has `__unwind_info`.
    pub compact_unwind: bool,
    /// There is a `.debug_frame`.
    pub debug_frame: bool,
    /// What was broken; the rest is used all the same.
    pub problems: Vec<SymbolError>,
}

/// The images of a process of which memory was saved, each by its file.
///
/// It is the [`Images`] of a walk; [`Self::memory`] is what the walk reads.
#[derive(Debug, Default)]
pub struct SnapshotImages {
    /// By the start of their code.
    images: Vec<Image>,
    /// By address. Where two overlap, by a file that is not what it should be, the one that begins later is read.
    parts: Vec<Part>,
    /// By address: what memory the process had, and whether code could run there.
    memory: Vec<(AddressRange, bool)>,
    /// How much was put at [`MADE`].
    made: u64,
}

/// Bytes at the address where the process has them.
#[derive(Debug)]
struct Part {
    start: u64,
    bytes: Bytes,
}

/// What of a file lies where, in the addresses that it gives itself.
#[derive(Default)]
struct Layout {
    /// Code.
    text: Vec<AddressRange>,
    /// What can be read and not be written, with its place in the file.
    read_only: Vec<(u64, Bytes)>,
}

impl SnapshotImages {
    /// No images.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an image that was loaded at `load_address` (of its first byte: the address where its ELF or Mach-O header was), by all files that
    /// are of it: [`Symbolizer::files`](crate::Symbolizer::files), or [`SymbolFile::open`]. Nothing is added of files that say nothing of
    /// where code is, and of those for 32-bit processors.
    pub fn add(&mut self, files: &[SymbolFile], load_address: u64) -> UnwindData {
        let mut data = UnwindData::default();
        let is_object = |file: &&SymbolFile| {
            matches!(file.arch(), Arch::X86_64 | Arch::Aarch64) && file.kind() != FileKind::Breakpad && file.is_file()
        };
        let objects: Vec<&SymbolFile> = files.iter().filter(is_object).collect();
        // A debug file has the headers of what it was made of, and not the bytes.
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
            match self.table_of(&FrameSection::eh_frame(&image)) {
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

    /// What of a PE file can be read and not be written. Its unwind data are none of this crate's; whether it has them.
    #[cfg(feature = "pe")]
    fn add_pe(&mut self, parsed: &object::File<'_>, file: &SymbolFile, load_address: u64) -> bool {
        /// Where the headers are.
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

    /// Says what memory the process had, of images or not, and where code could run. That of compilers and interpreters at run time is in no image:
    /// its callers are found by frame pointers, and by a scan where the walk may scan. Where no code could run nobody returns to.
    pub fn add_memory(&mut self, ranges: impl IntoIterator<Item = (AddressRange, bool)>) {
        self.memory.extend(ranges);
        self.memory.sort_by_key(|(range, _)| range.start);
    }

    /// The memory that a walk reads: what was saved, and where that has nothing, the files.
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
        match self.table_of(&FrameSection::debug_frame(image)) {
            Ok(table) => image.debug_frame_hdr = table,
            Err(what) => {
                data.problems.push(malformed(file, what));
                image.debug_frame = AddressRange::default();
            }
        }
    }

    /// A search table for a section that is laid out already.
    fn table_of(&mut self, section: &FrameSection) -> Result<AddressRange, BuildError> {
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
        MADE.saturating_add(self.made)
    }

    /// Puts bytes where nothing else is.
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
        let after = self.memory.partition_point(|(range, _)| range.start <= address);
        let listed = after.checked_sub(1).and_then(|index| self.memory.get(index));
        let listed = listed.filter(|(range, _)| range.contains(address)).map(|(_, executable)| *executable);
        if self.find(address).is_some() { Some(true) } else { listed }
    }
}

/// What was saved of a process, and the files that its images were loaded from.
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

/// The files alone.
struct Files<'a>(&'a SnapshotImages);

impl Memory for Files<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.0.read(address, into).ok_or(Unreadable { address })
    }
}

fn malformed(file: &SymbolFile, error: BuildError) -> SymbolError {
    let what = match error {
        BuildError::Section(problem) => format!("call frame information: {problem:x?}"),
        BuildError::TooSmall(_) => "call frame information that changes while it is read".into(),
    };
    Malformed::new(0, what).in_file(file.path())
}

/// Whether the bytes of its code are in it: in a debug file they are not.
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

/// `PT_GNU_EH_FRAME`: what the process itself would go by.
fn elf_search_table(parsed: &object::File<'_>, slide: u64) -> Option<AddressRange> {
    let object::File::Elf64(file) = parsed else { return None };
    let endian = file.endian();
    let segment = file.elf_program_headers().iter().find(|segment| segment.p_type(endian) == elf::PT_GNU_EH_FRAME)?;
    let start = segment.p_vaddr(endian).wrapping_add(slide);
    Some(AddressRange { start, end: start.saturating_add(segment.p_memsz(endian)) })
}

/// `.debug_frame`, unpacked: of the file itself, or of the one in `.gnu_debugdata`. Empty if there is none.
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
        Err(error) => Err(Malformed::new(0, format!("the ELF file in .gnu_debugdata: {error}"))),
    }
}

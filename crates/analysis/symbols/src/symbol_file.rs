//! A file that names addresses of one image.
//!
//! It is an executable or library, a separate debug file, or a breakpad file.

use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use coroner_process::symtab::LookupAddress;
use gimli::{BaseAddresses, EhFrame, EhFrameHdr, RunTimeEndian, UnwindSection as _};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol as _};

#[cfg(feature = "pe")]
use crate::pe;
use crate::{
    archive,
    breakpad::Breakpad,
    call::{Call, DwarfFrame, Symbol},
    debug_id::DebugId,
    debug_map::DebugMap,
    demangle::names_same_function,
    dwarf::Dwarf,
    dwarf_pass, elf,
    error::{Malformed, SymbolError},
    file_kind::{Arch, FileKind},
    image_key::ImageKey,
    macho,
    mapped_file::Bytes,
    naming_budget::Meter,
    shared_cache::SharedCache,
    symbol_table::{SymbolSource, SymbolTable, TableBuilder},
    variables::{Extent, FunctionVariables, Part, Pointee, TypeId},
};

/// The source of a file's lines, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LineSource {
    /// The file itself.
    Own,
    /// The object files in its debug map.
    ObjectFiles,
    None,
}

/// The number of symbols from one source.
pub type SourceCount = (SymbolSource, usize);

/// An open symbol file. Its tables are built on the first lookup.
#[derive(Debug)]
pub struct SymbolFile {
    path: PathBuf,
    kind: FileKind,
    arch: Arch,
    debug_id: Option<DebugId>,
    /// For breakpad files: the format of the image, and the id in the `MODULE` line.
    breakpad_id: Option<(FileKind, String)>,
    /// The file, or the slice of a fat file.
    bytes: Bytes,
    /// Offset of `bytes` in the file.
    slice_offset: u64,
    has_dwarf: bool,
    /// PE only: the preferred base address. Addresses of [`Self`] are relative to the image's first
    /// byte.
    image_base: u64,
    tables: OnceCell<Tables>,
    dwarf: OnceCell<Option<Dwarf>>,
    debug_map: OnceCell<Option<DebugMap>>,
    breakpad: OnceCell<Breakpad>,
    /// For an image in a shared cache: the cache, and the image's address without a slide.
    shared_cache: Option<(SharedCache, u64)>,
    /// By a symbol's start: a source name, and whether it belongs to that symbol's function.
    source_names: RefCell<HashMap<u64, (String, bool)>>,
    problems: RefCell<Vec<SymbolError>>,
}

#[derive(Debug)]
struct Tables {
    symbols: SymbolTable,
}

impl SymbolFile {
    /// Opens a symbol file.
    ///
    /// Returns one result for ELF, thin Mach-O and breakpad files, one for each 64-bit architecture
    /// in a fat Mach-O file, and one for each library with a build id that an archive (an APK)
    /// contains uncompressed. `base.apk!/lib/arm64-v8a/libapp.so` refers to that library in the
    /// archive.
    ///
    /// # Errors
    /// [`SymbolError`] if the file can't be read, has an unknown format, or its headers are
    /// malformed.
    pub fn open(path: &Path) -> Result<Vec<Self>, SymbolError> {
        match archive::split(path) {
            Some((archive, name)) if !path.exists() => {
                let files = Self::in_archive(archive, &Bytes::open(archive)?, Some(name))?;
                let missing = || SymbolError::io(path, std::io::ErrorKind::NotFound.into());
                if files.is_empty() { Err(missing()) } else { Ok(files) }
            }
            _ => Self::from_mapped_bytes(path, Bytes::open(path)?),
        }
    }

    fn in_archive(path: &Path, bytes: &Bytes, name: Option<&str>) -> Result<Vec<Self>, SymbolError> {
        let libraries = archive::libraries(path, bytes, name).map_err(|problem| problem.in_file(path))?;
        let open = |library: archive::Library| {
            let in_file = |problem: Malformed| problem.in_file(&library.path);
            elf::check_layout(&library.bytes).map_err(in_file)?;
            Self::from_object(&library.path, library.bytes, library.offset, FileKind::Elf)
        };
        libraries.into_iter().map(open).collect()
    }

    /// Like [`Self::open`], from bytes in memory; `path` is used for errors and [`Self::path`].
    ///
    /// # Errors
    /// [`SymbolError`], as for [`Self::open`].
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Vec<Self>, SymbolError> {
        Self::from_mapped_bytes(path, Bytes::owned(bytes))
    }

    fn from_mapped_bytes(path: &Path, bytes: Bytes) -> Result<Vec<Self>, SymbolError> {
        let in_file = |problem: Malformed| problem.in_file(path);
        if bytes.starts_with(b"\x7fELF") {
            elf::check_layout(&bytes).map_err(in_file)?;
            return Ok(vec![Self::from_object(path, bytes, 0, FileKind::Elf)?]);
        }
        if let Some(slices) = macho::slices(&bytes).map_err(in_file)? {
            return slices
                .into_iter()
                .map(|(offset, slice)| Self::from_object(path, slice, offset, FileKind::MachO))
                .collect();
        }
        #[cfg(feature = "pe")]
        if pe::is_pe(&bytes) {
            return Ok(vec![Self::from_object(path, bytes, 0, FileKind::Pe)?]);
        }
        if bytes.starts_with(b"MODULE ") {
            let module = crate::breakpad::module(&bytes).map_err(in_file)?;
            let mut file = Self::with(path, FileKind::Breakpad, bytes, 0);
            file.arch = module.arch;
            file.debug_id = module.debug_id;
            file.breakpad_id = Some((module.image_kind, module.breakpad_id));
            return Ok(vec![file]);
        }
        if archive::is_archive(&bytes) {
            let files = Self::in_archive(path, &bytes, None)?;
            if !files.is_empty() {
                return Ok(files);
            }
        }
        let magic = bytes.iter().take(4).copied().collect();
        Err(SymbolError::UnknownFormat { path: path.into(), magic })
    }

    /// Returns the symbol file for an image's local symbols in a dyld shared cache.
    pub(crate) fn in_shared_cache(path: &Path, cache: SharedCache, image: u64, id: DebugId, arch: Arch) -> Self {
        let mut file = Self::with(path, FileKind::MachO, Bytes::owned(Vec::new()), 0);
        (file.debug_id, file.arch, file.shared_cache) = (Some(id), arch, Some((cache, image)));
        file
    }

    fn with(path: &Path, kind: FileKind, bytes: Bytes, slice_offset: u64) -> Self {
        Self {
            path: path.into(),
            kind,
            arch: Arch::Other,
            debug_id: None,
            breakpad_id: None,
            bytes,
            slice_offset,
            has_dwarf: false,
            image_base: 0,
            tables: OnceCell::new(),
            dwarf: OnceCell::new(),
            debug_map: OnceCell::new(),
            breakpad: OnceCell::new(),
            shared_cache: None,
            source_names: RefCell::default(),
            problems: RefCell::default(),
        }
    }

    fn from_object(path: &Path, bytes: Bytes, offset: u64, kind: FileKind) -> Result<Self, SymbolError> {
        let malformed = |what: String| Malformed::new(offset, what).in_file(path);
        if kind == FileKind::MachO {
            macho::check_layout(&bytes).map_err(|problem| {
                Malformed { offset: problem.offset.saturating_add(offset), ..problem }.in_file(path)
            })?;
        }
        let (arch, debug_id, has_dwarf, image_base) = {
            let file = object::File::parse(&*bytes).map_err(|error| malformed(error.to_string()))?;
            let id = match kind {
                #[cfg(feature = "pe")]
                FileKind::Pe => pe::identity(&file),
                FileKind::MachO => file.mach_uuid().ok().flatten().and_then(|uuid| DebugId::new(&uuid)),
                _ => file.build_id().ok().flatten().and_then(DebugId::new),
            };
            let image_base = if kind == FileKind::Pe { file.relative_address_base() } else { 0 };
            (Arch::from_object(file.architecture()), id, file.section_by_name(".debug_info").is_some(), image_base)
        };
        let mut file = Self::with(path, kind, bytes, offset);
        (file.arch, file.debug_id, file.has_dwarf, file.image_base) = (arch, debug_id, has_dwarf, image_base);
        Ok(file)
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file's format.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Returns the file's architecture.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Returns the file's GNU build id or `LC_UUID`.
    ///
    /// For breakpad files it is the one in their `MODULE` or `INFO CODE_ID` line, if any.
    pub fn debug_id(&self) -> Option<&DebugId> {
        self.debug_id.as_ref()
    }

    /// Returns the svma of the image's first byte.
    ///
    /// For ELF it is the start of the lowest loaded segment, for Mach-O that of `__TEXT`; 0 for PE
    /// and breakpad files, whose addresses are relative to it.
    pub fn base_svma(&self) -> u64 {
        if let Some((_, image)) = &self.shared_cache {
            return *image;
        }
        match self.kind {
            FileKind::Breakpad | FileKind::Pe => 0,
            FileKind::MachO => macho::base_svma(&self.bytes),
            FileKind::Elf => object::File::parse(&*self.bytes)
                .ok()
                .and_then(|file| file.segments().map(|segment| segment.address()).min())
                // A segment that doesn't start at a page boundary is loaded from the start of its
                // page.
                .map_or(0, |start| start & !0xfff),
        }
    }

    /// Returns the image's breakpad id, as in `MODULE` lines and in symbol servers' folders.
    pub fn breakpad_debug_id(&self) -> Option<String> {
        match (&self.breakpad_id, &self.debug_id) {
            (Some((_, id)), _) => Some(id.clone()),
            (None, id) => id.as_ref().map(|id| id.to_breakpad(self.kind)),
        }
    }

    /// Returns the text of a breakpad file; `None` for other files. It is cheap to keep.
    pub fn breakpad_text(&self) -> Option<impl std::ops::Deref<Target = [u8]> + Send + Sync + use<>> {
        (self.kind == FileKind::Breakpad).then(|| self.bytes.clone())
    }

    /// Whether the file belongs to the image.
    ///
    /// Their ids are the same, or neither has one and their format and architecture are the same.
    pub fn matches(&self, key: &ImageKey) -> bool {
        if let Some((kind, id)) = &self.breakpad_id {
            // Compare whole ids if the file has one, else breakpad's.
            let whole = self.debug_id.as_ref().map(|theirs| Some(theirs) == key.debug_id.as_ref());
            let breakpad = || key.debug_id.as_ref().is_some_and(|ours| ours.to_breakpad(key.kind) == *id);
            return *kind == key.kind && whole.unwrap_or_else(breakpad);
        }
        self.kind == key.kind
            && self.debug_id == key.debug_id
            && (key.debug_id.is_some() || self.arch == key.arch || key.arch == Arch::Other)
    }

    /// Returns whether the file contains these pieces of code, each an svma and bytes; `None` if it
    /// has no bytes for any: a debug file.
    pub(crate) fn has_code(&self, code: &[(u64, Vec<u8>)]) -> Option<bool> {
        use object::{Object as _, ObjectSection as _};
        let file = object::File::parse(self.bytes()).ok()?;
        let pieces = code.iter().filter_map(|(svma, bytes)| {
            let section = file.sections().find(|section| {
                section.kind() == object::SectionKind::Text && svma.wrapping_sub(section.address()) < section.size()
            })?;
            let from = usize::try_from(svma - section.address()).ok()?;
            let own = section.data().ok()?.get(from..)?;
            let length = own.len().min(bytes.len());
            (length > 0).then(|| own[..length] == bytes[..length])
        });
        pieces.reduce(|all, same| all && same)
    }

    /// Whether the file has line information: DWARF, line records in a breakpad file, or a debug
    /// map with at least one existing object file.
    pub fn has_lines(&self) -> bool {
        self.line_source() != LineSource::None
    }

    /// Returns the source of the file's lines.
    pub(crate) fn line_source(&self) -> LineSource {
        let has_lines = match self.kind {
            FileKind::Breakpad => self.breakpad().has_lines(),
            _ => self.has_dwarf,
        };
        match has_lines {
            true => LineSource::Own,
            false if self.debug_map().is_some_and(DebugMap::has_objects) => LineSource::ObjectFiles,
            false => LineSource::None,
        }
    }

    /// Disables debug information, so that names come from symbol tables only.
    pub(crate) fn leave_out_debug_info(&mut self) {
        self.has_dwarf = false;
        self.debug_map = OnceCell::from(None);
    }

    /// Returns the number of symbols from each source that has any.
    pub fn sources(&self) -> Vec<SourceCount> {
        let counts: &BTreeMap<_, _> = self.tables().symbols.counts();
        counts.iter().map(|(&source, &count)| (source, count)).collect()
    }

    /// Whether the file contains any names.
    pub fn can_name(&self) -> bool {
        self.has_lines() || !self.tables().symbols.is_empty()
    }

    /// Returns the errors found since the last call; the intact parts of the file are used anyway.
    pub fn take_problems(&self) -> Vec<SymbolError> {
        self.problems.take()
    }

    /// Returns the name and CRC-32 of the file's debug file from `.gnu_debuglink`.
    pub(crate) fn debug_link(&self) -> Option<(PathBuf, u32)> {
        if self.kind != FileKind::Elf {
            return None;
        }
        let file = object::File::parse(&*self.bytes).ok()?;
        let (name, crc) = file.gnu_debuglink().ok()??;
        let name = std::str::from_utf8(name).ok()?;
        // Accept only a bare name: a path could lead out of the search folders.
        (!name.is_empty() && !name.contains('/')).then(|| (name.into(), crc))
    }

    /// Returns the image format and breakpad id of a breakpad file.
    pub(crate) fn breakpad_id(&self) -> Option<&(FileKind, String)> {
        self.breakpad_id.as_ref()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn shared_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns part of the file's bytes; `None` if the range is outside of it.
    pub(crate) fn slice(&self, offset: u64, size: u64) -> Option<Bytes> {
        self.bytes.slice(offset, size)
    }

    /// Whether this is a separate file rather than an image in a shared cache.
    pub(crate) fn is_file(&self) -> bool {
        self.shared_cache.is_none()
    }

    fn problem(&self, problem: Malformed) {
        let offset = problem.offset.saturating_add(self.slice_offset);
        self.problems.borrow_mut().push(Malformed { offset, ..problem }.in_file(&self.path));
    }

    fn tables(&self) -> &Tables {
        self.tables.get_or_init(|| {
            let mut builder = TableBuilder::default();
            match self.kind {
                FileKind::Breakpad => self.breakpad().collect(&mut builder, &self.bytes),
                _ => self.collect(&mut builder),
            }
            Tables { symbols: builder.build() }
        })
    }

    fn collect(&self, builder: &mut TableBuilder) {
        let mut problems = Vec::new();
        match self.kind {
            FileKind::Elf => {
                if let Ok(file) = object::File::parse(&*self.bytes) {
                    elf::collect(builder, &file, &self.bytes, &mut problems);
                }
            }
            FileKind::MachO if self.shared_cache.is_some() => {
                if let Some((cache, image)) = &self.shared_cache
                    && let Err(error) = cache.collect(builder, *image)
                {
                    self.problems.borrow_mut().push(error);
                }
            }
            FileKind::MachO => macho::collect(builder, &self.bytes, &mut problems),
            #[cfg(not(feature = "pe"))]
            FileKind::Pe => {}
            #[cfg(feature = "pe")]
            FileKind::Pe => {
                if let Ok(file) = object::File::parse(&*self.bytes) {
                    pe::collect(builder, &file);
                }
            }
            // Breakpad files are not read within a budget.
            FileKind::Breakpad => {}
        }
        for problem in problems {
            self.problem(problem);
        }
    }

    /// Whether the file itself has DWARF, which [`Self::variables`] and types require.
    pub fn has_debug_information(&self) -> bool {
        self.has_dwarf
    }

    /// Whether the file itself has DWARF.
    pub(crate) fn has_dwarf(&self) -> bool {
        self.has_dwarf
    }

    /// Whether the file's lines are in the object files that it was linked from.
    pub(crate) fn has_object_files(&self) -> bool {
        self.kind == FileKind::MachO
            && !self.has_dwarf
            && self.shared_cache.is_none()
            && DebugMap::is_usable(&self.path, &self.bytes)
    }

    /// Returns the calls at an address (svma) from the image's object files, innermost first.
    pub(crate) fn frames_in_object_files(&self, svma: u64) -> Vec<DwarfFrame> {
        let Some(map) = self.debug_map() else { return Vec::new() };
        map.frames(svma).unwrap_or_else(|problem| {
            self.problems.borrow_mut().push(problem);
            Vec::new()
        })
    }

    /// Returns the symbols at some addresses, without keeping the tables. `None` if there is too
    /// little memory for them.
    pub(crate) fn symbols_within(&self, addresses: &[u64], meter: &Meter) -> Option<Vec<Option<Symbol>>> {
        let mut builder = TableBuilder::with_limit(meter.memory_left());
        self.collect(&mut builder);
        if builder.overflowed() {
            meter.lacks_memory();
            return None;
        }
        let symbols = builder.build();
        let found = addresses.iter().map(|&address| {
            let (name, start) = self.linker_symbol_of(&symbols, address)?;
            Some((String::from_utf8_lossy(name).into_owned(), start))
        });
        Some(found.collect())
    }

    /// Returns the DWARF information at some addresses, with one pass that keeps nothing.
    ///
    /// The addresses must be sorted and distinct.
    pub(crate) fn pass_within(&self, addresses: &[u64], meter: &Meter) -> Vec<dwarf_pass::Answer> {
        match object::File::parse(&*self.bytes) {
            Ok(file) if self.has_dwarf => {
                let own: Vec<u64> = addresses.iter().map(|address| address.wrapping_add(self.image_base)).collect();
                dwarf_pass::frames(&file, &self.bytes, &own, meter)
            }
            _ => vec![dwarf_pass::Answer::default(); addresses.len()],
        }
    }

    fn breakpad(&self) -> &Breakpad {
        self.breakpad.get_or_init(|| {
            let mut parsed = Breakpad::parse(&self.bytes);
            for problem in std::mem::take(&mut parsed.problems) {
                self.problem(problem);
            }
            parsed
        })
    }

    fn dwarf(&self) -> Option<&Dwarf> {
        if !self.has_dwarf {
            return None;
        }
        self.dwarf
            .get_or_init(|| {
                let file = object::File::parse(&*self.bytes).ok()?;
                match Dwarf::load(&file, &self.bytes, &self.path) {
                    Ok(dwarf) => dwarf,
                    Err(problem) => {
                        self.problem(problem);
                        None
                    }
                }
            })
            .as_ref()
    }

    /// Returns the debug map of a Mach-O image without DWARF.
    fn debug_map(&self) -> Option<&DebugMap> {
        if self.kind != FileKind::MachO || self.has_dwarf || self.shared_cache.is_some() {
            return None;
        }
        self.debug_map.get_or_init(|| DebugMap::read(&self.path, &self.bytes)).as_ref()
    }

    /// Returns the linker's name for the symbol at an address, and the symbol's start (svma).
    ///
    /// The name is without Mach-O's leading underscore. Uses symbol tables only, without opening
    /// DWARF.
    pub fn linker_symbol(&self, address: LookupAddress) -> Option<(&[u8], u64)> {
        self.linker_symbol_of(&self.tables().symbols, address.svma())
    }

    fn linker_symbol_of<'a>(&self, symbols: &'a SymbolTable, svma: u64) -> Option<(&'a [u8], u64)> {
        let found = symbols.find(svma)?;
        // Other formats have no prefix, and none is stripped: comparing with an empty one took 100
        // ns (measured, glibc's `memcmp`, Zen 5), half of the lookup.
        let name = match self.kind {
            FileKind::MachO => found.name.strip_prefix(b"_").unwrap_or(found.name),
            FileKind::Elf | FileKind::Pe | FileKind::Breakpad => found.name,
        };
        Some((name, found.start))
    }

    /// Returns [`Self::linker_symbol`] as a string.
    pub fn symbol(&self, address: LookupAddress) -> Option<(String, u64)> {
        let (name, start) = self.linker_symbol(address)?;
        Some((String::from_utf8_lossy(name).into_owned(), start))
    }

    /// Returns the variables of the function at an address (svma), from the file's own DWARF.
    /// Always `None` for PE files.
    pub fn variables(&self, svma: u64) -> Option<FunctionVariables> {
        if self.kind == FileKind::Pe {
            return None;
        }
        self.dwarf()?.variables(svma)
    }

    /// Returns the target of a pointer or reference type.
    pub fn pointee(&self, id: TypeId) -> Option<Pointee> {
        self.dwarf()?.types(|reader| reader.pointee(id))
    }

    /// Returns the part at an offset in a value of the type.
    ///
    /// `None` unless a single part contains all `width` bytes there.
    pub fn part(&self, id: TypeId, offset: u64, width: Option<u64>) -> Option<Part> {
        self.dwarf()?.types(|reader| reader.part(id, offset, width))
    }

    /// Returns the size of the type's values, in bytes.
    pub fn size_of(&self, id: TypeId) -> Option<u64> {
        self.dwarf()?.types(|reader| reader.size(id))
    }

    /// Returns the address (svma) of an ELF file's variable, by its name in the symbol table.
    pub fn variable(&self, name: &[u8]) -> Option<u64> {
        if self.kind != FileKind::Elf {
            return None;
        }
        let file = object::File::parse(&*self.bytes).ok()?;
        let mut symbols = file.dynamic_symbols().chain(file.symbols());
        let found = symbols.find(|symbol| symbol.name_bytes() == Ok(name) && symbol.is_definition())?;
        Some(found.address())
    }

    /// Returns the range of the function at an address (svma).
    ///
    /// It comes from an ELF file's unwind table (`PT_GNU_EH_FRAME`), else from its DWARF. In the
    /// table, a part that the compiler placed elsewhere is a separate function.
    pub fn function_extent(&self, svma: u64) -> Option<Extent> {
        self.extent_by_unwind_table(svma).or_else(|| {
            let has = |(start, end): &Extent| (*start..*end).contains(&svma);
            self.variables(svma)?.extents.into_iter().find(has)
        })
    }

    fn extent_by_unwind_table(&self, svma: u64) -> Option<Extent> {
        if self.kind != FileKind::Elf {
            return None;
        }
        let file = object::File::parse(&*self.bytes).ok()?;
        let section = |name: &str| {
            let section = file.section_by_name(name)?;
            Some((section.address(), section.data().ok().filter(|data| !data.is_empty())?))
        };
        let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let ((table_at, table), (frames_at, frames)) = (section(".eh_frame_hdr")?, section(".eh_frame")?);
        // The encoding of the table's length. gimli (0.34) multiplies a 64-bit length without a
        // check; linkers write 32 bits.
        if table.get(2) != Some(&gimli::DW_EH_PE_udata4.0) {
            return None;
        }
        let bases = BaseAddresses::default().set_eh_frame_hdr(table_at).set_eh_frame(frames_at);
        let table = EhFrameHdr::new(table, endian).parse(&bases, 8).ok()?;
        let frames = EhFrame::new(frames, endian);
        // Step by step, because gimli's own `fde_for_address` subtracts without a check where the
        // table points before the frames.
        let found = table.table()?.lookup(svma, &bases).ok()?.direct().ok()?;
        let offset =
            found.checked_sub(table.eh_frame_ptr().direct().ok()?).and_then(|offset| usize::try_from(offset).ok())?;
        let entry = frames.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset).ok()?;
        if !entry.contains(svma) {
            return None;
        }
        Some((entry.initial_address(), entry.initial_address().checked_add(entry.len())?))
    }

    /// Looks up many addresses at once, for later calls of [`Self::calls`]. This takes a fraction
    /// of the time and memory of single lookups. Each call reads the units of its new addresses, so
    /// it is best called once with all addresses.
    pub fn look_up(&self, addresses: &[LookupAddress]) {
        if let Some(dwarf) = self.dwarf() {
            let svmas: Vec<u64> =
                addresses.iter().map(|address| address.svma().wrapping_add(self.image_base)).collect();
            dwarf.look_up(&svmas);
        }
    }

    /// Returns the calls at an address, innermost first, with mangled names.
    ///
    /// Empty if the file doesn't name the address.
    pub fn calls(&self, address: LookupAddress) -> Vec<Call> {
        let symbol = self.symbol(address);
        let mut frames: Vec<Call> = Vec::new();
        if let Some(dwarf) = self.dwarf() {
            match dwarf.frames(address.svma().wrapping_add(self.image_base)) {
                Ok(calls) => frames.extend(calls.into_iter().map(Call::from_dwarf)),
                Err(error) => self.problem(error),
            }
            if let Some(missing) = dwarf.take_missing() {
                self.problem(missing);
            }
        } else if self.kind == FileKind::Breakpad {
            frames = self.breakpad().frames(&self.bytes, address.svma());
        } else {
            frames.extend(self.frames_in_object_files(address.svma()).into_iter().map(Call::from_dwarf));
        }
        let start = symbol.as_ref().map_or(0, |&(_, start)| start);
        Call::with_symbol(frames, symbol, |linker_name, source_name| {
            let mut known = self.source_names.borrow_mut();
            match known.get(&start) {
                Some((name, is_same)) if name == source_name => *is_same,
                _ => {
                    let is_same = names_same_function(linker_name, source_name);
                    known.insert(start, (source_name.to_owned(), is_same));
                    is_same
                }
            }
        })
    }
}

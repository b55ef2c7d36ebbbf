//! The debug map of a Mach-O image.
//!
//! It maps functions to the object files that they come from, in which the linker leaves the DWARF.
//!
//! ```text
//! N_OSO  "/…/program.o" or "/…/libparts.a(part.o)"     value: when that was modified, in seconds since 1970, or 0
//! N_FUN  "_deep"                                        value: where the function begins in the image
//! N_FUN  ""                                             value: its size
//! ```
//!
//! An address in the image is looked up in the object file at the same offset from the symbol with
//! that name. The object file's DWARF is not relocated: it contains the addresses of the object
//! file's own symbols.
//!
//! Sources: `<mach-o/stab.h>`; Apple's "Lazy DWARF Scheme" (dwarfstd.org wiki), which `dsymutil`
//! follows.

use std::{
    cell::OnceCell,
    collections::HashMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use object::{
    Object as _, ObjectSymbol as _,
    macho::{self, MachHeader64},
    read::{archive::ArchiveFile, macho::Nlist as _},
};

use crate::{
    call::DwarfFrame,
    dwarf::Dwarf,
    error::{Malformed, SymbolError},
    mapped_file::Bytes,
};

#[derive(Debug)]
pub(crate) struct DebugMap {
    /// Sorted by start.
    functions: Vec<Function>,
    objects: Vec<ObjectFile>,
}

#[derive(Debug)]
struct Function {
    /// The function's start in the image (svma).
    start: u64,
    size: u64,
    /// Index in [`DebugMap::objects`].
    object: usize,
    /// The name as in the symbol tables, with the underscore.
    name: Box<[u8]>,
}

#[derive(Debug)]
struct ObjectFile {
    path: PathBuf,
    /// Modification time in seconds since 1970; 0 if the linker was set to write none.
    modified: u64,
    opened: OnceCell<Option<Opened>>,
}

#[derive(Debug)]
struct Opened {
    /// The symbols' addresses in the object file, by name.
    symbols: HashMap<Box<[u8]>, u64>,
    dwarf: Dwarf,
}

impl DebugMap {
    /// Reads an image's debug map; `None` if it was stripped or has no functions with debug
    /// information.
    pub(crate) fn read(image: &Path, bytes: &[u8]) -> Option<Self> {
        let file = object::read::macho::MachOFile::<MachHeader64<object::Endianness>>::parse(bytes).ok()?;
        let (endian, table) = (file.endian(), file.macho_symbol_table());
        let folder = image.parent().unwrap_or(Path::new(""));
        let mut map = Self { functions: Vec::new(), objects: Vec::new() };
        let mut begun: Option<(u64, &[u8])> = None;
        for symbol in table.iter() {
            let name = symbol.name(endian, table.strings()).unwrap_or_default();
            let value = symbol.n_value(endian);
            match symbol.stab() {
                Some(macho::N_OSO) => {
                    let path = folder.join(std::str::from_utf8(name).ok()?);
                    map.objects.push(ObjectFile { path, modified: value, opened: OnceCell::new() });
                }
                Some(macho::N_FUN) if !name.is_empty() => begun = Some((value, name)),
                Some(macho::N_FUN) => {
                    if let (Some((start, name)), Some(object)) = (begun.take(), map.objects.len().checked_sub(1)) {
                        map.functions.push(Function { start, size: value, object, name: name.into() });
                    }
                }
                _ => {}
            }
        }
        map.functions.sort_unstable_by_key(|function| function.start);
        (!map.functions.is_empty()).then_some(map)
    }

    /// Whether an image has a debug map with an existing object file. Keeps nothing in memory.
    pub(crate) fn is_usable(image: &Path, bytes: &[u8]) -> bool {
        let Ok(file) = object::read::macho::MachOFile::<MachHeader64<object::Endianness>>::parse(bytes) else {
            return false;
        };
        let (endian, table) = (file.endian(), file.macho_symbol_table());
        let folder = image.parent().unwrap_or(Path::new(""));
        table.iter().filter(|symbol| symbol.stab() == Some(macho::N_OSO)).any(|symbol| {
            let name = symbol.name(endian, table.strings()).unwrap_or_default();
            let path = std::str::from_utf8(name).map(|name| folder.join(name)).unwrap_or_default();
            ObjectFile { path, modified: 0, opened: OnceCell::new() }.exists()
        })
    }

    /// Whether any of the object files exists. Usually none does on another machine than the one
    /// that linked the image.
    pub(crate) fn has_objects(&self) -> bool {
        self.objects.iter().any(ObjectFile::exists)
    }

    /// Returns the calls at an address (svma) in the image, innermost first.
    ///
    /// Empty if no function in the map contains the address, or its object file doesn't exist.
    ///
    /// # Errors
    /// [`SymbolError`], once for each object file, if it is not the one that was linked, or is
    /// malformed.
    pub(crate) fn frames(&self, svma: u64) -> Result<Vec<DwarfFrame>, SymbolError> {
        let behind = self.functions.partition_point(|function| function.start <= svma);
        let function = behind.checked_sub(1).and_then(|index| self.functions.get(index));
        let Some(function) = function.filter(|function| svma - function.start < function.size) else {
            return Ok(Vec::new());
        };
        let Some(object) = self.objects.get(function.object) else { return Ok(Vec::new()) };
        if object.opened.get().is_none() {
            let opened = object.open();
            let (opened, problem) = match opened {
                Ok(opened) => (Some(opened), None),
                Err(SymbolError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => (None, None),
                Err(problem) => (None, Some(problem)),
            };
            let _ = object.opened.set(opened);
            problem.map_or(Ok(()), Err)?;
        }
        let Some(Some(Opened { symbols, dwarf })) = object.opened.get() else { return Ok(Vec::new()) };
        let Some(start) = symbols.get(&function.name) else { return Ok(Vec::new()) };
        let at = start.wrapping_add(svma - function.start);
        let frames = dwarf.frames(at).map_err(|problem| problem.in_file(&object.path))?;
        // An object file's line table also covers the padding after a function.
        let is_in_function = frames.last().is_some_and(|frame| frame.function.is_some());
        Ok(if is_in_function { frames } else { Vec::new() })
    }
}

impl ObjectFile {
    fn exists(&self) -> bool {
        self.archive().map_or(self.path.as_path(), |parts| parts.0).is_file()
    }

    fn open(&self) -> Result<Opened, SymbolError> {
        let (bytes, modified) = self.bytes()?;
        let broken = |what: String| Malformed::new(0, what).in_file(&self.path);
        if self.modified != 0 && modified != self.modified {
            return Err(broken(
                "the object file was rebuilt after the image was linked; its lines are not used".into(),
            ));
        }
        let file = object::File::parse(&*bytes).map_err(|error| broken(error.to_string()))?;
        let symbols = file.symbols().filter(object::Symbol::is_definition);
        let symbols = symbols.filter_map(|symbol| Some((symbol.name_bytes().ok()?.into(), symbol.address())));
        let dwarf = Dwarf::load(&file, &bytes, &self.path).map_err(|problem| problem.in_file(&self.path))?;
        let dwarf = dwarf.ok_or_else(|| broken("the object file has no debug information".into()))?;
        Ok(Opened { symbols: symbols.collect(), dwarf })
    }

    /// Splits `libparts.a(part.o)` into its parts.
    fn archive(&self) -> Option<(&Path, &str)> {
        let (archive, member) = self.path.to_str()?.strip_suffix(')')?.rsplit_once('(')?;
        Some((Path::new(archive), member))
    }

    /// Returns the object file or archive member, with its modification time.
    fn bytes(&self) -> Result<(Bytes, u64), SymbolError> {
        let missing = || SymbolError::io(&self.path, ErrorKind::NotFound.into());
        if let Some((archive, member)) = self.archive() {
            let bytes = Bytes::open(archive)?;
            let parsed = ArchiveFile::parse(&*bytes).map_err(|_| missing())?;
            let mut found = parsed.members().flatten().filter(|found| found.name() == member.as_bytes());
            let found =
                found.find(|found| self.modified == 0 || found.date() == Some(self.modified)).ok_or_else(missing)?;
            let (offset, size) = found.file_range();
            return Ok((bytes.slice(offset, size).ok_or_else(missing)?, found.date().unwrap_or(0)));
        }
        let modified = std::fs::metadata(&self.path).and_then(|metadata| metadata.modified());
        let modified = modified.map_err(|error| SymbolError::io(&self.path, error))?;
        let modified = modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Ok((Bytes::open(&self.path)?, modified))
    }
}

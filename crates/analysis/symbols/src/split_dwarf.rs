//! Debug information that a compiler or a tool put into separate files: `.dwo`, `.dwp`, and `dwz`'s
//! supplementary files.
//!
//! - `.dwp`, all split units of a program: found beside the symbol file, by its name with `.dwp`
//!   replacing the extension, or appended; used if it has the unit's id.
//! - `.dwo`, one split unit: found by the name in the unit, in its compilation directory, then
//!   beside the symbol file; used if it has the unit's id.
//! - The supplementary file of `dwz`: found by the name in `.gnu_debugaltlink`, or by the build id
//!   in the debug folders; used if it has that build id.
//!
//! Sources: DWARF 5, 7.3.2 (split units, packages) and 7.3.6 (supplementary files); GCC's
//! DebugFission; `dwz(1)`.

use std::path::{Path, PathBuf};

use gimli::{DwarfPackageSections, DwarfSections, DwoId, SectionId, UnitType};
use object::{Object, ObjectSection};

use crate::{
    debug_id::DebugId,
    debug_sections::{section, section_bytes},
    elf,
    error::Malformed,
    mapped_file::Bytes,
};

/// GDB's debug folder, in which distributions install supplementary files made by `dwz`.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// Returns the package beside a symbol file, if there is one.
pub(crate) fn package(symbols: &Path) -> Option<DwarfPackageSections<Bytes>> {
    let mut behind = symbols.as_os_str().to_owned();
    behind.push(".dwp");
    [symbols.with_extension("dwp"), behind.into()].iter().find_map(|path| {
        let bytes = open(path)?;
        let file = object::File::parse(&*bytes).ok()?;
        // The position of an error does not matter: a malformed package is not used.
        DwarfPackageSections::load(|id| match id.dwo_name() {
            Some(name) => section(&file, &bytes, name).map_err(|_| gimli::Error::Io),
            None => Ok(Bytes::owned(Vec::new())),
        })
        .ok()
    })
}

/// Returns the file of one split unit, with this name and the unit's id.
pub(crate) fn object(symbols: &Path, folder: &str, name: &str, id: DwoId) -> Option<DwarfSections<Bytes>> {
    let beside = symbols.parent().unwrap_or(Path::new(""));
    let own_name = Path::new(name).file_name()?;
    [Path::new(folder).join(name), beside.join(name), beside.join(own_name)].iter().find_map(|path| {
        let bytes = open(path)?;
        let file = object::File::parse(&*bytes).ok()?;
        let mut sections = DwarfSections::load(|id| match id.dwo_name() {
            Some(name) if id != SectionId::DebugInfo => section(&file, &bytes, name),
            _ => Ok::<_, Malformed>(Bytes::owned(Vec::new())),
        })
        .ok()?;
        // Since DWARF 5 type units are in sections with this name, too: with GCC in others, so that
        // a linker can drop duplicates; with Clang in the same one, before the unit.
        let info = SectionId::DebugInfo.dwo_name()?;
        let named = file.sections().filter(|section| section.name_bytes() == Ok(info.as_bytes()));
        for units in named.filter_map(|one| section_bytes(&one, &bytes, info).ok()) {
            sections.debug_info = units.clone().into();
            if let Some((offset, size)) = find_unit(&sections, id) {
                sections.debug_info = units.slice(offset, size)?.into();
                return Some(sections);
            }
        }
        None
    })
}

/// Returns the offset and size of the unit with this id.
fn find_unit(sections: &DwarfSections<Bytes>, id: DwoId) -> Option<(u64, u64)> {
    let dwarf = sections.borrow(|section| gimli::EndianSlice::new(section, gimli::RunTimeEndian::Little));
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let has_id = match header.type_() {
            UnitType::SplitCompilation(found) | UnitType::Skeleton(found) => found == id,
            // Before DWARF 5 the id is an attribute, for which the declarations must be parsed.
            UnitType::Compilation => dwarf.unit(header).is_ok_and(|unit| unit.dwo_id == Some(id)),
            _ => false,
        };
        if has_id {
            let offset = header.offset().to_debug_info_offset(&header)?;
            return Some((offset.0 as u64, header.length_including_self() as u64));
        }
    }
    None
}

/// Returns the supplementary file that `dwz` created for this file and others; `None` if the file
/// doesn't refer to one.
///
/// # Errors
/// [`Malformed`] if it is not found: entries that refer to it then have no names.
pub(crate) fn supplementary(
    file: &object::File<'_>,
    symbols: &Path,
) -> Result<Option<DwarfSections<Bytes>>, Malformed> {
    let Ok(Some((name, id))) = file.gnu_debugaltlink() else { return Ok(None) };
    let at = crate::elf::section_offset(file, ".gnu_debugaltlink");
    let missing = |name: &str| {
        Malformed::new(
            at,
            format!("`{name}` with debug information shared by `dwz` was not found; its names are missing"),
        )
    };
    let (Ok(name), Some(id)) = (std::str::from_utf8(name), DebugId::new(id)) else { return Err(missing("?")) };
    for path in supplementary_places(symbols, name, &id) {
        let Some(bytes) = open(&path) else { continue };
        let Ok(shared) = object::File::parse(&*bytes) else { continue };
        if shared.build_id().ok().flatten().and_then(DebugId::new).as_ref() == Some(&id) {
            return DwarfSections::load(|id| section(&shared, &bytes, id.name())).map(Some);
        }
    }
    Err(missing(name))
}

/// Returns the possible paths of a supplementary file.
///
/// These are the name in the file relative to the symbol file's folder; the same below each parent
/// folder, so that it is found in a package unpacked elsewhere; and the path by build id.
fn supplementary_places(symbols: &Path, name: &str, id: &DebugId) -> Vec<PathBuf> {
    let symbols = symbols.canonicalize().unwrap_or_else(|_| symbols.to_owned());
    let folder = symbols.parent().unwrap_or(Path::new(""));
    let mut places = vec![folder.join(name)];
    places.extend(folder.ancestors().map(|above| above.join(name.trim_start_matches('/'))));
    let hex = id.to_string();
    if let Some((first, rest)) = hex.split_at_checked(2) {
        let below = PathBuf::from(".build-id").join(first).join(format!("{rest}.debug"));
        places.extend([folder.join(&below), Path::new(DEBUG_ROOT).join(&below)]);
    }
    places
}

/// Opens an ELF file; `None` if it doesn't exist or its headers are invalid.
fn open(path: &Path) -> Option<Bytes> {
    let bytes = Bytes::open(path).ok()?;
    elf::is_elf(&bytes).then_some(bytes)
}

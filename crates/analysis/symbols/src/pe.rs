//! A PE file's identity and functions.
//!
//! Functions come from the COFF symbol table, which GNU's linker keeps, and from exports.

use object::read::{ExportTarget, NameOrOrdinal};
use object::{
    Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind, read::pe::ImageNtHeaders, read::pe::PeFile,
};

use crate::{
    debug_id::DebugId,
    symbol_table::{BindingRank, SymbolSource, TableBuilder},
};

/// Whether the bytes are from a PE file: DOS programs start with the same bytes.
pub(crate) fn is_pe(bytes: &[u8]) -> bool {
    bytes.starts_with(b"MZ")
        && matches!(object::FileKind::parse(bytes), Ok(object::FileKind::Pe32 | object::FileKind::Pe64))
}

/// Returns the image's time stamp and size, and its CodeView data's GUID and age.
///
/// These are the same bytes as `coroner_report::wire::Image::build_id` of a loaded image.
pub(crate) fn identity(file: &object::File<'_>) -> Option<DebugId> {
    let (time, size) = match file {
        object::File::Pe32(file) => headers(file),
        object::File::Pe64(file) => headers(file),
        _ => return None,
    };
    let mut id = [time.to_le_bytes(), size.to_le_bytes()].concat();
    if let Ok(Some(code_view)) = file.pdb_info() {
        id.extend_from_slice(&code_view.guid());
        id.extend_from_slice(&code_view.age().to_le_bytes());
    }
    DebugId::new(&id)
}

fn headers<Pe: ImageNtHeaders>(file: &PeFile<'_, Pe>) -> (u32, u32) {
    use object::read::pe::ImageOptionalHeader as _;
    let headers = file.nt_headers();
    let time = headers.file_header().time_date_stamp.get(object::LittleEndian);
    (time, headers.optional_header().size_of_image())
}

/// Collects the file's functions. Exports forwarded to another library are skipped.
pub(crate) fn collect(builder: &mut TableBuilder, file: &object::File<'_>) {
    let base = file.relative_address_base();
    let add = |builder: &mut TableBuilder, address: u64, source, rank, name: &[u8]| {
        let Some(start) = address.checked_sub(base).filter(|start| *start > 0) else { return };
        if let Some(name) = builder.make_name(name) {
            builder.add(start, 0, source, rank, name);
        }
    };
    let before = builder.added();
    let code: Vec<_> = file.sections().filter(|section| section.kind() == SectionKind::Text).collect();
    let is_code = |symbol: &object::Symbol<'_, '_>| {
        let section = symbol.section_index();
        symbol.is_definition() && code.iter().any(|code| Some(code.index()) == section)
    };
    for symbol in file.symbols().filter(is_code) {
        // Symbols from assembly have no type.
        let rank = match symbol.kind() {
            SymbolKind::Text => BindingRank::Global,
            SymbolKind::Section | SymbolKind::File => continue,
            _ => BindingRank::Label,
        };
        if let Ok(name) = symbol.name_bytes() {
            add(builder, symbol.address(), SymbolSource::Symtab, rank, name);
        }
    }
    builder.count(SymbolSource::Symtab, builder.added() - before);
    let before = builder.added();
    for export in file.exports().into_iter().flatten().flatten() {
        if let (ExportTarget::Address { address }, NameOrOrdinal::Name(name)) = (export.target(), export.name()) {
            add(builder, address, SymbolSource::ExportTrie, BindingRank::Global, name);
        }
    }
    builder.count(SymbolSource::ExportTrie, builder.added() - before);
}

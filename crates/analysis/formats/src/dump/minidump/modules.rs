//! The images, from the dump's modules.

use coroner_report::model::{Address, Bytes, Image};
use coroner_report::wire::{ImageKind, Os};
use minidump::format::GUID;
use minidump::{CodeView, MinidumpModule, Module};

/// Returns a module's image. `main` is the program's load address.
pub(super) fn image(module: &MinidumpModule, os: Os, main: Option<u64>) -> Image {
    let load_address = Address(module.base_address());
    let (kind, build_id) = match os {
        Os::WINDOWS => (ImageKind::PE, pe_identity(module)),
        os if os.is_apple() => (ImageKind::MACHO, uuid(module)),
        _ => (ImageKind::ELF, build_id(module)),
    };
    Image {
        kind,
        path: module.code_file().into_owned(),
        load_address,
        // The module doesn't contain its file's base address: assume 0, as in position-independent
        // files.
        slide: load_address,
        size: module.size(),
        build_id: Bytes::from(build_id),
        is_main: Some(load_address.0) == main,
        version: module.version().map(std::borrow::Cow::into_owned),
        ..Image::default()
    }
}

/// Returns an ELF file's build id, or its first 16 bytes: older writers store it as CodeView data
/// of a PDB, which has a GUID. Empty without such data.
fn build_id(module: &MinidumpModule) -> Vec<u8> {
    let id = match &module.codeview_info {
        Some(CodeView::Elf(data)) => data.build_id.clone(),
        Some(CodeView::Pdb70(data)) => guid(&data.signature),
        _ => Vec::new(),
    };
    if id.iter().all(|byte| *byte == 0) { Vec::new() } else { id }
}

/// Returns a Mach-O file's UUID.
fn uuid(module: &MinidumpModule) -> Vec<u8> {
    let id = module.debug_identifier().filter(|id| !id.is_nil());
    id.map(|id| id.uuid().as_bytes().to_vec()).unwrap_or_default()
}

/// Returns the id of a PE image, as in reports.
///
/// It consists of time stamp and size, and of GUID and age of its CodeView data.
fn pe_identity(module: &MinidumpModule) -> Vec<u8> {
    let mut id = [module.raw.time_date_stamp.to_le_bytes(), module.raw.size_of_image.to_le_bytes()].concat();
    if let Some(CodeView::Pdb70(data)) = &module.codeview_info {
        id.extend(guid(&data.signature));
        id.extend(data.age.to_le_bytes());
    } else if module.raw.time_date_stamp == 0 {
        // The size alone identifies nothing.
        id.clear();
    }
    id
}

/// Returns a GUID as it is in the file.
fn guid(guid: &GUID) -> Vec<u8> {
    let mut bytes = guid.data1.to_le_bytes().to_vec();
    bytes.extend(guid.data2.to_le_bytes());
    bytes.extend(guid.data3.to_le_bytes());
    bytes.extend(guid.data4);
    bytes
}

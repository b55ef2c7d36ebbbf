//! The module list.

use coroner_report::model::{Image, Report};
use coroner_report::wire::ImageKind;
use minidump_common::format::{CvSignature, MINIDUMP_LOCATION_DESCRIPTOR as Location, MINIDUMP_MODULE};

use crate::minidump_writer::MinidumpError;
use crate::minidump_writer::file::File;

/// Writes the module list: the program comes first, as readers expect.
pub(crate) fn list(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let mut images: Vec<&Image> = report.images.iter().filter(|image| image.size > 0).collect();
    images.sort_by_key(|image| !image.is_main);
    let modules = images.into_iter().map(|image| MINIDUMP_MODULE {
        base_of_image: image.load_address.0,
        size_of_image: u32::try_from(image.size).unwrap_or(u32::MAX),
        module_name_rva: file.append_text(&image.path),
        cv_record: identity(file, image),
        ..MINIDUMP_MODULE::default()
    });
    let modules = modules.collect();
    file.append_list(modules).map(Some)
}

/// Writes the id for finding a module's symbols.
///
/// It is a build id, or a Mach-O file's UUID in place of a PDB's.
fn identity(file: &mut File, image: &Image) -> Location {
    let identity = image.identity();
    if identity.is_empty() {
        return Location::default();
    }
    let mut record = Vec::new();
    match (image.kind, identity.first_chunk::<16>()) {
        (ImageKind::MACHO, Some(uuid)) => {
            record.extend_from_slice(&(CvSignature::Pdb70 as u32).to_le_bytes());
            // A GUID's first three parts are numbers, little-endian in the file.
            for part in [&uuid[..4], &uuid[4..6], &uuid[6..8]] {
                record.extend(part.iter().rev());
            }
            record.extend_from_slice(&uuid[8..]);
            // The age, which Mach-O files don't have.
            record.extend_from_slice(&[0; 4]);
            record.extend_from_slice(image.name().as_bytes());
            record.push(0);
        }
        _ => {
            record.extend_from_slice(&(CvSignature::Elf as u32).to_le_bytes());
            record.extend_from_slice(identity);
        }
    }
    file.append_bytes(&record)
}

//! A substitute for the build id of an ELF image that has none.

use std::path::Path;

use coroner_report::Report;
use coroner_report::model::{Bytes as Id, Image, Timestamp};
use coroner_report::wire::ImageKind;
use object::{Object as _, ObjectSection as _, ObjectSegment as _};

use crate::archive;
use crate::symbol_file::SymbolFile;
use crate::symbol_search::on_disk;

/// Maximum number of bytes of `.text` that are used.
const MAX_TEXT_BYTES: usize = 4096;

/// Gives each ELF image without a build id an identity derived from its code.
///
/// Breakpad (`HashElfTextSection`) and Sentry's `symbolic` (`ElfObject::debug_id`) derive the same
/// identity: the first 4096 bytes of the section `.text`, XORed in blocks of sixteen bytes.
///
/// The identity is computed from the image's file, which is assumed to be the loaded one if it
/// hasn't been changed (`st_ctime`) since the process started (rounded down to a clock tick, 10 ms:
/// a file created in that tick gets no identity), and if its code is at the address in the report.
pub fn identify_images(report: &mut Report) {
    let began = unchanged_since(report);
    let lacking = |image: &&mut Image| image.kind == ImageKind::ELF && image.build_id.is_empty();
    for image in report.images.iter_mut().filter(lacking) {
        if let Some(id) = derive_from_file(image, began) {
            image.text_id = Id(id.to_vec());
        }
    }
}

/// Returns the time since which an image's file must be unchanged to be the loaded one.
///
/// It is the start of the process. Core dumps and minidumps don't contain that time; for them it is
/// the time of death, and their reader has compared the file's headers with the saved ones.
pub(crate) fn unchanged_since(report: &Report) -> Timestamp {
    match (report.header.process_start, &report.crash) {
        (Timestamp(0), Some(crash)) => crash.time,
        (began, _) => began,
    }
}

fn derive_from_file(image: &Image, began: Timestamp) -> Option<[u8; 16]> {
    with_loaded_file(image, began, fold_text).flatten()
}

/// Whether the file at the path of an image without an id is probably the loaded one.
///
/// It hasn't been changed (`st_ctime`) since the process `began`, and its code is at the address in
/// the report. `false` for an image that is not an ELF file.
pub(crate) fn is_loaded_file(image: &Image, began: Timestamp) -> bool {
    with_loaded_file(image, began, |_| ()).is_some()
}

/// Returns when a file was last changed, including its name and owner, in nanoseconds since 1970.
#[cfg(unix)]
fn changed(file: &std::fs::Metadata) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    u64::try_from(file.ctime()).ok()?.checked_mul(1_000_000_000)?.checked_add(file.ctime_nsec() as u64)
}

/// Returns when a file was last written, in nanoseconds since 1970. Systems that only read reports
/// have no better time.
#[cfg(not(unix))]
fn changed(file: &std::fs::Metadata) -> Option<u64> {
    let since = file.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

fn with_loaded_file<T>(image: &Image, began: Timestamp, with: impl FnOnce(&object::File) -> T) -> Option<T> {
    if image.replaced {
        return None;
    }
    let path = on_disk(Path::new(&image.path));
    let container = archive::split(&path).filter(|_| !path.exists()).map_or(&*path, |(archive, _)| archive);
    let about = std::fs::metadata(container).ok().filter(|about| image.path.starts_with('/') && about.is_file())?;
    if changed(&about)? > began.0 {
        return None;
    }
    // A file with an id is not the one that was loaded.
    let file = SymbolFile::open(&path).ok()?.into_iter().find(|file| file.debug_id().is_none())?;
    let file = object::File::parse(file.bytes()).ok()?;
    let is_code = |protection: u8| protection & 1 != 0;
    let mut code = image.segments.iter().filter(|segment| is_code(segment.protection)).peekable();
    code.peek()?;
    let same = code.all(|loaded| {
        file.segments().any(|segment| {
            let place = (segment.address(), segment.size(), segment.file_range().0);
            place == (image.to_svma(loaded.address), loaded.size, loaded.file_offset)
        })
    });
    same.then(|| with(&file))
}

fn fold_text(file: &object::File) -> Option<[u8; 16]> {
    // In a file with only debug information the section has no bytes.
    let text = file.section_by_name(".text")?.data().ok().filter(|text| !text.is_empty())?;
    let mut id = [0; 16];
    for (place, byte) in text.iter().take(MAX_TEXT_BYTES).enumerate() {
        id[place % 16] ^= byte;
    }
    Some(id)
}

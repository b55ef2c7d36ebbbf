//! What stands for the build id of an ELF image that has none.

use std::path::Path;

use coroner_report::Report;
use coroner_report::model::{Bytes as Id, Image, Timestamp};
use coroner_report::wire::ImageKind;
use object::{Object as _, ObjectSection as _, ObjectSegment as _};

use crate::archive;
use crate::symbol_file::SymbolFile;
use crate::symbol_search::on_disk;

/// Bytes of `.text` that count.
const PAGE: usize = 4096;

/// Gives each ELF image without a build id the identity that Breakpad (`HashElfTextSection`) and Sentry's `symbolic`
/// (`ElfObject::debug_id`) derive from its code: the first 4096 bytes of the section `.text`, each sixteen of them XORed into one.
///
/// It is read from the image's file, which is taken for the one that was loaded if nobody has changed it (`st_ctime`) since the process began
/// (a clock tick, 10 ms, rounded down: a file made in that tick has no identity), and its code is where the report says.
pub fn identify_images(report: &mut Report) {
    let began = unchanged_since(report);
    let lacking = |image: &&mut Image| image.kind == ImageKind::ELF && image.build_id.is_empty();
    for image in report.images.iter_mut().filter(lacking) {
        if let Some(id) = of_file(image, began) {
            image.text_id = Id(id.to_vec());
        }
    }
}

/// Since when an image's file must be unchanged to be the one that was loaded: since the process began. Core dumps and minidumps don't say
/// when that was; of them it is when the process died, and whoever read them has compared the file's headers with those that were saved.
pub(crate) fn unchanged_since(report: &Report) -> Timestamp {
    match (report.header.process_start, &report.crash) {
        (Timestamp(0), Some(crash)) => crash.time,
        (began, _) => began,
    }
}

fn of_file(image: &Image, began: Timestamp) -> Option<[u8; 16]> {
    with_loaded_file(image, began, of_text).flatten()
}

/// Whether the file at the path of an image without an id is the one that was loaded, as far as it can be known: nobody has changed it
/// (`st_ctime`) since the process `began`, and its code is where the report says. False for an image that is no ELF file.
pub(crate) fn is_loaded_file(image: &Image, began: Timestamp) -> bool {
    with_loaded_file(image, began, |_| ()).is_some()
}

/// When a file was last changed, its name and owner included: nanoseconds since 1970.
#[cfg(unix)]
fn changed(file: &std::fs::Metadata) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    u64::try_from(file.ctime()).ok()?.checked_mul(1_000_000_000)?.checked_add(file.ctime_nsec() as u64)
}

/// When a file was last written: nanoseconds since 1970. Where reports are only read it is all that there is.
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
    // One with an id is another file than the one that was loaded.
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

fn of_text(file: &object::File) -> Option<[u8; 16]> {
    // Of a file of debug information alone it has no bytes.
    let text = file.section_by_name(".text")?.data().ok().filter(|text| !text.is_empty())?;
    let mut id = [0; 16];
    for (place, byte) in text.iter().take(PAGE).enumerate() {
        id[place % 16] ^= byte;
    }
    Some(id)
}

//! Encoding of an image in the report, and of the images' messages about the death.

use coroner_process::images::{self, ImageKind, MAX_PATH};
use coroner_process::memory::{LoadGuarded, Memory, read_text};
use coroner_process::path::Path;
use coroner_report::wire::{self, Encoder, Image, Segment, UnwindKind, UnwindSection};
use coroner_walk::ImageList;

use crate::image_encoding::{segments, unwind_sections};
use crate::installed::Installed;

/// Maximum number of bytes kept of an image's message.
const MAX_MESSAGE: usize = 4096;

/// Encodes the images' messages about the death: those in their `__crash_info` sections, which
/// libSystem's `abort`, Swift's runtime, libdispatch and others fill in
/// (`crashreporter_annotations_t` of CrashReporterClient.h).
pub(crate) fn encode_annotations(_: &Installed, images: &ImageList, encoder: &mut Encoder<'_>) {
    /// The fields that are read have kept their offsets since this version, up to 7.
    const VERSION: u64 = 4;
    /// Offsets of `message` and `message2`.
    const MESSAGES: [u64; 2] = [8, 32];
    // SAFETY: Coroner's secondary thread recovers guarded loads while a report is written.
    let mut memory = unsafe { LoadGuarded::new() };
    for image in images.table.iter().filter(|image| image.crash_info.len() >= 40) {
        let at = image.crash_info.start;
        if memory.read_u64(at).is_ok_and(|version| version >= VERSION) {
            for offset in MESSAGES {
                let mut text = [0; MAX_MESSAGE];
                let address = memory.read_u64(at.wrapping_add(offset)).unwrap_or(0);
                let text = read_text(&mut memory, address, &mut text);
                if !text.is_empty() {
                    let mut path = [0; MAX_PATH];
                    let source = images.table.path(image, &mut memory, &mut path);
                    wire::Annotation { source, text }.encode(encoder);
                }
            }
        }
    }
}

/// Encodes one image. Returns `false` if it does not fit.
pub(crate) fn encode_image(images: &ImageList, image: &images::Image, encoder: &mut Encoder<'_>) -> bool {
    let mut into_segments = [Segment::default(); images::MAX_SEGMENTS];
    let mut into_unwind = [UnwindSection::default(); 2];
    let text = image.text().next().unwrap_or_default();
    let mut path = [0; MAX_PATH];
    // SAFETY: Coroner's secondary thread recovers guarded loads while a report is written, and at
    // install dyld's strings are good memory.
    let path = images.table.path(image, &mut unsafe { LoadGuarded::new() }, &mut path);
    let version = version_text(image.version);
    Image {
        kind: wire::ImageKind::MACHO,
        path,
        load_address: image.range.start,
        slide: image.slide,
        size: image.range.len(),
        text: (text.start, text.len()),
        build_id: image.build_id(),
        segments: segments(image, &mut into_segments),
        unwind: unwind_sections(&unwind_data(image), &mut into_unwind),
        is_main: image.kind == ImageKind::Main,
        version: (image.version != 0).then(|| version.as_c_str().to_bytes()),
        cpu: Some(image.cpu),
    }
    .encode(encoder)
}

/// Returns a library's version in its usual form: `1319.100.3`.
fn version_text(version: u32) -> Path {
    let [major, minor, patch] = [version >> 16, version >> 8 & 0xff, version & 0xff];
    Path::new().push_decimal(major).push(b".").push_decimal(minor).push(b".").push_decimal(patch)
}

/// Returns an image's unwind data; ranges that it doesn't have are empty.
fn unwind_data(image: &images::Image) -> [(UnwindKind, images::AddressRange); 2] {
    [(UnwindKind::UNWIND_INFO, image.unwind_info), (UnwindKind::EH_FRAME, image.eh_frame)]
}

#[cfg(test)]
mod tests;

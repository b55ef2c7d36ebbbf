//! Encoding of an image in the report.

use coroner_process::abort_message::MAX_MESSAGE;
use coroner_process::images::{self, ImageKind};
use coroner_process::memory::LoadGuarded;
use coroner_report::wire::{self, Encoder, Image, Segment, UnwindKind, UnwindSection};
use coroner_walk::ImageList;

use crate::image_encoding::{segments, unwind_sections};
use crate::installed::Installed;

/// Encodes the images' messages about the death: the C library's abort message.
pub(crate) fn encode_annotations(installed: &Installed, images: &ImageList, encoder: &mut Encoder<'_>) {
    let mut text = [0; MAX_MESSAGE];
    // SAFETY: Coroner's handler recovers guarded loads while a report is written.
    let mut memory = unsafe { LoadGuarded::new() };
    let of_kind = |kind| images.iter().find(move |image| image.kind == kind);
    if let Some((source, text)) = installed.platform.abort_message.read(&mut memory, of_kind, &mut text) {
        wire::Annotation { source, text }.encode(encoder);
    }
}

/// Encodes one image. Returns `false` if it does not fit.
pub(crate) fn encode_image(images: &ImageList, image: &images::Image, encoder: &mut Encoder<'_>) -> bool {
    let mut into_segments = [Segment::default(); images::MAX_SEGMENTS];
    let mut into_unwind = [UnwindSection::default(); 3];
    // From the first executable segment to the end of the last: the range that a symbol table
    // covers.
    let (mut start, mut end) = (u64::MAX, 0);
    for text in image.text() {
        start = start.min(text.start);
        end = end.max(text.end);
    }
    Image {
        kind: wire::ImageKind::ELF,
        path: images.path(image),
        load_address: image.range.start,
        slide: image.slide,
        size: image.range.len(),
        text: if end > start { (start, end - start) } else { (0, 0) },
        build_id: image.build_id(),
        segments: segments(image, &mut into_segments),
        unwind: unwind_sections(&unwind_data(image), &mut into_unwind),
        is_main: image.kind == ImageKind::Main,
        ..Image::default()
    }
    .encode(encoder)
}

/// Returns an image's unwind data; ranges that it doesn't have are empty.
fn unwind_data(image: &images::Image) -> [(UnwindKind, images::AddressRange); 3] {
    let sframe = (UnwindKind::SFRAME, image.sframe);
    [(UnwindKind::EH_FRAME_HDR, image.eh_frame_hdr), (UnwindKind::EH_FRAME, image.eh_frame), sframe]
}

//! Conversion of an image for the unwinder.

use coroner_process::images;

use crate::os::search_table;

/// Returns the unwinder's description of the image whose code is at `address`.
pub fn unwind_image(image: &images::Image, address: u64) -> Option<coroner_unwind::Image> {
    let text = image.text().find(|range| range.contains(address))?;
    let (eh_frame_hdr, eh_frame) = search_table::find(image);
    Some(coroner_unwind::Image {
        text,
        base: image.range.start,
        bias: image.slide,
        eh_frame_hdr,
        eh_frame,
        sframe: image.sframe,
        ..coroner_unwind::Image::default()
    })
}

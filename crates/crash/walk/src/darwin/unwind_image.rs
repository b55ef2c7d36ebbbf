//! Conversion of an image for the unwinder.

use coroner_process::images;
use coroner_unwind::ImageFormat;

/// Returns the unwinder's description of the image whose code is at `address`.
pub fn unwind_image(image: &images::Image, address: u64) -> Option<coroner_unwind::Image> {
    let text = image.text().find(|range| range.contains(address))?;
    Some(coroner_unwind::Image {
        format: ImageFormat::MachO,
        text,
        base: image.range.start,
        bias: image.slide,
        eh_frame: image.eh_frame,
        unwind_info: image.unwind_info,
        stubs: image.stubs,
        stub_helper: image.stub_helper,
        text_section: image.text_section.start,
        ..coroner_unwind::Image::default()
    })
}

//! Portable parts of an image's description in the report.

use coroner_process::images;
use coroner_report::wire::{Segment, UnwindKind, UnwindSection};

/// Converts an image's segments to the report's form.
pub(crate) fn segments<'a>(image: &images::Image, into: &'a mut [Segment; images::MAX_SEGMENTS]) -> &'a [Segment] {
    let mut count = 0;
    for (to, segment) in into.iter_mut().zip(image.segments()) {
        *to = Segment {
            address: image.segment_range(segment).start,
            size: segment.size,
            file_offset: segment.file_offset,
            protection: (segment.flags & 7) as u8,
        };
        count += 1;
    }
    into.get(..count).unwrap_or_default()
}

/// Converts unwind data ranges to the report's form, without the empty ones.
pub(crate) fn unwind_sections<'a>(
    data: &[(UnwindKind, images::AddressRange)],
    into: &'a mut [UnwindSection],
) -> &'a [UnwindSection] {
    let mut count = 0;
    for (kind, range) in data.iter().filter(|(_, range)| !range.is_empty()) {
        if let Some(place) = into.get_mut(count) {
            *place = UnwindSection { kind: *kind, address: range.start, size: range.len() };
            count += 1;
        }
    }
    into.get(..count).unwrap_or_default()
}

//! The loaded images as every system has them, for the unwinder and for the report.

use coroner_machine::images;
use coroner_report::wire::{Segment, UnwindSection};
use coroner_unwind::AddressRange;

use crate::os::images::{Loaded, for_unwinder, unwind_data};

impl Loaded {
    /// The images, in the order of their addresses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &images::Image> {
        self.table.iter()
    }

    /// The image that holds an address.
    pub(crate) fn image_at(&self, address: u64) -> Option<&images::Image> {
        self.table.find(address)
    }

    /// Whether all of these bytes are in an image's unwind data, and which image it is.
    pub(crate) fn unwind_data_at(&self, address: u64, length: u64) -> Option<&images::Image> {
        let is_in = |range: images::AddressRange| {
            range.start <= address
                && length <= range.end.saturating_sub(range.start).saturating_sub(address - range.start)
        };
        self.table.find(address).filter(|image| unwind_data(image).into_iter().any(|(_, range)| is_in(range)))
    }
}

impl coroner_unwind::Images for &Loaded {
    fn find(&self, address: u64) -> Option<coroner_unwind::Image> {
        for_unwinder(self.table.find(address)?, address)
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        if let Some(image) = self.table.find(address) {
            return Some(image.is_executable(address));
        }
        let mapping = self.mappings.at(address).ok()?;
        Some(mapping.is_some_and(|mapping| mapping.permissions.execute))
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

/// An image's segments as the report has them.
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

/// An image's unwind data as the report has them, those that there are.
pub(crate) fn unwind_sections<'a>(image: &images::Image, into: &'a mut [UnwindSection; 2]) -> &'a [UnwindSection] {
    let mut count = 0;
    for (kind, range) in unwind_data(image).into_iter().filter(|(_, range)| !range.is_empty()) {
        if let Some(place) = into.get_mut(count) {
            *place = UnwindSection { kind, address: range.start, size: range.size() };
            count += 1;
        }
    }
    into.get(..count).unwrap_or_default()
}

/// A range as the unwinder has it.
pub(crate) fn range(range: images::AddressRange) -> AddressRange {
    AddressRange { start: range.start, end: range.end }
}

//! Ranges of addresses, the segments that images consist of, and what images are.
//!
//! The one type of range that everything at crash time uses, from the list of images to the unwinder.

use core::ops::Range;

/// Addresses from `start` up to, not including, `end`. An empty range means "not there".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AddressRange {
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
}

impl AddressRange {
    /// Whether it holds no address.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// Whether it holds an address.
    #[inline]
    pub const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// How many bytes it holds.
    #[inline]
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// The same addresses, `slide` higher (wraps).
    #[inline]
    #[must_use]
    pub const fn slid(&self, slide: u64) -> AddressRange {
        AddressRange { start: self.start.wrapping_add(slide), end: self.end.wrapping_add(slide) }
    }
}

impl From<Range<u64>> for AddressRange {
    fn from(range: Range<u64>) -> AddressRange {
        AddressRange { start: range.start, end: range.end }
    }
}

/// A segment of an image: `PT_LOAD` of ELF, `LC_SEGMENT_64` of Mach-O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// Its address as linked: add the image's slide for where it is.
    pub address: u64,
    /// Its bytes in memory.
    pub size: u64,
    /// Where it starts in the image's file (of an image of Darwin's shared cache: in one of the cache's).
    pub file_offset: u64,
    /// 1 execute, 2 write, 4 read: ELF's `PF_X`, `PF_W`, `PF_R`, converted from Mach-O's `initprot`.
    pub flags: u32,
}

impl Segment {
    /// Where it is, in an image with that slide.
    pub fn range(&self, slide: u64) -> AddressRange {
        let start = self.address.wrapping_add(slide);
        AddressRange { start, end: start.saturating_add(self.size) }
    }

    /// Whether it holds code.
    pub fn is_executable(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// What an image is. The numbers are part of the report format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ImageKind {
    /// A shared object, a bundle.
    #[default]
    Library = 0,
    /// The program.
    Main = 1,
    /// The dynamic linker, dyld.
    DynamicLinker = 2,
    /// The kernel's shared object of fast system calls, which is no file (Linux).
    Vdso = 3,
}

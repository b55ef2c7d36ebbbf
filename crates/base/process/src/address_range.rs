//! Address ranges, image segments and image kinds.
//!
//! [`AddressRange`] is the one range type of everything at crash time, from the image list to the
//! unwinder.

use core::ops::Range;

/// Addresses from `start` up to but not including `end`. An empty range means "not present".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AddressRange {
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
}

impl AddressRange {
    /// Whether the range contains no address.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// Whether the range contains `address`.
    #[inline]
    pub const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// Size of the range in bytes.
    #[inline]
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns the range shifted up by `slide` (wraps).
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
    /// Address as linked: the address in memory minus the image's slide.
    pub address: u64,
    /// Size in memory, in bytes.
    pub size: u64,
    /// Offset in the image's file.
    ///
    /// For an image in Darwin's shared cache, the offset in one of the cache's files.
    pub file_offset: u64,
    /// Access flags: 1 execute, 2 write, 4 read.
    ///
    /// ELF's `PF_X`, `PF_W`, `PF_R`; converted from Mach-O's `initprot`.
    pub flags: u32,
}

impl Segment {
    /// Returns the segment's range in an image with this slide.
    pub fn range(&self, slide: u64) -> AddressRange {
        let start = self.address.wrapping_add(slide);
        AddressRange { start, end: start.saturating_add(self.size) }
    }

    /// Whether the segment contains code.
    pub fn is_executable(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// Kind of an image. The numbers are part of the report format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ImageKind {
    /// A shared object or bundle.
    #[default]
    Library = 0,
    /// The program.
    Main = 1,
    /// The dynamic linker (dyld on Darwin).
    DynamicLinker = 2,
    /// The vDSO, the kernel's shared object for fast system calls, which has no file (Linux).
    Vdso = 3,
}

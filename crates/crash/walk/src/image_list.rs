//! The loaded images in a table of its owner, as they were listed last.

use coroner_process::images::{Image, Images, Mappings};

use crate::os::unwind_image::unwind_image;

/// Images that a list can hold.
pub(crate) const CAPACITY: usize = 2048;

/// The loaded images as they were listed last, and the process's mappings for what is in no image.
///
/// Everything is made by [`ImageList::map`]; from then on nothing is allocated, and [`ImageList::refresh`] is async-signal-safe.
#[derive(Debug)]
pub struct ImageList {
    /// The images.
    pub table: Images,
    /// What is mapped where.
    pub mappings: Mappings,
    /// Images that found no room.
    pub dropped: usize,
    /// Another number for each refresh.
    pub(crate) generation: u64,
    /// Code that compilers registered.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) jit: crate::os::jit::JitDescriptor,
    /// The table is kept as it is. (If another thread was at it, it is not this list's to release.)
    #[cfg(target_vendor = "apple")]
    pub(crate) is_held: bool,
}

impl ImageList {
    /// The images, in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Image> {
        self.table.iter()
    }

    /// The image that holds an address.
    pub fn find(&self, address: u64) -> Option<&Image> {
        self.table.find(address)
    }
}

impl coroner_unwind::Images for &ImageList {
    fn find(&self, address: u64) -> Option<coroner_unwind::Image> {
        match self.table.find(address) {
            Some(image) => unwind_image(image, address),
            None => self.jit_code(address).map(|code| code.unwind),
        }
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

//! The loaded images, as they were last listed, in a table of its owner.

use coroner_process::images::{Image, Images, Mappings};

use crate::os::unwind_image::unwind_image;

/// Maximum number of images in a list.
pub(crate) const CAPACITY: usize = 2048;

/// The loaded images as they were last listed, and the process's mappings for addresses outside all
/// images.
///
/// Everything is created by [`ImageList::map`]; from then on nothing is allocated, and
/// [`ImageList::refresh`] is async-signal-safe.
#[derive(Debug)]
pub struct ImageList {
    /// The images.
    pub table: Images,
    /// The process's mappings.
    pub mappings: Mappings,
    /// Number of images that did not fit.
    pub dropped: usize,
    /// Changes with each refresh.
    pub(crate) generation: u64,
    /// Code that compilers registered.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) jit: crate::os::jit::JitDescriptor,
    /// Whether the table is kept unchanged. (If another thread was using it, it isn't this list's
    /// to release.)
    #[cfg(target_vendor = "apple")]
    pub(crate) is_held: bool,
}

impl ImageList {
    /// Iterates over the images, in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Image> {
        self.table.iter()
    }

    /// Returns the image that contains an address.
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

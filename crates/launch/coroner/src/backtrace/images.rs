//! The loaded images with the data that naming and options need beyond the walker's list.

use std::sync::{Arc, Mutex, OnceLock};

#[cfg(supported)]
use coroner_process::images;
#[cfg(supported)]
use coroner_walk::{LiveImages, LiveReader};

use super::loaded_image::LoadedImage;
#[cfg(supported)]
use super::os;
#[cfg(supported)]
use super::shared_arc::SharedArc;
use crate::fork_locks;

#[derive(Debug, Default)]
pub(super) struct LoadedImages {
    /// The walker's list. If `None`, stacks can't be walked.
    #[cfg(supported)]
    pub list: Option<LiveImages>,
    /// The data about each image, in ascending order of address.
    images: Vec<Arc<LoadedImage>>,
}

/// The prefixes set by [`set_in_app`].
pub(crate) static IN_APP: Mutex<Vec<String>> = Mutex::new(Vec::new());
#[cfg(supported)]
static CURRENT: SharedArc<LoadedImages> = SharedArc::new();

/// Sets the app's own images, in addition to the program itself, by prefixes of their paths.
///
/// Captures with [`CaptureOptions::in_app_only`](super::CaptureOptions::in_app_only) use the ranges
/// of these images' code, which are determined once and not for each frame.
pub fn set_in_app<P: Into<String>>(prefixes: impl IntoIterator<Item = P>) {
    *fork_locks::lock(&IN_APP) = prefixes.into_iter().map(Into::into).collect();
    #[cfg(supported)]
    if let Some(memory) = LiveReader::new() {
        make(memory);
    }
}

/// Returns the images loaded now, from the dynamic linker's list read through `memory`; none if
/// that is `None`.
///
/// Takes no lock and doesn't allocate while that list is unchanged.
#[cfg(supported)]
pub(super) fn current(memory: Option<LiveReader>) -> Arc<LoadedImages> {
    let Some(memory) = memory else { return Arc::default() };
    let held = CURRENT.load();
    held.filter(|held| held.list.as_ref().is_some_and(|list| list.is_current(memory))).unwrap_or_else(|| make(memory))
}

/// Whether an image is still loaded.
///
/// If it isn't, something else may be mapped at its address, even the file that it is compared
/// with.
#[cfg(supported)]
pub(super) fn is_listed(image: &LoadedImage) -> bool {
    let now = current(LiveReader::new());
    now.image_at(image.range.start).is_some_and(|there| {
        // If the image has an id, its path is ignored: the path changes when the program's file is
        // replaced.
        let same_id = there.build_id == image.build_id && (!image.build_id.is_empty() || there.path == image.path);
        there.range == image.range && same_id
    })
}

/// Collects the data about the images now, and keeps it.
#[cfg(supported)]
fn make(mut memory: LiveReader) -> Arc<LoadedImages> {
    let in_app = fork_locks::lock(&IN_APP);
    let Some(list) = LiveImages::current(memory) else { return Arc::default() };
    let table = list.table();
    let images = table.iter().map(|image| Arc::new(LoadedImage::new(table, image, &mut memory, &in_app))).collect();
    let fresh = Arc::new(LoadedImages { images, list: Some(list) });
    // Store it while holding the lock, so that a list with older prefixes isn't stored after it.
    CURRENT.store(&fresh);
    fresh
}

#[cfg(supported)]
impl LoadedImage {
    fn new(table: &images::Images, image: &images::Image, memory: &mut LiveReader, in_app: &[String]) -> LoadedImage {
        use std::os::unix::ffi::OsStrExt;
        let path = os::path(table, image, memory);
        let is_app = image.kind == images::ImageKind::Main
            || in_app.iter().any(|prefix| path.as_os_str().as_bytes().starts_with(prefix.as_bytes()));
        LoadedImage {
            build_id: image.build_id().to_vec(),
            range: image.range,
            slide: image.slide,
            in_app: is_app,
            named_in_memory: os::is_named_in_memory(image),
            symbols: OnceLock::new(),
            path,
        }
    }
}

impl LoadedImages {
    #[inline]
    pub(super) fn image_at(&self, address: u64) -> Option<&Arc<LoadedImage>> {
        let after = self.images.partition_point(|image| image.range.start <= address);
        self.images.get(after.checked_sub(1)?).filter(|image| image.range.contains(address))
    }

    #[inline]
    pub(super) fn is_in_app(&self, address: u64) -> bool {
        self.image_at(address).is_some_and(|image| image.in_app)
    }

    /// Returns a number that identifies this state of the images: names are valid while it stays
    /// the same.
    pub(super) fn identity(&self) -> u64 {
        #[cfg(supported)]
        let identity = self.list.as_ref().map_or(0, LiveImages::identity);
        #[cfg(not(supported))]
        let identity = 0;
        identity
    }
}

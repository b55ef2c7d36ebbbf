//! The loaded images as names and options see them: what is known of each, beside the walker's list.

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
    /// The walker's list; `None` if there is none, and no walk.
    #[cfg(supported)]
    pub list: Option<LiveImages>,
    /// What is known of each, in ascending order of their addresses.
    images: Vec<Arc<LoadedImage>>,
}

/// The prefixes of [`set_in_app`].
pub(crate) static IN_APP: Mutex<Vec<String>> = Mutex::new(Vec::new());
#[cfg(supported)]
static CURRENT: SharedArc<LoadedImages> = SharedArc::new();

/// Says which images are the app's own, beside the program itself: those whose path begins with one of these prefixes.
///
/// Captures with [`CaptureOptions::in_app_only`](super::CaptureOptions::in_app_only) look at the ranges of their code, which
/// are found once and not for each frame.
pub fn set_in_app<P: Into<String>>(prefixes: impl IntoIterator<Item = P>) {
    *fork_locks::lock(&IN_APP) = prefixes.into_iter().map(Into::into).collect();
    #[cfg(supported)]
    if let Some(memory) = LiveReader::new() {
        make(memory);
    }
}

/// The images now, the dynamic linker's list seen through `memory`; none without it. No lock and no allocation while that list is
/// what it was the last time.
#[cfg(supported)]
pub(super) fn current(memory: Option<LiveReader>) -> Arc<LoadedImages> {
    let Some(memory) = memory else { return Arc::default() };
    let held = CURRENT.load();
    held.filter(|held| held.list.as_ref().is_some_and(|list| list.is_current(memory))).unwrap_or_else(|| make(memory))
}

/// Whether an image is loaded now. Where it was, if it is not, something else may be mapped: the very file that is compared with it.
#[cfg(supported)]
pub(super) fn is_listed(image: &LoadedImage) -> bool {
    let now = current(LiveReader::new());
    now.image_at(image.range.start).is_some_and(|there| {
        // The path of an image with an id does not count: that of a program whose file was replaced changes.
        let same_id = there.build_id == image.build_id && (!image.build_id.is_empty() || there.path == image.path);
        there.range == image.range && same_id
    })
}

/// Finds what is known of the images now, and keeps it.
#[cfg(supported)]
fn make(mut memory: LiveReader) -> Arc<LoadedImages> {
    let in_app = fork_locks::lock(&IN_APP);
    let Some(list) = LiveImages::current(memory) else { return Arc::default() };
    let table = list.table();
    let images = table.iter().map(|image| Arc::new(LoadedImage::new(table, image, &mut memory, &in_app))).collect();
    let fresh = Arc::new(LoadedImages { images, list: Some(list) });
    // Under the lock: what was made with other prefixes must not come later.
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

    /// What identifies this state of the images: the names that were found hold as long as this is the same.
    pub(super) fn identity(&self) -> u64 {
        #[cfg(supported)]
        let identity = self.list.as_ref().map_or(0, LiveImages::identity);
        #[cfg(not(supported))]
        let identity = 0;
        identity
    }
}

//! The loaded images as normal life sees them: a snapshot that is shared until the dynamic linker's list changes.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use arc_swap::ArcSwap;
use coroner_capture::live::Reader;
use coroner_machine::images;
use coroner_machine::memory::{Memory, Windowed};
use coroner_unwind::AddressRange;

use super::names::SymbolTable;
use super::os;

/// One image of a snapshot.
#[derive(Debug)]
pub(super) struct LoadedImage {
    pub path: PathBuf,
    pub build_id: Vec<u8>,
    /// All mapped addresses.
    pub range: AddressRange,
    pub slide: u64,
    /// Executable segments.
    text: Vec<AddressRange>,
    /// Where its unwind data are; `text` is set for each question.
    unwind: coroner_unwind::Image,
    pub in_app: bool,
    /// Whether its symbols are read where it is loaded and not in its file.
    pub named_in_memory: bool,
    /// Its symbols, opened when something is named.
    pub symbols: OnceLock<Option<SymbolTable>>,
}

/// The images at one time.
#[derive(Debug, Default)]
pub(super) struct LoadedImages {
    /// In ascending order of their addresses.
    images: Vec<Arc<LoadedImage>>,
    /// What tells them from others.
    state: os::State,
    /// Another number for every snapshot, by which cached rules are dropped.
    generation: u64,
}

/// What makes snapshots, one at a time.
struct Maker {
    table: Option<images::Images>,
    in_app: Vec<String>,
    made: u64,
}

static MAKER: Mutex<Maker> = Mutex::new(Maker { table: None, in_app: Vec::new(), made: 0 });
static CURRENT: LazyLock<ArcSwap<LoadedImages>> = LazyLock::new(|| ArcSwap::from(make()));

/// Says which images are the app's own, beside the program itself: those whose path begins with one of these prefixes.
///
/// Captures with [`CaptureOptions::in_app_only`](super::CaptureOptions::in_app_only) look at the ranges of their code, which
/// are found once and not for each frame.
pub fn set_in_app<P: Into<String>>(prefixes: impl IntoIterator<Item = P>) {
    lock().in_app = prefixes.into_iter().map(Into::into).collect();
    CURRENT.store(make());
}

fn lock() -> std::sync::MutexGuard<'static, Maker> {
    // A panic while it was held leaves a table that a refresh makes right again.
    MAKER.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The images now, the dynamic linker's list seen through `memory`; none without it. No lock and no allocation while that list is
/// what it was the last time.
pub(super) fn current(memory: Option<Reader>) -> Arc<LoadedImages> {
    let held = CURRENT.load();
    let same = match memory {
        // Each way compiled by itself: the list is read word by word.
        Some(Reader::Loads(mut memory)) => held.is_current(&mut memory),
        Some(Reader::Copies(copy)) => held.is_current(&mut Windowed::<_, 4>::new(copy)),
        None => return Arc::default(),
    };
    if !same {
        let fresh = make();
        CURRENT.store(Arc::clone(&fresh));
        return fresh;
    }
    Arc::clone(&held)
}

/// A new snapshot. Images that are as they were share what is known of them with the last one.
fn make() -> Arc<LoadedImages> {
    let mut maker = lock();
    let Maker { table, in_app, made } = &mut *maker;
    let Some(mut memory) = Reader::new() else { return Arc::default() };
    if table.is_none() {
        *table = images::Images::map(4096).ok();
    }
    let Some(table) = table else { return Arc::default() };
    let state = os::State::refresh(table, &mut memory);
    *made += 1;
    let images = table.iter().map(|image| Arc::new(LoadedImage::new(table, image, &mut memory, in_app))).collect();
    Arc::new(LoadedImages { images, state, generation: *made })
}

impl LoadedImage {
    fn new(table: &images::Images, image: &images::Image, memory: &mut Reader, in_app: &[String]) -> LoadedImage {
        use std::os::unix::ffi::OsStrExt;
        let path = os::path(table, image, memory);
        let is_app = image.kind == images::ImageKind::Main
            || in_app.iter().any(|prefix| path.as_os_str().as_bytes().starts_with(prefix.as_bytes()));
        LoadedImage {
            build_id: image.build_id().to_vec(),
            range: range(image.range),
            slide: image.slide,
            text: image.text().map(range).collect(),
            unwind: os::unwind_data(image),
            in_app: is_app,
            named_in_memory: os::is_named_in_memory(image),
            symbols: OnceLock::new(),
            path,
        }
    }

    fn text_at(&self, address: u64) -> Option<AddressRange> {
        self.text.iter().find(|text| text.contains(address)).copied()
    }
}

impl LoadedImages {
    /// The image that an address is in.
    #[inline]
    pub(super) fn image_at(&self, address: u64) -> Option<&Arc<LoadedImage>> {
        let after = self.images.partition_point(|image| image.range.start <= address);
        self.images.get(after.checked_sub(1)?).filter(|image| image.range.contains(address))
    }

    /// Whether an address is in one of the app's own images.
    #[inline]
    pub(super) fn is_in_app(&self, address: u64) -> bool {
        self.image_at(address).is_some_and(|image| image.in_app)
    }

    /// Whether the images are still these.
    fn is_current<M: Memory>(&self, memory: &mut M) -> bool {
        self.state.is_current(memory)
    }

    /// What identifies this state of the images: the names that were found hold as long as this is the same.
    pub(super) fn identity(&self) -> u64 {
        self.state.identity()
    }
}

impl coroner_unwind::Images for LoadedImages {
    fn find(&self, address: u64) -> Option<coroner_unwind::Image> {
        let image = self.image_at(address)?;
        Some(coroner_unwind::Image { text: image.text_at(address)?, ..image.unwind })
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        // Elsewhere may be the code of a JIT: not known.
        self.image_at(address).map(|image| image.text_at(address).is_some())
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

pub(super) fn range(range: images::AddressRange) -> AddressRange {
    AddressRange { start: range.start, end: range.end }
}

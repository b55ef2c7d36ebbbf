//! The symbolizer: finds the files for a report's images by id and looks up addresses in them.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use coroner_process::symtab::LookupAddress;

use crate::{
    call::Call,
    debug_id::DebugId,
    demangle::{Language, demangle},
    error::SymbolError,
    file_kind::FileKind,
    image_key::ImageKey,
    symbol_file::SymbolFile,
    symbol_search::{Found, Locator, Options},
};

/// The relation between the files that were found and the report's image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Match {
    /// At least one file has the image's id.
    Matched,
    /// Neither the report's image nor the file at its path has an id.
    ///
    /// The file is used, but it may have changed since.
    Unverified,
    /// Only a file with another id was found; it is not used.
    ///
    /// Either the file at the image's path was replaced, or the path has no file, and one with the
    /// same name in the folders of [`Options::search`] has another id.
    Mismatched {
        /// The file that was found.
        path: PathBuf,
        /// The file's ids: one, or one per architecture.
        ///
        /// Empty if the file has no id and was changed since the image was loaded.
        found: Vec<DebugId>,
    },
    /// No file was found.
    Missing,
    /// A file with the image's id was found, but it contains no symbols.
    NoSymbols,
}

/// The state of an image's symbols.
#[derive(Debug)]
pub struct ImageStatus {
    /// The relation of the files to the image.
    pub matched: Match,
    /// The files in use, the one with the most information first.
    pub files: Vec<PathBuf>,
    /// Errors in files; the intact parts are used anyway.
    pub problems: Vec<SymbolError>,
}

/// One call at an address. An address may have several calls: all but the last were inlined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolFrame {
    /// The demangled name.
    pub function: Option<String>,
    /// The name as used by the linker or the compiler.
    pub raw_name: Option<String>,
    /// The language, recognised by the name's mangling.
    pub language: Language,
    /// The symbol's start (svma); `None` for inlined calls.
    pub symbol_address: Option<u64>,
    /// The source file as recorded by the compiler: often an absolute path on the build machine.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
    /// Column, from 1, in bytes or characters depending on the compiler.
    pub column: Option<u32>,
    /// Whether the call was inlined into the next frame in the list.
    pub inlined: bool,
}

/// Names addresses and keeps opened files for later lookups.
#[derive(Debug)]
pub struct Symbolizer {
    pub(crate) locator: Locator,
    pub(crate) debug_info: bool,
    images: HashMap<ImageKey, Image>,
}

#[derive(Debug)]
struct Image {
    files: Vec<SymbolFile>,
    status: ImageStatus,
}

impl Symbolizer {
    /// Creates a symbolizer that searches the places in `options`. No file is opened yet.
    pub fn new(options: Options) -> Self {
        Self { debug_info: options.debug_info, locator: Locator::new(options), images: HashMap::new() }
    }

    /// Creates a symbolizer that doesn't search the folders in [`Options::search`].
    ///
    /// It searches beside the images and in the system's debug folders. Programs that only use this
    /// constructor don't contain the code for searching and indexing folders.
    pub fn beside_images(debug_info: bool) -> Self {
        let options = Options { debug_info, ..Options::default() };
        Self { debug_info, locator: Locator::beside_images(options), images: HashMap::new() }
    }

    /// Returns the calls at an address in an image, innermost first. Empty if the address can't be
    /// named; [`Self::status`] has the reason.
    pub fn symbolicate(&mut self, image: &ImageKey, address: LookupAddress) -> Vec<SymbolFrame> {
        let base = image.base_svma;
        // Breakpad's addresses are relative to the image's first byte.
        self.ask(image, address, |file| if file.kind() == FileKind::Breakpad { 0_u64.wrapping_sub(base) } else { 0 })
    }

    /// Like [`Self::symbolicate`], for an offset from the image's first byte.
    ///
    /// Reports without the image's own base address contain such offsets.
    ///
    /// Each file contains its base address ([`SymbolFile::base_svma`]). Results are also relative
    /// to the first byte; [`ImageKey::base_svma`] is ignored.
    pub fn symbolicate_relative(&mut self, image: &ImageKey, offset: LookupAddress) -> Vec<SymbolFrame> {
        self.ask(image, offset, SymbolFile::base_svma)
    }

    /// Looks up many addresses in an image at once, for later calls of [`Self::symbolicate`]. This
    /// takes a fraction of the time and memory of single lookups. It is best called once for an
    /// image: [`SymbolFile::look_up`].
    pub fn look_up(&mut self, image: &ImageKey, addresses: &[LookupAddress]) {
        let image = self.image(image);
        // The other files are only used where this one finds nothing. Breakpad files have no debug
        // information to read in one pass.
        if let Some(file) = image.files.first() {
            file.look_up(addresses);
        }
    }

    /// Looks up an address in each file in turn. `distance` returns what to add to the address for
    /// a file.
    fn ask(
        &mut self,
        image: &ImageKey,
        address: LookupAddress,
        distance: impl Fn(&SymbolFile) -> u64,
    ) -> Vec<SymbolFrame> {
        let image = self.image(image);
        let mut best: Vec<Call> = Vec::new();
        for file in &image.files {
            let distance = distance(file);
            let mut frames = file.calls(LookupAddress::of_instruction(address.svma().wrapping_add(distance)));
            for start in frames.iter_mut().filter_map(|frame| frame.symbol_address.as_mut()) {
                *start = start.wrapping_sub(distance);
            }
            let lines = frames.iter().any(|frame| frame.line.is_some());
            if lines || best.is_empty() {
                best = frames;
            }
            if lines {
                break;
            }
        }
        best.into_iter().map(named).collect()
    }

    /// Uses `file` for the image with this path, if the path now leads to another file or to none.
    ///
    /// The file was deleted or replaced while its process runs (`/proc/PID/map_files`), or is in
    /// another root. If the image has a build id, the file must have the same one.
    pub fn take_file(&mut self, image_path: impl Into<PathBuf>, file: impl Into<PathBuf>) {
        self.locator.take_file(image_path.into(), file.into());
    }

    /// Looks up no more images in the files of [`take_file`](Self::take_file).
    ///
    /// Files that are in use stay open.
    pub fn release_files(&mut self) {
        self.locator.release_files();
    }

    /// Searches the folders of [`Options::search`] now, unless that was done already. `reading` is
    /// called with each file that is opened, which excludes those in [`Options::index_cache`].
    pub fn search(&mut self, reading: &mut dyn FnMut(&Path)) {
        self.locator.index_with(reading);
    }

    /// Returns the errors from searching [`Options::search`]. Folders are searched when the first
    /// image is looked up, or by this call.
    pub fn search_problems(&mut self) -> &[SymbolError] {
        self.locator.search_problems()
    }

    /// Returns an image's state: the files in use, or the reason why there are none.
    pub fn status(&mut self, image: &ImageKey) -> &ImageStatus {
        let image = self.image(image);
        for file in &image.files {
            image.status.problems.extend(file.take_problems());
        }
        &image.status
    }

    /// Returns the files in use for an image, the one with the most information first.
    ///
    /// They can be passed to [`SnapshotImages::add`](crate::SnapshotImages::add).
    pub fn files(&mut self, key: &ImageKey) -> &[SymbolFile] {
        &self.image(key).files
    }

    fn image(&mut self, key: &ImageKey) -> &mut Image {
        // Two look-ups, because `entry` would need an owned key for every address.
        if !self.images.contains_key(key) {
            let image = open(&mut self.locator, key, self.debug_info);
            self.images.insert(key.clone(), image);
        }
        self.images.get_mut(key).expect("it was inserted above")
    }
}

fn open(locator: &mut Locator, key: &ImageKey, debug_info: bool) -> Image {
    let Found { mut files, mismatched, unverified, mut problems } = locator.find(key);
    if !debug_info {
        files.iter_mut().for_each(SymbolFile::leave_out_debug_info);
    }
    // The file with lines is asked first; the others only if it doesn't contain an address.
    files.sort_by_key(SymbolFile::line_source);
    let matched = match (files.is_empty(), mismatched) {
        (true, Some((path, found))) => Match::Mismatched { path, found },
        (true, None) => Match::Missing,
        (false, _) if !files.iter().any(SymbolFile::can_name) => Match::NoSymbols,
        (false, _) if unverified => Match::Unverified,
        (false, _) => Match::Matched,
    };
    for file in &files {
        problems.extend(file.take_problems());
    }
    let status = ImageStatus { matched, files: files.iter().map(|file| file.path().to_owned()).collect(), problems };
    Image { files, status }
}

pub(crate) fn named(raw: Call) -> SymbolFrame {
    let demangled = raw.name.as_deref().map(demangle);
    let language = demangled.as_ref().map_or(Language::Plain, |demangled| demangled.language);
    SymbolFrame {
        function: demangled.map(|demangled| demangled.name),
        raw_name: raw.name,
        language,
        symbol_address: raw.symbol_address,
        file: raw.file,
        line: raw.line,
        column: raw.column,
        inlined: raw.inlined,
    }
}

// Reports are symbolicated in a separate thread.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Symbolizer>();
};

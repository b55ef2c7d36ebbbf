//! Names for the frames of reports: finds the files that belong to an image, by its id, and asks them.

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

/// How the files that were found relate to the image of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Match {
    /// At least one file has the image's id.
    Matched,
    /// The image of the report has no id, nor has the file at its path: used, but it may have changed since.
    Unverified,
    /// The file at the image's path has another id, so it wasn't used: the app or library was replaced. Or there is none, and one of its name
    /// in the folders of [`Options::search`] has another id.
    Mismatched {
        /// What was found.
        path: PathBuf,
        /// Its ids: one, or one per architecture; none where it has no id at all, and was changed since the image was loaded.
        found: Vec<DebugId>,
    },
    /// Nothing was found.
    Missing,
    /// A file with the image's id was found, but it has no symbols whatever.
    NoSymbols,
}

/// What is known about an image of the report.
#[derive(Debug)]
pub struct ImageStatus {
    /// How the files relate to the image.
    pub matched: Match,
    /// The files that are used, the one with the most to say first.
    pub files: Vec<PathBuf>,
    /// What was found broken on the way; the rest is used all the same.
    pub problems: Vec<SymbolError>,
}

/// One named call. Several calls of one address share it: all but the last were inlined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolFrame {
    /// The name for people, demangled.
    pub function: Option<String>,
    /// The name as the linker or the compiler has it.
    pub raw_name: Option<String>,
    /// What the name's mangling says.
    pub language: Language,
    /// Where the symbol begins (svma); `None` for inlined calls.
    pub symbol_address: Option<u64>,
    /// The source file as the compiler recorded it: often absolute on the machine that compiled it.
    pub file: Option<String>,
    /// From 1.
    pub line: Option<u32>,
    /// From 1, in bytes or characters as the compiler counts.
    pub column: Option<u32>,
    /// The compiler put this call into the next frame of the list.
    pub inlined: bool,
}

/// Names addresses, and keeps the files it opened for the next ones.
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
    /// A symbolizer that looks in these places. Nothing is opened yet.
    pub fn new(options: Options) -> Self {
        Self { debug_info: options.debug_info, locator: Locator::new(options), images: HashMap::new() }
    }

    /// One that looks beside the images and where the system has debug files, and in no folder ([`Options::search`]): a program that has no other has
    /// none of the code that walks folders and remembers what they hold.
    pub fn beside_images(debug_info: bool) -> Self {
        let options = Options { debug_info, ..Options::default() };
        Self { debug_info, locator: Locator::beside_images(options), images: HashMap::new() }
    }

    /// The calls at an address of an image, the innermost first. Empty where it has no name: [`Self::status`] says why.
    pub fn symbolicate(&mut self, image: &ImageKey, address: LookupAddress) -> Vec<SymbolFrame> {
        let base = image.base_svma;
        // Breakpad's addresses count from the image's first byte.
        self.ask(image, address, |file| if file.kind() == FileKind::Breakpad { 0_u64.wrapping_sub(base) } else { 0 })
    }

    /// As [`Self::symbolicate`], for an address that counts from the image's first byte, as in reports that don't say where the
    /// image's own addresses begin: each file knows that of itself ([`SymbolFile::base_svma`]). What is answered counts
    /// from there too; [`ImageKey::base_svma`] is of no account.
    pub fn symbolicate_relative(&mut self, image: &ImageKey, offset: LookupAddress) -> Vec<SymbolFrame> {
        self.ask(image, offset, SymbolFile::base_svma)
    }

    /// Looks many addresses of an image up at once, which takes a part of the time and memory that [`Self::symbolicate`] takes for one after
    /// another; `symbolicate` then knows them. It is best called once for an image: [`SymbolFile::look_up`].
    pub fn look_up(&mut self, image: &ImageKey, addresses: &[LookupAddress]) {
        let image = self.image(image);
        // The others are asked where it knows nothing. Breakpad's has no debug information that could be passed over.
        if let Some(file) = image.files.first() {
            file.look_up(addresses);
        }
    }

    /// Asks the files in turn. `distance` is what a file's addresses have more than those that are asked for.
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

    /// Takes a file for the image of that path, where the path leads to another one by now, or to none: it was deleted or replaced while its
    /// process runs (`/proc/PID/map_files`), or is of another root. Of an image with a build id the file must have it.
    pub fn take_file(&mut self, image_path: impl Into<PathBuf>, file: impl Into<PathBuf>) {
        self.locator.take_file(image_path.into(), file.into());
    }

    /// Walks the folders of [`Options::search`] now, if that isn't done yet, and gives `reading` each file that is opened for
    /// it: not those that [`Options::index_cache`] remembers.
    pub fn search(&mut self, reading: &mut dyn FnMut(&Path)) {
        self.locator.index_with(reading);
    }

    /// What was wrong with the folders and files of [`Options::search`] themselves. They are walked when the first image
    /// is asked for; before that, now.
    pub fn search_problems(&mut self) -> &[SymbolError] {
        self.locator.search_problems()
    }

    /// What is known about an image: which files are used, or why none is.
    pub fn status(&mut self, image: &ImageKey) -> &ImageStatus {
        let image = self.image(image);
        for file in &image.files {
            image.status.problems.extend(file.take_problems());
        }
        &image.status
    }

    /// The files that are used for an image, the one with the most to say first: for [`SnapshotImages::add`](crate::SnapshotImages::add).
    pub fn files(&mut self, key: &ImageKey) -> &[SymbolFile] {
        &self.image(key).files
    }

    fn image(&mut self, key: &ImageKey) -> &mut Image {
        // Two look-ups, because `entry` would need the key by value for every address.
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
    // The one with lines is asked first, and only where it doesn't know an address, the next.
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

// Reports are symbolicated on a thread of their own.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Symbolizer>();
};

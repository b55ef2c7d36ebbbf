//! Finds an image's symbol files.
//!
//! They are at its own path, in the system's debug folders, found by debug links, or in the user's
//! folders.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use crate::{
    debug_id::DebugId, error::SymbolError, file_kind::FileKind, image_key::ImageKey, search_index::SearchIndex,
    shared_cache::SharedCache, symbol_file::SymbolFile,
};

/// Search locations for symbol files.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folders (searched recursively) and files given by the user.
    ///
    /// They contain dSYM bundles, ELF debug files, breakpad `.sym` files, unstripped executables.
    /// All files with the image's id are used.
    pub search: Vec<PathBuf>,
    /// Roots with the system's separate debug files: `<root>/.build-id/ab/cdef….debug`, and
    /// `<root>/<folder>/<name>` for debug links.
    pub debug_roots: Vec<PathBuf>,
    /// Whether to try the image's own path, which is correct on the machine where the process ran.
    pub image_paths: bool,
    /// A file that caches the contents of [`Self::search`], so that the next call only reads what
    /// changed. `None` disables the cache.
    pub index_cache: Option<PathBuf>,
    /// Servers for debug files of ELF images for which no lines are found otherwise. `None`
    /// disables them.
    #[cfg(feature = "debuginfod")]
    pub debuginfod: Option<crate::Debuginfod>,
    /// Whether to read debug information, which contains files, lines and inlined calls. Without
    /// it, functions are named from symbol tables, which takes a tenth of the time.
    pub debug_info: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            search: Vec::new(),
            debug_roots: vec!["/usr/lib/debug".into()],
            image_paths: true,
            index_cache: None,
            #[cfg(feature = "debuginfod")]
            debuginfod: None,
            debug_info: true,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) files: Vec<SymbolFile>,
    /// The file at the image's path and its ids, if they differ from the image's.
    pub(crate) mismatched: Option<(PathBuf, Vec<DebugId>)>,
    /// Whether the image has no id and was found by its path.
    pub(crate) unverified: bool,
    pub(crate) problems: Vec<SymbolError>,
}

/// The type of [`SearchIndex::build`].
type BuildIndex = fn(&[PathBuf], Option<&Path>, &mut dyn FnMut(&Path)) -> SearchIndex;

/// Searches for symbol files. The user's folders are indexed once, when the first image is looked
/// up.
#[derive(Debug)]
pub(crate) struct Locator {
    options: Options,
    build: BuildIndex,
    index: Option<SearchIndex>,
    /// Files to use for images, by the images' paths.
    taken: HashMap<PathBuf, PathBuf>,
    /// Code of images without an id as it was in memory, by the images' paths.
    code: HashMap<PathBuf, Vec<Code>>,
}

/// Code that an image contains: its svma and bytes.
pub(crate) type Code = (u64, Vec<u8>);

impl Locator {
    pub(crate) fn new(options: Options) -> Self {
        Self { options, build: SearchIndex::build, index: None, taken: HashMap::new(), code: HashMap::new() }
    }

    /// Creates a locator that doesn't search folders.
    pub(crate) fn beside_images(options: Options) -> Self {
        Self {
            options,
            build: |_, _, _| SearchIndex::default(),
            index: None,
            taken: HashMap::new(),
            code: HashMap::new(),
        }
    }

    pub(crate) fn take_file(&mut self, image_path: PathBuf, file: PathBuf) {
        self.taken.insert(image_path, file);
    }

    pub(crate) fn release_files(&mut self) {
        self.taken.clear();
    }

    /// Accepts files for an image without an id only if they contain this code.
    pub(crate) fn expect_code(&mut self, image_path: &str, code: Vec<Code>) {
        self.code.insert(image_path.into(), code);
    }

    /// Returns whether a file is known to be from the image's build; `None` if the image has no id,
    /// and its code is not in both.
    fn is_same_build(&self, file: &SymbolFile, key: &ImageKey) -> Option<bool> {
        match (&key.debug_id, self.code.get(&key.path)) {
            (Some(_), _) => Some(true),
            (None, Some(code)) => file.has_code(code),
            (None, None) => None,
        }
    }

    pub(crate) fn find(&mut self, key: &ImageKey) -> Found {
        let mut found = Found::default();
        let mut seen = HashSet::new();
        if self.options.image_paths && key.path.is_absolute() {
            self.take_image(key, &mut found, &mut seen);
        } else if self.options.image_paths && key.path == Path::new(VDSO) {
            found
                .files
                .extend(own_vdso().into_iter().flatten().filter(|file| file.debug_id() == key.debug_id.as_ref()));
        }
        let places = match &key.debug_id {
            Some(id) => self.places_of(key, id),
            None => self.index().without_id(&key.path).to_vec(),
        };
        for path in places {
            self.take_matching(&path, key, &mut found, &mut seen);
        }
        if found.files.is_empty() && found.mismatched.is_none() && key.debug_id.is_some() {
            found.mismatched = self.index().with_name(&key.path);
        }
        #[cfg(feature = "debuginfod")]
        self.take_from_server(key, &mut found, &mut seen);
        if let Some(id) = &key.debug_id
            && let Some((path, image)) = self.index().in_shared_cache(id).cloned()
        {
            match SharedCache::open(&path) {
                Ok(cache) => {
                    found.files.push(SymbolFile::in_shared_cache(&path, cache, image, id.clone(), key.arch));
                }
                Err(error) => found.problems.push(error),
            }
        }
        found
    }

    /// Takes the debug file from a debuginfod server if no lines were found on this machine.
    #[cfg(feature = "debuginfod")]
    fn take_from_server(&self, key: &ImageKey, found: &mut Found, seen: &mut HashSet<PathBuf>) {
        let (Some(servers), Some(id)) = (&self.options.debuginfod, &key.debug_id) else { return };
        if key.kind != FileKind::Elf || found.files.iter().any(SymbolFile::has_lines) {
            return;
        }
        match servers.debug_file(id) {
            Ok(Some(path)) => self.take_matching(&path, key, found, seen),
            Ok(None) => {}
            Err(error) => found.problems.push(error),
        }
    }

    /// Takes the file at the image's own path, if it is still the same image.
    fn take_image(&self, key: &ImageKey, found: &mut Found, seen: &mut HashSet<PathBuf>) {
        let taken = self.taken.get(&key.path);
        let path = taken.cloned().unwrap_or_else(|| on_disk(&key.path));
        let files = match SymbolFile::open(&path) {
            Ok(files) => files,
            Err(SymbolError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return found.problems.push(error),
        };
        let ids: Vec<DebugId> = files.iter().filter_map(|file| file.debug_id().cloned()).collect();
        let is_other = key.replaced && key.debug_id.is_none() && taken.is_none();
        let image = files.into_iter().find(|file| file.matches(key) && !is_other);
        let verdict = image.as_ref().and_then(|image| self.is_same_build(image, key));
        let Some(image) = image.filter(|_| verdict != Some(false)) else {
            found.mismatched = Some((path, ids));
            return;
        };
        found.unverified = verdict.is_none();
        seen.insert(path);
        for path in self.debug_link_places(&image) {
            take_linked(&path, &image, found, seen);
        }
        found.files.push(image);
    }

    /// Returns the possible paths of a `.gnu_debuglink` file.
    ///
    /// Source: GDB's manual, "Debugging Information in Separate Files".
    fn debug_link_places(&self, image: &SymbolFile) -> Vec<PathBuf> {
        let (Some((name, _)), Some(folder)) = (image.debug_link(), image.path().parent()) else { return Vec::new() };
        let mut places = vec![folder.join(&name), folder.join(".debug").join(&name)];
        for root in &self.options.debug_roots {
            places.push(root.join(folder.strip_prefix("/").unwrap_or(folder)).join(&name));
        }
        places
    }

    /// Returns all places where a file with the id may be, except the image's own path.
    fn places_of(&mut self, key: &ImageKey, id: &DebugId) -> Vec<PathBuf> {
        let mut places = Vec::new();
        let hex = id.to_string();
        if key.kind == FileKind::Elf && hex.len() > 2 {
            let (folder, name) = hex.split_at(2);
            for root in &self.options.debug_roots {
                places.push(root.join(".build-id").join(folder).join(format!("{name}.debug")));
            }
        }
        if key.kind == FileKind::MachO && self.options.image_paths && !(key.replaced && key.debug_id.is_none()) {
            places.extend(dsym_beside(&key.path));
        }
        let index = self.index();
        places.extend_from_slice(index.with_id(id));
        places.extend_from_slice(index.with_breakpad_id(key.kind, id.to_breakpad(key.kind)));
        places
    }

    fn take_matching(&self, path: &Path, key: &ImageKey, found: &mut Found, seen: &mut HashSet<PathBuf>) {
        if !path.is_file() || !seen.insert(path.to_owned()) {
            return;
        }
        let files = match SymbolFile::open(path) {
            Ok(files) => files,
            Err(error) => return found.problems.push(error),
        };
        for file in files.into_iter().filter(|file| file.matches(key)) {
            match self.is_same_build(&file, key) {
                Some(false) => found.mismatched = Some((path.to_owned(), Vec::new())),
                verdict => {
                    found.unverified |= verdict.is_none();
                    found.files.push(file);
                }
            }
        }
    }

    pub(crate) fn search_problems(&mut self) -> &[SymbolError] {
        self.index().problems()
    }

    fn index(&mut self) -> &SearchIndex {
        self.index_with(&mut |_| {})
    }

    /// Returns the index, building it if necessary; `reading` is called with each file that is
    /// opened for it.
    pub(crate) fn index_with(&mut self, reading: &mut dyn FnMut(&Path)) -> &SearchIndex {
        let Options { search, index_cache, .. } = &self.options;
        self.index.get_or_insert_with(|| (self.build)(search, index_cache.as_deref(), reading))
    }
}

/// The name in reports for the code that the kernel maps into each process.
const VDSO: &str = "[vdso]";

/// Returns this process's vdso, which is not in a file; `None` if there is none. The vdso is the
/// same as long as the kernel is.
fn own_vdso() -> Option<Vec<SymbolFile>> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let line = maps.split(|byte| *byte == b'\n').find(|line| line.ends_with(VDSO.as_bytes()))?;
    let (start, end) = std::str::from_utf8(line).ok()?.split(' ').next()?.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
    let mut memory = File::open("/proc/self/mem").ok()?;
    memory.seek(SeekFrom::Start(start)).ok()?;
    memory.read_exact(&mut bytes).ok()?;
    SymbolFile::from_bytes(Path::new(VDSO), bytes).ok()
}

/// Returns the path on disk. In reports, bytes of a name that are not UTF-8 are replaced by U+FFFD,
/// so such a name is searched for in its folder.
pub(crate) fn on_disk(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for component in path {
        let is_replaced = component.to_string_lossy().contains(char::REPLACEMENT_CHARACTER);
        let mut entries = is_replaced.then(|| std::fs::read_dir(&found).ok()).into_iter().flatten().flatten().flatten();
        let entry = entries.find(|entry| entry.file_name().to_string_lossy() == component.to_string_lossy());
        found.push(entry.map_or_else(|| component.to_owned(), |entry| entry.file_name()));
    }
    found
}

/// Takes a debug link's file if it has the image's id or, if either has none, the link's CRC.
fn take_linked(path: &Path, image: &SymbolFile, found: &mut Found, seen: &mut HashSet<PathBuf>) {
    if path == image.path() || !path.is_file() || !seen.insert(path.to_owned()) {
        return;
    }
    let belongs = |file: &SymbolFile| match (file.debug_id(), image.debug_id()) {
        (Some(theirs), Some(ours)) => theirs == ours,
        _ => image.debug_link().is_some_and(|(_, crc)| crc == crc32fast::hash(file.bytes())),
    };
    match SymbolFile::open(path) {
        Ok(files) => found.files.extend(files.into_iter().filter(belongs)),
        Err(error) => found.problems.push(error),
    }
}

/// Returns the possible paths of a dSYM bundle's file.
///
/// For `App.app/Contents/MacOS/App` these are `App.app.dSYM/…` and `App.dSYM/…`, beside the
/// executable and beside its bundle.
fn dsym_beside(path: &Path) -> Vec<PathBuf> {
    let Some(name) = path.file_name() else { return Vec::new() };
    let inside = Path::new("Contents/Resources/DWARF").join(name);
    path.ancestors()
        .take(4)
        .filter_map(|at| {
            let mut bundle = at.file_name()?.to_owned();
            bundle.push(".dSYM");
            Some(at.with_file_name(bundle).join(&inside))
        })
        .collect()
}

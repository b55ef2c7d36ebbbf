//! An index of the user's folders by id, cached in a file.
//!
//! Reading the ids of thousands of files takes seconds, checking that the files haven't changed
//! doesn't.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use coroner_process::heap_sort;
use serde::{Deserialize, Serialize};

use crate::{
    debug_id::DebugId, error::SymbolError, file_kind::FileKind, shared_cache::SharedCache, symbol_file::SymbolFile,
};

/// Maximum depth of the search: a dSYM has its file four levels down, a `.build-id` tree two.
const MAX_DEPTH: usize = 12;
/// Maximum number of folder entries, so that a mistaken `--symbols /` ends in reasonable time.
const MAX_ENTRIES: usize = 500_000;

/// The files in the user's folders by their identity.
#[derive(Debug, Default)]
pub(crate) struct SearchIndex {
    by_id: HashMap<DebugId, Vec<PathBuf>>,
    /// Files by breakpad id (which for ELF is not the whole build id) and image format.
    by_breakpad_id: HashMap<(FileKind, String), Vec<PathBuf>>,
    /// Files without an id by name, for images that have none either.
    without_id: HashMap<OsString, Vec<PathBuf>>,
    /// Images in dyld shared caches: the cache, and the image's address in it without a slide.
    in_shared_caches: HashMap<DebugId, (PathBuf, u64)>,
    problems: Vec<SymbolError>,
}

/// An identity by which a file can be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Fact {
    Id(DebugId),
    BreakpadId(FileKind, String),
    WithoutId,
    InSharedCache(DebugId, u64),
}

/// A cached file's identities; valid as long as its time and size are unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    modified: u64,
    size: u64,
    /// Empty for a file that is not a symbol file.
    facts: Vec<Fact>,
}

type Memory = BTreeMap<PathBuf, Remembered>;

impl SearchIndex {
    /// Indexes folders and files. Files listed in the file `cache` are not read again; the cache is
    /// rewritten if anything changed, and ignored if it can't be read or written. `reading` is
    /// called with each file that is opened.
    pub(crate) fn build(search: &[PathBuf], cache: Option<&Path>, reading: &mut dyn FnMut(&Path)) -> Self {
        let text = cache.and_then(|cache| fs::read(cache).ok()).unwrap_or_default();
        let remembered =
            serde_json::from_slice::<(u32, Memory)>(&text).ok().filter(|(version, _)| *version == CACHE_VERSION);
        let mut walk = Walk {
            index: Self::default(),
            remembered: remembered.map(|(_, memory)| memory).unwrap_or_default(),
            seen: Memory::new(),
            entries: MAX_ENTRIES,
            reading,
        };
        for place in search {
            walk.add(place, MAX_DEPTH, true);
        }
        if let Some(cache) = cache
            && walk.seen != walk.remembered
            && let Err(error) = write(cache, &walk.seen)
        {
            walk.index.problems.push(SymbolError::io(cache, error));
        }
        walk.index
    }

    pub(crate) fn with_id(&self, id: &DebugId) -> &[PathBuf] {
        self.by_id.get(id).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn with_breakpad_id(&self, kind: FileKind, id: String) -> &[PathBuf] {
        self.by_breakpad_id.get(&(kind, id)).map_or(&[], Vec::as_slice)
    }

    /// Returns files with this name that have no id.
    pub(crate) fn without_id(&self, path: &Path) -> &[PathBuf] {
        path.file_name().and_then(|name| self.without_id.get(name)).map_or(&[], Vec::as_slice)
    }

    /// Returns a file with the image's name, and all of its ids.
    pub(crate) fn with_name(&self, path: &Path) -> Option<(PathBuf, Vec<DebugId>)> {
        let name = bare_name(path)?;
        let named = self.by_id.iter().flat_map(|(id, paths)| paths.iter().map(move |path| (path, id)));
        let mut named: Vec<_> = named.filter(|(path, _)| bare_name(path) == Some(name)).collect();
        heap_sort(&mut named, |(path, id), (other, of_other)| (path, id.to_string()) < (other, of_other.to_string()));
        let (first, _) = *named.first()?;
        let ids = named.iter().take_while(|(path, _)| *path == first).map(|(_, id)| (*id).clone());
        Some((first.clone(), ids.collect()))
    }

    /// Returns the shared cache that contains an image, and the image's address in it.
    pub(crate) fn in_shared_cache(&self, id: &DebugId) -> Option<&(PathBuf, u64)> {
        self.in_shared_caches.get(id)
    }

    pub(crate) fn problems(&self) -> &[SymbolError] {
        &self.problems
    }

    fn note(&mut self, path: &Path, fact: &Fact) {
        match fact {
            Fact::Id(id) => self.by_id.entry(id.clone()).or_default().push(path.into()),
            Fact::BreakpadId(kind, id) => {
                self.by_breakpad_id.entry((*kind, id.clone())).or_default().push(path.into());
            }
            Fact::WithoutId => {
                if let Some(name) = path.file_name() {
                    self.without_id.entry(name.into()).or_default().push(path.into());
                }
            }
            Fact::InSharedCache(id, address) => {
                self.in_shared_caches.entry(id.clone()).or_insert_with(|| (path.into(), *address));
            }
        }
    }
}

/// Returns a file's name without `.debug`: `libpaint.so` for `libpaint.so.debug`.
fn bare_name(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    Some(name.strip_suffix(".debug").unwrap_or(name))
}

struct Walk<'a> {
    index: SearchIndex,
    /// Called with each file that is opened.
    reading: &'a mut dyn FnMut(&Path),
    remembered: Memory,
    seen: Memory,
    /// Number of entries that may still be read.
    entries: usize,
}

impl Walk<'_> {
    /// Adds a file, or all files below a folder. Symbolic links are only followed if the user named
    /// them, so that the search terminates.
    fn add(&mut self, path: &Path, depth: usize, named: bool) {
        let metadata = if named { fs::metadata(path) } else { fs::symlink_metadata(path) };
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(error) => return self.index.problems.push(SymbolError::io(path, error)),
        };
        if metadata.is_dir() {
            let Some(deeper) = depth.checked_sub(1) else { return };
            let list = match fs::read_dir(path) {
                Ok(list) => list,
                Err(error) => return self.index.problems.push(SymbolError::io(path, error)),
            };
            // Sorted, so that the choice between two equal files is the same in each call.
            let mut below: Vec<PathBuf> = list.flatten().map(|entry| entry.path()).collect();
            heap_sort(&mut below, |first, second| first < second);
            for path in below {
                let Some(left) = self.entries.checked_sub(1) else { return };
                self.entries = left;
                self.add(&path, deeper, false);
            }
        } else if metadata.is_file() {
            let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            self.add_file(path, modified.map_or(0, |time| time.as_nanos() as u64), metadata.len(), named);
        } else if named {
            let error = io::Error::other("neither a file nor a folder");
            self.index.problems.push(SymbolError::io(path, error));
        }
    }

    fn add_file(&mut self, path: &Path, modified: u64, size: u64, named: bool) {
        let same = self.remembered.get(path).filter(|file| (file.modified, file.size) == (modified, size));
        // Files named by the user are read again, so that a file that isn't a symbol file can be
        // reported.
        let file = if let Some(file) = same.filter(|_| !named) {
            file.clone()
        } else {
            (self.reading)(path);
            match facts(path, named) {
                Ok(facts) => Remembered { modified, size, facts },
                Err(error) => return self.index.problems.push(error),
            }
        };
        for fact in &file.facts {
            self.index.note(path, fact);
        }
        self.seen.insert(path.into(), file);
    }
}

fn facts(path: &Path, named: bool) -> Result<Vec<Fact>, SymbolError> {
    match SymbolFile::open(path) {
        Ok(files) => Ok(files
            .iter()
            .map(|file| match (file.breakpad_id(), file.debug_id()) {
                (Some((kind, id)), _) => Fact::BreakpadId(*kind, id.clone()),
                (None, Some(id)) => Fact::Id(id.clone()),
                (None, None) => Fact::WithoutId,
            })
            .collect()),
        // The files beside a shared cache (`.01`, `.symbols`) have no list of images.
        Err(SymbolError::UnknownFormat { magic, .. }) if magic == b"dyld" => {
            let images = SharedCache::open(path)?.images()?;
            Ok(images.into_iter().map(|(id, address)| Fact::InSharedCache(id, address)).collect())
        }
        // Folders may contain anything; a file that is not a symbol file is not an error there.
        Err(SymbolError::UnknownFormat { .. }) if !named => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// A cache from another version is ignored.
const CACHE_VERSION: u32 = 2;

/// Writes the cache to a temporary file and renames it, so that readers see the old or the new one.
fn write(cache: &Path, memory: &Memory) -> io::Result<()> {
    // Files whose paths are not UTF-8 are read again each time.
    let mut files = Memory::new();
    let named = memory.iter().filter(|(path, _)| path.to_str().is_some());
    files.extend(named.map(|(path, file)| (path.clone(), file.clone())));
    let text = serde_json::to_vec(&(CACHE_VERSION, files))?;
    if let Some(folder) = cache.parent() {
        fs::create_dir_all(folder)?;
    }
    // Two processes may write at the same time.
    let beside = cache.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&beside, text)?;
    fs::rename(&beside, cache).inspect_err(|_| drop(fs::remove_file(&beside)))
}

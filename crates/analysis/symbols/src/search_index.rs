//! What the user's folders hold, by id; kept in a file between calls, because reading the ids of thousands of files takes
//! seconds and finding out that they haven't changed doesn't.

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

/// How deep the user's folders are searched: a dSYM is four below its own, a `.build-id` tree two.
const DEPTH: usize = 12;
/// How many folder entries are looked at: a mistaken `--symbols /` ends in reasonable time.
const ENTRIES: usize = 500_000;

/// The files of the user's folders by what identifies them.
#[derive(Debug, Default)]
pub(crate) struct SearchIndex {
    by_id: HashMap<DebugId, Vec<PathBuf>>,
    /// Breakpad's own ids, which for ELF are not the whole build id, with the format of the image.
    by_breakpad_id: HashMap<(FileKind, String), Vec<PathBuf>>,
    /// Files that have no id, by their name: for images that have none either.
    without_id: HashMap<OsString, Vec<PathBuf>>,
    /// Images of dyld shared caches: the cache, and the image's address in it without a slide.
    in_shared_caches: HashMap<DebugId, (PathBuf, u64)>,
    problems: Vec<SymbolError>,
}

/// Something that identifies what a file can name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Fact {
    Id(DebugId),
    BreakpadId(FileKind, String),
    WithoutId,
    InSharedCache(DebugId, u64),
}

/// What is remembered of a file; right as long as time and size are the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    modified: u64,
    size: u64,
    /// None for a file that is no symbol file.
    facts: Vec<Fact>,
}

type Memory = BTreeMap<PathBuf, Remembered>;

impl SearchIndex {
    /// Walks folders and files. What `cache`, a file, remembers of them isn't read again; it is then written anew, if
    /// anything changed. A cache that can't be read or written is none. `reading` is given each file that is opened.
    pub(crate) fn build(search: &[PathBuf], cache: Option<&Path>, reading: &mut dyn FnMut(&Path)) -> Self {
        let text = cache.and_then(|cache| fs::read(cache).ok()).unwrap_or_default();
        let remembered = serde_json::from_slice::<(u32, Memory)>(&text).ok().filter(|(version, _)| *version == VERSION);
        let mut walk = Walk {
            index: Self::default(),
            remembered: remembered.map(|(_, memory)| memory).unwrap_or_default(),
            seen: Memory::new(),
            entries: ENTRIES,
            reading,
        };
        for place in search {
            walk.add(place, DEPTH, true);
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

    /// Files of that name that have no id.
    pub(crate) fn without_id(&self, path: &Path) -> &[PathBuf] {
        path.file_name().and_then(|name| self.without_id.get(name)).map_or(&[], Vec::as_slice)
    }

    /// A file of the image's name, and all of its ids.
    pub(crate) fn with_name(&self, path: &Path) -> Option<(PathBuf, Vec<DebugId>)> {
        let name = bare_name(path)?;
        let named = self.by_id.iter().flat_map(|(id, paths)| paths.iter().map(move |path| (path, id)));
        let mut named: Vec<_> = named.filter(|(path, _)| bare_name(path) == Some(name)).collect();
        heap_sort(&mut named, |(path, id), (other, of_other)| (path, id.to_string()) < (other, of_other.to_string()));
        let (first, _) = *named.first()?;
        let ids = named.iter().take_while(|(path, _)| *path == first).map(|(_, id)| (*id).clone());
        Some((first.clone(), ids.collect()))
    }

    /// The shared cache that has an image, and the image's address in it.
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

/// `libpaint.so` of `libpaint.so.debug`, too.
fn bare_name(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    Some(name.strip_suffix(".debug").unwrap_or(name))
}

struct Walk<'a> {
    index: SearchIndex,
    /// Is given each file that is opened.
    reading: &'a mut dyn FnMut(&Path),
    remembered: Memory,
    seen: Memory,
    /// How many more entries are looked at.
    entries: usize,
}

impl Walk<'_> {
    /// Adds a file, or all files below a folder. Symbolic links are followed only where the user named one, so that the
    /// search ends.
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
            // In order, so that which of two equal files is used doesn't change from call to call.
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
        // What the user named is read again, so that it can be said that it is no symbol file.
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
        // In a folder there may be anything; what is no symbol file is no problem of it.
        Err(SymbolError::UnknownFormat { .. }) if !named => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Of a cache that was written by another version nothing is used.
const VERSION: u32 = 2;

/// Writes the cache beside its place and renames it, so that a reader sees the old one or the new one.
fn write(cache: &Path, memory: &Memory) -> io::Result<()> {
    // Others are read again each time.
    let mut files = Memory::new();
    let named = memory.iter().filter(|(path, _)| path.to_str().is_some());
    files.extend(named.map(|(path, file)| (path.clone(), file.clone())));
    let text = serde_json::to_vec(&(VERSION, files))?;
    if let Some(folder) = cache.parent() {
        fs::create_dir_all(folder)?;
    }
    // Two processes may write at once.
    let beside = cache.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&beside, text)?;
    fs::rename(&beside, cache).inspect_err(|_| drop(fs::remove_file(&beside)))
}

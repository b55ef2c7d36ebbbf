//! What a folder's reports are, remembered between calls: a list of a hundred thousand opens only what is new.
//!
//! A file in the user's folder for caches for each folder of reports. It holds what `coroner list` shows, secrets hidden, and is as
//! private as that. One that can't be read or is of another version is made again.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use coroner_report::model::Timestamp;
use coroner_report::signature::Signature;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::report_files::{Stamp, StoredReport};
use crate::summary::{State, Summary};
use crate::symbol_search::default_cache;

/// What an index begins with. Its number changes with what an entry is.
const MAGIC: &[u8] = b"coroner list index 1\n";
/// No index is larger.
const LARGEST: u64 = 1 << 30;
/// So few reports are read as fast as their index.
const WORTH: usize = 64;

/// What is remembered of a report. Texts are borrowed from the file: of a hundred thousand reports most are shown once, or not at all.
#[derive(Serialize, Deserialize)]
struct Entry<'i> {
    name: &'i str,
    size: u64,
    modified: u64,
    event_id: &'i str,
    time: u64,
    app: &'i str,
    version: &'i str,
    release: Option<&'i str>,
    what: &'i str,
    signal: Option<&'i str>,
    function: Option<&'i str>,
    kind: &'i str,
    #[serde(borrow)]
    frames: Vec<&'i str>,
    #[serde(borrow)]
    tags: Vec<(&'i str, &'i str)>,
}

impl Entry<'_> {
    fn summary(&self, stored: &StoredReport) -> Summary {
        let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
        Summary {
            event_id: self.event_id.to_owned(),
            time: Timestamp(self.time),
            app: self.app.to_owned(),
            version: self.version.to_owned(),
            release: owned(self.release),
            what: self.what.to_owned(),
            signal: owned(self.signal),
            function: owned(self.function),
            signature: Signature {
                kind: self.kind.to_owned(),
                frames: self.frames.iter().map(|frame| (*frame).to_owned()).collect(),
            },
            tags: self.tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            path: stored.path().display().to_string(),
            state: State::Stored,
        }
    }
}

fn entry<'s>(stored: &'s StoredReport, stamp: Stamp, summary: &'s Summary) -> Entry<'s> {
    Entry {
        name: stored.name(),
        size: stamp.size,
        modified: stamp.modified,
        event_id: &summary.event_id,
        time: summary.time.0,
        app: &summary.app,
        version: &summary.version,
        release: summary.release.as_deref(),
        what: &summary.what,
        signal: summary.signal.as_deref(),
        function: summary.function.as_deref(),
        kind: &summary.signature.kind,
        frames: summary.signature.frames.iter().map(String::as_str).collect(),
        tags: summary.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect(),
    }
}

/// The index of a folder.
pub(crate) struct ListIndex {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl ListIndex {
    /// The index of the folder, which may be empty. `None` where there is no folder for caches.
    pub(crate) fn open(folder: &Path) -> Option<ListIndex> {
        let caches = std::env::var_os("CORONER_CACHE").map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = caches.or_else(default_cache)?;
        let mut hash = DefaultHasher::new();
        std::fs::canonicalize(folder).ok()?.hash(&mut hash);
        let path = caches.join(format!("list-{:016x}.index", hash.finish()));
        let is_sound = std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= LARGEST);
        let bytes = if is_sound { std::fs::read(&path).unwrap_or_default() } else { Vec::new() };
        Some(ListIndex { path, bytes })
    }

    fn entries(&self) -> HashMap<&str, Entry<'_>> {
        let entries =
            self.bytes.strip_prefix(MAGIC).and_then(|bytes| postcard::from_bytes::<Vec<Entry<'_>>>(bytes).ok());
        entries.unwrap_or_default().into_iter().map(|entry| (entry.name, entry)).collect()
    }

    /// Replaces the file. Who reads it meanwhile has the old one, or the new one.
    fn write(&self, entries: &[Entry<'_>]) -> Option<()> {
        let folder = self.path.parent()?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
        let mut file = tempfile::Builder::new().prefix(".list-").tempfile_in(folder).ok()?;
        file.write_all(MAGIC).ok()?;
        file.write_all(&postcard::to_stdvec(entries).ok()?).ok()?;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o600)).ok()?;
        file.persist(&self.path).ok()?;
        Some(())
    }
}

/// Says of each report what `read` says, or the index, if that is of the same file. What is new is remembered.
pub(crate) fn read_all(
    stored: &[StoredReport],
    index: Option<&ListIndex>,
    progress: &ProgressBar,
    read: impl Fn(&StoredReport) -> Result<Summary, Failure> + Sync,
) -> Vec<Result<Summary, Failure>> {
    let index = index.filter(|_| stored.len() >= WORTH);
    let known = index.map(ListIndex::entries).unwrap_or_default();
    let fresh = AtomicUsize::new(0);
    let one = |stored: &StoredReport| -> (Option<Stamp>, Result<Summary, Failure>) {
        // Of one that changes while it is read, the older stamp is remembered, and it is read again.
        let stamp = stored.stamp();
        let entry = known
            .get(stored.name())
            .filter(|entry| stamp == Some(Stamp { size: entry.size, modified: entry.modified }));
        if let Some(entry) = entry {
            return (stamp, Ok(entry.summary(stored)));
        }
        fresh.fetch_add(1, Ordering::Relaxed);
        progress.inc(1);
        (stamp, read(stored))
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<(Option<Stamp>, Result<Summary, Failure>)> = std::thread::scope(|scope| {
        let one = &one;
        let share = stored.len().div_ceil(workers).max(1);
        let workers: Vec<_> =
            stored.chunks(share).map(|share| scope.spawn(move || share.iter().map(one).collect::<Vec<_>>())).collect();
        let done = workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default());
        done.collect()
    });
    if let Some(index) = index
        && (fresh.into_inner() > 0 || known.len() > stored.len())
    {
        let entries = stored.iter().zip(&results).filter_map(|(stored, (stamp, result))| {
            // The file's name is what its entry is found by.
            Some(entry(stored, (*stamp)?, result.as_ref().ok()?)).filter(|entry| !entry.name.is_empty())
        });
        let _ = index.write(&entries.collect::<Vec<_>>());
    }
    results.into_iter().map(|(_, result)| result).collect()
}

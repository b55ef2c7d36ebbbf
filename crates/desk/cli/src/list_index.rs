//! A cache of a folder's report list: listing a hundred thousand reports opens only new files.
//!
//! There is one file per folder of reports, in the user's cache folder. It contains what
//! `coroner list` shows, with secrets hidden, and is as private as that. An unreadable or damaged
//! file, or one of another version, is replaced.
//!
//! A file is considered unchanged if its inode, size, modification time and inode change time are
//! the same. Each time, the folder is listed and each file's stamp is read. A file that was changed
//! just before it was read is not cached ([`is_settled`]).
//!
//! The file consists of [`MAGIC`], a CRC-32 of the rest, three counts, and three parts:
//! fixed-length records in the list's order, lists of strings, and the strings' bytes. Records and
//! lists refer to strings by offset and length; numbers are little-endian. Only the requested
//! values are decoded.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use coroner_report::model::Timestamp;
use coroner_report::signature::Signature;

use crate::report_files::Stamp;
use crate::summary::Summary;
use crate::symbol_search::default_cache;

/// The start of an index.
///
/// Increase its number if the format of a record changes; the version is included because the rules
/// for hiding secrets change with it.
const MAGIC: &[u8] = concat!("coroner list index 8 of ", env!("CARGO_PKG_VERSION"), "\n").as_bytes();
/// Maximum size of an index in bytes.
const MAX_SIZE: u64 = 1 << 30;
/// Bytes of the CRC-32 and of the numbers of records, list strings and string bytes.
const HEAD: usize = 4 * 4;

/// Offsets of a record's fields. A string takes 8 bytes: offset and length.
mod field {
    pub(super) const INODE: usize = 0;
    pub(super) const SIZE: usize = 8;
    pub(super) const MODIFIED: usize = 16;
    pub(super) const CHANGED: usize = 24;
    pub(super) const TIME: usize = 32;
    pub(super) const NAME: usize = 40;
    pub(super) const EVENT_ID: usize = 48;
    pub(super) const APP: usize = 56;
    pub(super) const VERSION: usize = 64;
    pub(super) const RELEASE: usize = 72;
    pub(super) const WHAT: usize = 80;
    pub(super) const SIGNAL: usize = 88;
    pub(super) const FUNCTION: usize = 96;
    pub(super) const PLACES: usize = 104;
    pub(super) const KIND: usize = 112;
    pub(super) const LINE: usize = 120;
    /// The index of the signature's first frame in the lists, and the number of frames.
    ///
    /// The keys and values of the tags come next.
    pub(super) const FRAMES: usize = 128;
    pub(super) const TAGS: usize = 136;
    /// Whether the report has a JSON file; if so, the stamp is that file's.
    pub(super) const HAS_JSON: usize = 144;
    pub(super) const ALL: usize = 148;
}

/// The offset of a missing string.
const NONE: u32 = u32::MAX;

/// A folder's index.
pub(crate) struct ListIndex {
    path: PathBuf,
    numbers: Vec<u8>,
    records: usize,
    texts: String,
}

impl ListIndex {
    /// Opens the folder's index, which may be empty. `None` if there is no cache folder.
    pub(crate) fn open(folder: &Path) -> Option<ListIndex> {
        let caches = std::env::var_os("CORONER_CACHE").map(PathBuf::from).filter(|path| path.is_absolute());
        ListIndex::open_in(&caches.or_else(default_cache)?, folder)
    }

    pub(crate) fn open_in(caches: &Path, folder: &Path) -> Option<ListIndex> {
        let mut hash = DefaultHasher::new();
        std::fs::canonicalize(folder).ok()?.hash(&mut hash);
        let path = caches.join(format!("list-{:016x}.index", hash.finish()));
        let (numbers, records, texts) = read(&path).unwrap_or_default();
        Some(ListIndex { path, numbers, records, texts })
    }

    pub(crate) fn len(&self) -> usize {
        self.records
    }

    pub(crate) fn record(&self, number: usize) -> Record<'_> {
        let bytes = self.numbers.get(number * field::ALL..).and_then(|bytes| bytes.first_chunk());
        Record { index: self, bytes: bytes.unwrap_or(&[0; field::ALL]) }
    }

    /// Returns the strings of a list, starting at index `first`.
    fn list(&self, first: u32, count: u32) -> impl Iterator<Item = &str> {
        let lists = self.numbers.get(self.records * field::ALL..).unwrap_or_default();
        let (lists, _) = lists.as_chunks::<8>();
        let list = lists.get(first as usize..).and_then(|list| list.get(..count as usize)).unwrap_or_default();
        list.iter().map(|place| text(&self.texts, place).unwrap_or_default())
    }

    /// Replaces the file with one of these records and summaries, in this order.
    ///
    /// Concurrent readers see either the old file or the new one.
    pub(crate) fn replace<'r>(&self, entries: impl Iterator<Item = Entry<'r>>) -> Option<()> {
        let mut writer = Writer::default();
        for entry in entries {
            writer.add(&entry)?;
        }
        let folder = self.path.parent()?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
        let mut file = tempfile::Builder::new().prefix(".list-").tempfile_in(folder).ok()?;
        file.write_all(&writer.finish()?).ok()?;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o600)).ok()?;
        file.persist(&self.path).ok()?;
        Some(())
    }
}

/// Reads an index file; `None` if it is not a complete index.
fn read(path: &Path) -> Option<(Vec<u8>, usize, String)> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > MAX_SIZE {
        return None;
    }
    let mut file = std::fs::File::open(path).ok()?;
    let mut head = [0; MAGIC.len() + HEAD];
    file.read_exact(&mut head).ok()?;
    let head = head.strip_prefix(MAGIC)?;
    let count = |place: usize| u32_at(head, place) as usize;
    let (records, lists, bytes) = (count(4), count(8), count(12));
    let numbers = records.checked_mul(field::ALL)?.checked_add(lists.checked_mul(8)?)?;
    let whole = (MAGIC.len() + HEAD).checked_add(numbers)?.checked_add(bytes)?;
    if whole as u64 != metadata.len() {
        return None;
    }
    let mut part = |length: usize| -> Option<Vec<u8>> {
        let mut part = Vec::with_capacity(length);
        let read = (&mut file).take(length as u64).read_to_end(&mut part).ok()?;
        (read == length).then_some(part)
    };
    let (numbers, texts) = (part(numbers)?, part(bytes)?);
    (checksum(&head[4..], &numbers, &texts) == u32_at(head, 0)).then_some(())?;
    Some((numbers, records, String::from_utf8(texts).ok()?))
}

fn checksum(counts: &[u8], numbers: &[u8], texts: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in [counts, numbers, texts] {
        hasher.update(part);
    }
    hasher.finalize()
}

fn u32_at(bytes: &[u8], place: usize) -> u32 {
    bytes.get(place..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn text<'t>(texts: &'t str, place: &[u8]) -> Option<&'t str> {
    let (offset, length) = (u32_at(place, 0), u32_at(place, 4));
    if offset == NONE {
        return None;
    }
    texts.get(offset as usize..(offset as usize).checked_add(length as usize)?)
}

/// A cached report.
#[derive(Clone, Copy)]
pub(crate) struct Record<'i> {
    index: &'i ListIndex,
    bytes: &'i [u8; field::ALL],
}

impl<'i> Record<'i> {
    fn number(self, place: usize) -> u64 {
        self.bytes[place..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn some_text(self, place: usize) -> Option<&'i str> {
        text(&self.index.texts, &self.bytes[place..])
    }

    fn text(self, place: usize) -> &'i str {
        self.some_text(place).unwrap_or_default()
    }

    fn list(self, place: usize) -> impl Iterator<Item = &'i str> {
        self.index.list(u32_at(self.bytes, place), u32_at(self.bytes, place + 4))
    }

    pub(crate) fn stamp(self) -> Stamp {
        Stamp {
            inode: self.number(field::INODE),
            size: self.number(field::SIZE),
            modified: self.number(field::MODIFIED),
            changed: self.number(field::CHANGED),
        }
    }

    /// Whether the stamp is that of the JSON file.
    pub(crate) fn has_json(self) -> bool {
        u32_at(self.bytes, field::HAS_JSON) != 0
    }

    /// Returns the name of the report's files, without an extension.
    pub(crate) fn name(self) -> &'i str {
        self.text(field::NAME)
    }

    pub(crate) fn time(self) -> Timestamp {
        Timestamp(self.number(field::TIME))
    }

    pub(crate) fn event_id(self) -> &'i str {
        self.text(field::EVENT_ID)
    }

    pub(crate) fn app(self) -> &'i str {
        self.text(field::APP)
    }

    pub(crate) fn version(self) -> &'i str {
        self.text(field::VERSION)
    }

    pub(crate) fn release(self) -> Option<&'i str> {
        self.some_text(field::RELEASE)
    }

    pub(crate) fn what(self) -> &'i str {
        self.text(field::WHAT)
    }

    pub(crate) fn signal(self) -> Option<&'i str> {
        self.some_text(field::SIGNAL)
    }

    pub(crate) fn function(self) -> Option<&'i str> {
        self.some_text(field::FUNCTION)
    }

    pub(crate) fn line(self) -> Option<&'i str> {
        self.some_text(field::LINE)
    }

    pub(crate) fn places(self) -> Option<&'i str> {
        self.some_text(field::PLACES)
    }

    pub(crate) fn kind(self) -> &'i str {
        self.text(field::KIND)
    }

    pub(crate) fn frames(self) -> impl Iterator<Item = &'i str> {
        self.list(field::FRAMES)
    }

    pub(crate) fn tags(self) -> impl Iterator<Item = (&'i str, &'i str)> {
        let mut texts = self.list(field::TAGS);
        std::iter::from_fn(move || Some((texts.next()?, texts.next()?)))
    }

    pub(crate) fn signature(self) -> Signature {
        Signature { kind: self.kind().to_owned(), frames: self.frames().map(ToOwned::to_owned).collect() }
    }
}

/// An entry of a new index.
pub(crate) enum Entry<'r> {
    /// A record of the previous index.
    Known(Record<'r>),
    /// A newly read report: files' name, whether there is a JSON file, stamp and summary.
    ///
    /// The stamp is that of the file that was read.
    New(&'r str, bool, Stamp, &'r Summary),
}

#[derive(Default)]
struct Writer<'r> {
    records: Vec<u8>,
    lists: Vec<u8>,
    texts: String,
    /// The locations of strings that many reports share.
    common: HashMap<&'r str, [u8; 8]>,
}

impl<'r> Writer<'r> {
    fn add(&mut self, entry: &Entry<'r>) -> Option<()> {
        match *entry {
            Entry::Known(record) => {
                self.head(record.name(), record.stamp(), record.time(), record.event_id())?;
                let texts = [Some(record.app()), Some(record.version()), record.release(), Some(record.what())];
                self.common(texts)?;
                self.common([record.signal(), record.function(), record.places(), Some(record.kind())])?;
                self.common([record.line()])?;
                self.list(record.frames())?;
                self.list(record.tags().flat_map(<[&str; 2]>::from))?;
                self.records.extend(u32::from(record.has_json()).to_le_bytes());
            }
            Entry::New(name, has_json, stamp, summary) => {
                let Summary { app, version, release, what, signal, function, line, signature, places, tags, .. } =
                    summary;
                self.head(name, stamp, summary.time, &summary.event_id)?;
                self.common([Some(app.as_str()), Some(version), release.as_deref(), Some(what)])?;
                self.common([signal.as_deref(), function.as_deref(), places.as_deref(), Some(&signature.kind)])?;
                self.common([line.as_deref()])?;
                self.list(signature.frames.iter().map(String::as_str))?;
                self.list(tags.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]))?;
                self.records.extend(u32::from(has_json).to_le_bytes());
            }
        }
        Some(())
    }

    fn head(&mut self, name: &str, stamp: Stamp, time: Timestamp, event_id: &str) -> Option<()> {
        for number in [stamp.inode, stamp.size, stamp.modified, stamp.changed, time.0] {
            self.records.extend(number.to_le_bytes());
        }
        for text in [name, event_id] {
            let place = self.push(text)?;
            self.records.extend(place);
        }
        Some(())
    }

    fn common<const N: usize>(&mut self, texts: [Option<&'r str>; N]) -> Option<()> {
        for text in texts {
            let mut place = [0xff; 8];
            if let Some(text) = text {
                place = self.intern(text)?;
            }
            self.records.extend(place);
        }
        Some(())
    }

    fn list(&mut self, texts: impl Iterator<Item = &'r str>) -> Option<()> {
        let first = self.lists.len() / 8;
        for text in texts {
            let place = self.intern(text)?;
            self.lists.extend(place);
        }
        self.records.extend(u32::try_from(first).ok()?.to_le_bytes());
        self.records.extend(u32::try_from(self.lists.len() / 8 - first).ok()?.to_le_bytes());
        Some(())
    }

    fn intern(&mut self, text: &'r str) -> Option<[u8; 8]> {
        if let Some(place) = self.common.get(text) {
            return Some(*place);
        }
        let place = self.push(text)?;
        self.common.insert(text, place);
        Some(place)
    }

    fn push(&mut self, text: &str) -> Option<[u8; 8]> {
        let mut place = [0; 8];
        place[..4].copy_from_slice(&u32::try_from(self.texts.len()).ok()?.to_le_bytes());
        place[4..].copy_from_slice(&u32::try_from(text.len()).ok()?.to_le_bytes());
        self.texts.push_str(text);
        Some(place)
    }

    fn finish(self) -> Option<Vec<u8>> {
        let mut counts = Vec::with_capacity(HEAD);
        for count in [self.records.len() / field::ALL, self.lists.len() / 8, self.texts.len()] {
            counts.extend(u32::try_from(count).ok()?.to_le_bytes());
        }
        let numbers = [self.records, self.lists].concat();
        let mut file = MAGIC.to_vec();
        file.extend(checksum(&counts, &numbers, self.texts.as_bytes()).to_le_bytes());
        file.extend(counts);
        file.extend(numbers);
        file.extend(self.texts.into_bytes());
        (file.len() as u64 <= MAX_SIZE).then_some(file)
    }
}

/// Whether a file that was read after `read` can't have changed since without a new stamp.
///
/// File systems count time in ticks of up to 10 ms, or in one or two seconds: a stamp in whole
/// seconds is taken for that.
pub(crate) fn is_settled(stamp: Stamp, read: SystemTime) -> bool {
    const SECOND: u64 = 1_000_000_000;
    let read = read.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let tick = if stamp.changed.is_multiple_of(SECOND) { 2 * SECOND + SECOND / 10 } else { SECOND / 10 };
    stamp.changed.saturating_add(tick) < read
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { inode: 1, size: 2, modified: 3, changed: 4 };

    fn summary() -> Summary {
        Summary {
            event_id: "0123".into(),
            time: Timestamp(5),
            app: "paint".into(),
            release: Some(String::new()),
            what: "Überlauf".into(),
            line: Some("sumo.c:7".into()),
            places: Some("abcd".into()),
            signature: Signature { kind: "abort".into(), frames: vec!["a".into(), "b".into(), "a".into()] },
            tags: [("key".to_owned(), "value".to_owned())].into(),
            ..Summary::default()
        }
    }

    #[test]
    fn an_index_is_read_back_and_damaged_files_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.index");
        let empty = ListIndex { path: path.clone(), numbers: Vec::new(), records: 0, texts: String::new() };
        let (first, other) = (summary(), Summary::default());
        empty
            .replace([Entry::New("one", true, STAMP, &first), Entry::New("", false, STAMP, &other)].into_iter())
            .unwrap();
        let open =
            || read(&path).map(|(numbers, records, texts)| ListIndex { path: path.clone(), numbers, records, texts });
        let index = open().unwrap();
        let check = |index: &ListIndex| {
            let (one, two) = (index.record(0), index.record(1));
            assert_eq!((index.len(), one.name(), one.stamp(), one.time()), (2, "one", STAMP, Timestamp(5)));
            assert!(one.has_json() && !two.has_json());
            assert_eq!((one.release(), one.what(), one.function()), (Some(""), "Überlauf", None));
            assert_eq!((one.line(), two.line()), (Some("sumo.c:7"), None));
            assert_eq!((one.places(), two.places()), (Some("abcd"), None));
            assert_eq!(
                (one.signature(), one.tags().collect::<Vec<_>>()),
                (summary().signature, vec![("key", "value")])
            );
            assert_eq!((two.event_id(), two.release(), two.signature()), ("", None, Signature::default()));
        };
        check(&index);
        // Again, from records.
        index.replace((0..2).map(|number| Entry::Known(index.record(number)))).unwrap();
        check(&open().unwrap());
        // Beyond the end there is nothing.
        assert_eq!(index.record(7).name(), "");

        let whole = std::fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 0x40;
            std::fs::write(&path, damaged).unwrap();
            assert!(open().is_none(), "byte {place}");
            std::fs::write(&path, &whole[..place]).unwrap();
            assert!(open().is_none(), "cut at {place}");
        }
        std::fs::write(&path, [whole, vec![0]].concat()).unwrap();
        assert!(open().is_none());
    }

    #[test]
    fn a_recently_changed_file_is_not_settled() {
        let at = |nanoseconds| UNIX_EPOCH + std::time::Duration::from_nanos(nanoseconds);
        let stamp = |changed| Stamp { changed, ..STAMP };
        assert!(
            !is_settled(stamp(5_000_000_001), at(5_050_000_000)) && is_settled(stamp(5_000_000_001), at(5_200_000_000))
        );
        assert!(
            !is_settled(stamp(5_000_000_000), at(7_000_000_000)) && is_settled(stamp(5_000_000_000), at(7_200_000_000))
        );
        assert!(!is_settled(stamp(9_000_000_001), at(5_000_000_000)));
    }
}

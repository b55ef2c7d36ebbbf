//! A list of the reports in a store or a folder.
//!
//! Reports come from the index if it contains them, otherwise from their files.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use coroner_report::model::Timestamp;
use coroner_symbols::Symbolizer;

use crate::failure::Failure;
use crate::list_index::{Entry, ListIndex, Record, is_settled};
use crate::progress;
use crate::report_files::{self, Forms, JSON, RAW, Stamp, StoredReport};
use crate::report_reader::Texts;
use crate::store_contents::{self, Contents};
use crate::summary::{State, Summary};

/// Below this many reports, reading them is as fast as reading the index.
const INDEX_MIN_REPORTS: usize = 64;
/// Below this many changed files, reading them again is as fast as writing an index.
const INDEX_MIN_CHANGES: usize = 16;
/// Number of reports that a worker takes at a time.
const REPORTS_PER_SHARE: usize = 64;

/// All reports in a store or folder, oldest first.
pub(crate) struct Listing {
    folder: PathBuf,
    index: Option<ListIndex>,
    read: Vec<Read>,
    order: Vec<Place>,
    /// The number of files that could not be read as reports; an error was printed for each.
    unread: usize,
}

/// A report that was read, and its file. It has no stamp if it must not be cached.
struct Read {
    name: String,
    has_json: bool,
    stamp: Option<Stamp>,
    summary: Summary,
}

#[derive(Clone, Copy)]
enum Place {
    /// A record of the index.
    Known(usize, Forms),
    Read(usize),
}

/// A report in a list.
#[derive(Clone, Copy)]
pub(crate) struct Listed<'l> {
    pub(crate) event_id: &'l str,
    pub(crate) time: Timestamp,
    pub(crate) app: &'l str,
    pub(crate) version: &'l str,
    pub(crate) release: Option<&'l str>,
    pub(crate) what: &'l str,
    pub(crate) signal: Option<&'l str>,
    pub(crate) function: Option<&'l str>,
    pub(crate) line: Option<&'l str>,
    pub(crate) state: &'l State,
    more: More<'l>,
}

/// The rarely used fields.
#[derive(Clone, Copy)]
enum More<'l> {
    Summary(&'l Summary),
    Record(Record<'l>, Forms, &'l Path),
}

impl<'l> From<&'l Summary> for Listed<'l> {
    fn from(summary: &'l Summary) -> Self {
        let Summary { event_id, time, app, version, release, what, signal, function, line, state, .. } = summary;
        Listed {
            event_id,
            time: *time,
            app,
            version,
            release: release.as_deref(),
            what,
            signal: signal.as_deref(),
            function: function.as_deref(),
            line: line.as_deref(),
            state,
            more: More::Summary(summary),
        }
    }
}

impl<'l> Listed<'l> {
    fn known(record: Record<'l>, forms: Forms, folder: &'l Path) -> Self {
        Listed {
            event_id: record.event_id(),
            time: record.time(),
            app: record.app(),
            version: record.version(),
            release: record.release(),
            what: record.what(),
            signal: record.signal(),
            function: record.function(),
            line: record.line(),
            state: &State::Stored,
            more: More::Record(record, forms, folder),
        }
    }

    /// Whether the name of one of the signature's functions contains `text`.
    pub(crate) fn has_function(&self, text: &str) -> bool {
        self.function.is_some_and(|name| name.contains(text))
            || match self.more {
                More::Summary(summary) => summary.signature.frames.iter().any(|name| name.contains(text)),
                More::Record(record, ..) => record.frames().any(|name| name.contains(text)),
            }
    }

    pub(crate) fn tag(&self, key: &str) -> Option<&'l str> {
        match self.more {
            More::Summary(summary) => summary.tags.get(key).map(String::as_str),
            More::Record(record, ..) => record.tags().find(|(tag, _)| *tag == key).map(|(_, value)| value),
        }
    }

    /// The path of the report's file or run.
    pub(crate) fn path(&self) -> String {
        match self.more {
            More::Summary(summary) => summary.path.clone(),
            More::Record(record, forms, folder) => {
                folder.join(format!("{}.{}", record.name(), forms.extension())).display().to_string()
            }
        }
    }

    pub(crate) fn to_summary(self) -> Summary {
        let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
        match self.more {
            More::Summary(summary) => summary.clone(),
            More::Record(record, ..) => Summary {
                event_id: self.event_id.to_owned(),
                time: self.time,
                app: self.app.to_owned(),
                version: self.version.to_owned(),
                release: owned(self.release),
                what: self.what.to_owned(),
                signal: owned(self.signal),
                function: owned(self.function),
                line: owned(self.line),
                signature: record.signature(),
                places: owned(record.places()),
                tags: record.tags().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
                path: self.path(),
                state: State::Stored,
            },
        }
    }
}

impl Listing {
    /// Lists all reports at `path`, a store or a folder of reports.
    ///
    /// The function to look at first is symbolized with `names`, which are used for all reports if
    /// the user named the symbols (`is_named`).
    pub(crate) fn open(
        path: &Path,
        texts: Texts,
        mut names: Option<&mut Symbolizer>,
        is_named: bool,
    ) -> Result<Listing, Failure> {
        let Contents { runs, folder } = store_contents::contents(path)?;
        let mut listing = match folder {
            Some(folder) => {
                // Unscrubbed strings are not cached, nor are names by symbols that the next list
                // may not have.
                let index = (texts == Texts::Scrubbed && !is_named).then(|| ListIndex::open(&folder)).flatten();
                let mut listing = Listing::from_folder(&folder, index, texts, names.as_deref_mut())?;
                if let Some(names) = names.as_deref_mut().filter(|_| is_named) {
                    listing.name_all(texts, names)?;
                }
                listing
            }
            None => Listing { folder: PathBuf::new(), index: None, read: Vec::new(), order: Vec::new(), unread: 0 },
        };
        if runs.is_empty() {
            return Ok(listing);
        }
        let known: HashSet<String> = listing.iter().map(|listed| listed.event_id.to_owned()).collect();
        for run in runs {
            for summary in store_contents::summarize_run(&run, texts, names.as_deref_mut()) {
                if summary.event_id.is_empty() || !known.contains(&summary.event_id) {
                    listing.push(Read { name: String::new(), has_json: false, stamp: None, summary });
                }
            }
        }
        let mut order = std::mem::take(&mut listing.order);
        order.sort_by_key(|place| listing.listed(*place).time);
        listing.order = order;
        Ok(listing)
    }

    /// Lists all reports in a folder. Files that aren't reports are left out.
    fn from_folder(
        folder: &Path,
        index: Option<ListIndex>,
        texts: Texts,
        names: Option<&mut Symbolizer>,
    ) -> Result<Listing, Failure> {
        let opened = report_files::open(folder)?;
        let records = index.as_ref().map_or(0, ListIndex::len);
        let record = |number: usize| index.as_ref().map(|index| index.record(number));
        let by_name: HashMap<&str, usize> =
            (0..records).filter_map(|number| Some((record(number)?.name(), number))).collect();
        let mut seen = vec![Forms::default(); records];
        let mut others: HashMap<String, Forms> = HashMap::new();
        // The stamps of cached reports are read while the folder is listed.
        let is_same = |number: usize| -> bool {
            let form = |record: Record<'_>| if record.has_json() { JSON } else { RAW };
            record(number).is_some_and(|record| {
                Stamp::at(&opened, record.name(), form(record)).is_some_and(|stamp| stamp == record.stamp())
            })
        };
        let same: Vec<bool> = std::thread::scope(|scope| {
            let same = scope.spawn(|| in_parallel(records, 4096, is_same));
            report_files::each_file(&opened, folder, |name, is_json| {
                match (by_name.get(name), others.get_mut(name)) {
                    (Some(number), _) => seen[*number].add(is_json),
                    (None, Some(forms)) => forms.add(is_json),
                    (None, None) => others.entry(name.to_owned()).or_default().add(is_json),
                }
            })?;
            Ok::<_, Failure>(same.join().unwrap_or_else(|_| vec![false; records]))
        })?;
        let mut order = Vec::with_capacity(records + others.len());
        let mut changes = 0;
        for (number, (is_same, forms)) in same.into_iter().zip(seen).enumerate() {
            let is_there = forms != Forms::default();
            if is_same && is_there && record(number).is_some_and(|record| record.has_json() == forms.has_json) {
                order.push(Place::Known(number, forms));
                continue;
            }
            changes += 1;
            if let Some(record) = record(number).filter(|_| is_there) {
                others.insert(record.name().to_owned(), forms);
            }
        }
        drop(by_name);
        let mut listing = Listing { folder: folder.to_owned(), index, read: Vec::new(), order, unread: 0 };
        if !others.is_empty() {
            changes += listing.read(&report_files::sorted(folder, others), texts, names);
        }
        if changes >= INDEX_MIN_CHANGES && listing.order.len() >= INDEX_MIN_REPORTS {
            listing.update_index();
        }
        Ok(listing)
    }

    /// Reads reports. Returns the number of those that can be cached.
    fn read(&mut self, stored: &[StoredReport], texts: Texts, mut names: Option<&mut Symbolizer>) -> usize {
        let progress = progress::bar(stored.len(), "reading reports");
        let summaries = in_parallel(stored.len(), REPORTS_PER_SHARE, |number| {
            // If a report changes while it is read, the older stamp is cached, so that it is read
            // again.
            let now = SystemTime::now();
            let (stamp, summary) = store_contents::summarize(&stored[number], texts, None);
            progress.inc(1);
            Some((stamp.filter(|stamp| is_settled(*stamp, now)), summary))
        });
        let mut new = 0;
        for (stored, (mut stamp, summary)) in stored.iter().zip(summaries.into_iter().flatten()) {
            let summary = match summary {
                // A report may be removed while the folder is listed.
                Err(_) if stored.stamp().is_none() => continue,
                Err(failure) => {
                    progress.suspend(|| failure.print());
                    self.unread += 1;
                    continue;
                }
                // A raw report has no names unless they are looked up, and the symbol files may
                // appear later.
                Ok(summary) if !stored.forms.has_json && summary.function.is_none() => {
                    stamp = None;
                    match names.as_deref_mut().map(|names| store_contents::summarize(stored, texts, Some(names)).1) {
                        Some(Ok(summary)) => summary,
                        Some(Err(_)) => continue,
                        None => summary,
                    }
                }
                Ok(summary) => summary,
            };
            new += usize::from(stamp.is_some());
            self.push(Read { name: stored.name.clone(), has_json: stored.forms.has_json, stamp, summary });
        }
        progress.finish_and_clear();
        let mut order = std::mem::take(&mut self.order);
        order.sort_by_key(|place| match *place {
            Place::Known(number, _) => {
                let record = self.index.as_ref().map(|index| index.record(number));
                record.map_or((Timestamp::default(), ""), |record| (record.time(), record.name()))
            }
            Place::Read(number) => (self.read[number].summary.time, self.read[number].name.as_str()),
        });
        self.order = order;
        new
    }

    /// Names the functions of all reports by the symbols that the user named.
    fn name_all(&mut self, texts: Texts, names: &mut Symbolizer) -> Result<(), Failure> {
        let stored = report_files::in_folder(&self.folder)?;
        let by_name: HashMap<&str, &StoredReport> =
            stored.iter().map(|stored| (stored.name.as_str(), stored)).collect();
        for read in &mut self.read {
            let stored = by_name.get(read.name.as_str());
            if let Some(Ok(summary)) = stored.map(|stored| store_contents::summarize_with(stored, texts, names)) {
                read.summary = summary;
            }
        }
        Ok(())
    }

    fn push(&mut self, read: Read) {
        self.order.push(Place::Read(self.read.len()));
        self.read.push(read);
    }

    fn update_index(&self) -> Option<()> {
        let index = self.index.as_ref()?;
        index.replace(self.order.iter().filter_map(|place| match *place {
            Place::Known(number, _) => Some(Entry::Known(index.record(number))),
            Place::Read(number) => {
                let Read { name, has_json, stamp, summary } = &self.read[number];
                Some(Entry::New(name, *has_json, (*stamp)?, summary))
            }
        }))
    }

    fn listed(&self, place: Place) -> Listed<'_> {
        match (place, &self.index) {
            (Place::Known(number, forms), Some(index)) => Listed::known(index.record(number), forms, &self.folder),
            (Place::Read(number), _) => Listed::from(&self.read[number].summary),
            (Place::Known(..), None) => unreachable!("a known record without an index"),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The number of files that could not be read.
    pub(crate) fn unread(&self) -> usize {
        self.unread
    }

    /// Fails if some files could not be read, after the others were shown.
    pub(crate) fn check_unread(unread: usize, read: usize) -> Result<(), Failure> {
        match (unread, unread + read) {
            (0, _) => Ok(()),
            (_, 1) => Err(Failure::new("can't read the report")),
            (unread, all) => Err(Failure::new(format!("can't read {unread} of {all} reports"))),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Listed<'_>> + Clone {
        self.order.iter().map(|place| self.listed(*place))
    }

    /// Keeps the reports for which `wanted` returns true, and of them the `newest`.
    pub(crate) fn keep(&mut self, wanted: impl Fn(&Listed<'_>) -> bool, newest: Option<usize>) {
        let mut order = std::mem::take(&mut self.order);
        order.retain(|place| wanted(&self.listed(*place)));
        order.drain(..newest.map_or(0, |newest| order.len().saturating_sub(newest)));
        self.order = order;
    }
}

/// Calls `work` for each number on all processors, and returns the results in order.
///
/// The results of a worker that panicked are `T::default()`.
fn in_parallel<T: Default + Send>(count: usize, share: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(count.div_ceil(share));
    if workers <= 1 {
        return (0..count).map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let (next, work) = (&next, &work);
    let mut parts: Vec<(usize, Vec<T>)> = std::thread::scope(|scope| {
        let worker = move || {
            let mut parts = Vec::new();
            loop {
                let first = next.fetch_add(share, Ordering::Relaxed);
                if first >= count {
                    return parts;
                }
                parts.push((first, (first..count.min(first + share)).map(work).collect::<Vec<T>>()));
            }
        };
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
    });
    parts.sort_unstable_by_key(|(first, _)| *first);
    let mut all = Vec::with_capacity(count);
    for (first, part) in parts {
        all.resize_with(first, T::default);
        all.extend(part);
    }
    all.resize_with(count, T::default);
    all
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn report(number: u32, app: &str) -> String {
        let report = json!({
            "complete": true,
            "header": {"event_id": format!("{:032x}", number + 1), "process_name": "paint", "os": "linux", "arch": "x86_64"},
            "crash": {"time": format!("2026-11-21T01:02:{:02}Z", number % 60), "tid": 7, "signal": {"number": 11, "code": 1}, "address": "0x8"},
            "threads": [{"tid": 7, "crashed": true, "frames": [{"address": "0x1010", "module": "/opt/paint", "function": "paint::fill"}]}],
            "images": [{"path": "/opt/paint", "is_main": true, "load_address": "0x1000", "size": 4096}],
            "run": {"app": {"name": app, "version": "1.2.3"}, "tags": {"number": number.to_string()}},
        });
        report.to_string()
    }

    struct Bench {
        folder: tempfile::TempDir,
    }

    impl Bench {
        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join("reports").join(name)
        }

        /// Returns the list, and how many of its reports the index contained.
        ///
        /// It is the same without an index.
        fn list(&self) -> (Vec<String>, usize) {
            let (folder, caches) = (self.folder.path().join("reports"), self.folder.path().join("caches"));
            let listing =
                Listing::from_folder(&folder, ListIndex::open_in(&caches, &folder), Texts::Scrubbed, None).unwrap();
            let known = listing.order.iter().filter(|place| matches!(place, Place::Known(..))).count();
            let lines = |listing: &Listing| -> Vec<String> {
                listing.iter().map(|listed| serde_json::to_string(&listed.to_summary()).unwrap()).collect()
            };
            let without = Listing::from_folder(&folder, None, Texts::Scrubbed, None).unwrap();
            assert_eq!(lines(&listing), lines(&without));
            (lines(&listing), known)
        }

        /// Waits until what was written can be cached.
        fn settle(&self) {
            std::thread::sleep(Duration::from_millis(150));
        }
    }

    /// A folder of 100 reports, with an index that contains them.
    fn bench() -> Bench {
        let bench = Bench { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(bench.path("")).unwrap();
        for number in 0..100 {
            fs::write(bench.path(&format!("{number}.json")), report(number, "paint")).unwrap();
        }
        bench.settle();
        assert_eq!((bench.list().1, bench.list().1), (0, 100));
        bench
    }

    #[test]
    fn removed_replaced_added_and_damaged_reports_are_noticed_despite_the_index() {
        let bench = bench();
        let has = |lines: &[String], text: &str| lines.iter().filter(|line| line.contains(text)).count();
        fs::remove_file(bench.path("1.json")).unwrap();
        let (lines, known) = bench.list();
        assert_eq!((lines.len(), known, has(&lines, "/1.json")), (99, 99, 0));

        // Replace a file with another of the same size and time.
        let modified = fs::metadata(bench.path("2.json")).unwrap().modified().unwrap();
        fs::write(bench.path(".new"), report(2, "taint")).unwrap();
        File::options().append(true).open(bench.path(".new")).unwrap().set_modified(modified).unwrap();
        fs::rename(bench.path(".new"), bench.path("2.json")).unwrap();
        let (lines, known) = bench.list();
        assert_eq!((lines.len(), known, has(&lines, "taint")), (99, 98, 1));

        // Write other bytes to the same file, and restore its time.
        let modified = fs::metadata(bench.path("3.json")).unwrap().modified().unwrap();
        fs::write(bench.path("3.json"), report(3, "taint")).unwrap();
        File::options().append(true).open(bench.path("3.json")).unwrap().set_modified(modified).unwrap();
        let (lines, known) = bench.list();
        assert_eq!((lines.len(), known, has(&lines, "taint")), (99, 97, 2));

        fs::write(bench.path("new.json"), report(500, "paint")).unwrap();
        fs::write(bench.path("4.json"), "{\"header\":").unwrap();
        fs::rename(bench.path("5.json"), bench.path("renamed.json")).unwrap();
        let (lines, known) = bench.list();
        assert_eq!((lines.len(), known), (99, 95));
        assert_eq!((has(&lines, "/4.json"), has(&lines, "/5.json"), has(&lines, "renamed.json")), (0, 0, 1));

        // Add the other form of a cached report.
        fs::write(bench.path("6.coroner"), "").unwrap();
        let (lines, known) = bench.list();
        assert_eq!((lines.len(), known, has(&lines, "/6.coroner")), (99, 95, 1));

        // Replace reports with a folder and with a link to nothing.
        fs::remove_file(bench.path("7.json")).unwrap();
        fs::create_dir(bench.path("7.json")).unwrap();
        fs::remove_file(bench.path("8.json")).unwrap();
        std::os::unix::fs::symlink("/nowhere", bench.path("8.json")).unwrap();
        let (lines, known) = bench.list();
        assert_eq!((lines.len(), known), (97, 93));

        // Enough changes to write a new index.
        for number in 20..60 {
            fs::write(bench.path(&format!("{number}.json")), report(number, "paint")).unwrap();
        }
        bench.settle();
        bench.list();
        assert_eq!(bench.list().1, 97);
    }

    #[test]
    fn a_damaged_index_is_rebuilt() {
        let bench = bench();
        let before = bench.list().0;
        let index = fs::read_dir(bench.folder.path().join("caches")).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read(&index).unwrap();
        let cut = whole[..whole.len() / 2].to_vec();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        for damaged in [cut, flipped, Vec::new(), vec![0xff; whole.len()]] {
            fs::write(&index, damaged).unwrap();
            assert_eq!(bench.list(), (before.clone(), 0));
            assert_eq!(bench.list(), (before.clone(), 100));
        }
        // A folder instead of a file.
        fs::remove_file(&index).unwrap();
        fs::create_dir(&index).unwrap();
        assert_eq!(bench.list(), (before, 0));
    }

    #[test]
    fn recently_changed_files_are_not_cached() {
        let bench = bench();
        for number in 0..100 {
            fs::write(bench.path(&format!("{number}.json")), report(number, "faint")).unwrap();
        }
        bench.list();
        // Possibly within the same clock tick as before.
        fs::write(bench.path("99.json"), report(99, "saint")).unwrap();
        assert!(bench.list().0.iter().any(|line| line.contains("saint")));
    }

    #[test]
    fn parallel_results_are_in_order() {
        for count in [0, 1, 2, 63, 64, 65, 1000] {
            assert_eq!(in_parallel(count, 7, |number| number + 1), (1..=count).collect::<Vec<_>>());
        }
    }
}

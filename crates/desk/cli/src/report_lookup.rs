//! Finding and opening reports: by path, by event id, in a store, in a folder.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use coroner::{ReadError, Report, Store, StoredRun};
use coroner_report::model::{Frame, Timestamp};
use coroner_report::text::ThreadFilter;
use coroner_symbols::Symbolizer;
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::{Context, Failure};
use crate::kept_names::{self, Named};
use crate::report_files::{self, Stamp, StoredReport};
use crate::summary::{State, Summary};
use crate::{StoreArgument, demo, import, outboxes};

/// The folder in a store to which the default sink writes.
pub(crate) const REPORTS: &str = "reports";
/// Shortest beginning of an event id that is looked up.
const MIN_ID: usize = 2;
/// No report is larger; those with much memory in them have some megabytes.
const LARGEST: u64 = 256 << 20;
/// Most that is read of a file that says that it has less.
const UNSAID: u64 = 16 << 20;
/// What some programs put before UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The store that commands look in where none is named.
pub(crate) fn default_store() -> Option<PathBuf> {
    // Not by the parser, which would list it as an argument that is missing from the usage, and refuses an empty one.
    let said = std::env::var_os("CORONER_STORE").filter(|said| !said.is_empty()).map(PathBuf::from);
    said.or_else(|| coroner::default_store_dir(demo::APP_ID))
}

/// What a command needs to look in that store: empty if that does so by itself.
pub(crate) fn store_option(store: &Path) -> String {
    if default_store().is_some_and(|default| default == store) {
        return String::new();
    }
    format!(" --store {}", store.display())
}

/// Which texts of a report are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Texts {
    /// What is surely a secret is hidden, by the rules of delivery; of a report that was delivered, what was.
    Scrubbed,
    /// As the app wrote them.
    AsTheyWere,
}

impl Texts {
    fn apply(self, report: &mut Report) {
        if self == Self::Scrubbed {
            report.scrub(&coroner::hide_secrets);
        }
    }
}

/// Opens the report file at `path`, in whichever form it is, with the names that it has itself.
pub(crate) fn open_as_it_is(path: &Path, texts: Texts) -> Result<Report, Failure> {
    let mut report = read_report(path, None)?.0;
    texts.apply(&mut report);
    Ok(report)
}

/// The report in a file, and whether that is JSON. The stacks of a dump are walked by the files of `symbols`, too.
fn read_report(path: &Path, symbols: Option<&mut Symbolizer>) -> Result<(Report, bool), Failure> {
    if import::form_of(path).is_some() {
        return Ok((import::read_dump(path, symbols)?, false));
    }
    if let Some(failure) = outboxes::refuse(path) {
        return Err(failure);
    }
    let bytes = read(path)?;
    let is_json = is_json(&bytes);
    let mut report = if is_json { read_json(path, &bytes)? } else { read_any(path, &bytes)? };
    coroner::complete_report(&mut report);
    Ok((report, is_json))
}

/// Opens the report file at `path`, in whichever form it is. Names are looked up if there are `symbols`; the crash itself may have found
/// some, and those that were found before are in the JSON. What is found now is kept there.
pub(crate) fn open_file(path: &Path, texts: Texts, mut symbols: Option<&mut Symbolizer>) -> Result<Report, Failure> {
    let (mut report, is_json) = read_report(path, symbols.as_deref_mut())?;
    let json = match is_json {
        true => Some(path.to_owned()),
        false => {
            let json = path.with_extension(report_files::JSON);
            let named =
                if json == path { None } else { read(&json).ok().and_then(|bytes| read_json(&json, &bytes).ok()) };
            // Of another report, or none at all: nobody's names.
            let named = named.filter(|named| named.header.event_id == report.header.event_id);
            if let Some(named) = &named {
                report.take_names(named);
            }
            named.map(|_| json)
        }
    };
    texts.apply(&mut report);
    if let Some(symbols) = symbols {
        let before = Named::of(&report);
        name_frames(&mut report, symbols);
        if let Some(json) = json.filter(|_| Named::of(&report) > before) {
            // One that may not be written is shown all the same.
            let _ = kept_names::keep(&json, &report);
        }
    }
    Ok(report)
}

/// Opens a report of a folder: as it was delivered, if the JSON says that.
fn open_stored(stored: &StoredReport, texts: Texts, mut symbols: Option<&mut Symbolizer>) -> Result<Report, Failure> {
    match (texts, stored.json(), stored.raw()) {
        (Texts::Scrubbed, Some(json), Some(raw)) => {
            open_file(&json, texts, symbols.as_deref_mut()).or_else(|_| open_file(&raw, texts, symbols))
        }
        _ => open_file(&stored.path(), texts, symbols),
    }
}

/// The bytes of a file that a person names: not of a device or a pipe, which may have no end.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let doing = || format!("can't read `{}`", path.display());
    let metadata = std::fs::metadata(path).context(doing())?;
    if !metadata.is_file() {
        return Err(Failure::new(format!("{}: it is not a regular file", doing())));
    }
    if metadata.len() > LARGEST {
        return Err(Failure::new(format!("{}: no report has {} MiB", doing(), metadata.len() >> 20)));
    }
    read_bounded(path).context(doing())
}

/// Opens a regular file so that no read waits: some of `/proc` do (`kmsg`).
pub(crate) fn open_regular(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// A file of a folder of reports, with its stamp as it was before it was read. The folder's list says already that it is a regular one.
fn read_listed(path: &Path) -> Result<(Stamp, Vec<u8>), Failure> {
    use std::io::Read;
    let doing = || format!("can't read `{}`", path.display());
    let mut file = open_regular(path).context(doing())?;
    let status = rustix::fs::fstat(&file).map_err(std::io::Error::from).context(doing())?;
    let stamp = Stamp::of(&status);
    let is_regular = rustix::fs::FileType::from_raw_mode(status.st_mode).is_file();
    if !is_regular || stamp.size == 0 || stamp.size > LARGEST {
        return Err(Failure::new(doing()));
    }
    // Room for more than it had: a read that leaves some of it has seen the end.
    let mut bytes = vec![0; usize::try_from(stamp.size).unwrap_or(0).saturating_add(1)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read(&mut bytes[filled..]) {
            Ok(count) => {
                let is_end = count < bytes.len() - filled;
                filled += count;
                if is_end {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context(doing()),
        }
    }
    bytes.truncate(filled);
    Ok((stamp, bytes))
}

/// The bytes of a regular file: what is of the kernel (`/proc`) says that it is empty, and may have no end.
pub(crate) fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let file = open_regular(path)?;
    let length = LARGEST.min(file.metadata()?.len());
    let limit = length.max(UNSAID);
    // Room for all of it and some more, with which the file's end is seen by the read after it.
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0).saturating_add(64));
    // Eight bytes more: `pagemap` gives words.
    file.take(limit + 8).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it has no end, or grows while it is read"));
    }
    Ok(bytes)
}

/// Whether it is JSON, of whatever: a file's name says nothing once it was mailed.
fn is_json(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    // Apple's `.ips` is a line of JSON, and more behind it.
    let is_one_line = bytes.trim_ascii().iter().all(|byte| *byte != b'\n');
    if (!is_one_line && coroner_formats::apple_report::AppleReport::is_likely(bytes))
        || coroner_formats::swift_crash_log::is_swift_crash_log(bytes)
    {
        return false;
    }
    bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

/// Reads the JSON form of a report.
fn read_json(path: &Path, bytes: &[u8]) -> Result<Report, Failure> {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let doing = || format!("`{}` is not the JSON form of a Coroner report", path.display());
    let json = std::str::from_utf8(bytes).context(doing())?;
    Report::from_json(json).context(doing())
}

/// Reads a report of Coroner, or what another system wrote of a death: which it is, its content says.
fn read_any(path: &Path, bytes: &[u8]) -> Result<Report, Failure> {
    let doing = || format!("can't read `{}`", path.display());
    match Report::read(bytes) {
        Err(error @ ReadError::NotAReport { .. }) => match import::read(bytes) {
            None => Err(error).context(doing()),
            Some(read) => read.map_err(|why| Failure::new(format!("{}: {why}", doing()))),
        },
        read => read.context(doing()),
    }
}

/// Looks up function names, files and lines.
fn name_frames(report: &mut Report, symbols: &mut Symbolizer) {
    let progress = spinner("looking up function names");
    symbols.symbolicate_report(report);
    progress.finish_and_clear();
}

/// The reports in the directory of one run, the first of them first.
pub(crate) fn open_run(
    directory: &Path,
    texts: Texts,
    symbols: Option<&mut Symbolizer>,
) -> Result<Vec<Report>, Failure> {
    let raw = coroner::RawRun::read(directory)?;
    let mut reports = raw.parse().context(format!("the run in `{}` can't be read", directory.display()))?;
    reports.iter_mut().for_each(|report| texts.apply(report));
    if let Some(symbols) = symbols {
        for report in &mut reports {
            name_frames(report, symbols);
        }
    }
    Ok(reports)
}

/// The one report that a person means by `what`: a path, the beginning of an event id in the store, or else the newest of the store.
pub(crate) fn open_one(
    what: Option<&str>,
    store: Option<&Path>,
    texts: Texts,
    symbols: Option<&mut Symbolizer>,
) -> Result<Report, Failure> {
    let Some(what) = what else {
        let store = store.ok_or_else(no_store)?;
        return open_place(&newest(store)?, texts, symbols);
    };
    let path = Path::new(what);
    if path.is_dir() {
        // Later reports of a run are of a process that is the worse for the first crash.
        let mut reports = open_run(path, texts, None)?.into_iter();
        let mut first = reports.next().ok_or_else(|| {
            Failure::new(format!("`{what}` is not the directory of a run with a report"))
                .advice(format!(
                    "give a report's file: `coroner list {what}` lists those of a folder, `coroner show --store {what}` shows the newest of a store"
                ))
        })?;
        let others: Vec<String> = reports.map(|report| report.header.event_id.to_string()).collect();
        if !others.is_empty() {
            anstream::eprintln!("this is the first report of that run; besides it there is {}", others.join(", "));
        }
        if let Some(symbols) = symbols {
            name_frames(&mut first, symbols);
        }
        return Ok(first);
    }
    if path.try_exists().context(format!("can't read `{what}`"))? {
        return open_file(path, texts, symbols);
    }
    let digits: String = what.chars().filter(|character| *character != '-').collect::<String>().to_lowercase();
    let is_id = (MIN_ID..=32).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if (1..MIN_ID).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Failure::new(format!(
            "there is no file `{what}`, and {MIN_ID} digits of an event id are the least"
        )));
    }
    let Some(store) = store.filter(|_| is_id) else {
        return Err(Failure::new(format!("there is no file `{what}`"))
            .advice("give the path of a report or the beginning of an event id; `coroner list` shows both"));
    };
    match with_id(store, &digits)?.as_slice() {
        [] => {
            let failure =
                Failure::new(format!("no report in `{}` has an event id that begins with {what}", store.display()));
            Err(match outboxes::folder_of(store, &digits) {
                Some(folder) => failure.advice(format!(
                    "an event for a server has such an id, in `{}`; a `FolderSink` beside the server's sink keeps reports",
                    folder.display()
                )),
                None => failure.advice("`coroner list` shows what is there; `--store DIR` looks elsewhere"),
            })
        }
        [(_, place)] => open_place(place, texts, symbols),
        [first, .., last] => Err(Failure::new(format!("several reports begin with {what}"))
            .advice(format!("give more digits, such as {} or {}", first.0, last.0))),
    }
}

/// Where a report of a store is.
enum Place {
    Stored(StoredReport),
    /// In a run: the event id says which of its reports.
    Run(PathBuf, String),
}

fn open_place(place: &Place, texts: Texts, symbols: Option<&mut Symbolizer>) -> Result<Report, Failure> {
    match place {
        Place::Stored(stored) => open_stored(stored, texts, symbols),
        Place::Run(path, id) => open_run(path, texts, symbols)?
            .into_iter()
            .find(|report| report.header.event_id.to_string() == *id)
            .ok_or_else(|| Failure::new(format!("the report in `{}` was taken away just now", path.display()))),
    }
}

/// The reports of a store whose ids begin with `digits`. Names of files say ids; only files with other names are opened.
fn with_id(store: &Path, digits: &str) -> Result<Vec<(String, Place)>, Failure> {
    let Contents { runs, folder } = contents(store)?;
    let mut found: Vec<(String, Place)> = Vec::new();
    let mut unsaid = Vec::new();
    for stored in folder.as_deref().map_or_else(|| Ok(Vec::new()), report_files::in_folder)? {
        match stored.id_in_name().map(ToOwned::to_owned) {
            Some(id) if id.starts_with(digits) => found.push((id, Place::Stored(stored))),
            Some(_) => {}
            None => unsaid.push(stored),
        }
    }
    for stored in unsaid {
        let id = summarize(&stored, Texts::AsTheyWere, None).1.map(|summary| summary.event_id);
        found.extend(id.ok().filter(|id| id.starts_with(digits)).map(|id| (id, Place::Stored(stored))));
    }
    for run in runs {
        let ids = open_run(&run.path, Texts::AsTheyWere, None).unwrap_or_default();
        for id in ids.iter().map(|report| report.header.event_id.to_string()).filter(|id| id.starts_with(digits)) {
            if !found.iter().any(|(known, _)| *known == id) {
                found.push((id.clone(), Place::Run(run.path.clone(), id)));
            }
        }
    }
    Ok(found)
}

/// The newest report of a store.
fn newest(store: &Path) -> Result<Place, Failure> {
    let Contents { runs, folder } = contents(store)?;
    let mut stored = folder.as_deref().map_or_else(|| Ok(Vec::new()), report_files::in_folder)?;
    let time = |report: &StoredReport| summarize(report, Texts::AsTheyWere, None).1.map_or(0, |summary| summary.time.0);
    // A folder sink's names begin with their times; of others the time is in the file.
    let is_said = stored.iter().all(|report| report.id_in_name().is_some());
    let newest = match is_said {
        true => {
            // To the second: of those that have the last one in common the file says more.
            let second = |report: &StoredReport| report.name.split('-').next().map(ToOwned::to_owned);
            let last = stored.last().map(second);
            let mut of_last: Vec<StoredReport> = Vec::new();
            while let Some(report) = stored.pop_if(|report| Some(second(report)) == last) {
                of_last.push(report);
            }
            match of_last.len() {
                1 => of_last.pop(),
                _ => of_last.into_iter().max_by_key(time),
            }
        }
        false => stored.into_iter().max_by_key(time),
    };
    let time = newest
        .as_ref()
        .and_then(|stored| summarize(stored, Texts::AsTheyWere, None).1.ok())
        .map_or(0, |summary| summary.time.0);
    let pending = runs.iter().rev().flat_map(|run| {
        let reports = open_run(&run.path, Texts::AsTheyWere, None).unwrap_or_default();
        reports.into_iter().map(|report| (Summary::of(&report, &run.path, State::Pending), run.path.clone()))
    });
    let pending = pending.max_by_key(|(summary, _)| summary.time.0).filter(|(summary, _)| summary.time.0 > time);
    match (pending, newest) {
        (Some((summary, path)), _) => Ok(Place::Run(path, summary.event_id)),
        (None, Some(stored)) => Ok(Place::Stored(stored)),
        (None, None) => {
            let summary = outboxes::summary(store);
            Err(Failure::new(format!("there are no reports in `{}`{summary}", store.display()))
                .advice("name a report, or another store with `--store DIR`"))
        }
    }
}

fn no_store() -> Failure {
    Failure::new("there is no home directory (nor a `$STATE_DIRECTORY`) to look for a store in")
        .advice("name a report, or a store with `--store DIR`")
}

/// What is in a store, or a folder of reports.
pub(crate) struct Contents {
    pub(crate) runs: Vec<StoredRun>,
    /// The folder that a folder sink writes.
    pub(crate) folder: Option<PathBuf>,
}

/// Whether a directory is a store: it has one of the directories of one, or the note of the last run.
fn is_store(path: &Path) -> bool {
    ["runs", "broken"].iter().any(|name| path.join(name).is_dir())
        || has_note(path)
        || (path.join(REPORTS).is_dir() && report_files::in_folder(path).is_ok_and(|reports| reports.is_empty()))
}

/// Whether an app has noted there how its last run ended.
fn has_note(path: &Path) -> bool {
    let names = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .any(|name| name.starts_with("last_run-") && name.ends_with(".json"))
}

/// Looks into a store, or into a folder with reports.
pub(crate) fn contents(path: &Path) -> Result<Contents, Failure> {
    // What is not there and what may not be looked at are different errors.
    let is_missing = |path: &Path| matches!(path.try_exists(), Ok(false));
    let runs = match Store::open_existing(path) {
        Ok(store) => store.list()?,
        Err(_) if is_missing(path) => {
            return Err(Failure::new(format!("there is no store at `{}`", path.display()))
                .advice("`coroner demo` makes one; an app's own is named with `--store DIR`"));
        }
        Err(_) if is_missing(&path.join("runs")) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let folder = if is_store(path) { path.join(REPORTS) } else { path.to_owned() };
    Ok(Contents { runs, folder: folder.is_dir().then_some(folder) })
}

/// The folder that a person names, or else the store.
pub(crate) fn folder_or(folder: Option<PathBuf>, store: StoreArgument) -> Result<PathBuf, Failure> {
    let Some(folder) = folder else { return store.path() };
    std::fs::metadata(&folder).context(format!("can't list `{}`", folder.display()))?;
    Ok(folder)
}

/// What is listed of a run: its reports, or that they are not readable.
pub(crate) fn summaries_of(run: &StoredRun, texts: Texts, mut names: Option<&mut Symbolizer>) -> Vec<Summary> {
    let state = run.broken.clone().map_or(State::Pending, State::Broken);
    match open_run(&run.path, texts, None) {
        Ok(reports) => reports
            .into_iter()
            .map(|report| Summary::of(&with_names(report, names.as_deref_mut()), &run.path, state.clone()))
            .collect(),
        Err(_) if state == State::Pending => Vec::new(),
        Err(_) => vec![Summary {
            time: Timestamp::from(run.began),
            what: "unreadable".into(),
            path: run.path.display().to_string(),
            state,
            ..Summary::default()
        }],
    }
}

/// A store or a folder of reports that is looked at again and again.
pub(crate) struct Watch {
    path: PathBuf,
    texts: Texts,
    /// Files that were looked at, as they were then.
    files: HashSet<(PathBuf, Option<Stamp>)>,
    /// Event ids that were shown.
    shown: HashSet<String>,
}

impl Watch {
    pub(crate) fn new(path: &Path, texts: Texts) -> Watch {
        Watch { path: path.to_owned(), texts, files: HashSet::new(), shown: HashSet::new() }
    }

    /// What is new since the last look, the oldest first. A file that was not whole then is read again when it has changed.
    pub(crate) fn look(&mut self, names: &mut Symbolizer) -> Result<Vec<Summary>, Failure> {
        let Contents { runs, folder } = contents(&self.path)?;
        let mut new = Vec::new();
        for stored in folder.as_deref().map_or_else(|| Ok(Vec::new()), report_files::in_folder)? {
            let stamp = stored.stamp();
            if !self.files.insert((stored.listed(), stamp)) {
                continue;
            }
            match summarize(&stored, self.texts, Some(names)).1 {
                Ok(summary) => new.push(summary),
                Err(_) if stamp.is_none() => {}
                Err(failure) => failure.print(),
            }
        }
        for run in runs.iter().filter(|run| run.broken.is_none()) {
            for report in open_run(&run.path, self.texts, None).unwrap_or_default() {
                if !self.shown.contains(&report.header.event_id.to_string()) {
                    new.push(Summary::of(&with_names(report, Some(names)), &run.path, State::Pending));
                }
            }
        }
        new.retain(|summary| self.shown.insert(summary.event_id.clone()));
        new.sort_by_key(|summary| summary.time.0);
        Ok(new)
    }
}

/// One line of a report of a folder, from as little of it as that needs, and the stamp of the file that a list reads, as it was before.
pub(crate) fn summarize(
    stored: &StoredReport,
    texts: Texts,
    names: Option<&mut Symbolizer>,
) -> (Option<Stamp>, Result<Summary, Failure>) {
    let path = stored.path();
    if let Some(json) = stored.json()
        && (texts == Texts::Scrubbed || !stored.forms.has_raw)
        && let Ok((stamp, bytes)) = read_listed(&json)
        && let Ok(mut report) = Report::head_from_json(&bytes)
    {
        texts.apply(&mut report);
        return (Some(stamp), Ok(Summary::of(&report, &path, State::Stored)));
    }
    let stamp = stored.stamp();
    let report = open_stored(stored, texts, None);
    (stamp, report.map(|report| Summary::of(&with_names(report, names), &path, State::Stored)))
}

/// The report with names for the stack that a summary looks at, where it has none: only from symbol tables, and a
/// file is read once for a whole list.
fn with_names(mut report: Report, names: Option<&mut Symbolizer>) -> Report {
    let is_named = |frames: &[Frame]| frames.iter().all(|frame| frame.function.is_some());
    let crashed = report.crashed_thread().is_none_or(|thread| is_named(&thread.frames));
    let thrown = report.exceptions.first().is_none_or(|exception| is_named(&exception.frames));
    if let Some(names) = names.filter(|_| !crashed || !thrown)
        && (report.crashed_thread().is_none() || report.retain_threads(&ThreadFilter::Crashed))
    {
        names.symbolicate_report_with(&mut report, &mut |_, _| {});
    }
    report
}

/// A spinner on standard error, for work of unknown length. `None` if that is not a terminal.
pub(crate) fn spinner(doing: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(doing);
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    spinner
}

/// A bar on standard error, for `length` steps. `None` if that is not a terminal.
pub(crate) fn bar(length: usize, doing: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}");
    ProgressBar::new(length as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(doing)
}

//! Finding and opening reports: by path, by event id, in a store, in a folder.

use std::path::{Path, PathBuf};

use coroner::{ReadError, Report, Store, SymbolSearch};
use coroner_report::model::{Frame, Timestamp};
use coroner_report::text::ThreadFilter;
use coroner_symbols::Symbolizer;
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::{Context, Failure};
use crate::summary::{State, Summary};

/// The folder in a store to which the default sink writes.
pub(crate) const REPORTS: &str = "reports";
/// Shortest beginning of an event id that is looked up.
const MIN_ID: usize = 2;

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

/// Opens the report file at `path`, which is what is shown: the JSON says what was delivered, the `.coroner` file beside it what the crash
/// left. Names are looked up if there are `symbols`; the crash itself may have found some. Types of exceptions are demangled in any case.
pub(crate) fn open_file(path: &Path, texts: Texts, symbols: Option<&SymbolSearch>) -> Result<Report, Failure> {
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let mut report = if is_json { read_json(path)? } else { read_any(path)? };
    coroner::complete_report(&mut report);
    texts.apply(&mut report);
    if let Some(symbols) = symbols {
        name_frames(&mut report, symbols);
    }
    Ok(report)
}

/// Opens a report of a folder by its `.coroner` file: as it was delivered, if the JSON beside it says that.
fn open_stored(raw: &Path, texts: Texts, symbols: Option<&SymbolSearch>) -> Result<Report, Failure> {
    let json = raw.with_extension("json");
    match texts {
        Texts::Scrubbed if json.exists() => {
            open_file(&json, texts, symbols).or_else(|_| open_file(raw, texts, symbols))
        }
        _ => open_file(raw, texts, symbols),
    }
}

/// Reads the JSON form of a report.
fn read_json(path: &Path) -> Result<Report, Failure> {
    let doing = || format!("can't read `{}`", path.display());
    let json = std::fs::read_to_string(path).context(doing())?;
    Report::from_json(&json).context(format!("`{}` is not the JSON form of a Coroner report", path.display()))
}

/// Reads a report of Coroner, or what Android wrote of a death: which it is, its content says.
fn read_any(path: &Path) -> Result<Report, Failure> {
    let doing = || format!("can't read `{}`", path.display());
    match Report::read_file(path) {
        Err(error @ ReadError::NotAReport { .. }) => {
            match coroner_tombstone::read(&std::fs::read(path).context(doing())?) {
                Err(coroner_tombstone::TombstoneError::NotATombstone) => Err(error).context(doing()),
                read => read.context(doing()),
            }
        }
        read => read.context(doing()),
    }
}

/// Looks up function names, files and lines.
fn name_frames(report: &mut Report, symbols: &SymbolSearch) {
    let progress = spinner("looking up function names");
    symbols.symbolicate(report);
    progress.finish_and_clear();
}

fn open_run(directory: &Path, texts: Texts, symbols: Option<&SymbolSearch>) -> Result<Vec<Report>, Failure> {
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

/// The one report that a person means by `what`: a path, or the beginning of an event id in the store.
pub(crate) fn open_one(
    what: &str,
    store: Option<&Path>,
    texts: Texts,
    symbols: Option<&SymbolSearch>,
) -> Result<Report, Failure> {
    let path = Path::new(what);
    if path.is_dir() {
        // Later reports of a run are of a process that is the worse for the first crash.
        let mut reports = open_run(path, texts, None)?.into_iter();
        let mut first = reports.next().ok_or_else(|| {
            Failure::new(format!("`{what}` holds no report"))
                .advice("to see the reports of a folder, use `coroner list`")
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
    let Some(store) = store.filter(|_| is_id) else {
        return Err(Failure::new(format!("there is no file `{what}`"))
            .advice("give the path of a report or the beginning of an event id; `coroner list` shows both"));
    };
    let mut found = in_store(store, texts, None)?;
    found.retain(|summary| summary.event_id.starts_with(&digits));
    match found.as_slice() {
        [] => Err(Failure::new(format!("no report in `{}` has an event id that begins with {what}", store.display()))
            .advice("`coroner list` shows what is there; `--store DIR` looks elsewhere")),
        [one] if one.state == State::Stored => open_stored(Path::new(&one.path), texts, symbols),
        [one] => open_run(Path::new(&one.path), texts, symbols)?
            .into_iter()
            .find(|report| report.header.event_id.to_string() == one.event_id)
            .ok_or_else(|| Failure::new(format!("the report in `{}` was taken away just now", one.path))),
        [first, .., last] => Err(Failure::new(format!("{} reports begin with {what}", found.len()))
            .advice(format!("give more digits, such as {} or {}", first.event_id, last.event_id))),
    }
}

/// All reports of a store: delivered to its own folder, waiting, and broken; oldest first. The function to look at first is looked up with
/// `names`.
pub(crate) fn in_store(path: &Path, texts: Texts, mut names: Option<&mut Symbolizer>) -> Result<Vec<Summary>, Failure> {
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
    let folder = path.join(REPORTS);
    let mut summaries = if folder.is_dir() { in_folder(&folder, texts, names.as_deref_mut())? } else { Vec::new() };
    for run in runs {
        let state = run.broken.clone().map_or(State::Pending, State::Broken);
        match open_run(&run.path, texts, None) {
            Ok(reports) => {
                let new = reports
                    .into_iter()
                    .map(|report| Summary::of(&with_names(report, names.as_deref_mut()), &run.path, state.clone()));
                let known: Vec<String> = summaries.iter().map(|summary| summary.event_id.clone()).collect();
                summaries.extend(new.filter(|summary| !known.contains(&summary.event_id)));
            }
            Err(_) if state == State::Pending => {}
            Err(_) => summaries.push(Summary {
                event_id: String::new(),
                time: timestamp(run.began).to_string(),
                app: String::new(),
                version: String::new(),
                what: "unreadable".into(),
                function: None,
                path: run.path.display().to_string(),
                state,
            }),
        }
    }
    summaries.sort_by(|a, b| a.time.cmp(&b.time));
    Ok(summaries)
}

/// All reports of a folder that a folder sink writes, oldest first. Files that are none are left out.
pub(crate) fn in_folder(
    path: &Path,
    texts: Texts,
    mut names: Option<&mut Symbolizer>,
) -> Result<Vec<Summary>, Failure> {
    let entries = std::fs::read_dir(path).context(format!("can't list `{}`", path.display()))?;
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let file = entry.context(format!("can't list `{}`", path.display()))?.path();
        if file.extension().is_some_and(|extension| extension == "coroner") {
            files.push(file);
        }
    }
    let progress = bar(files.len(), "reading reports");
    let mut summaries = Vec::new();
    for file in files {
        match open_stored(&file, texts, None) {
            Ok(report) => {
                summaries.push(Summary::of(&with_names(report, names.as_deref_mut()), &file, State::Stored));
            }
            Err(failure) => progress.suspend(|| failure.print()),
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    summaries.sort_by(|a, b| a.time.cmp(&b.time));
    Ok(summaries)
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

fn timestamp(time: std::time::SystemTime) -> Timestamp {
    Timestamp(time.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64))
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

//! Finding and opening reports: by path, by event id, in a store, in a folder.

use std::path::{Path, PathBuf};

use coroner::{Report, Store, SymbolSearch};
use coroner_report::model::Timestamp;
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::{Context, Failure};
use crate::summary::{self, Place, State, Summary};

/// The folder in a store to which the default sink writes.
pub(crate) const REPORTS: &str = "reports";
/// Shortest beginning of an event id that is looked up.
const MIN_ID: usize = 2;

/// Opens the report file at `path`: `.coroner` itself, or for `.json` the `.coroner` file beside it, which says more. Names are
/// looked up if there are `symbols`; the crash itself may have found some. Types of exceptions are demangled in any case.
pub(crate) fn open_file(path: &Path, symbols: Option<&SymbolSearch>) -> Result<Report, Failure> {
    let raw = path.with_extension("coroner");
    if path.extension().is_some_and(|extension| extension == "json") && !raw.exists() {
        let message = format!("`{}` is the JSON form of a report, and there is no `{}`", path.display(), raw.display());
        return Err(Failure::new(message).advice("the JSON can be read with any JSON tool, such as `jq`"));
    }
    let path = if path.extension().is_some_and(|extension| extension == "json") { &raw } else { path };
    let mut report = Report::read_file(path).context(format!("can't read `{}`", path.display()))?;
    coroner_symbols::demangle_exception_types(&mut report);
    if let Some(symbols) = symbols {
        name_frames(&mut report, symbols);
    }
    Ok(report)
}

/// Looks up function names, files and lines.
fn name_frames(report: &mut Report, symbols: &SymbolSearch) {
    let progress = spinner("looking up function names");
    symbols.symbolicate(report);
    progress.finish_and_clear();
}

pub(crate) fn open_run(directory: &Path, symbols: Option<&SymbolSearch>) -> Result<Vec<Report>, Failure> {
    let raw = coroner::RawRun::read(directory)?;
    let mut reports = raw.parse().context(format!("the run in `{}` can't be read", directory.display()))?;
    if let Some(symbols) = symbols {
        for report in &mut reports {
            name_frames(report, symbols);
        }
    }
    Ok(reports)
}

/// The one report that a person means by `what`: a path, or the beginning of an event id in the store.
pub(crate) fn open_one(what: &str, store: Option<&Path>, symbols: Option<&SymbolSearch>) -> Result<Report, Failure> {
    let path = Path::new(what);
    if path.is_dir() {
        // Later reports of a run are of a process that is the worse for the first crash.
        let mut reports = open_run(path, None)?.into_iter();
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
    if path.exists() {
        return open_file(path, symbols);
    }
    let digits: String = what.chars().filter(|character| *character != '-').collect::<String>().to_lowercase();
    let is_id = (MIN_ID..=32).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Some(store) = store.filter(|_| is_id) else {
        return Err(Failure::new(format!("there is no file `{what}`"))
            .advice("give the path of a report or the beginning of an event id; `coroner list` shows both"));
    };
    let mut found = in_store(store)?;
    found.retain(|summary| summary.event_id.starts_with(&digits));
    match found.as_slice() {
        [] => Err(Failure::new(format!("no report in `{}` has an event id that begins with {what}", store.display()))
            .advice("`coroner list` shows what is there; `--store DIR` looks elsewhere")),
        [one] if one.state == State::Stored => open_file(Path::new(&one.path), symbols),
        [one] => open_run(Path::new(&one.path), symbols)?
            .into_iter()
            .find(|report| report.header.event_id.to_string() == one.event_id)
            .ok_or_else(|| Failure::new(format!("the report in `{}` was taken away just now", one.path))),
        [first, .., last] => Err(Failure::new(format!("{} reports begin with {what}", found.len()))
            .advice(format!("give more digits, such as {} or {}", first.event_id, last.event_id))),
    }
}

/// All reports of a store: delivered to its own folder, waiting, and broken; oldest first.
pub(crate) fn in_store(path: &Path) -> Result<Vec<Summary>, Failure> {
    let store = match Store::open_existing(path) {
        Ok(store) => store,
        Err(_) if !path.exists() => {
            return Err(Failure::new(format!("there is no store at `{}`", path.display()))
                .advice("`coroner demo` makes one; an app's own is named with `--store DIR`"));
        }
        Err(error) => return Err(error.into()),
    };
    let folder = path.join(REPORTS);
    let mut summaries = if folder.is_dir() { in_folder(&folder)? } else { Vec::new() };
    for run in store.list()? {
        let state = run.broken.clone().map_or(State::Pending, State::Broken);
        match open_run(&run.path, None) {
            Ok(reports) => {
                let new = reports.iter().map(|report| Summary::of(report, &run.path, state.clone()));
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
pub(crate) fn in_folder(path: &Path) -> Result<Vec<Summary>, Failure> {
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
        match open_file(&file, None) {
            Ok(report) => {
                let mut summary = Summary::of(&report, &file, State::Stored);
                if let Some(function) = function_in_json(&file.with_extension("json")) {
                    summary.function = Some(function);
                }
                summaries.push(summary);
            }
            Err(failure) => progress.suspend(|| failure.print()),
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    summaries.sort_by(|a, b| a.time.cmp(&b.time));
    Ok(summaries)
}

/// The function to look at first, as it was found when the report was delivered: the crash itself may have found no names, and
/// looking them up again for a whole list takes long.
fn function_in_json(path: &Path) -> Option<String> {
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let images = json.get("images")?.as_array()?;
    let program = images.iter().find(|image| image["is_main"] == true).and_then(|image| image["path"].as_str());
    let crashed = json.get("threads")?.as_array()?.iter().find(|thread| thread["crashed"] == true);
    let frames = match json["exceptions"][0]["frames"].as_array() {
        Some(thrown) if !thrown.is_empty() => thrown,
        _ => crashed?.get("frames")?.as_array()?,
    };
    summary::first_to_look_at(frames.iter().flat_map(|frame| {
        let is_own = program.is_some() && frame["module"].as_str() == program;
        let inlined = frame["inlined"].as_array().into_iter().flatten();
        let named = inlined.chain([frame]).filter_map(|function| function["function"].as_str());
        let named = named.map(move |name| Place { label: name.to_owned(), is_named: true, is_own });
        let unnamed = match (frame["module"].as_str(), frame["module_offset"].as_str()) {
            (Some(module), Some(offset)) if frame["function"].is_null() => Some(Place::unnamed(module, offset, is_own)),
            _ => None,
        };
        named.chain(unnamed)
    }))
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

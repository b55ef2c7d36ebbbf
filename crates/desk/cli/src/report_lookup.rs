//! Finds a report by path, by event id, or as the newest in a store.

use std::path::{Path, PathBuf};

use coroner::Report;
use coroner_symbols::Symbolizer;

use crate::failure::{Context, Failure};
use crate::outboxes;
use crate::report_files::{self, StoredReport};
use crate::report_reader::{Texts, name_frames, open_file, open_run, open_stored};
use crate::store_contents::{Contents, contents, summarize};
use crate::store_location::NO_STORE;
use crate::summary::{State, Summary};

/// Minimum number of digits in an event id's prefix.
const MIN_DIGITS: usize = 2;

/// Opens the report that `what` names: a path, an id's prefix, or `None` for the store's newest.
pub(crate) fn open_one(
    what: Option<&str>,
    store: Option<&Path>,
    texts: Texts,
    symbols: Option<&mut Symbolizer>,
) -> Result<Report, Failure> {
    let Some(what) = what else {
        let store = store.ok_or_else(no_store)?;
        return open_place(&find_newest(store)?, texts, symbols);
    };
    let path = Path::new(what);
    if path.is_dir() {
        // Later reports of a run may be consequences of the first crash.
        let mut reports = open_run(path, texts, None)?.into_iter();
        let mut first = reports.next().ok_or_else(|| {
            Failure::new(format!("`{what}` is not a run directory with a report"))
                .advice(format!(
                    "to list a folder's reports, use `coroner list {what}`; to show the newest in a store, `coroner show --store {what}`"
                ))
        })?;
        let others: Vec<String> = reports.map(|report| report.header.event_id.to_string()).collect();
        if !others.is_empty() {
            anstream::eprintln!("showing the first report of the run; the others are {}", others.join(", "));
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
    let is_id = (MIN_DIGITS..=32).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if (1..MIN_DIGITS).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Failure::new(format!(
            "no file `{what}`, and too short for an event ID: give at least {MIN_DIGITS} digits"
        )));
    }
    let Some(store) = store.filter(|_| is_id) else {
        return Err(Failure::new(format!("no file `{what}`, and not an event ID"))
            .advice("give a report's path or the start of its event ID; `coroner list` shows the IDs"));
    };
    match find_by_id(store, &digits)?.as_slice() {
        [] => {
            let failure =
                Failure::new(format!("no report in `{}` has an event ID that starts with {what}", store.display()));
            Err(match outboxes::find_folder(store, &digits) {
                Some(folder) => failure.advice(format!(
                    "an event queued for a server in `{}` has such an ID; add a `FolderSink` to keep reports as well",
                    folder.display()
                )),
                None => {
                    failure.advice("list the reports with `coroner list`, or select another store with `--store DIR`")
                }
            })
        }
        [(_, place)] => open_place(place, texts, symbols),
        [first, .., last] => Err(Failure::new(format!("several event IDs start with {what}"))
            .advice(format!("give more digits, such as {} or {}", first.0, last.0))),
    }
}

/// The location of a report in a store.
enum Place {
    Stored(StoredReport),
    /// In a run, identified by its event id.
    Run(PathBuf, String),
}

fn open_place(place: &Place, texts: Texts, symbols: Option<&mut Symbolizer>) -> Result<Report, Failure> {
    match place {
        Place::Stored(stored) => open_stored(stored, texts, symbols),
        Place::Run(path, id) => open_run(path, texts, symbols)?
            .into_iter()
            .find(|report| report.header.event_id.to_string() == *id)
            .ok_or_else(|| Failure::new(format!("the report in `{}` was just removed", path.display()))),
    }
}

/// Returns a store's reports whose ids begin with `digits`.
///
/// Ids are taken from file names; only files with other names are opened.
fn find_by_id(store: &Path, digits: &str) -> Result<Vec<(String, Place)>, Failure> {
    let Contents { runs, folder } = contents(store)?;
    let mut found: Vec<(String, Place)> = Vec::new();
    let mut unnamed = Vec::new();
    for stored in folder.as_deref().map_or_else(|| Ok(Vec::new()), report_files::in_folder)? {
        match stored.id_in_name().map(ToOwned::to_owned) {
            Some(id) if id.starts_with(digits) => found.push((id, Place::Stored(stored))),
            Some(_) => {}
            None => unnamed.push(stored),
        }
    }
    for stored in unnamed {
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

/// Returns a store's newest report.
fn find_newest(store: &Path) -> Result<Place, Failure> {
    let Contents { runs, folder } = contents(store)?;
    let mut stored = folder.as_deref().map_or_else(|| Ok(Vec::new()), report_files::in_folder)?;
    let time = |report: &StoredReport| summarize(report, Texts::AsTheyWere, None).1.map_or(0, |summary| summary.time.0);
    // A folder sink's names begin with the time; of other files, the content has it.
    let has_times = stored.iter().all(|report| report.id_in_name().is_some());
    let newest = match has_times {
        true => {
            // Names have a resolution of one second; for reports in the last one, the content
            // decides.
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
        reports.into_iter().map(|report| (Summary::new(&report, &run.path, State::Pending), run.path.clone()))
    });
    let pending = pending.max_by_key(|(summary, _)| summary.time.0).filter(|(summary, _)| summary.time.0 > time);
    match (pending, newest) {
        (Some((summary, path)), _) => Ok(Place::Run(path, summary.event_id)),
        (None, Some(stored)) => Ok(Place::Stored(stored)),
        (None, None) => {
            let summary = outboxes::summary(store);
            Err(Failure::new(format!("no reports in `{}`{summary}", store.display()))
                .advice("give a report, or another store with `--store DIR`"))
        }
    }
}

fn no_store() -> Failure {
    Failure::new(NO_STORE).advice("give a report, or a store with `--store DIR`")
}

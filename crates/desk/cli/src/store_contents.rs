//! The contents of a store or a folder of reports: runs, report files, and a summary of each.

use std::path::{Path, PathBuf};

use coroner::{Report, Store, StoredRun};
use coroner_report::model::{Frame, Timestamp};
use coroner_report::text::ThreadFilter;
use coroner_symbols::Symbolizer;

use crate::bounded_read::read_listed;
use crate::failure::Failure;
use crate::report_files::{self, Stamp, StoredReport};
use crate::report_reader::{Texts, open_run, open_stored};
use crate::store_location::REPORTS;
use crate::summary::{State, Summary};

/// The contents of a store or a folder of reports.
pub(crate) struct Contents {
    pub(crate) runs: Vec<StoredRun>,
    /// The folder that a folder sink writes.
    pub(crate) folder: Option<PathBuf>,
}

/// Whether a directory is a store: it contains a store's directories or the last run's note.
fn is_store(path: &Path) -> bool {
    ["runs", "broken"].iter().any(|name| path.join(name).is_dir())
        || has_note(path)
        || (path.join(REPORTS).is_dir() && report_files::in_folder(path).is_ok_and(|reports| reports.is_empty()))
}

/// Whether the directory has an app's note of how its last run ended.
fn has_note(path: &Path) -> bool {
    let names = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .any(|name| name.starts_with("last_run-") && name.ends_with(".json"))
}

/// Lists a store's or a report folder's contents.
pub(crate) fn contents(path: &Path) -> Result<Contents, Failure> {
    // Distinguish a missing directory from an inaccessible one.
    let is_missing = |path: &Path| matches!(path.try_exists(), Ok(false));
    let runs = match Store::open_existing(path) {
        Ok(store) => store.list()?,
        Err(_) if is_missing(path) => {
            return Err(Failure::new(format!("no store at `{}`", path.display()))
                .advice("create one with `coroner demo`, or select an app's store with `--store DIR`"));
        }
        Err(_) if is_missing(&path.join("runs")) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let folder = if is_store(path) { path.join(REPORTS) } else { path.to_owned() };
    Ok(Contents { runs, folder: folder.is_dir().then_some(folder) })
}

/// Summarizes a run's reports, or reports that they are unreadable.
pub(crate) fn summarize_run(run: &StoredRun, texts: Texts, mut names: Option<&mut Symbolizer>) -> Vec<Summary> {
    let state = run.broken.clone().map_or(State::Pending, State::Broken);
    match open_run(&run.path, texts, None) {
        Ok(reports) => reports
            .into_iter()
            .map(|report| Summary::new(&symbolicate_stack(report, names.as_deref_mut()), &run.path, state.clone()))
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

/// Summarizes a folder's report from as little of the file as possible.
///
/// Also returns the stamp of the file that a list reads, from before the read.
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
        return (Some(stamp), Ok(Summary::new(&report, &path, State::Stored)));
    }
    let stamp = stored.stamp();
    let report = open_stored(stored, texts, None);
    (stamp, report.map(|report| Summary::new(&symbolicate_stack(report, names), &path, State::Stored)))
}

/// Summarizes a folder's report with the named symbols, which other reports may lack.
pub(crate) fn summarize_with(stored: &StoredReport, texts: Texts, names: &mut Symbolizer) -> Result<Summary, Failure> {
    let report = open_stored(stored, texts, Some(names))?;
    Ok(Summary::new(&report, &stored.path(), State::Stored))
}

/// Symbolizes the stack that a summary uses, if it has no names.
///
/// Only symbol tables are used, and a file is read once for a whole list.
pub(crate) fn symbolicate_stack(mut report: Report, names: Option<&mut Symbolizer>) -> Report {
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

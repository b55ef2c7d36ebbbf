//! Reads a store's outboxes for servers, those of the Sentry and OTLP sinks, without changing them.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::report_files;
use crate::store_location::REPORTS;

/// A sink's directory in a store, and the extension of its messages.
const SINKS: [(&str, &str); 2] = [("sentry", "envelope"), ("otlp", "otlp")];
const QUEUE: &str = "queue";
const GIVEN_UP: &str = "given-up";

/// A sink's outbox with at least one event.
pub(crate) struct Outbox {
    path: PathBuf,
    pub(crate) waiting: usize,
    pub(crate) given_up: usize,
}

impl Outbox {
    pub(crate) fn queue(&self) -> PathBuf {
        self.path.join(QUEUE)
    }

    pub(crate) fn given_up_folder(&self) -> PathBuf {
        self.path.join(GIVEN_UP)
    }

    pub(crate) fn is_sentry(&self) -> bool {
        self.path.ends_with(SINKS[0].0)
    }
}

/// Returns a store's non-empty outboxes.
pub(crate) fn in_store(store: &Path) -> Vec<Outbox> {
    let outbox = |(directory, extension): (&str, &str)| {
        let path = store.join(directory);
        let count = |folder: &str| messages(&path.join(folder), extension).count();
        let (waiting, given_up) = (count(QUEUE), count(GIVEN_UP));
        (waiting + given_up > 0).then_some(Outbox { path, waiting, given_up })
    };
    SINKS.into_iter().filter_map(outbox).collect()
}

/// Returns the event ids of the messages in an outbox's folder; empty if the folder doesn't exist.
fn messages(folder: &Path, extension: &str) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // Only files are messages, as in the sink.
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    files.filter_map(move |entry| event_id(Path::new(&entry.file_name()), extension))
}

/// Returns the event id in a message's name.
///
/// The name is `<made>-<tries>-<not before>-<event>-<session>.<extension>`.
fn event_id(path: &Path, extension: &str) -> Option<String> {
    if path.extension()?.to_str()? != extension {
        return None;
    }
    let parts: Vec<&str> = path.file_stem()?.to_str()?.split('-').collect();
    let [made, tries, not_before, event, _] = parts[..] else { return None };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    [made, tries, not_before].into_iter().all(is_number).then(|| event.to_owned())
}

/// Formats a count: `1 event`, `2 events`.
pub(crate) fn events(count: usize) -> String {
    format!("{count} event{}", if count == 1 { "" } else { "s" })
}

/// Describes the content of a store's outboxes, to follow "no reports"; empty if they are empty.
///
/// An outbox that can't be read may contain events.
pub(crate) fn summary(store: &Path) -> String {
    let mut summary = String::new();
    for folder in SINKS.into_iter().flat_map(|(sink, _)| [QUEUE, GIVEN_UP].map(|folder| store.join(sink).join(folder)))
    {
        let missing = |error: &std::io::Error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
        if let Err(error) = std::fs::read_dir(&folder).map(drop)
            && !missing(&error)
        {
            let _ = write!(summary, "; can't read `{}`: {error}", folder.display());
        }
    }
    for outbox in in_store(store) {
        let (waiting, given_up) = (outbox.waiting, outbox.given_up);
        if waiting > 0 {
            let (events, folder) = (events(waiting), outbox.queue());
            let _ = write!(summary, "; {events} waiting to be sent to a server, in `{}`", folder.display());
        }
        if given_up > 0 {
            let (events, folder) = (events(given_up), outbox.given_up_folder());
            let _ = write!(summary, "; {events} rejected by the server, in `{}`", folder.display());
        }
    }
    if summary.is_empty() && SINKS.iter().any(|(sink, _)| store.join(sink).join(QUEUE).is_dir()) {
        summary.push_str("; a report for a server is kept here only until it is sent");
    }
    summary
}

/// Returns the folder of a waiting or given-up event whose id begins with `digits`.
pub(crate) fn find_folder(store: &Path, digits: &str) -> Option<PathBuf> {
    let folders = SINKS.into_iter().flat_map(|(directory, extension)| {
        [QUEUE, GIVEN_UP].map(|folder| (store.join(directory).join(folder), extension))
    });
    folders
        .into_iter()
        .find(|(folder, extension)| messages(folder, extension).any(|id| id.starts_with(digits)))
        .map(|(folder, _)| folder)
}

/// Returns the reason why an outbox's message can't be shown, and where its report is.
///
/// `None` for other files.
pub(crate) fn refuse(path: &Path) -> Option<Failure> {
    let id = SINKS.into_iter().find_map(|(_, extension)| event_id(path, extension))?;
    let failure = Failure::new(format!("`{}` is an event for a server, not a report", path.display()));
    // `<store>/<sink>/<folder>/<message>`.
    let store = std::path::absolute(path).ok().and_then(|path| path.ancestors().nth(3).map(Path::to_owned));
    let reports = store.and_then(|store| report_files::in_folder(&store.join(REPORTS)).ok()).unwrap_or_default();
    let report = reports.into_iter().find(|report| report.id_in_name() == Some(&id));
    Some(match report {
        Some(report) => failure.advice(format!("its report is `{}`", report.path().display())),
        None => {
            failure.advice(format!("the report of event {id} was not kept; add a `FolderSink` to keep reports as well"))
        }
    })
}

//! The default sink: a folder with two files per report.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use coroner_report::model::{Report, Timestamp};

use super::{Sink, SinkAnswer, Submission};
use crate::store::directory::Directory;
use crate::store::{Kept, Retention, Worth};

/// The report as JSON, for people and scripts.
const JSON: &str = "json";
/// The report as the crash left it, with the run state: `coroner show` and later versions of Coroner read it.
const RAW: &str = "coroner";
/// What is written last: where it is, all is.
const LAST: &str = if cfg!(feature = "json") { JSON } else { RAW };

/// Attachments of the report: their names follow.
const ATTACHMENT: &str = "attachment-";
/// Most bytes of attachments that are stored with a report, as of those that are sent to Sentry; what is beyond is left out.
const MAX_ATTACHMENTS: u64 = 20 << 20;
/// Most bytes of them that install itself stores.
const MAX_EARLY: u64 = 256 << 10;

/// Writes each report to a folder: `<time>-<event id>.json`, and `<time>-<event id>.coroner`, which is the report as the
/// crash left it with the run state as one more section. Files that the app declared
/// ([`Scope::add_attachment`](crate::Scope::add_attachment), [`Coroner::keep_attachment`](crate::Coroner::keep_attachment)) stand beside them,
/// `<time>-<event id>.attachment-<name>`, up to 20 MiB for a report.
///
/// Files appear under their names whole or not at all, and are on the disk when a report counts as delivered. The JSON is
/// written last: where it is, all are. They are there as soon as the next launch has installed Coroner; the JSON is replaced
/// when names of functions and lines are found. If the folder can't be written (the disk
/// is full, a permission is missing), the report stays in the store and is tried again.
///
/// Without the feature `json` there is no JSON file, and the other is the last.
///
/// The folder keeps 100 reports, for 90 days, of 64 MiB together, whichever is passed first ([`retention`](Self::retention)): of reports with many
/// threads, which have about 2 MiB each, that is about 30. The oldest goes first.
#[derive(Debug, Clone)]
pub struct FolderSink {
    path: PathBuf,
    retention: Retention,
}

impl FolderSink {
    /// Writes to the folder at `path`, which is made when the first report comes, for its owner only.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), retention: Retention::default() }
    }

    /// How many reports are kept, how old, and how large together. Only files that this sink wrote are counted and
    /// removed.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    fn write(&self, submission: &Submission<'_>) -> io::Result<()> {
        let folder = Directory::create(&self.path)?;
        let stem = stem(submission.report);
        for (name, bytes) in attachments(submission.report, &stem, MAX_ATTACHMENTS).0 {
            folder.write_atomically(&name, &bytes)?;
        }
        for (extension, bytes) in forms(submission) {
            folder.write_atomically(&file_name(&stem, extension), &bytes)?;
        }
        folder.clear_temporaries()?;
        self.enforce_limits(&folder, &stem)
    }

    /// Writes the files unless they are there, without waiting for the disk. False if an attachment is left for another time.
    fn write_early(&self, submission: &Submission<'_>) -> io::Result<bool> {
        let folder = Directory::create(&self.path)?;
        let stem = stem(submission.report);
        let (attachments, are_all) = attachments(submission.report, &stem, MAX_EARLY);
        if folder.status_of(&file_name(&stem, LAST)).is_ok() {
            return Ok(are_all);
        }
        for (name, bytes) in attachments {
            folder.write_quickly(&name, &bytes)?;
        }
        for (extension, bytes) in forms(submission) {
            folder.write_quickly(&file_name(&stem, extension), &bytes)?;
        }
        // An app that crashes at each start comes to nothing else.
        self.enforce_limits(&folder, &stem)?;
        Ok(are_all)
    }

    /// Removes the oldest reports until the rest is within the limits. The one just written stays: it counts as
    /// delivered.
    fn enforce_limits(&self, folder: &Directory, newest: &str) -> io::Result<()> {
        let mut reports: Vec<Kept<(String, Vec<OsString>)>> = Vec::new();
        // In their order, in which the files of one report follow each other.
        for name in folder.names()? {
            let Some(stem) = stem_of(&name) else { continue };
            let status = folder.status_of(&name)?;
            match reports.last_mut().filter(|report| report.item.0 == stem) {
                Some(report) => {
                    report.bytes += status.disk_bytes;
                    report.item.1.push(name);
                }
                None => reports.push(Kept {
                    worth: Worth::Report,
                    since: status.modified,
                    bytes: status.disk_bytes,
                    item: (stem.to_owned(), vec![name]),
                }),
            }
        }
        let goes = self.retention.beyond(reports, SystemTime::now());
        for Kept { item: (stem, mut names), .. } in goes.into_iter().filter(|report| report.item.0 != newest) {
            // What was written last goes first: a report without it is one that is still being written.
            if let Some(last) = names.iter().position(|name| *name == file_name(&stem, LAST)) {
                names.swap(0, last);
            }
            for name in names {
                match folder.remove_file(&name) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Sink for FolderSink {
    fn name(&self) -> &'static str {
        "folder"
    }

    fn store_early(&self, submission: &Submission<'_>) -> bool {
        self.write_early(submission).unwrap_or(false)
    }

    fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer {
        match self.write(submission) {
            Ok(()) => SinkAnswer::Delivered,
            // Room or a permission may come back; a folder that can't be written today is no reason to lose a report.
            Err(error) => SinkAnswer::Retry {
                after: Duration::ZERO,
                reason: format!("can't write to `{}`: {error}", self.path.display()),
            },
        }
    }
}

/// The forms in which a report is written, one made at a time, with the extensions of their files. [`LAST`] is the last one.
fn forms(submission: &Submission<'_>) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let as_left = std::iter::once_with(move || (RAW, submission.file()));
    #[cfg(feature = "json")]
    let as_left = as_left.chain(std::iter::once_with(move || (JSON, submission.report.to_json().into_bytes())));
    as_left
}

/// The name of a report's files without extension: its time in UTC, by which a listing is in order, and its event id.
fn stem(report: &Report) -> String {
    let time = report.crash.as_ref().map_or(report.header.process_start, |crash| crash.time);
    format!("{}-{}", compact(time), report.header.event_id)
}

/// `2026-11-21T01:02:03.4Z` as `20261121T010203Z`.
fn compact(time: Timestamp) -> String {
    let text = time.to_string();
    let digits = text.chars().take("2026-11-21T01:02:03".len()).filter(|character| !"-:".contains(*character));
    digits.chain(['Z']).collect()
}

fn file_name(stem: &str, extension: &str) -> OsString {
    format!("{stem}.{extension}").into()
}

fn attachment_name(stem: &str, name: &str) -> OsString {
    let plain = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    let name = name.chars().map(|character| if plain(character) { character } else { '_' });
    // A file's name has 255 bytes.
    let name: String = name.take(128).collect();
    file_name(stem, &format!("{ATTACHMENT}{name}"))
}

/// The memory that the app registered for a crash and the files that it declared for a report, under the names of their own in the folder, so many bytes together; and whether these are
/// all that can be read.
fn attachments(report: &Report, stem: &str, mut most: u64) -> (Vec<(OsString, Vec<u8>)>, bool) {
    let mut are_all = true;
    let mut files = Vec::new();
    for memory in &report.app_memory {
        if memory.bytes.0.len() as u64 <= most {
            most -= memory.bytes.0.len() as u64;
            files.push((attachment_name(stem, &memory.name), memory.bytes.0.clone()));
        }
    }
    for declared in report.run.iter().flat_map(|run| &run.attachments) {
        match read_attachment(Path::new(&declared.path), most) {
            Ok(Some(bytes)) => {
                most -= bytes.len() as u64;
                files.push((attachment_name(stem, &declared.name), bytes));
            }
            Ok(None) => {
                log::info!("coroner: the attachment `{}` is too large to be stored", declared.name);
                are_all = false;
            }
            Err(error) => log::warn!("coroner: the attachment `{}` can't be read: {error}", declared.name),
        }
    }
    (files, are_all)
}

/// The bytes of a file; `None` if there are more than `most`.
fn read_attachment(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// The stem of a file that this sink wrote; `None` for any other.
fn stem_of(name: &OsStr) -> Option<&str> {
    let (stem, what) = name.to_str()?.split_once('.')?;
    if what != JSON && what != RAW && !what.starts_with(ATTACHMENT) {
        return None;
    }
    let (time, id) = stem.split_once('-')?;
    let is_time = time.len() == "20261121T010203Z".len() && time.ends_with('Z');
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_time && is_id).then_some(stem)
}

#[cfg(test)]
mod tests;

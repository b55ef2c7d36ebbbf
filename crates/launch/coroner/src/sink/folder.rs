//! The default sink: a folder with two files per report.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use coroner_report::model::{Report, Timestamp};

use super::{Sink, SinkAnswer, Submission};
use crate::store::directory::Directory;
use crate::store::{Kept, Retention, Worth};

/// Extension of the report as JSON, for people and scripts.
const JSON: &str = "json";
/// Extension of the report in its original form, with the run state. `coroner show` reads it.
const RAW: &str = "coroner";
/// Extension of the file that is written last. If it exists, all files of the report do.
const LAST: &str = if cfg!(feature = "json") { JSON } else { RAW };

/// Prefix of the extension of attachments, followed by their names.
const ATTACHMENT: &str = "attachment-";
/// Maximum total size of a report's stored attachments in bytes, the same as for Sentry; the rest
/// is left out.
const MAX_ATTACHMENTS: u64 = 20 << 20;
/// Maximum total size of the attachments that install itself stores, in bytes.
const MAX_EARLY: u64 = 256 << 10;

/// Writes each report to a folder: `<time>-<event id>.json` and `<time>-<event id>.coroner`.
///
/// The `.coroner` file is the report in its original form, with the run state as an additional
/// section. Attachments ([`Scope::add_attachment`](crate::Scope::add_attachment),
/// [`Coroner::keep_attachment`](crate::Coroner::keep_attachment)) are copied beside them as
/// `<time>-<event id>.attachment-<name>`, up to 20 MiB per report.
///
/// Files appear atomically and are on disk when the report counts as delivered. The JSON file is
/// written last: if it exists, all of them do. The files exist as soon as the next launch has
/// installed Coroner; the JSON file is replaced when functions and lines are known. If the folder
/// can't be written (the disk is full, a permission is missing), the report stays in the store and
/// is tried again. Without the feature `json`, there is no JSON file, and the `.coroner` file is
/// written last.
///
/// The folder keeps at max_bytes 100 reports, for at max_bytes 90 days, in at max_bytes 64 MiB
/// ([`retention`](Self::retention)). Reports with many threads have about 2 MiB, so about 30 of
/// them are kept. The oldest are removed first.
///
/// ```
/// let sink = coroner::FolderSink::new("/var/crash/paint").retention(coroner::Retention::default().number(10));
/// let config = coroner::Config::new("com.example.paint").sink(sink);
/// ```
#[derive(Debug, Clone)]
pub struct FolderSink {
    path: PathBuf,
    retention: Retention,
}

impl FolderSink {
    /// Creates a sink that writes to the folder at `path`.
    ///
    /// The folder is created for the first report, with access for its owner only.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), retention: Retention::default() }
    }

    /// Sets the maximum number, age and total size of the reports that are kept.
    ///
    /// Only files that this sink wrote are counted and removed.
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

    /// Writes the files unless they exist, without waiting for the disk.
    ///
    /// Returns `false` if an attachment is left for later.
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
        // A launch of an app that crashes at each start doesn't get any further.
        self.enforce_limits(&folder, &stem)?;
        Ok(are_all)
    }

    /// Removes the oldest reports until the limits are met.
    ///
    /// Never removes the report that was just written, because it counts as delivered.
    fn enforce_limits(&self, folder: &Directory, newest: &str) -> io::Result<()> {
        let mut reports: Vec<Kept<(String, Vec<OsString>)>> = Vec::new();
        // Names are sorted, so the files of one report follow each other.
        for name in folder.names()? {
            let Some(stem) = file_stem(&name) else { continue };
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
            // Remove the file that was written last first: a report without it counts as still
            // being written.
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
            // Retry: space may become free, or the permission may be restored.
            Err(error) => SinkAnswer::Retry {
                after: Duration::ZERO,
                reason: format!("can't write to `{}`: {error}", self.path.display()),
            },
        }
    }
}

/// Yields the forms in which a report is written with their extensions, one at a time. [`LAST`]
/// comes last.
fn forms(submission: &Submission<'_>) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let as_left = std::iter::once_with(move || (RAW, submission.file()));
    #[cfg(feature = "json")]
    let as_left = as_left.chain(std::iter::once_with(move || (JSON, submission.report.to_json().into_bytes())));
    as_left
}

/// Returns the name of a report's files without extension: time and event id.
///
/// The time is in UTC, so that a listing is sorted by time.
fn stem(report: &Report) -> String {
    let time = report.crash.as_ref().map_or(report.header.process_start, |crash| crash.time);
    format!("{}-{}", compact(time), report.header.event_id)
}

/// Formats `2026-11-21T01:02:03.4Z` as `20261121T010203Z`.
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
    // A file name is limited to 255 bytes.
    let name: String = name.take(128).collect();
    file_name(stem, &format!("{ATTACHMENT}{name}"))
}

/// Returns a report's attachments with their names in the folder, up to `max_bytes` in total, and
/// whether these are all readable ones.
///
/// The attachments are the app's registered memory and attached files.
fn attachments(report: &Report, stem: &str, mut max_bytes: u64) -> (Vec<(OsString, Vec<u8>)>, bool) {
    let mut are_all = true;
    let mut files = Vec::new();
    for memory in &report.app_memory {
        if memory.bytes.0.len() as u64 <= max_bytes {
            max_bytes -= memory.bytes.0.len() as u64;
            files.push((attachment_name(stem, &memory.name), memory.bytes.0.clone()));
        }
    }
    for declared in report.run.iter().flat_map(|run| &run.attachments) {
        match read_attachment(Path::new(&declared.path), max_bytes) {
            Ok(Some(bytes)) => {
                max_bytes -= bytes.len() as u64;
                files.push((attachment_name(stem, &declared.name), bytes));
            }
            Ok(None) => {
                log::info!("coroner: the attachment `{}` is too large and is left out", declared.name);
                are_all = false;
            }
            Err(error) => log::warn!("coroner: can't read the attachment `{}`: {error}", declared.name),
        }
    }
    (files, are_all)
}

/// Reads a file; `None` if it is larger than `max_bytes`.
fn read_attachment(path: &Path, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let check = |metadata: Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    };
    // Opening a device may have side effects.
    check(std::fs::metadata(path)?)?;
    let mut options = File::options();
    // A named pipe that has replaced the file must not block.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.read(true).open(path)?;
    check(file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= max_bytes).then_some(bytes))
}

/// Returns the stem of a file that this sink wrote; `None` for any other.
fn file_stem(name: &OsStr) -> Option<&str> {
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

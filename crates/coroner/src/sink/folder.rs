//! The default sink: a folder with two files per report.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use coroner_report::model::{Report, Timestamp};

use super::{Delivery, Sink, Submission};
use crate::bundle;
use crate::store::directory::Directory;
use crate::store::{Kept, Limits, Worth};

/// The report as JSON, for people and scripts.
const JSON: &str = "json";
/// The report as the crash left it, with the run state: `coroner show` and later versions of Coroner read it.
const RAW: &str = "coroner";

/// Writes each report to a folder: `<time>-<event id>.json`, and `<time>-<event id>.coroner`, which is the report as the
/// crash left it with the run state as one more section.
///
/// Files appear under their names whole or not at all, and are on the disk when a report counts as delivered. The JSON is
/// written last: where it is, both are. Both are there as soon as the next launch has installed Coroner; the JSON is replaced
/// when names of functions and lines are found. If the folder can't be written (the disk
/// is full, a permission is missing), the report stays in the store and is tried again.
#[derive(Debug, Clone)]
pub struct FolderSink {
    path: PathBuf,
    limits: Limits,
}

impl FolderSink {
    /// Writes to the folder at `path`, which is made when the first report comes, for its owner only.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), limits: Limits::default() }
    }

    /// How many reports are kept, how old, and how large together. Only files that this sink wrote are counted and
    /// removed.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    fn write(&self, submission: &Submission<'_>) -> io::Result<()> {
        let folder = Directory::create(&self.path)?;
        let stem = stem(submission.report);
        let (json, raw) = (file_name(&stem, JSON), file_name(&stem, RAW));
        let report = submission.raw.reports.get(submission.index).map_or(&[][..], Vec::as_slice);
        folder.write_atomically(&raw, &bundle::pack(report, &submission.raw.state))?;
        folder.write_atomically(&json, submission.report.to_json().as_bytes())?;
        self.enforce_limits(&folder, &stem)
    }

    /// Writes both files unless they are there, without waiting for the disk.
    fn write_early(&self, submission: &Submission<'_>) -> io::Result<()> {
        let folder = Directory::create(&self.path)?;
        let stem = stem(submission.report);
        let (json, raw) = (file_name(&stem, JSON), file_name(&stem, RAW));
        if folder.status_of(&json).is_ok() {
            return Ok(());
        }
        let report = submission.raw.reports.get(submission.index).map_or(&[][..], Vec::as_slice);
        folder.write_quickly(&raw, &bundle::pack(report, &submission.raw.state))?;
        folder.write_quickly(&json, submission.report.to_json().as_bytes())
    }

    /// Removes the oldest reports until the rest is within the limits. The one just written stays: it counts as
    /// delivered.
    fn enforce_limits(&self, folder: &Directory, newest: &str) -> io::Result<()> {
        folder.clear_temporaries()?;
        let mut reports: Vec<Kept<String>> = Vec::new();
        for name in folder.names()? {
            let Some(stem) = stem_of(&name) else { continue };
            let status = folder.status_of(&name)?;
            match reports.iter_mut().find(|report| report.item == stem) {
                Some(report) => report.bytes += status.disk_bytes,
                None => reports.push(Kept {
                    item: stem.to_owned(),
                    worth: Worth::Report,
                    since: status.modified,
                    bytes: status.disk_bytes,
                }),
            }
        }
        let (_, goes) = self.limits.divide(reports, SystemTime::now());
        for report in goes.iter().filter(|report| report.item != newest) {
            // The JSON first: a report without it is one that is still being written.
            for extension in [JSON, RAW] {
                match folder.remove_file(&file_name(&report.item, extension)) {
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
        self.write_early(submission).is_ok()
    }

    fn deliver(&self, submission: &Submission<'_>) -> Delivery {
        match self.write(submission) {
            Ok(()) => Delivery::Delivered,
            // Room or a permission may come back; a folder that can't be written today is no reason to lose a report.
            Err(error) => Delivery::Retry {
                after: Duration::ZERO,
                reason: format!("can't write to `{}`: {error}", self.path.display()),
            },
        }
    }
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

/// The stem of a file that this sink wrote; `None` for any other.
fn stem_of(name: &OsStr) -> Option<&str> {
    let name = Path::new(name);
    let extension = name.extension()?;
    if extension != JSON && extension != RAW {
        return None;
    }
    let stem = name.file_stem()?.to_str()?;
    let (time, id) = stem.split_once('-')?;
    let is_time = time.len() == "20261121T010203Z".len() && time.ends_with('Z');
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_time && is_id).then_some(stem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RawRun;
    use coroner_report::model::{Crash, Header, Id};

    fn report(event: u8, seconds: u64) -> Report {
        let header = Header { event_id: Id([event; 16]), ..Header::default() };
        let crash = Crash { time: Timestamp(seconds * 1_000_000_000), ..Crash::default() };
        Report { header, crash: Some(crash), ..Report::default() }
    }

    fn deliver(sink: &FolderSink, report: &Report) -> Delivery {
        let raw = RawRun { run: None, reports: vec![b"raw".to_vec()], state: b"state".to_vec() };
        sink.deliver(&Submission { run: Id([1; 16]), report, index: 0, raw: &raw, tries: 0 })
    }

    fn names(path: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(path).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_report_is_two_files_however_often_it_comes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/on/demand");
        let sink = FolderSink::new(&path);
        for _ in 0..2 {
            assert_eq!(deliver(&sink, &report(0xab, 1_000_000_000)), Delivery::Delivered);
        }
        let stem = format!("20010909T014640Z-{}", "ab".repeat(16));
        assert_eq!(names(&path), [format!("{stem}.coroner"), format!("{stem}.json")]);
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path.join(format!("{stem}.json"))).unwrap()).unwrap();
        assert_eq!(json["header"]["event_id"], "ab".repeat(16));
    }

    #[test]
    fn one_that_was_interrupted_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let sink = FolderSink::new(folder.path());
        deliver(&sink, &report(1, 5));
        let json = names(folder.path()).into_iter().find(|name| name.contains(".json")).unwrap();
        std::fs::remove_file(folder.path().join(&json)).unwrap();
        assert_eq!(deliver(&sink, &report(1, 5)), Delivery::Delivered);
        assert!(names(folder.path()).contains(&json));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), b"").unwrap();
        let sink = FolderSink::new(folder.path().join("file/below"));
        let Delivery::Retry { reason, .. } = deliver(&sink, &report(1, 5)) else { panic!("it can't be delivered") };
        assert!(reason.contains("file/below"), "{reason}");
    }

    #[test]
    fn limits_remove_old_reports_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("notes.json"), b"mine").unwrap();
        let sink = FolderSink::new(folder.path()).limits(Limits { number: 2, ..Limits::default() });
        for (event, seconds) in [(1, 10), (2, 20), (3, 30)] {
            deliver(&sink, &report(event, seconds));
            for name in
                names(folder.path()).into_iter().filter(|name| name.contains(&format!("{event:02x}").repeat(16)))
            {
                let file = std::fs::File::options().write(true).open(folder.path().join(name)).unwrap();
                file.set_modified(SystemTime::now() - Duration::from_secs(100 - seconds)).unwrap();
            }
        }
        let left = names(folder.path());
        assert_eq!(left.len(), 5, "{left:?}");
        assert!(left.contains(&"notes.json".to_owned()));
        assert!(!left.iter().any(|name| name.contains(&"01".repeat(16))), "{left:?}");
    }
}

//! The report files of a folder: which belong together, and which are none.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::failure::{Context, Failure};

/// The report as JSON.
pub(crate) const JSON: &str = "json";
/// The report as the crash left it.
pub(crate) const RAW: &str = "coroner";

/// A report of a folder: two files of one name, or one of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredReport {
    /// The path without its extension.
    pub(crate) stem: PathBuf,
    pub(crate) has_json: bool,
    pub(crate) has_raw: bool,
}

/// What tells whether a file is the one that was read before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    /// Nanoseconds since the Unix epoch.
    pub(crate) modified: u64,
}

impl StoredReport {
    pub(crate) fn json(&self) -> Option<PathBuf> {
        self.has_json.then(|| with_extension(&self.stem, JSON))
    }

    pub(crate) fn raw(&self) -> Option<PathBuf> {
        self.has_raw.then(|| with_extension(&self.stem, RAW))
    }

    /// The file that stands for it: what the crash left, or the JSON where that is alone.
    pub(crate) fn path(&self) -> PathBuf {
        with_extension(&self.stem, if self.has_raw { RAW } else { JSON })
    }

    /// The file that a list reads: the JSON, which has names.
    pub(crate) fn listed(&self) -> PathBuf {
        with_extension(&self.stem, if self.has_json { JSON } else { RAW })
    }

    pub(crate) fn stamp(&self) -> Option<Stamp> {
        let metadata = std::fs::metadata(self.listed()).ok()?;
        let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(Stamp { size: metadata.len(), modified: modified.as_nanos() as u64 })
    }

    /// The file's name, without its extension.
    pub(crate) fn name(&self) -> &str {
        self.stem.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// The event id that the name has, as a folder sink gives it: `<time>-<event id>`.
    pub(crate) fn id_in_name(&self) -> Option<&str> {
        let (time, id) = self.name().split_once('-')?;
        let is_time = time.len() == "20261121T010203Z".len() && time.ends_with('Z');
        (is_time && id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
    }
}

/// `stem` with an extension more; its name may have dots of its own.
fn with_extension(stem: &Path, extension: &str) -> PathBuf {
    let mut path = stem.as_os_str().to_owned();
    path.push(".");
    path.push(extension);
    path.into()
}

/// The reports of a folder, by their names, which begin with their times where a folder sink gave them. Nothing is opened.
pub(crate) fn in_folder(folder: &Path) -> Result<Vec<StoredReport>, Failure> {
    let doing = || format!("can't list `{}`", folder.display());
    let mut reports: BTreeMap<PathBuf, StoredReport> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).context(doing())? {
        // Who removes reports meanwhile may make the listing of one fail.
        let Ok(entry) = entry else { continue };
        let Some(is_json) = is_report(&entry) else { continue };
        let path = entry.path();
        let stem = path.with_extension("");
        let report = reports
            .entry(stem)
            .or_insert_with_key(|stem| StoredReport { stem: stem.clone(), ..StoredReport::default() });
        *(if is_json { &mut report.has_json } else { &mut report.has_raw }) = true;
    }
    Ok(reports.into_values().collect())
}

/// Whether a file is the JSON of a report, or what the crash left; `None` for others, by the names alone.
fn is_report(entry: &DirEntry) -> Option<bool> {
    let name = entry.file_name();
    let (stem, extension) = name.to_str()?.rsplit_once('.')?;
    // A folder sink's files on their way begin with a dot.
    let is_file = !stem.is_empty() && !stem.starts_with('.') && entry.file_type().is_ok_and(|kind| !kind.is_dir());
    match extension {
        JSON if is_file => Some(true),
        RAW if is_file => Some(false),
        _ => None,
    }
}

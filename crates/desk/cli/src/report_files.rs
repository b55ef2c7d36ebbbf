//! The report files in a folder: recognizes them, and pairs those of the same report.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coroner::Report;
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};

use crate::atomic_file;
use crate::failure::{Context, Failure};

/// Extension of a report as JSON.
pub(crate) const JSON: &str = "json";
/// Extension of a raw report, as the crash left it.
pub(crate) const RAW: &str = "coroner";

/// Flags for opening a folder.
const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_CLOEXEC);

/// Returns the kind of a file: `S_IFREG` and the like.
pub(crate) fn kind_of(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// The files of a report: two with the same name, or one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Forms {
    pub(crate) has_json: bool,
    pub(crate) has_raw: bool,
}

impl Forms {
    /// The extension of the report's main file: the raw one, or the JSON if it is the only one.
    pub(crate) fn extension(self) -> &'static str {
        if self.has_raw { RAW } else { JSON }
    }

    /// The extension of the file that a list reads: the JSON, which has names.
    pub(crate) fn listed(self) -> &'static str {
        if self.has_json { JSON } else { RAW }
    }

    pub(crate) fn add(&mut self, is_json: bool) {
        *(if is_json { &mut self.has_json } else { &mut self.has_raw }) = true;
    }
}

/// A report in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredReport {
    pub(crate) folder: Arc<Path>,
    /// The files' name without its extension.
    pub(crate) name: String,
    pub(crate) forms: Forms,
}

/// Identifies a file's content.
///
/// Writing to a file, or replacing it, changes its inode change time, which no program can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Stamp {
    pub(crate) inode: u64,
    pub(crate) size: u64,
    /// Modification time in nanoseconds since the Unix epoch.
    pub(crate) modified: u64,
    /// Inode change time in nanoseconds since the Unix epoch.
    pub(crate) changed: u64,
}

impl Stamp {
    /// Reads the stamp of the file `name.extension` in an open folder.
    pub(crate) fn at(folder: &OwnedFd, name: &str, extension: &str) -> Option<Stamp> {
        let mut file = String::with_capacity(name.len() + 1 + extension.len());
        for part in [name, ".", extension] {
            file.push_str(part);
        }
        fstatat(folder, file.as_str(), AtFlags::empty()).ok().map(|stat| Stamp::from_stat(&stat))
    }

    #[allow(clippy::unnecessary_cast)] // Their types differ from system to system.
    pub(crate) fn from_stat(stat: &FileStat) -> Stamp {
        let time =
            |seconds: i64, nanoseconds: u64| (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(nanoseconds);
        Stamp {
            inode: stat.st_ino as u64,
            size: stat.st_size as u64,
            modified: time(stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            changed: time(stat.st_ctime as i64, stat.st_ctime_nsec as u64),
        }
    }
}

impl StoredReport {
    fn with_extension(&self, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", self.name))
    }

    pub(crate) fn json(&self) -> Option<PathBuf> {
        self.forms.has_json.then(|| self.with_extension(JSON))
    }

    pub(crate) fn raw(&self) -> Option<PathBuf> {
        self.forms.has_raw.then(|| self.with_extension(RAW))
    }

    /// The path of the report's main file.
    pub(crate) fn path(&self) -> PathBuf {
        self.with_extension(self.forms.extension())
    }

    /// The path of the file that a list reads.
    pub(crate) fn listed(&self) -> PathBuf {
        self.with_extension(self.forms.listed())
    }

    pub(crate) fn stamp(&self) -> Option<Stamp> {
        nix::sys::stat::stat(&self.listed()).ok().map(|stat| Stamp::from_stat(&stat))
    }

    /// The event id in the name, if it has a folder sink's form: `<time>-<event id>`.
    pub(crate) fn id_in_name(&self) -> Option<&str> {
        let (time, id) = self.name.split_once('-')?;
        let is_time = time.len() == "20261121T010203Z".len() && time.ends_with('Z');
        (is_time && id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
    }
}

/// Returns the reports in a folder, sorted by name, without opening files.
///
/// Names given by a folder sink begin with the time.
pub(crate) fn in_folder(folder: &Path) -> Result<Vec<StoredReport>, Failure> {
    let mut reports: HashMap<String, Forms> = HashMap::new();
    each_file(&open(folder)?, folder, |name, is_json| match reports.get_mut(name) {
        Some(forms) => forms.add(is_json),
        None => reports.entry(name.to_owned()).or_default().add(is_json),
    })?;
    Ok(sorted(folder, reports))
}

/// Returns the reports sorted by name.
pub(crate) fn sorted(folder: &Path, reports: HashMap<String, Forms>) -> Vec<StoredReport> {
    let folder: Arc<Path> = folder.into();
    let reports = reports.into_iter();
    let mut reports: Vec<StoredReport> =
        reports.map(|(name, forms)| StoredReport { folder: folder.clone(), name, forms }).collect();
    reports.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    reports
}

/// Opens the folder, to list it and read its files' stamps.
pub(crate) fn open(folder: &Path) -> Result<OwnedFd, Failure> {
    let opened = nix::fcntl::open(folder, DIRECTORY, Mode::empty()).map_err(std::io::Error::from);
    opened.context(format!("can't list `{}`", folder.display()))
}

/// Calls `found` for each report file in the open `folder`.
///
/// Its arguments are the file's name without extension and whether it is the JSON.
pub(crate) fn each_file(folder: &OwnedFd, path: &Path, mut found: impl FnMut(&str, bool)) -> Result<(), Failure> {
    let entries = Dir::openat(folder, ".", DIRECTORY, Mode::empty()).map_err(std::io::Error::from);
    for entry in entries.context(format!("can't list `{}`", path.display()))? {
        let entry = match entry {
            Ok(entry) => entry,
            // The folder was removed meanwhile.
            Err(Errno::ENOENT) => break,
            Err(error) => {
                return Err(std::io::Error::from(error)).context(format!("can't list `{}` completely", path.display()));
            }
        };
        let Some((name, is_json)) = entry.file_name().to_str().ok().and_then(report_name) else { continue };
        let is_directory = match entry.file_type() {
            Some(kind) => kind == Type::Directory,
            None => fstatat(folder, entry.file_name(), AtFlags::AT_SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| kind_of(&stat) == SFlag::S_IFDIR),
        };
        if !is_directory {
            found(name, is_json);
        }
    }
    Ok(())
}

/// Returns a report file's name without extension, and whether it is JSON; `None` for other files.
fn report_name(name: &str) -> Option<(&str, bool)> {
    let (stem, extension) = name.rsplit_once('.')?;
    // A folder sink's temporary files begin with a dot.
    match extension {
        _ if stem.is_empty() || stem.starts_with('.') => None,
        JSON => Some((stem, true)),
        RAW => Some((stem, false)),
        _ => None,
    }
}

/// Writes a report as JSON to a folder, under the name that a folder sink would use.
///
/// The folder is created if it doesn't exist.
pub(crate) fn keep(report: &Report, folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).context(format!("can't create `{}`", folder.display()))?;
    let time = report.crash.as_ref().map_or(report.header.process_start, |crash| crash.time);
    let digits: String = time.to_string().chars().take(19).filter(|character| !"-:".contains(*character)).collect();
    let name = format!("{digits}Z-{}.{JSON}", report.header.event_id);
    atomic_file::write(&folder.join(name), report.to_json().as_bytes())
}

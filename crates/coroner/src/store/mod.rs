//! Where runs leave what they know: a directory per run, and what has become of those that could not be read.
//!
//! ```text
//! <store>/
//!   runs/<run id>/lock           held by the run's process while it lives
//!   runs/<run id>/report         the crash report, reserved at install; only zeros if the run did not crash
//!   runs/<run id>/report-2 …     later crashes of a process that survived the first
//!   runs/<run id>/state          the run state: scope, breadcrumbs, facts of app and device
//!   runs/<run id>/progress.json  how far processing has come
//!   broken/<run id>/             a run that could not be processed, as it was, with `why.txt`
//!   last_run.json                how the last run that was looked at ended
//!   reports/                     where the default folder sink writes
//! ```
//!
//! A run belongs to its process while that lives ([`claim`]); afterwards to whoever takes its lock first. So two processes
//! of one app may use a store at once, and one that crashes while it processes a report leaves it to the next.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

mod claim;
pub(crate) mod directory;
mod limits;
pub(crate) mod progress;

use claim::Claim;
pub(crate) use claim::{EndedRun, REPORT, STATE};
use coroner_report::model::{Id, RunFacts, Timestamp};
use directory::{Directory, kind_name};
pub(crate) use limits::Kept;
pub use limits::Limits;

const RUNS: &str = "runs";
const BROKEN: &str = "broken";
/// Says in words why a run stands in `broken`.
const WHY: &str = "why.txt";
/// A run on its way out: renamed first, so that one that is half removed is never taken for a run.
const REMOVED: &str = ".removed-";
/// What the names of reports after the first begin with.
const LATER_REPORT: &str = "report-";
/// Most reports of one run that are processed: eight crashes, sixteen handled exceptions and sixteen hangs.
const MOST_REPORTS: usize = 40;
/// Longest report read, in bytes: many times what capture can reserve.
const LARGEST_REPORT: u64 = 256 << 20;
/// Bytes of a run state that hold its lifecycle: the header and the scalars (`docs/report-format.md`).
const LIFECYCLE: u64 = 640;
/// Longest run state read, in bytes.
const LARGEST_STATE: u64 = 64 << 20;

/// Something in the store could not be done.
#[derive(Debug)]
pub struct StoreError {
    /// What was being done, as in "can't … `path`".
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl StoreError {
    fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { doing, path: path.to_owned(), source }
    }

    /// The file or directory that it is about.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "can't {} `{}`: {}", self.doing, self.path.display(), self.source)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// A store of crash reports, held open.
#[derive(Debug)]
pub struct Store {
    root: Directory,
    runs: Directory,
}

/// What stands in a store under one run's id, as [`Store::list`] finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredRun {
    /// The run.
    pub id: Id,
    /// When the run began.
    pub began: SystemTime,
    /// Why it could not be processed, for one that has been set aside; `None` for one that lives or is still to be
    /// processed.
    pub broken: Option<String>,
    /// The run's directory.
    pub path: PathBuf,
}

/// The files of one run, as they are on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRun {
    /// The report files, first crash first. There is more than one where a process survived a crash and had another.
    /// A file is all zeros where the run did not crash, and has zeros after the report where it was reserved larger than
    /// what was written.
    pub reports: Vec<Vec<u8>>,
    /// The run state file; empty where there is none.
    pub state: Vec<u8>,
}

/// What [`Store::take_ended`] found.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Runs that are this process's to work on, oldest first.
    pub(crate) runs: Vec<EndedRun>,
    /// What stands in `runs` and is not a run, with the reason. It is left where it is.
    pub(crate) foreign: Vec<(PathBuf, String)>,
}

impl Store {
    /// Opens the store at `path`, which is made where it does not exist, for its owner only (mode 0700).
    ///
    /// # Errors
    /// It can't be made or opened; it is a symbolic link; it belongs to another user, who could read reports or replace
    /// them.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let root = Directory::create(path).map_err(StoreError::at("make the store", path))?;
        let owner = root.status().map_err(StoreError::at("examine the store", path))?.owner;
        let user = rustix::process::geteuid();
        if owner != user.as_raw() && owner != 0 && !user.is_root() {
            let message = format!("it belongs to user {owner} and not to user {}", user.as_raw());
            let source = io::Error::new(io::ErrorKind::PermissionDenied, message);
            return Err(StoreError::at("use the store", path)(source));
        }
        let runs = root.create_subdirectory(RUNS.as_ref()).map_err(StoreError::at("make", &path.join(RUNS)))?;
        Ok(Self { root, runs })
    }

    /// Opens the store at `path` without making anything.
    ///
    /// # Errors
    /// There is no store: no directory, or none with a directory `runs` in it.
    pub fn open_existing(path: &Path) -> Result<Self, StoreError> {
        let root = Directory::open(path).map_err(StoreError::at("open the store", path))?;
        let runs = root.subdirectory(RUNS.as_ref()).map_err(StoreError::at("open", &path.join(RUNS)))?;
        Ok(Self { root, runs })
    }

    /// The store's directory.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// All runs in the store, living, ended and broken, oldest first. Nothing is taken or changed.
    ///
    /// # Errors
    /// A directory of the store can't be read.
    pub fn list(&self) -> Result<Vec<StoredRun>, StoreError> {
        let mut list = Vec::new();
        let mut collect = |directory: &Directory, broken: bool| -> io::Result<()> {
            for name in directory.names()? {
                let Some(id) = run_of(&name) else { continue };
                // It may be removed by its owner while we look.
                let Ok(run) = directory.subdirectory(&name) else { continue };
                let lock = run.status_of(claim::LOCK.as_ref()).or_else(|_| run.status());
                let began = lock.map_or(SystemTime::UNIX_EPOCH, |status| status.modified);
                let why = broken.then(|| match run.read(WHY.as_ref(), 1 << 16) {
                    Ok(why) => String::from_utf8_lossy(&why).trim_end().to_owned(),
                    Err(_) => "the reason was not noted".to_owned(),
                });
                list.push(StoredRun { id, began, broken: why, path: run.path().to_owned() });
            }
            Ok(())
        };
        collect(&self.runs, false).map_err(StoreError::at("list", self.runs.path()))?;
        match self.root.subdirectory(BROKEN.as_ref()) {
            Ok(broken) => collect(&broken, true).map_err(StoreError::at("list", broken.path()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::at("open", &self.root.path().join(BROKEN))(error)),
        }
        list.sort_by_key(|run| run.began);
        Ok(list)
    }

    /// Whether there is a run other than `own` at all: a cheap first look, so that an app without anything pending starts
    /// no thread.
    pub(crate) fn has_other_runs(&self, own: Option<Id>) -> bool {
        let own = own.map(name_of);
        self.runs.names().is_ok_and(|names| names.iter().any(|name| Some(name) != own.as_ref()))
    }

    /// Whether a run other than `own` crashed so soon after its beginning, and no launch has looked at it yet. A few system calls
    /// for each run, since install waits for the answer.
    pub(crate) fn crashed_within(&self, time: Duration, own: Id) -> bool {
        let own = name_of(own);
        let runs = self.runs.names().unwrap_or_default();
        runs.iter().filter(|name| **name != own && run_of(name).is_some()).any(|name| {
            let Ok(run) = self.runs.subdirectory(name) else { return false };
            if run.status_of(progress::FILE.as_ref()).is_ok() {
                return false;
            }
            // The words of the lifecycle stand at the beginning of the file; what is not read counts as zeros.
            let start = run.read_start(STATE.as_ref(), LIFECYCLE).unwrap_or_default();
            let crashed = RunFacts::read(&start).ok().and_then(|facts| facts.lifecycle.crash_time);
            let began = run.status_of(claim::LOCK.as_ref()).map(|lock| Timestamp::from(lock.modified));
            match (began, crashed) {
                (Ok(began), Some(crashed)) => crashed.0.saturating_sub(began.0) < time.as_nanos() as u64,
                _ => false,
            }
        })
    }

    /// Takes all runs that have ended, oldest first, and clears away what earlier removals and starts left half-done.
    ///
    /// `own` is the calling process's living run, which is not touched (its lock would be lost).
    pub(crate) fn take_ended(&self, own: Option<Id>) -> io::Result<Ended> {
        let mut ended = Ended::default();
        for name in self.runs.names()? {
            let text = name.to_string_lossy();
            if text.starts_with(REMOVED) {
                let _ = self.runs.remove_tree(&name);
                continue;
            }
            let Some(id) = run_of(&name) else {
                let kind = self.runs.status_of(&name).map_or("something", |status| kind_name(status.kind));
                ended.foreign.push((self.runs.path().join(&name), format!("is {kind} that is not a run")));
                continue;
            };
            if own == Some(id) {
                continue;
            }
            match claim::claim(&self.runs, id) {
                Ok(Claim::Taken(run)) => ended.runs.push(*run),
                Ok(Claim::Busy | Claim::Gone) => {}
                Err(error) => ended.foreign.push((self.runs.path().join(&name), error.to_string())),
            }
        }
        ended.runs.sort_by_key(|run| run.began);
        Ok(ended)
    }

    /// Removes a run that is done with.
    pub(crate) fn remove(&self, run: EndedRun) -> io::Result<()> {
        let mut removed = OsString::from(REMOVED);
        removed.push(run.id.to_string());
        self.runs.rename(&name_of(run.id), &self.runs, &removed)?;
        let done = self.runs.remove_tree(&removed);
        drop(run);
        done
    }

    /// Moves a run that can't be processed to `broken`, all its files as they are, and notes why. Returns where it is.
    pub(crate) fn set_aside(&self, run: &EndedRun, why: &str) -> io::Result<PathBuf> {
        let broken = self.root.create_subdirectory(BROKEN.as_ref())?;
        let name = name_of(run.id);
        // The note is worth less than the run: on a full disk it is left out.
        let noted = run.directory.write_atomically(WHY.as_ref(), format!("{why}\n").as_bytes());
        self.runs.rename(&name, &broken, &name)?;
        if let Err(error) = noted {
            log::warn!("coroner: no note of why run {} is broken ({why}): {error}", run.id);
        }
        self.runs.sync()?;
        broken.sync()?;
        Ok(broken.path().join(name))
    }

    /// Removes the oldest of `ended` and of the broken runs until what is left is within `limits`. Returns the runs that
    /// are left, oldest first, and how many went.
    pub(crate) fn enforce(
        &self,
        limits: &Limits,
        ended: Vec<EndedRun>,
        now: SystemTime,
    ) -> io::Result<(Vec<EndedRun>, usize)> {
        enum Item {
            Ended(EndedRun),
            Broken(OsString),
        }
        let mut items = Vec::new();
        for run in ended {
            let bytes = self.runs.tree_bytes(&name_of(run.id)).unwrap_or(0);
            items.push(Kept { since: run.began, bytes, item: Item::Ended(run) });
        }
        let broken = match self.root.subdirectory(BROKEN.as_ref()) {
            Ok(broken) => Some(broken),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if let Some(broken) = &broken {
            for name in broken.names()? {
                let Ok(status) = broken.status_of(&name) else { continue };
                let bytes = broken.tree_bytes(&name).unwrap_or(0);
                items.push(Kept { since: status.modified, bytes, item: Item::Broken(name) });
            }
        }
        let (stays, goes) = limits.divide(items, now);
        let number = goes.len();
        for kept in goes {
            match (kept.item, &broken) {
                (Item::Ended(run), _) => self.remove(run)?,
                (Item::Broken(name), Some(broken)) => broken.remove_tree(&name)?,
                (Item::Broken(_), None) => {}
            }
        }
        let left = stays.into_iter().filter_map(|kept| match kept.item {
            Item::Ended(run) => Some(run),
            Item::Broken(_) => None,
        });
        Ok((left.collect(), number))
    }

    /// The store's own directory, for files beside the runs.
    pub(crate) fn root(&self) -> &Directory {
        &self.root
    }
}

/// The name of a run's directory.
pub(crate) fn name_of(run: Id) -> OsString {
    run.to_string().into()
}

/// The run whose directory has this name. Of the ways to write an id only one is a name, so that no run has two.
fn run_of(name: &OsStr) -> Option<Id> {
    let id: Id = name.to_str()?.parse().ok()?;
    (name_of(id) == name).then_some(id)
}

impl RawRun {
    /// Reads the files in the directory of one run, living, ended or broken.
    ///
    /// # Errors
    /// The directory or one of its files can't be read, is a symbolic link, or is too large to be what it should be.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        let run = Directory::open(path).map_err(StoreError::at("open the run", path))?;
        read_raw(&run).map_err(StoreError::at("read the run", path))
    }
}

fn read_raw(run: &Directory) -> io::Result<RawRun> {
    let file = |name: &OsStr, limit| match run.read(name, limit) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(io::Error::new(error.kind(), format!("`{}` {error}", name.display()))),
        read => read,
    };
    let mut numbered: Vec<(u32, OsString)> = Vec::new();
    for name in run.names()? {
        let number = match name.to_str() {
            Some(REPORT) => Some(1),
            Some(name) => name.strip_prefix(LATER_REPORT).and_then(|number| number.parse().ok()),
            None => None,
        };
        numbered.extend(number.map(|number| (number, name)));
    }
    numbered.sort();
    let reports = numbered.iter().take(MOST_REPORTS).map(|(_, name)| file(name, LARGEST_REPORT));
    Ok(RawRun { reports: reports.collect::<io::Result<_>>()?, state: file(STATE.as_ref(), LARGEST_STATE)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    fn id(number: u8) -> Id {
        Id([number; 16])
    }

    #[test]
    fn a_run_has_one_name() {
        let text = "ab".repeat(16);
        assert_eq!(run_of(text.as_ref()), Some(id(0xab)));
        assert_eq!(run_of(text.to_uppercase().as_ref()), None);
        assert_eq!(run_of("abababab-abab-abab-abab-abababababab".as_ref()), None);
        assert_eq!(run_of("..".as_ref()), None);
    }

    fn make_run(store: &Store, id: Id, report: &[u8]) -> Directory {
        let run = store.runs.create_subdirectory(&name_of(id)).unwrap();
        run.write_atomically(REPORT.as_ref(), report).unwrap();
        run.write_atomically(claim::LOCK.as_ref(), b"").unwrap();
        run.write_atomically(STATE.as_ref(), b"").unwrap();
        run
    }

    fn age(run: &Directory, seconds: u64) {
        let lock = run.file(claim::LOCK.as_ref(), true).unwrap();
        lock.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("deep/store")).unwrap();
        (folder, store)
    }

    fn ids(runs: &[EndedRun]) -> Vec<Id> {
        runs.iter().map(|run| run.id).collect()
    }

    #[test]
    fn ended_runs_are_taken_oldest_first_and_the_own_run_never() {
        let (_folder, store) = store();
        for (number, seconds) in [(1, 10), (2, 30), (3, 20)] {
            age(&make_run(&store, id(number), b"r"), seconds);
        }
        let ended = store.take_ended(Some(id(3))).unwrap();
        assert_eq!(ids(&ended.runs), [id(2), id(1)]);
        assert_eq!(ended.runs[0].raw().unwrap().reports, [b"r"]);
        // Taken is taken.
        assert!(store.take_ended(Some(id(3))).unwrap().runs.is_empty());
    }

    #[test]
    fn what_is_not_a_run_is_named_and_left() {
        let (folder, store) = store();
        let runs = store.runs.path();
        std::fs::write(runs.join("notes.txt"), b"mine").unwrap();
        std::fs::create_dir(folder.path().join("elsewhere")).unwrap();
        symlink(folder.path().join("elsewhere"), runs.join(id(9).to_string())).unwrap();
        let ended = store.take_ended(None).unwrap();
        assert!(ended.runs.is_empty());
        let said: Vec<&str> = ended.foreign.iter().map(|(_, why)| why.as_str()).collect();
        assert!(said[0].contains("symbolic link") && said[1].contains("not a run"), "{said:?}");
        assert_eq!(std::fs::read(runs.join("notes.txt")).unwrap(), b"mine");
    }

    #[test]
    fn a_run_half_removed_is_cleared_and_not_taken_for_a_run() {
        let (_folder, store) = store();
        let half = store.runs.create_subdirectory(format!("{REMOVED}{}", id(4)).as_ref()).unwrap();
        half.write_atomically(claim::LOCK.as_ref(), b"").unwrap();
        let ended = store.take_ended(None).unwrap();
        assert!(ended.runs.is_empty() && ended.foreign.is_empty());
        assert!(store.runs.names().unwrap().is_empty());
    }

    #[test]
    fn a_broken_run_is_kept_as_it_was_with_the_reason() {
        let (_folder, store) = store();
        make_run(&store, id(5), b"something else");
        let run = store.take_ended(None).unwrap().runs.pop().unwrap();
        let path = store.set_aside(&run, "not a report").unwrap();
        assert_eq!(RawRun::read(&path).unwrap().reports, [b"something else"]);
        let list = store.list().unwrap();
        assert_eq!((list[0].id, list[0].broken.as_deref()), (id(5), Some("not a report")));
        assert!(store.take_ended(None).unwrap().runs.is_empty());
    }

    #[test]
    fn limits_remove_the_oldest_and_count_broken_runs_too() {
        let (_folder, store) = store();
        make_run(&store, id(1), b"broken");
        let run = store.take_ended(None).unwrap().runs.pop().unwrap();
        store.set_aside(&run, "test").unwrap();
        for (number, seconds) in [(2, 30), (3, 20), (4, 10)] {
            age(&make_run(&store, id(number), b"r"), seconds);
        }
        let limits = Limits { number: 2, ..Limits::default() };
        let ended = store.take_ended(None).unwrap().runs;
        let (left, gone) = store.enforce(&limits, ended, SystemTime::now()).unwrap();
        // The broken one was set aside just now and is the newest.
        assert_eq!((ids(&left), gone), (vec![id(4)], 2));
        assert_eq!(store.list().unwrap().len(), 2);
    }

    #[test]
    fn a_store_that_is_a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("real")).unwrap();
        symlink(folder.path().join("real"), folder.path().join("store")).unwrap();
        let error = Store::open(&folder.path().join("store")).unwrap_err().to_string();
        assert!(error.contains("make the store"), "{error}");
        assert!(std::fs::read_dir(folder.path().join("real")).unwrap().next().is_none());
    }
}

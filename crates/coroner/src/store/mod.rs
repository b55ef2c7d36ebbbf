//! Where runs leave what they know: a directory per run, and what has become of those that could not be read.
//!
//! ```text
//! <store>/
//!   runs/<run id>/lock           held by the run's process while it lives
//!   runs/<run id>/report         the crash report, reserved at install; only zeros if the run did not crash
//!   runs/<run id>/report-2 …     later crashes of a process that went on after the first
//!   runs/<run id>/state          the run state: scope, breadcrumbs, facts of app and device
//!   runs/<run id>/progress.json  how far processing has come
//!   clean/                       the directory of a run that ended by itself and left nothing, for the next run to use
//!   broken/<run id>/             a run that could not be processed, as it was, with `why.txt`
//!   last_run.json                how the last run that was looked at ended
//!   evicted                      how many reports the limits removed, until a report says so
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
mod liveness;
pub(crate) mod progress;
mod raw_run;

pub(crate) use claim::{Claim, EndedRun, REPORT, STATE};
use coroner_report::model::{Id, Processing, Report, RunFacts, Timestamp};
use coroner_report::run_state::{ExitKind, FIXED_BYTES, ProcessIdentity};
use directory::{Directory, kind_name};
use rustix::fs::FileType;

use crate::bundle::is_written;
use crate::last_run::LastRun;
pub use limits::Limits;
pub(crate) use limits::{Kept, Worth};
#[doc(hidden)]
pub use progress::reread_progress;
pub use raw_run::RawRun;

pub(crate) const RUNS: &str = "runs";
/// What becomes of the directory of a run that ended by itself.
pub(crate) const CLEAN: &str = "clean";
const BROKEN: &str = "broken";
/// Where the default folder sink writes.
pub(crate) const REPORTS: &str = "reports";
/// How many reports were removed since a report said so.
const EVICTED: &str = "evicted";
/// Says in words why a run stands in `broken`.
const WHY: &str = "why.txt";
/// A run on its way out: renamed first, so that one that is half removed is never taken for a run.
const REMOVED: &str = ".removed-";

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

/// A store of crash reports. No descriptor is kept: an app may close what it does not know, and put files of its own there.
#[derive(Debug, Clone)]
pub struct Store {
    path: PathBuf,
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

/// What [`Store::unprocessed`] found.
#[derive(Debug, Default)]
pub(crate) struct Unprocessed {
    /// Runs that may have ended, oldest first.
    pub(crate) runs: Vec<ListedRun>,
    /// What stands in `runs` and is not a run, with the reason. It is left where it is.
    pub(crate) foreign: Vec<(PathBuf, String)>,
}

/// A run in the store. No descriptor is held for it: there may be more of them than a process may have.
#[derive(Debug, Clone)]
pub(crate) struct ListedRun {
    pub(crate) id: Id,
    /// When its directory's lock was made, which is when the run began.
    began: SystemTime,
    /// Nobody has released what was reserved for its report and not used.
    pub(crate) has_reserved: bool,
    /// What it was processing when its state was last written.
    pub(crate) processing: Option<Processing>,
}

impl Store {
    /// Opens the store at `path`, which is made where it does not exist, for its owner only (mode 0700). Where its group or
    /// others may write in one that exists, that is taken from them.
    ///
    /// # Errors
    /// It can't be made or opened; it, or a directory in it, is a symbolic link or belongs to another user, who could read
    /// reports or replace them.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let store = Self::open_with_runs(path)?.0;
        store.make_private()?;
        Ok(store)
    }

    /// As [`open`](Self::open), with the directory of the runs, and without a look at the others: a launch with nothing to deliver
    /// has no use for them.
    pub(crate) fn open_with_runs(path: &Path) -> Result<(Self, Directory), StoreError> {
        let root = Directory::create(path).map_err(StoreError::at("make the store", path))?;
        let user = rustix::process::geteuid().as_raw();
        root.make_private_of(user).map_err(StoreError::at("use the store", path))?;
        let runs = root.subdirectory(RUNS.as_ref()).or_else(|_| root.create_subdirectory(RUNS.as_ref()));
        let runs = runs.map_err(StoreError::at("make", &path.join(RUNS)))?;
        runs.make_private_of(user).map_err(StoreError::at("use", runs.path()))?;
        Ok((Self { path: path.to_owned() }, runs))
    }

    /// Makes sure that only this user can write in the directories of what is delivered or set aside.
    fn make_private(&self) -> Result<(), StoreError> {
        for name in [BROKEN, REPORTS] {
            match self.root().and_then(|root| root.subdirectory(name.as_ref())?.make_private()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::at("use", &self.path.join(name))(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Opens the store at `path` without making anything.
    ///
    /// # Errors
    /// There is no store: no directory, or none with a directory `runs` in it.
    pub fn open_existing(path: &Path) -> Result<Self, StoreError> {
        let root = Directory::open(path).map_err(StoreError::at("open the store", path))?;
        root.subdirectory(RUNS.as_ref()).map_err(StoreError::at("open", &path.join(RUNS)))?;
        Ok(Self { path: path.to_owned() })
    }

    /// The store's directory.
    pub fn path(&self) -> &Path {
        &self.path
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
        let runs = self.runs().map_err(StoreError::at("open", &self.path.join(RUNS)))?;
        collect(&runs, false).map_err(StoreError::at("list", runs.path()))?;
        match self.root().and_then(|directory| directory.subdirectory(BROKEN.as_ref())) {
            Ok(broken) => collect(&broken, true).map_err(StoreError::at("list", broken.path()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::at("open", &self.path.join(BROKEN))(error)),
        }
        list.sort_by_key(|run| run.began);
        Ok(list)
    }

    /// Who took which crash signal from Coroner in the run that began last, in words, if it was seen: what
    /// [`LastRun::signals_taken`] says at the next launch. Nothing is taken or changed.
    pub fn signals_taken(&self) -> Option<String> {
        let runs = self.list().unwrap_or_default();
        match runs.iter().rfind(|run| run.broken.is_none()) {
            Some(run) => {
                let mut facts = RunFacts::read(&RawRun::read(&run.path).ok()?.state).ok()?;
                facts.tags.remove(crate::signal_owners::TAG)
            }
            None => LastRun::read(&self.root().ok()?).signals_taken,
        }
    }

    /// Whether a run other than `own` crashed so soon after its beginning, and no launch has looked at it yet. A few system calls
    /// for each run, since install waits for the answer.
    pub(crate) fn crashed_within(&self, time: Duration, own: Id) -> bool {
        let own = name_of(own);
        let runs = self.runs().and_then(|directory| directory.names()).unwrap_or_default();
        runs.iter().filter(|name| **name != own && run_of(name).is_some()).any(|name| {
            let Ok(run) = self.runs().and_then(|directory| directory.subdirectory(name)) else { return false };
            if run.status_of(progress::FILE.as_ref()).is_ok() {
                return false;
            }
            // What is not read counts as zeros.
            let start = run.read_start(STATE.as_ref(), FIXED_BYTES).unwrap_or_default();
            let lifecycle = RunFacts::read(&start).ok().map(|facts| facts.lifecycle);
            let crashed = lifecycle.filter(|lifecycle| lifecycle.exit == ExitKind::CRASHED);
            let crashed = crashed.and_then(|lifecycle| lifecycle.crash_time);
            let began = run.status_of(claim::LOCK.as_ref()).map(|lock| Timestamp::from(lock.modified));
            match (began, crashed) {
                (Ok(began), Some(crashed)) => crashed.0.saturating_sub(began.0) < time.as_nanos() as u64,
                _ => false,
            }
        })
    }

    /// The runs in the store but `own`, the calling process's living one, and clears away what earlier removals left half-done.
    pub(crate) fn unprocessed(&self, own: Option<Id>) -> io::Result<Unprocessed> {
        let mut found = Unprocessed::default();
        self.make_private().map_err(io::Error::other)?;
        for name in self.runs().and_then(|directory| directory.names())? {
            if name.to_string_lossy().starts_with(REMOVED) {
                let _ = self.runs().and_then(|directory| directory.remove_tree(&name));
                continue;
            }
            // It may be removed by its owner while we look.
            let Ok(status) = self.runs().and_then(|directory| directory.status_of(&name)) else { continue };
            match run_of(&name).filter(|_| status.kind == FileType::Directory) {
                Some(id) if own == Some(id) => {}
                Some(id) => found.runs.extend(self.listed(id, &name)),
                None => {
                    let what = format!("is {} that is not a run", kind_name(status.kind));
                    found.foreign.push((self.path.join(RUNS).join(&name), what));
                }
            }
        }
        found.runs.sort_by_key(|run| run.began);
        Ok(found)
    }

    fn listed(&self, id: Id, name: &OsStr) -> Option<ListedRun> {
        let run = match self.runs().and_then(|directory| directory.subdirectory(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            run => run.ok(),
        };
        let began = run.as_ref().and_then(|run| run.status_of(claim::LOCK.as_ref()).or_else(|_| run.status()).ok());
        let report = run.as_ref().and_then(|run| run.status_of(REPORT.as_ref()).ok());
        let has_reserved = report.is_some_and(|report| !report.has_holes());
        let start = run.and_then(|run| run.read_start(STATE.as_ref(), FIXED_BYTES).ok()).unwrap_or_default();
        let processing = RunFacts::read(&start).ok().and_then(|facts| facts.lifecycle.processing);
        Some(ListedRun {
            id,
            began: began.map_or(SystemTime::UNIX_EPOCH, |status| status.modified),
            has_reserved,
            processing,
        })
    }

    /// Takes a run if it has ended. `process` is the calling process.
    ///
    /// # Errors
    /// `InvalidData`: what stands there is not a run. Anything else: it can't be taken now, for want of descriptors or memory.
    pub(crate) fn claim(&self, id: Id, process: &ProcessIdentity) -> io::Result<Claim> {
        claim::claim(&self.runs()?, id, process)
    }

    /// Removes a run that is done with.
    pub(crate) fn remove(&self, run: EndedRun) -> io::Result<()> {
        let mut removed = OsString::from(REMOVED);
        removed.push(run.id.to_string());
        self.runs().and_then(|runs| runs.rename(&name_of(run.id), &runs, &removed))?;
        let done = self.runs().and_then(|directory| directory.remove_tree(&removed));
        drop(run);
        done
    }

    /// Moves a run that can't be processed to `broken`, all its files as they are, and notes why. Returns where it is.
    pub(crate) fn set_aside(&self, run: &EndedRun, why: &str) -> io::Result<PathBuf> {
        let broken = self.root().and_then(|directory| directory.create_subdirectory(BROKEN.as_ref()))?;
        let name = name_of(run.id);
        // The note is worth less than the run: on a full disk it is left out.
        let noted = run.directory.write_atomically(WHY.as_ref(), format!("{why}\n").as_bytes());
        self.runs().and_then(|directory| directory.rename(&name, &broken, &name))?;
        if let Err(error) = noted {
            log::warn!("coroner: no note of why run {} is broken ({why}): {error}", run.id);
        }
        self.runs().and_then(|directory| directory.sync())?;
        broken.sync()?;
        Ok(broken.path().join(name))
    }

    /// Removes ended runs (never `own`, nor others that live) and broken ones until what is left is within `limits`. Returns how
    /// many reports went, and how many runs without one.
    pub(crate) fn enforce(&self, limits: &Limits, own: Id, now: SystemTime) -> io::Result<Evicted> {
        enum Item {
            Ended(Id),
            Broken(OsString),
        }
        let listed = self.unprocessed(Some(own))?.runs;
        let broken = match self.root().and_then(|directory| directory.subdirectory(BROKEN.as_ref())) {
            Ok(broken) => Some(broken),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut items = Vec::new();
        for run in listed {
            let bytes = self.runs().and_then(|directory| directory.tree_bytes(&name_of(run.id))).unwrap_or(0);
            items.push(Kept { since: run.began, worth: Worth::Run, bytes, item: Item::Ended(run.id) });
        }
        for name in broken.iter().flat_map(|broken| broken.names().unwrap_or_default()) {
            let Some(status) = broken.as_ref().and_then(|broken| broken.status_of(&name).ok()) else { continue };
            let bytes = broken.as_ref().and_then(|broken| broken.tree_bytes(&name).ok()).unwrap_or(0);
            items.push(Kept { since: status.modified, worth: Worth::Partial, bytes, item: Item::Broken(name) });
        }
        // Which runs have ended and what they are worth takes reading them: only if there is too much, whatever they are.
        let smallest =
            Limits { number: limits.number.min(limits.runs), runs: limits.number.min(limits.runs), ..*limits };
        let as_reports =
            items.iter().map(|kept| Kept { worth: Worth::Report, since: kept.since, bytes: kept.bytes, item: () });
        if smallest.divide(as_reports.collect(), now).1.is_empty() {
            return Ok(Evicted::default());
        }
        let process = ProcessIdentity::of_this_process();
        items.retain_mut(|kept| match &kept.item {
            Item::Ended(id) => match self.claim(*id, &process) {
                Ok(Claim::Taken(run)) => {
                    kept.worth = worth(&run);
                    true
                }
                _ => false,
            },
            Item::Broken(_) => true,
        });
        let mut evicted = Evicted::default();
        for kept in limits.divide(items, now).1 {
            match (kept.item, &broken) {
                (Item::Ended(id), _) => match self.claim(id, &process)? {
                    Claim::Taken(run) => self.remove(*run)?,
                    Claim::Busy | Claim::Gone => continue,
                },
                (Item::Broken(name), Some(broken)) => broken.remove_tree(&name)?,
                (Item::Broken(_), None) => {}
            }
            *(if kept.worth == Worth::Run { &mut evicted.runs } else { &mut evicted.reports }) += 1;
        }
        Ok(evicted)
    }

    /// How many reports went since a report said so.
    pub(crate) fn evicted(&self) -> u64 {
        let text = self.root().and_then(|directory| directory.read(EVICTED.as_ref(), 32)).unwrap_or_default();
        String::from_utf8_lossy(&text).trim().parse().unwrap_or(0)
    }

    /// Records how many reports went since a report said so. Where that can't be written, the number is lost.
    pub(crate) fn set_evicted(&self, count: u64) {
        let _ = match count {
            0 => self.root().and_then(|directory| directory.remove_file(EVICTED.as_ref())),
            count => self
                .root()
                .and_then(|directory| directory.write_atomically(EVICTED.as_ref(), count.to_string().as_bytes())),
        };
    }

    /// The store's directory.
    pub(crate) fn root(&self) -> io::Result<Directory> {
        Directory::open(&self.path)
    }

    fn runs(&self) -> io::Result<Directory> {
        self.root()?.subdirectory(RUNS.as_ref())
    }
}

/// What went to keep the store within its limits.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evicted {
    /// Runs with a report, and broken ones.
    pub(crate) reports: usize,
    /// Runs without.
    pub(crate) runs: usize,
}

/// Whether there is a run other than `own` at all: a cheap first look, so that an app without anything pending starts no thread. Most
/// file systems say how many directories there are. `None`: the own run is in memory.
pub(crate) fn has_other_runs(runs: &Directory, own: Option<Id>) -> bool {
    let own = own.map(name_of);
    if runs.status().is_ok_and(|status| status.links == 2 + u64::from(own.is_some())) {
        return false;
    }
    runs.names().is_ok_and(|names| names.iter().any(|name| Some(name) != own.as_ref()))
}

/// What would be lost with a run.
fn worth(run: &EndedRun) -> Worth {
    let Ok(raw) = run.raw() else { return Worth::Partial };
    let written: Vec<_> = raw.reports.iter().filter(|report| is_written(report)).collect();
    let is_whole = |report: &&Vec<u8>| Report::read(report).is_ok_and(|report| report.complete);
    match written.iter().copied().any(|report| is_whole(&report)) {
        true => Worth::Report,
        false if written.is_empty() => Worth::Run,
        false => Worth::Partial,
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
        let run = store.runs().unwrap().create_subdirectory(&name_of(id)).unwrap();
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

    /// All runs that have ended, oldest first, and what is no run.
    fn take_ended(store: &Store, own: Option<Id>) -> (Vec<EndedRun>, Vec<(PathBuf, String)>) {
        let found = store.unprocessed(own).unwrap();
        let process = ProcessIdentity::of_this_process();
        let runs = found.runs.iter().filter_map(|run| match store.claim(run.id, &process).unwrap() {
            Claim::Taken(run) => Some(*run),
            Claim::Busy | Claim::Gone => None,
        });
        (runs.collect(), found.foreign)
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
        let ended = take_ended(&store, Some(id(3))).0;
        assert_eq!(ids(&ended), [id(2), id(1)]);
        assert_eq!(ended[0].raw().unwrap().reports, [b"r"]);
        // Taken is taken.
        assert!(take_ended(&store, Some(id(3))).0.is_empty());
    }

    #[test]
    fn what_is_not_a_run_is_named_and_left() {
        let (folder, store) = store();
        let runs = &store.path().join(RUNS);
        std::fs::write(runs.join("notes.txt"), b"mine").unwrap();
        std::fs::create_dir(folder.path().join("elsewhere")).unwrap();
        symlink(folder.path().join("elsewhere"), runs.join(id(9).to_string())).unwrap();
        let (ended, foreign) = take_ended(&store, None);
        assert!(ended.is_empty());
        let said: Vec<&str> = foreign.iter().map(|(_, why)| why.as_str()).collect();
        assert!(said[0].contains("symbolic link") && said[1].contains("not a run"), "{said:?}");
        assert_eq!(std::fs::read(runs.join("notes.txt")).unwrap(), b"mine");
    }

    #[test]
    fn a_run_half_removed_is_cleared_and_not_taken_for_a_run() {
        let (_folder, store) = store();
        let half = store.runs().unwrap().create_subdirectory(format!("{REMOVED}{}", id(4)).as_ref()).unwrap();
        half.write_atomically(claim::LOCK.as_ref(), b"").unwrap();
        let (ended, foreign) = take_ended(&store, None);
        assert!(ended.is_empty() && foreign.is_empty());
        assert!(store.runs().unwrap().names().unwrap().is_empty());
    }

    #[test]
    fn a_broken_run_is_kept_as_it_was_with_the_reason() {
        let (_folder, store) = store();
        make_run(&store, id(5), b"something else");
        let run = take_ended(&store, None).0.pop().unwrap();
        let path = store.set_aside(&run, "not a report").unwrap();
        assert_eq!(RawRun::read(&path).unwrap().reports, [b"something else"]);
        let list = store.list().unwrap();
        assert_eq!((list[0].id, list[0].broken.as_deref()), (id(5), Some("not a report")));
        assert!(take_ended(&store, None).0.is_empty());
    }

    #[test]
    fn limits_remove_runs_without_report_first_and_count_broken_runs_and_never_living_ones() {
        let (_folder, store) = store();
        make_run(&store, id(1), b"broken");
        let run = take_ended(&store, None).0.pop().unwrap();
        store.set_aside(&run, "test").unwrap();
        drop(run);
        for (number, seconds, report) in [(2, 30, &b"r"[..]), (3, 20, b""), (4, 10, b"r"), (5, 50, b"r")] {
            age(&make_run(&store, id(number), report), seconds);
        }
        let enforce = |limits: Limits| store.enforce(&limits, id(5), SystemTime::now()).unwrap();
        let left = || {
            let mut left: Vec<Id> = store.list().unwrap().into_iter().map(|run| run.id).collect();
            left.sort();
            left
        };
        // Three reports, one of them broken; the run without one does not count, and nor does the own run.
        assert_eq!(enforce(Limits { number: 3, runs: 1, ..Limits::default() }), Evicted::default());
        assert_eq!(enforce(Limits { number: 2, ..Limits::default() }), Evicted { reports: 1, runs: 0 });
        assert_eq!(left(), [id(1), id(3), id(4), id(5)]);
        assert_eq!(enforce(Limits { runs: 0, ..Limits::default() }), Evicted { reports: 0, runs: 1 });
        assert_eq!(left(), [id(1), id(4), id(5)]);
    }

    #[test]
    fn a_store_in_which_others_can_write_is_taken_from_them() {
        use std::os::unix::fs::PermissionsExt;
        let (_folder, store) = store();
        let paths = [store.path().to_owned(), store.path().join(RUNS), store.path().join(REPORTS)];
        std::fs::create_dir(&paths[2]).unwrap();
        for path in &paths {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        Store::open(store.path()).unwrap();
        for path in &paths {
            assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o755, "{path:?}");
        }
    }

    #[test]
    fn what_belongs_to_another_user_is_refused_by_root_too() {
        if !rustix::process::geteuid().is_root() {
            return; // Only root can give a directory away.
        }
        let (_folder, store) = store();
        let other = |path: &Path| std::os::unix::fs::chown(path, Some(4711), None).unwrap();
        make_run(&store, id(1), b"r");
        other(&store.path().join(RUNS).join(id(1).to_string()));
        let why = claim::claim(&store.runs().unwrap(), id(1), &ProcessIdentity::default()).unwrap_err().to_string();
        assert!(why.contains("belongs to user 4711"), "{why}");
        for path in [store.path().join(RUNS), store.path().to_owned()] {
            other(&path);
            let why = Store::open(store.path()).unwrap_err().to_string();
            assert!(why.contains("belongs to user 4711"), "{why}");
            std::os::unix::fs::chown(path, Some(0), None).unwrap();
        }
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

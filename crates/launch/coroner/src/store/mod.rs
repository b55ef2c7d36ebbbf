//! The store on disk: one directory per run, and the runs that could not be processed.
//!
//! ```text
//! <store>/
//!   runs/<run id>/             one run:
//!     lock                     locked by the run's process while it is running
//!     held-…                   instead of `lock` where files can't be locked: a named pipe
//!     report                   the crash report, reserved at install; zeros without a crash
//!     report-2 …               further reports of the same process
//!     children                 reports of its children that could not create a run, until they get one
//!     state                    the run state: scope, breadcrumbs, facts about app and device
//!     minidump.dmp             on Windows, the system's minidump; empty without a crash
//!     system                   the system's record of the run's end, added by a later launch
//!     termination.json         the cause of an unexplained end, found by the first launch after it
//!     progress.json            the progress of processing the run
//!     live.json                the sinks' answers while the run's process was running
//!   clean/                     the empty directory of a cleanly ended run, for the next run
//!   broken/<run id>/           a run that could not be processed, unchanged, with `why.txt`
//!   last_run-<number>.json     the last run's outcome, one file for each app with this store
//!   system_reports.json        the system's records that were already processed
//!   reported_processes.json    the most recent processes whose death was reported
//!   evicted                    the number of removed reports, until a report contains it
//!   reports/                   the default folder sink's folder
//! ```
//!
//! A run belongs to its process while that process is running ([`claim`]), and then to the first
//! process that takes its lock. So two processes of one app may use a store at once, and if a
//! process crashes while it processes a report, the next one continues.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

#[cfg(all(supported, not(target_vendor = "apple")))]
mod children;
mod claim;
pub(crate) mod directory;
mod error;
pub(crate) mod layout;
mod liveness;
pub(crate) mod progress;
pub(crate) mod raw_run;
mod retention;

pub(crate) use claim::{Claim, EndedRun};
use coroner_report::model::{Id, Processing, Report, RunFacts, Timestamp};
use coroner_report::run_state::{ExitKind, FIXED_BYTES, ProcessIdentity};
use coroner_report::wire::FILE_PREFIX;
use directory::{Directory, FileType, Status, kind_name, user};
pub(crate) use layout::{CLEAN, LOCK, MINIDUMP, REPORT, REPORTS, RUNS, STATE, name_of, run_of};
use progress::Progress;

use crate::bundle::is_written;
use crate::last_run::LastRun;
pub use error::StoreError;
#[doc(hidden)]
pub use progress::reread_progress;
pub use raw_run::RawRun;
pub use retention::Retention;
pub(crate) use retention::{Kept, Worth};

const BROKEN: &str = "broken";
/// Name of the file with the number of removed reports that no report contains yet.
const EVICTED: &str = "evicted";
/// Name of the file with the reason that a run was set aside.
const WHY: &str = "why.txt";
/// Name prefix of a run that is being removed.
///
/// A run is renamed first, so that a partly removed run is never mistaken for a run.
const REMOVED: &str = ".removed-";

/// A store of crash reports.
///
/// It keeps no descriptor open, because an app may close descriptors that aren't its own and reuse
/// their numbers.
///
/// ```no_run
/// let store = coroner::Store::open_existing("/var/lib/paint/coroner".as_ref())?;
/// for run in store.list()? {
///     println!("{} began {:?}", run.id, run.began);
/// }
/// # Ok::<(), coroner::StoreError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Store {
    path: PathBuf,
    /// Whether the store was checked to be this user's, and only this user's files in it are used.
    is_own: bool,
}

/// A run in a store, as returned by [`Store::list`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredRun {
    /// The run's id.
    pub id: Id,
    /// When the run began.
    pub began: SystemTime,
    /// The reason that the run could not be processed, if it was set aside; `None` for other runs.
    pub broken: Option<String>,
    /// The run's directory.
    pub path: PathBuf,
}

/// The result of [`Store::unprocessed`].
#[derive(Debug, Default)]
pub(crate) struct Unprocessed {
    /// Runs that may have ended, oldest first.
    pub(crate) runs: Vec<ListedRun>,
    /// Entries of `runs` that are not runs, with a description. They are left alone.
    pub(crate) foreign: Vec<(PathBuf, String)>,
}

/// A run in the store.
///
/// It keeps no descriptor open, because there may be more runs than a process may have descriptors.
#[derive(Debug, Clone)]
pub(crate) struct ListedRun {
    pub(crate) id: Id,
    /// When the lock in the run's directory was created, which is when the run began.
    pub(crate) began: SystemTime,
    /// Whether the reserved and unused part of the run's report file is still allocated.
    pub(crate) has_reserved: bool,
    /// The run that this run's process was processing when it last wrote its state.
    pub(crate) processing: Option<Processing>,
    /// The progress of processing the run, read without claiming it.
    pub(crate) progress: Progress,
    /// Whether there is a report, according to the file names and the start of the first report.
    ///
    /// If not, there may still be a spare report.
    pub(crate) has_report: bool,
    /// Space on disk of the run's report and state, in bytes.
    pub(crate) bytes: u64,
}

impl Store {
    /// Opens the store at `path`, or creates it with access for its owner only (mode 0700).
    ///
    /// If the group or others can write to an existing store, that permission is removed. A
    /// directory in it that is a symbolic link or belongs to another user, who could read or
    /// replace reports, is renamed to `<name>.untrusted-<number>` and created again.
    ///
    /// # Errors
    /// [`StoreError`] if the store can't be created or opened, or if the store itself is a symbolic
    /// link or belongs to another user.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let store = Self::open_with_runs(path)?.0;
        store.make_private()?;
        Ok(store)
    }

    /// Like [`open`](Self::open), but checks only the directory of the runs, because a launch with
    /// nothing to deliver doesn't need the others.
    ///
    /// Also returns the number of runs, if the file system provides it in the directory's link
    /// count (most count two links, plus one for each subdirectory) and the store's own count is
    /// plausible.
    pub(crate) fn open_with_runs(path: &Path) -> Result<(Self, Option<u64>), StoreError> {
        let store = Self { path: path.to_owned(), is_own: true };
        let user = user();
        // Most launches don't create anything. An attacker who could replace the store between the
        // check and the use could also do so before.
        let as_wanted = |path: &Path| Status::at(path).ok().filter(|status| status.is_private_directory_of_user(user));
        let runs = path.join(RUNS);
        if let Some(root) = as_wanted(path)
            && let Some(runs) = as_wanted(&runs)
        {
            let count = runs.links.checked_sub(2).filter(|_| root.links >= 4);
            return Ok((store, count));
        }
        let root = Directory::create(path).map_err(StoreError::at("create the store", path))?;
        root.make_private_to(user).map_err(StoreError::at("use the store", path))?;
        root.private_subdirectory(RUNS.as_ref(), user).map_err(StoreError::at("create or use", &runs))?;
        Ok((store, None))
    }

    /// Ensures that only this user can write to the directories of delivered and set-aside reports.
    fn make_private(&self) -> Result<(), StoreError> {
        for name in [BROKEN, REPORTS] {
            let checked = self.root().and_then(|root| root.private_subdirectory_if_any(name.as_ref(), user()));
            checked.map_err(StoreError::at("use", &self.path.join(name)))?;
        }
        Ok(())
    }

    /// Opens the store at `path` without creating anything.
    ///
    /// # Errors
    /// [`StoreError`] if `path` is not a directory, or contains no directory `runs`.
    pub fn open_existing(path: &Path) -> Result<Self, StoreError> {
        let root = Directory::open(path).map_err(StoreError::at("open the store", path))?;
        root.subdirectory(RUNS.as_ref()).map_err(StoreError::at("open", &path.join(RUNS)))?;
        Ok(Self { path: path.to_owned(), is_own: false })
    }

    /// Returns the store's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all live, ended and broken runs in the store, oldest first.
    ///
    /// Nothing is claimed or changed.
    ///
    /// # Errors
    /// [`StoreError`] if a directory of the store can't be read.
    pub fn list(&self) -> Result<Vec<StoredRun>, StoreError> {
        let mut list = Vec::new();
        let mut collect = |directory: &Directory, broken: bool| -> io::Result<()> {
            for name in directory.names()? {
                let Some(id) = run_of(&name) else { continue };
                // The run's owner may remove it in the meantime.
                let Ok(run) = directory.subdirectory(&name) else { continue };
                let lock = run.status_of(LOCK.as_ref()).or_else(|_| run.status());
                let began = lock.map_or(SystemTime::UNIX_EPOCH, |status| status.modified);
                let why = broken.then(|| match run.read(WHY.as_ref(), 1 << 16) {
                    Ok(why) => String::from_utf8_lossy(&why).trim_end().to_owned(),
                    Err(_) => "unknown".to_owned(),
                });
                list.push(StoredRun { id, began, broken: why, path: run.path().to_owned() });
            }
            Ok(())
        };
        let runs = self.runs().map_err(StoreError::at("open", &self.path.join(RUNS)))?;
        collect(&runs, false).map_err(StoreError::at("list", runs.path()))?;
        match self.root().and_then(|directory| directory.subdirectory(BROKEN.as_ref())) {
            Ok(broken) => collect(&broken, true).map_err(StoreError::at("list", broken.path()))?,
            Err(error) if is_missing_directory(&error) => {}
            Err(error) => return Err(StoreError::at("open", &self.path.join(BROKEN))(error)),
        }
        list.sort_unstable_by_key(|run| (run.began, run.id));
        Ok(list)
    }

    /// Describes the code that replaced Coroner's signal handlers in the most recently started run.
    ///
    /// `None` if none was detected. [`LastRun::signals_taken`] contains this at the next launch.
    /// Nothing is claimed or changed.
    pub fn signals_taken(&self) -> Option<String> {
        let runs = self.list().unwrap_or_default();
        match runs.iter().rfind(|run| run.broken.is_none()) {
            Some(run) => {
                let mut facts = RunFacts::read(&RawRun::read(&run.path).ok()?.state).ok()?;
                facts.tags.remove(crate::last_run::SIGNALS_TAKEN)
            }
            None => LastRun::read_latest(&self.root().ok()?).signals_taken,
        }
    }

    /// Returns the number of crashes of child processes that left no report, because too many
    /// children crashed at once. Counts the runs in the store.
    pub fn children_left_out(&self) -> u64 {
        #[cfg(all(supported, not(target_vendor = "apple")))]
        return self.runs().map_or(0, |runs| {
            let names = runs.names().unwrap_or_default();
            let runs = names.iter().filter(|name| run_of(name).is_some()).flat_map(|name| runs.subdirectory(name));
            runs.map(|run| children::left_out(&run)).sum()
        });
        #[cfg(not(all(supported, not(target_vendor = "apple"))))]
        0
    }

    /// Whether there is any run other than `own`. If not, an app starts no delivery thread.
    pub(crate) fn has_other_runs(&self, own: Id) -> bool {
        let own = name_of(own);
        self.runs().and_then(|runs| runs.names()).is_ok_and(|names| names.iter().any(|name| *name != own))
    }

    /// Whether an unprocessed run other than `own` crashed within `time` of its start.
    ///
    /// Takes only a few system calls per run, because install waits for it.
    pub(crate) fn crashed_within(&self, time: Duration, own: Id) -> bool {
        let own = name_of(own);
        let runs = self.runs().and_then(|directory| directory.names()).unwrap_or_default();
        runs.iter().filter(|name| **name != own && run_of(name).is_some()).any(|name| {
            let Ok(run) = self.runs().and_then(|directory| directory.subdirectory(name)) else { return false };
            if run.status_of(progress::FILE.as_ref()).is_ok() {
                return false;
            }
            // Bytes that are missing count as zeros.
            let start = run.read_start(STATE.as_ref(), FIXED_BYTES).unwrap_or_default();
            let lifecycle = RunFacts::read(&start).ok().map(|facts| facts.lifecycle);
            let crashed = lifecycle.filter(|lifecycle| lifecycle.exit == ExitKind::CRASHED);
            let crashed = crashed.and_then(|lifecycle| lifecycle.crash_time);
            let began = run.status_of(LOCK.as_ref()).map(|lock| Timestamp::from(lock.modified));
            match (began, crashed) {
                (Ok(began), Some(crashed)) => crashed.0.saturating_sub(began.0) < time.as_nanos() as u64,
                _ => false,
            }
        })
    }

    /// Lists the runs in the store except the calling process's own live run, and completes
    /// unfinished removals.
    pub(crate) fn unprocessed(&self, own: Option<Id>) -> io::Result<Unprocessed> {
        let mut found = Unprocessed::default();
        self.make_private().map_err(io::Error::other)?;
        let runs = self.runs()?;
        for name in runs.names()? {
            if name.to_string_lossy().starts_with(REMOVED) {
                let _ = runs.remove_tree(&name);
                continue;
            }
            // The run's owner may remove it in the meantime.
            let Ok(status) = runs.status_of(&name) else { continue };
            let id = run_of(&name).filter(|_| status.kind == FileType::Directory);
            #[cfg(all(supported, not(target_vendor = "apple")))]
            if id.is_some() {
                // Also from this process's own run.
                let taken = runs.subdirectory(&name).and_then(|run| children::take_out(&runs, &run));
                let taken = taken.inspect_err(|error| {
                    log::warn!("coroner: can't take the reports of children out of run {}: {error}", name.display());
                });
                for id in taken.unwrap_or_default() {
                    found.runs.extend(Self::listed(&runs, id, &name_of(id)));
                }
            }
            match id {
                Some(id) if own == Some(id) => {}
                Some(id) => found.runs.extend(Self::listed(&runs, id, &name)),
                None => {
                    let what = format!("is {}, not a run", kind_name(status.kind));
                    found.foreign.push((self.path.join(RUNS).join(&name), what));
                }
            }
        }
        // A run that was taken out of another one may also be among the names.
        found.runs.sort_unstable_by_key(|run| run.id);
        found.runs.dedup_by_key(|run| run.id);
        // File systems' clocks tick every few milliseconds. Runs that began in the same tick at
        // least always have the same order.
        found.runs.sort_unstable_by_key(|run| (run.began, run.id));
        Ok(found)
    }

    /// Describes a run with a few system calls, regardless of its files' sizes.
    fn listed(runs: &Directory, id: Id, name: &OsStr) -> Option<ListedRun> {
        let run = match runs.subdirectory(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            run => run.ok(),
        };
        let began = run.as_ref().and_then(|run| run.status_of(LOCK.as_ref()).or_else(|_| run.status()).ok());
        let report = run.as_ref().and_then(|run| run.status_of(REPORT.as_ref()).ok());
        let has_reserved = report.as_ref().is_some_and(|report| !report.has_holes());
        let state = run.as_ref().and_then(|run| run.status_of(STATE.as_ref()).ok());
        let start = |name: &str, length| run.as_ref().and_then(|run| run.read_start(name.as_ref(), length).ok());
        let lifecycle =
            RunFacts::read(&start(STATE, FIXED_BYTES).unwrap_or_default()).ok().map(|facts| facts.lifecycle);
        let has_report = lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.exit == ExitKind::CRASHED)
            || start(REPORT, FILE_PREFIX.len() as u64).is_some_and(|start| is_written(&start))
            || run.as_ref().and_then(|run| raw_run::numbered(run).ok()).is_some_and(|reports| reports.len() > 1);
        Some(ListedRun {
            id,
            began: began.map_or(SystemTime::UNIX_EPOCH, |status| status.modified),
            has_reserved,
            processing: lifecycle.and_then(|lifecycle| lifecycle.processing),
            progress: run.as_ref().map(Progress::peek).unwrap_or_default(),
            has_report,
            bytes: [report, state].into_iter().flatten().map(|status| status.disk_bytes).sum(),
        })
    }

    /// Claims a run if it has ended. `process` is the calling process.
    ///
    /// # Errors
    /// `InvalidData` if the entry is not a run. Another error if it can't be claimed now, for
    /// example because there are no free descriptors or no memory.
    pub(crate) fn claim(&self, id: Id, process: &ProcessIdentity) -> io::Result<Claim> {
        claim::claim(&self.runs()?, id, process)
    }

    /// Returns the directory of this process's own run, and the reports in it with their numbers.
    pub(crate) fn reports_of(&self, own: Id) -> io::Result<(Directory, Vec<(u32, OsString)>)> {
        let directory = self.runs()?.subdirectory(&name_of(own))?;
        let reports = raw_run::numbered(&directory)?;
        Ok((directory, reports))
    }

    /// Removes a run that has been processed.
    pub(crate) fn remove(&self, run: EndedRun) -> io::Result<()> {
        let name = name_of(run.id);
        // The files that mark the run as processed are removed last.
        let last = [STATE, REPORT, progress::FILE, LOCK];
        self.runs()?.remove_held(&name, &last, || drop(run))
    }

    /// Moves a run that can't be processed to `broken`, unchanged, and stores the reason. Returns
    /// its new path.
    pub(crate) fn set_aside(&self, run: &EndedRun, why: &str) -> io::Result<PathBuf> {
        let root = self.root()?;
        let broken = root.private_subdirectory(BROKEN.as_ref(), user())?;
        let name = name_of(run.id);
        // The run matters more than the reason, which is left out on a full disk.
        let noted = run.directory.write_atomically(WHY.as_ref(), format!("{why}\n").as_bytes());
        self.runs()?.move_held(&name, &broken, LOCK.as_ref())?;
        if let Err(error) = noted {
            log::warn!("coroner: can't store the reason that run {} was set aside ({why}): {error}", run.id);
        }
        self.runs().and_then(|directory| directory.sync())?;
        broken.sync()?;
        Ok(broken.path().join(name))
    }

    /// Removes ended and broken runs, but not `own` and other live ones, until `retention` is met.
    ///
    /// Returns how many reports and how many runs without a report were removed.
    pub(crate) fn enforce(&self, retention: &Retention, own: Id, now: SystemTime) -> io::Result<Evicted> {
        enum Item {
            Ended(Id),
            Broken(OsString),
        }
        let listed = self.unprocessed(Some(own))?.runs;
        let broken = match self.root().and_then(|directory| directory.subdirectory(BROKEN.as_ref())) {
            Ok(broken) => Some(broken),
            Err(error) if is_missing_directory(&error) => None,
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
        // Determining which runs have ended, and their value, requires reading them. Skip it unless
        // the limits are exceeded in any case.
        let smallest = Retention {
            number: retention.number.min(retention.runs),
            runs: retention.number.min(retention.runs),
            ..*retention
        };
        let as_reports =
            items.iter().map(|kept| Kept { worth: Worth::Report, since: kept.since, bytes: kept.bytes, item: 0 });
        if smallest.indexes_beyond(as_reports.collect(), now).is_empty() {
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
        for kept in retention.beyond(items, now) {
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

    /// Returns the number of removed reports that no report contains yet.
    pub(crate) fn evicted(&self) -> u64 {
        let text = self.root().and_then(|directory| directory.read(EVICTED.as_ref(), 32)).unwrap_or_default();
        String::from_utf8_lossy(&text).trim().parse().unwrap_or(0)
    }

    /// Stores the number of removed reports that no report contains yet.
    ///
    /// If it can't be written, the number is lost.
    pub(crate) fn set_evicted(&self, count: u64) {
        let _ = match count {
            0 => self.root().and_then(|directory| directory.remove_file(EVICTED.as_ref())),
            count => self
                .root()
                .and_then(|directory| directory.write_atomically(EVICTED.as_ref(), count.to_string().as_bytes())),
        };
    }

    /// Creates the directory of a run that ended at `time`.
    pub(crate) fn create_ended(&self, id: Id, time: SystemTime) -> io::Result<Directory> {
        let runs = self.runs()?;
        let run = runs.subdirectory(&name_of(id)).or_else(|_| runs.create_subdirectory(&name_of(id)))?;
        run.write_atomically(LOCK.as_ref(), b"")?;
        run.file(LOCK.as_ref(), true)?.set_modified(time)?;
        Ok(run)
    }

    /// Opens the store's directory.
    pub(crate) fn root(&self) -> io::Result<Directory> {
        if self.is_own { Directory::open_own(&self.path) } else { Directory::open(&self.path) }
    }

    fn runs(&self) -> io::Result<Directory> {
        self.root()?.subdirectory(RUNS.as_ref())
    }
}

/// The numbers of runs that were removed to meet the store's limits.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evicted {
    /// Runs with a report, and broken runs.
    pub(crate) reports: usize,
    /// Runs without a report.
    pub(crate) runs: usize,
}

/// Returns the value of what would be lost with a run.
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

/// Whether the error means that there is no such directory.
///
/// Entries of other kinds are not examined, and links are not followed.
fn is_missing_directory(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests;

//! Claims an ended run, so that no other process or thread processes it at the same time.
//!
//! Each run's directory has a file `lock`, on which the run holds a POSIX record lock (`fcntl`,
//! `F_SETLK`) while its process is running. The kernel releases it however the process ends. A
//! child created by `fork` doesn't inherit it, unlike `flock` and open-file-description locks, with
//! which a crashed app's report would wait for the end of its last child. The process that gets the
//! lock owns the run.
//!
//! Two properties of POSIX locks need care. They belong to the process, so a second thread of the
//! same process would get the lock, too: [`CLAIMED`] records the runs that this process has
//! claimed. And they are lost when the process closes *any* descriptor of the file: so the lock of
//! this process's own run is never opened, and a run whose lock is free may still be live
//! ([`liveness`](super::liveness)).
//!
//! In an iOS app-group container files must not be locked. There a named pipe replaces both the
//! run's lock and that of the process that claims the run ([`coroner_process::directory_owner`]).

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

#[cfg(supported)]
use coroner_process::directory_owner;
use coroner_report::model::Id;
use coroner_report::run_state::ProcessIdentity;

#[cfg(all(supported, not(target_vendor = "apple")))]
use super::children;
use super::directory::{Directory, FileType, Status, kind_name, try_lock, user};
use super::layout::{LOCK, STATE, name_of};
use super::liveness::Owner;
use super::progress::Progress;
use super::raw_run::{RawRun, is_report};
use crate::bundle::is_written;
use crate::locked::locked;
use crate::termination;

/// Age after which a run directory without a state file is no longer being created.
///
/// The state file is created last, when the lock is held. A lock must not be tried between its
/// creation and its acquisition, because that would make the app's install fail.
const MAX_INSTALL: Duration = Duration::from_mins(1);

/// The runs that this process has claimed, by device and inode of their directories.
static CLAIMED: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// This process's claim on a run's directory, released when dropped.
#[derive(Debug)]
struct Held((u64, u64));

impl Held {
    fn take(identity: (u64, u64)) -> Option<Self> {
        let mut held = locked(&CLAIMED);
        let is_free = !held.contains(&identity);
        is_free.then(|| {
            held.push(identity);
            Self(identity)
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        locked(&CLAIMED).retain(|other| *other != self.0);
    }
}

/// A run that has ended, claimed by this process until dropped.
#[derive(Debug)]
pub(crate) struct EndedRun {
    // Dropped in this order: the lock is released (by closing) before another thread may claim the
    // run, and the directory is closed last, so that its inode can't become another run's in the
    // meantime.
    _lock: Lock,
    _held: Held,
    pub(crate) directory: Directory,
    pub(crate) id: Id,
    pub(crate) progress: Progress,
    /// When the lock in the run's directory was created, which is when the run began.
    pub(crate) began: SystemTime,
}

/// Keeps other processes from claiming a run.
#[derive(Debug)]
#[expect(dead_code, reason = "held until it is dropped")]
enum Lock {
    /// The lock of the run's lock file.
    File(File),
    /// The lock of the run's directory, which is [`EndedRun::directory`].
    Directory,
    #[cfg(supported)]
    Pipe(directory_owner::Hold),
}

impl EndedRun {
    /// Whether the run's install finished, which creates the state file last; also `true` if the
    /// state file is lost but there is a report.
    pub(crate) fn is_complete_run(&self) -> bool {
        self.directory.status_of(OsStr::new(STATE)).is_ok()
            || self.raw().map_or(true, |raw| raw.reports.iter().any(|report| is_written(report)))
    }

    /// Returns the number of crashes of the process's children that left no report.
    pub(crate) fn children_left_out(&self) -> u64 {
        #[cfg(all(supported, not(target_vendor = "apple")))]
        return children::left_out(&self.directory);
        #[cfg(not(all(supported, not(target_vendor = "apple"))))]
        0
    }

    /// Frees the reserved but unwritten parts of reports and run state.
    pub(crate) fn release_reserved(&self) {
        let names = self.directory.names().unwrap_or_default();
        for name in names.iter().filter(|name| is_report(name) || *name == STATE) {
            // If the file system can't free them, they stay until the run is removed.
            let _ = self.directory.release_zeros(name);
        }
    }

    /// Reads the run's files. The first call determines the cause of an unexplained end.
    pub(crate) fn raw(&self) -> io::Result<RawRun> {
        let mut raw = RawRun::read_in(&self.directory, Some(self.id))?;
        if raw.termination.is_none() && raw.system.is_empty() {
            raw.termination = termination::investigate(&self.directory, &raw.state);
        }
        Ok(raw)
    }
}

/// The result of an attempt to claim a run.
#[derive(Debug)]
pub(crate) enum Claim {
    Taken(Box<EndedRun>),
    /// The run is live or being created, or another process or thread is working on it.
    Busy,
    /// Another process has finished and removed the run since it was listed.
    Gone,
}

/// Claims the run `id` in the directory `runs` if it has ended. `own` is the calling process.
///
/// The run must not be the calling process's own live run.
///
/// # Errors
/// `InvalidData` if the entry is not a run: not a directory, or another user's. Otherwise the
/// failed call's error.
pub(crate) fn claim(runs: &Directory, id: Id, own: &ProcessIdentity) -> io::Result<Claim> {
    let name = name_of(id);
    let status = match runs.status_of(&name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claim::Gone),
        status => status?,
    };
    if status.kind != FileType::Directory {
        let message = format!("is {}, not a run's directory", kind_name(status.kind));
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let user = user();
    if status.owner != user {
        let message = format!("belongs to user {}, not to user {user}", status.owner);
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let Some(held) = Held::take(status.identity) else { return Ok(Claim::Busy) };
    let directory = match runs.subdirectory(&name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claim::Gone),
        directory => directory?,
    };
    if directory.status()?.identity != status.identity {
        // Removed and created again under the same name in the meantime: try the next time.
        return Ok(Claim::Busy);
    }
    // Not the directory's time, which changes with each file that Coroner creates in it.
    let began = directory.status_of(OsStr::new(LOCK)).map_or(status.modified, |lock| lock.modified);
    let age = SystemTime::now().duration_since(began).unwrap_or(Duration::ZERO);
    if age < MAX_INSTALL && directory.status_of(OsStr::new(STATE)).is_err() {
        return Ok(Claim::Busy);
    }
    let owner = Owner::read(id, &directory);
    let lives = || owner.as_ref().is_some_and(|owner| owner.lives(&directory, own));
    // Detect this process's own run before opening its lock, because closing the lock file would
    // drop the lock.
    if owner.as_ref().is_some_and(|owner| owner.is(own)) && lives() {
        return Ok(Claim::Busy);
    }
    #[cfg(supported)]
    if let Some(path) = without_locks(&directory)? {
        let taken = directory_owner::Hold::try_take(&path);
        // The pipe was opened by path, so another process may have finished and removed the run
        // since.
        if !runs.status_of(&name).is_ok_and(|now| now.identity == status.identity) {
            return Ok(Claim::Gone);
        }
        let taken = taken.map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        let Some(taken) = taken.filter(|_| !lives()) else { return Ok(Claim::Busy) };
        let progress = Progress::read(&directory)?;
        return Ok(Claim::Taken(Box::new(EndedRun {
            id,
            directory,
            progress,
            began,
            _lock: Lock::Pipe(taken),
            _held: held,
        })));
    }
    let lock = match directory.file(OsStr::new(LOCK), true) {
        Ok(file) => file,
        // The lock is missing after an incomplete install, or is a directory or named pipe, which
        // can't be locked.
        Err(error) if error.kind() == io::ErrorKind::NotFound || directory.is_other_than_file(OsStr::new(LOCK)) => {
            if lives() {
                return Ok(Claim::Busy);
            }
            // If several processes try, only one locks the directory.
            if !directory.try_lock()? {
                return Ok(Claim::Busy);
            }
            let progress = Progress::read(&directory)?;
            let began = status.modified;
            let run = EndedRun { id, directory, progress, began, _lock: Lock::Directory, _held: held };
            return Ok(Claim::Taken(Box::new(run)));
        }
        Err(error) => return Err(error),
    };
    if !try_lock(&lock)? {
        return Ok(Claim::Busy);
    }
    if lives() {
        return Ok(Claim::Busy);
    }
    // A child of the run's process is writing its report, or has just finished it.
    #[cfg(all(supported, not(target_vendor = "apple")))]
    if children::is_used(&directory) {
        return Ok(Claim::Busy);
    }
    // The previous owner may have removed the file; then this is the lock of an unlinked file.
    let ours = Status::from_file(&lock)?;
    match directory.status_of(OsStr::new(LOCK)) {
        Ok(now) if now.identity == ours.identity => {
            let progress = Progress::read(&directory)?;
            let run = EndedRun { id, directory, progress, began: now.modified, _lock: Lock::File(lock), _held: held };
            Ok(Claim::Taken(Box::new(run)))
        }
        Ok(_) => Ok(Claim::Busy),
        Err(_) => Ok(Claim::Gone),
    }
}

/// Returns the path of a run's directory if files can't be locked there.
#[cfg(supported)]
fn without_locks(directory: &Directory) -> io::Result<Option<std::ffi::CString>> {
    use std::os::unix::ffi::OsStrExt;

    let path = directory.path().as_os_str().as_bytes();
    Ok(if directory_owner::forbids_locks(path) { Some(std::ffi::CString::new(path)?) } else { None })
}

#[cfg(test)]
mod tests;

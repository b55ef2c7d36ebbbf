//! Taking a run that has ended, so that no other process or thread processes it at the same time.
//!
//! Each run's directory has a file `lock`, on which the run holds a POSIX record lock (`fcntl`, `F_SETLK`) as long as its
//! process lives: the kernel lets it go at the process's end, however it ends, and a child made by `fork` does not
//! inherit it (`flock` and open-file-description locks it would inherit, and the report of a crashed app would then wait
//! for the end of its last child). Whoever gets that lock has the run.
//!
//! Two properties of POSIX locks need care. They belong to the process, so a second thread of the same process would get
//! the lock too: [`HELD`] keeps those that this process has claimed. And they are lost when the process closes *any*
//! descriptor of the file: so this process's own living run is never opened, and is told by its id.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use coroner_report::model::Id;
use rustix::fs::{FileType, FlockOperation};

use super::directory::{Directory, kind_name};
use super::progress::Progress;
use super::{RawRun, name_of, read_raw};

/// Name of the file that the run holds locked.
pub(crate) const LOCK: &str = "lock";
/// Name of the file with the crash report, reserved at install.
pub(crate) const REPORT: &str = "report";
/// Name of the file with the run state.
pub(crate) const STATE: &str = "state";

/// A run directory without a state file (made last, when the lock is held already) is one being made, unless it is older
/// than this. So a lock is never tried between its making and its taking, where trying would make the app's install fail.
const LONGEST_INSTALL: Duration = Duration::from_mins(1);

/// The runs that this process has claimed, by device and inode of their directories.
static HELD: Mutex<Option<HashSet<(u64, u64)>>> = Mutex::new(None);

fn with_held<R>(act: impl FnOnce(&mut HashSet<(u64, u64)>) -> R) -> R {
    // The set is valid at each point where a panic could happen, so a poisoned lock is as good as any.
    let mut held = HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    act(held.get_or_insert_with(HashSet::new))
}

/// This process's claim on a run's directory, given back when dropped.
#[derive(Debug)]
struct Held((u64, u64));

impl Held {
    fn take(identity: (u64, u64)) -> Option<Self> {
        with_held(|held| held.insert(identity)).then_some(Self(identity))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        with_held(|held| held.remove(&self.0));
    }
}

/// A run that has ended and is this process's to work on until dropped.
#[derive(Debug)]
pub(crate) struct EndedRun {
    pub(crate) id: Id,
    /// Shared with the process's exit handler, which takes back an attempt that the exit cuts short.
    pub(crate) directory: Arc<Directory>,
    pub(crate) progress: Progress,
    /// When its directory's lock was made, which is when the run began.
    pub(crate) began: SystemTime,
    // The fields below are dropped in this order: the lock is given back (by closing) before another thread may claim.
    _lock: Option<File>,
    _held: Held,
}

impl EndedRun {
    /// Whether its install came to its end: the state file is made last. Without one nothing can have been reported.
    pub(crate) fn was_made(&self) -> bool {
        self.directory.status_of(OsStr::new(STATE)).is_ok()
    }

    /// Reads its files.
    pub(crate) fn raw(&self) -> io::Result<RawRun> {
        read_raw(&self.directory)
    }
}

/// What came of trying to take a run.
#[derive(Debug)]
pub(crate) enum Claim {
    Taken(Box<EndedRun>),
    /// Its process lives, is just being started, or somebody else is working on it.
    Busy,
    /// It is gone: another process was done with it between our listing and now.
    Gone,
}

/// Takes the run `id` in the directory `runs` if it has ended.
///
/// The caller makes sure that it is not the calling process's own living run.
///
/// # Errors
/// What is under that name is not a run: not a directory, or its lock is not a file.
pub(crate) fn claim(runs: &Directory, id: Id) -> io::Result<Claim> {
    let name = name_of(id);
    let status = match runs.status_of(&name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claim::Gone),
        status => status?,
    };
    if status.kind != FileType::Directory {
        let message = format!("is {} and not the directory of a run", kind_name(status.kind));
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let Some(held) = Held::take(status.identity) else { return Ok(Claim::Busy) };
    let directory = match runs.subdirectory(&name).map(Arc::new) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claim::Gone),
        directory => directory?,
    };
    if directory.status()?.identity != status.identity {
        // Removed and made again under the same name in between: next time.
        return Ok(Claim::Busy);
    }
    let age = SystemTime::now().duration_since(status.modified).unwrap_or(Duration::ZERO);
    if age < LONGEST_INSTALL && directory.status_of(OsStr::new(STATE)).is_err() {
        return Ok(Claim::Busy);
    }
    let lock = match directory.file(OsStr::new(LOCK), true) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Left over from a start that failed half-way.
            let progress = Progress::read(&directory)?;
            let began = status.modified;
            let run = EndedRun { id, directory, progress, began, _lock: None, _held: held };
            return Ok(Claim::Taken(Box::new(run)));
        }
        Err(error) => return Err(error),
    };
    match rustix::fs::fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => return Ok(Claim::Busy),
        Err(error) => return Err(error.into()),
    }
    // Somebody who had it before us may have removed it since: then what we hold is the lock of a file without a name.
    let ours = rustix::fs::fstat(&lock)?;
    match directory.status_of(OsStr::new(LOCK)) {
        #[allow(clippy::unnecessary_cast)]
        Ok(now) if now.identity == (ours.st_dev as u64, ours.st_ino as u64) => {
            let progress = Progress::read(&directory)?;
            let run = EndedRun { id, directory, progress, began: now.modified, _lock: Some(lock), _held: held };
            Ok(Claim::Taken(Box::new(run)))
        }
        Ok(_) => Ok(Claim::Busy),
        Err(_) => Ok(Claim::Gone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(folder: &tempfile::TempDir, id: Id) -> Directory {
        let runs = Directory::create(&folder.path().join("runs")).unwrap();
        let run = runs.create_subdirectory(&name_of(id)).unwrap();
        run.write_atomically(LOCK.as_ref(), b"").unwrap();
        run.write_atomically(STATE.as_ref(), b"").unwrap();
        runs
    }

    const ID: Id = Id([7; 16]);

    #[test]
    fn one_process_claims_a_run_once_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let runs = run(&folder, ID);
        let first = claim(&runs, ID).unwrap();
        assert!(matches!(first, Claim::Taken(_)), "{first:?}");
        // By another name of the same directory too.
        let again = Directory::open(&folder.path().join("runs/../runs")).unwrap();
        assert!(matches!(claim(&again, ID).unwrap(), Claim::Busy));
        drop(first);
        assert!(matches!(claim(&runs, ID).unwrap(), Claim::Taken(_)));
    }

    #[test]
    fn a_run_whose_process_lives_is_busy_and_ended_when_the_process_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let runs = run(&folder, ID);
        // A second process: this test program again, running only `holder`.
        let mut living = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::claim::tests::holder", "--nocapture", "--quiet"])
            .env(HOLD, runs.path().join(ID.to_string()).join(LOCK))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let output = std::io::BufReader::new(living.stdout.take().unwrap());
        let held = std::io::BufRead::lines(output).any(|line| line.unwrap().contains("held"));
        assert!(held, "the second process did not get the lock");
        assert!(matches!(claim(&runs, ID).unwrap(), Claim::Busy));
        living.kill().unwrap();
        living.wait().unwrap();
        assert!(matches!(claim(&runs, ID).unwrap(), Claim::Taken(_)));
    }

    /// Names the lock file that [`holder`] is to hold.
    const HOLD: &str = "CORONER_TEST_HOLD";

    /// Not a test: the other process of the test above.
    #[test]
    fn holder() {
        let Some(path) = std::env::var_os(HOLD) else { return };
        let file = File::options().read(true).write(true).open(path).unwrap();
        rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
        println!("held");
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    }

    #[test]
    fn a_run_that_is_being_made_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let runs = Directory::create(&folder.path().join("runs")).unwrap();
        let run = runs.create_subdirectory(&name_of(ID)).unwrap();
        assert!(matches!(claim(&runs, ID).unwrap(), Claim::Busy));
        run.write_atomically(LOCK.as_ref(), b"").unwrap();
        assert!(matches!(claim(&runs, ID).unwrap(), Claim::Busy));
        run.write_atomically(STATE.as_ref(), b"").unwrap();
        assert!(matches!(claim(&runs, ID).unwrap(), Claim::Taken(_)));
    }

    #[test]
    fn what_is_not_a_run_is_an_error_that_says_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let runs = Directory::create(&folder.path().join("runs")).unwrap();
        assert!(matches!(claim(&runs, ID).unwrap(), Claim::Gone));
        std::os::unix::fs::symlink("/", runs.path().join(ID.to_string())).unwrap();
        let error = claim(&runs, ID).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }
}

//! The run: one directory in the store for one process's life, made at install with everything that a crash will need.
//!
//! ```text
//! <store>/                       0700
//!   runs/<run id, 32 hex digits>/  0700, one per process
//!     lock                         empty; a POSIX write lock (fcntl F_SETLK) held for the process's life
//!     report                       the report, see coroner-report: reserved at install, zero until a crash
//!     report-2 …                   later crashes of a process that survived the first (made when they happen)
//!     state                        the run state, mapped and written in normal life
//! ```
//!
//! Why a POSIX lock: it belongs to the process, so that a child made by fork does not keep its dead parent's run locked
//! (as it would with flock or an open-file-description lock). It is dropped when the process closes any descriptor of
//! that file, which is why nobody but this module opens it.
//!
//! All of it is system calls without allocation, since a child made by fork or vfork makes its run when it crashes.

use core::ffi::CStr;

use coroner_machine::syscall::{Errno, Result};

use crate::os::{clock, files};
use crate::path::{Path, c_path};

/// Descriptors of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// The run's id, random.
    pub id: [u8; 16],
    /// The `runs` directory of the store.
    pub runs: i32,
    /// The run's own directory.
    pub directory: i32,
    /// The open, reserved report file.
    pub report: i32,
    /// The open state file.
    pub state: i32,
    /// The locked file, held for the process's life.
    pub lock: i32,
}

/// The step of making a run that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStep {
    /// Making or opening the store's directory.
    Store,
    /// Making or opening `runs` in it.
    Runs,
    /// Making the run's directory.
    Directory,
    /// Making or taking the lock.
    Lock,
    /// Making the report file and reserving its bytes.
    Report,
    /// Making the state file.
    State,
}

/// A failed step of making a run, with the kernel's reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunError {
    /// The step.
    pub step: RunStep,
    /// The kernel's error number.
    pub errno: Errno,
}

/// For `map_err`: the step's error.
fn at(step: RunStep) -> impl Fn(Errno) -> RunError {
    move |errno| RunError { step, errno }
}

/// Opens a file that is never reached through a symbolic link.
fn open(directory: i32, path: *const u8, flags: i32, mode: u32) -> Result<i32> {
    files::open(directory, path, flags | libc::O_NOFOLLOW, mode)
}

/// Makes a directory; that it exists is no error.
fn make_directory(directory: i32, path: *const u8) -> Result<()> {
    match files::make_directory(directory, path) {
        Err(Errno(libc::EEXIST)) => Ok(()),
        other => other,
    }
}

pub(crate) use files::close;

/// A descriptor of the store's `runs` directory.
pub(crate) fn open_runs(store: &CStr) -> core::result::Result<i32, RunError> {
    make_directory(libc::AT_FDCWD, c_path(store)).map_err(at(RunStep::Store))?;
    // The store itself may be reached through a link that the app chose; nothing below it may.
    let store = files::open(libc::AT_FDCWD, c_path(store), libc::O_RDONLY | libc::O_DIRECTORY, 0);
    let store = store.map_err(at(RunStep::Store))?;
    let name = c"runs";
    let runs = make_directory(store, c_path(name))
        .and_then(|()| open(store, c_path(name), libc::O_RDONLY | libc::O_DIRECTORY, 0));
    close(store);
    runs.map_err(at(RunStep::Runs))
}

/// 16 random bytes, as a version 4 UUID (RFC 9562, section 5.4), so that an id is also a valid event id.
pub(crate) fn random_id() -> [u8; 16] {
    let mut id = [0_u8; 16];
    if !files::random(&mut id) {
        // A kernel whose pool is not ready (early boot), or without the call: the address of a local, the clock and the
        // process id are spread by a multiplicative hash. Uniqueness in one store is what matters.
        let mut seed = coroner_machine::threads::monotonic_now()
            ^ (coroner_machine::threads::this_thread() as u64) << 32
            ^ id.as_ptr() as u64;
        for byte in &mut id {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            *byte = (seed >> 56) as u8;
        }
    }
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

impl Run {
    /// Makes a run in `runs` (see [`open_runs`]), with `reserve` bytes for the report and `state_size` for the state.
    ///
    /// On an error nothing is left, neither open nor on the disk.
    pub(crate) fn create(runs: i32, reserve: u32, state_size: u32) -> core::result::Result<Run, RunError> {
        let id = random_id();
        let path = Path::new().push_hex(&id);
        files::make_directory(runs, path.as_ptr()).map_err(at(RunStep::Directory))?;
        let directory = open(runs, path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY, 0)
            .inspect_err(|_| files::unlink(runs, path.as_ptr(), libc::AT_REMOVEDIR))
            .map_err(at(RunStep::Directory))?;
        Self::fill(id, runs, directory, reserve, state_size).inspect_err(|_| {
            remove(runs, &id, directory);
            close(directory);
        })
    }

    /// Closes the descriptors and removes the run, as if it had never been made: its install failed.
    pub(crate) fn discard(self) {
        remove(self.runs, &self.id, self.directory);
        self.close();
    }

    fn fill(
        id: [u8; 16],
        runs: i32,
        directory: i32,
        reserve: u32,
        state_size: u32,
    ) -> core::result::Result<Run, RunError> {
        let new = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let lock = open(directory, c_path(c"lock"), new, 0o600).map_err(at(RunStep::Lock))?;
        let close_on_error = |fds: &[i32]| fds.iter().for_each(|fd| close(*fd));
        if let Err(errno) = files::take_lock(lock) {
            close_on_error(&[lock]);
            return Err(RunError { step: RunStep::Lock, errno });
        }
        // Of two runs that began within one tick of the kernel's clock, whose time a file gets by itself, nobody could say which
        // was the last.
        files::set_times(lock, clock::wall());
        let report = match new_report(directory, 1, reserve) {
            Ok(report) => report,
            Err(errno) => {
                close_on_error(&[lock]);
                return Err(RunError { step: RunStep::Report, errno });
            }
        };
        let state = open(directory, c_path(c"state"), new, 0o600)
            .and_then(|state| files::reserve(state, state_size).map(|()| state).inspect_err(|_| close(state)));
        match state {
            Ok(state) => Ok(Run { id, runs, directory, report, state, lock }),
            Err(errno) => {
                close_on_error(&[report, lock]);
                Err(RunError { step: RunStep::State, errno })
            }
        }
    }

    /// Closes the descriptors, which also drops the lock (normal life, or the end of a child's report).
    pub(crate) fn close(self) {
        for fd in [self.report, self.state, self.directory, self.lock] {
            close(fd);
        }
    }
}

/// The `number`-th report file of a run, with its bytes reserved. For the first, not being able to reserve is an error;
/// later ones take what there is.
pub(crate) fn new_report(directory: i32, number: u32, reserve: u32) -> Result<i32> {
    let path =
        if number <= 1 { Path::new().push(b"report") } else { Path::new().push(b"report-").push_decimal(number) };
    let report = open(directory, path.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600)?;
    match files::reserve(report, reserve) {
        Err(errno) if number <= 1 => {
            close(report);
            Err(errno)
        }
        _ => Ok(report),
    }
}

/// Removes a run that was made in part. A later launch leaves a run without a state alone for a minute, and then removes it:
/// so the state goes first, and nobody takes what is left for a run that ended.
fn remove(runs: i32, id: &[u8; 16], directory: i32) {
    for name in [c"state", c"report", c"lock"] {
        files::unlink(directory, c_path(name), 0);
    }
    files::unlink(runs, Path::new().push_hex(id).as_ptr(), libc::AT_REMOVEDIR);
}

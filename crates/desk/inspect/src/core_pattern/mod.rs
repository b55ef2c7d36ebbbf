//! The kernel's handler of core dumps (`kernel.core_pattern`): reports a process that just crashed.
//!
//! The kernel starts the handler for each crash and writes the core dump to its standard input
//! (core(5), "Piping core dumps to a program"), or connects to a socket ([`serve`], Linux 6.17).
//! Headers and notes are read from there. The stacks are read from `/proc/PID/mem`, because the
//! process exists until the dump has been read, or else from the dump. No core dump is kept.
//!
//! The crashed process is not trusted. As root the handler opens the memory and creates the user's
//! folder; before it reads a byte of the dump, it drops root permanently (`privileges`).

mod privileges;
mod socket;
mod user_store;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use coroner_formats::dump::{DumpError, Noted, read_core_stream};
use coroner_report::Report;
use coroner_report::model::Timestamp;
use coroner_symbols::{Options, Symbolizer};

pub use socket::{Death, NotRecorded, serve};

/// Maximum number of reports made at the same time; further crashes are not recorded.
const MAX_AT_ONCE: usize = 4;

/// The reason for not recording a crash.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// A step failed.
    #[error("{doing}: {source}")]
    System {
        /// The failed step.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
    /// The maximum number of reports is already being made.
    #[error("crash not recorded: already making {MAX_AT_ONCE} reports")]
    Busy,
    /// The maximum number of reports was made in the last minute.
    #[error("crash not recorded: {0} reports were made in the last minute")]
    TooMany(usize),
    /// The user's folder belongs to another user, or is not a folder.
    #[error("can't use `{}`: not a folder owned by user {user}", folder.display())]
    NotTheUsers {
        /// The folder.
        folder: PathBuf,
        /// The user.
        user: u32,
    },
    /// Root could be regained after it was dropped.
    #[error("can't drop root privileges: setuid(0) still succeeds")]
    StillRoot,
    /// The core dump can't be read.
    #[error("can't read the core dump of process {pid}: {source}")]
    Dump {
        /// The process.
        pid: u32,
        /// The reason.
        source: DumpError,
    },
}

impl CollectError {
    fn system<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        |source| Self::System { doing, source: source.into() }
    }
}

/// A crashed process, described by the arguments of `kernel.core_pattern`.
#[derive(Clone, Copy, Debug)]
pub struct DeadProcess {
    /// `%P`
    pub pid: u32,
    /// `%u`; defaults to this process's user.
    pub user: Option<u32>,
    /// `%g`; defaults to this process's group.
    pub group: Option<u32>,
    /// `%t`, in seconds since 1970.
    pub time: Option<u64>,
    /// Whether `%d` is 1: the user is allowed to read the process's memory.
    pub is_dumpable: bool,
    /// Whether standard input is a connection from the kernel ([`serve`]) rather than a pipe.
    pub is_connection: bool,
}

/// The location and the limits of the users' reports.
#[derive(Clone, Copy, Debug)]
pub struct UserStores<'a> {
    /// The folder that contains one folder per user.
    pub folder: &'a Path,
    /// The name of the folder for reports in a user's folder.
    pub reports: &'a str,
    /// Maximum number of reports per user; the oldest are removed.
    pub keep: usize,
    /// Maximum number of reports per user and minute; no more are made.
    pub per_minute: usize,
}

/// The owner of a report, and the user that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    /// The user whose folder the report goes to.
    of: u32,
    user: u32,
    group: u32,
}

impl Owner {
    /// Assigns a process that its user may not read to root, and never processes a dump as root.
    ///
    /// A user may not read a process that ran as another user or holds another user's data.
    fn new(user: u32, group: u32, is_dumpable: bool) -> Owner {
        const NOBODY: u32 = 65_534;
        match user {
            0 => Owner { of: 0, user: NOBODY, group: NOBODY },
            _ if !is_dumpable => Owner { of: 0, user: NOBODY, group: NOBODY },
            user => Owner { of: user, user, group },
        }
    }
}

/// The report of a crashed process.
#[derive(Debug)]
#[non_exhaustive]
pub struct Collected {
    /// The report, without stack memory.
    pub report: Report,
    /// The user's folder for reports, which may not exist yet.
    pub folder: PathBuf,
    /// One of the slots for concurrent reports, held until this is dropped.
    _slot: File,
}

/// Makes the report of a crashed process from the core dump at standard input.
///
/// Before the dump is read, this process permanently becomes the user, without any capability and
/// with limits on time and memory.
///
/// # Errors
/// See [`CollectError`].
pub fn collect(dead: &DeadProcess, stores: &UserStores<'_>) -> Result<Collected, CollectError> {
    let pid = dead.pid;
    let user = dead.user.unwrap_or_else(|| nix::unistd::getuid().as_raw());
    let group = dead.group.unwrap_or_else(|| nix::unistd::getgid().as_raw());
    let owner = Owner::new(user, group, dead.is_dumpable);
    let slot = user_store::take_slot(stores.folder)?;
    let folder = user_store::create_folder(stores.folder, owner)?.join(stores.reports);
    let executable = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    // Only root can open it; other users read the stacks from the dump.
    let memory = File::open(format!("/proc/{pid}/mem")).ok();
    privileges::drop_privileges(owner)?;

    user_store::make_room(&folder, stores.keep, stores.per_minute)?;
    if dead.is_connection {
        socket::request_dump().map_err(CollectError::system("can't answer the kernel's request"))?;
    }
    let time = dead.time.and_then(|seconds| seconds.checked_mul(1_000_000_000)).map(Timestamp);
    let mut symbolizer = Symbolizer::new(Options::default());
    let read = read_core_stream(io::stdin().lock(), memory.as_ref(), time, &mut symbolizer);
    let mut report = read.map_err(|source| CollectError::Dump { pid, source })?;
    // Stack memory may contain user input.
    report.stack_memory.clear();
    let mut noted = Noted::default();
    noted.executable = executable.and_then(|path| path.into_os_string().into_string().ok());
    noted.apply(&mut report);
    Ok(Collected { report, folder, _slot: slot })
}

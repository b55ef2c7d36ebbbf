//! Determines whether a run is live although its lock is free.
//!
//! An app that closes descriptors that are not its own (`closefrom(3)`, `dup2` over them) drops its
//! run's lock and continues. The run state identifies the process, so that another process can
//! check:
//!
//! * **The process doesn't exist**: the run has ended. The process id alone is not sufficient: the
//!   process must have started before the run began, to the kernel's clock tick.
//! * **The process is running**: the run is live, unless Coroner was uninstalled, or the process no
//!   longer maps the run's state (it has executed another program, or belongs to another boot). If
//!   the mappings can't be read, a lease of the state file decides, as below; if the lease is
//!   refused, the run is live.
//! * **Another pid namespace** (containers that share a store): process ids can't be compared.
//!   Instead, Coroner requests a read lease of the state file (`F_SETLEASE` in fcntl(2)), which the
//!   kernel refuses while any process in any namespace has the file open or mapped for writing.
//!   This doesn't need the app to run, which may sleep for days. A forked child that continues
//!   keeps the run live in this way. On overlayfs, where a mapping counts for the lower layer, and
//!   where leases are refused, the lock alone decides.
//! * **The run state doesn't identify a process** (a system without `/proc`), or is a fork child's
//!   copy of its parent's: the lock alone decides.

use coroner_report::model::{Id, RunFacts};
use coroner_report::run_state::{ExitKind, FIXED_BYTES, ProcessIdentity};

use super::directory::Directory;
use super::layout::STATE;

/// The process that a run belongs to, from its run state.
#[derive(Debug)]
pub(super) struct Owner {
    run: Id,
    process: ProcessIdentity,
}

impl Owner {
    /// Returns the owner of the run `run` in `directory`; `None` if the state doesn't identify one
    /// or Coroner was uninstalled.
    pub(super) fn read(run: Id, directory: &Directory) -> Option<Self> {
        let state = directory.read_start(STATE.as_ref(), FIXED_BYTES).ok()?;
        let facts = RunFacts::read(&state).ok()?;
        let is_own = facts.run_id == run && facts.lifecycle.exit != ExitKind::UNINSTALLED;
        facts.process.filter(|_| is_own).map(|process| Self { run, process: process.into() })
    }

    /// Whether the owner has the id of the process `own`.
    pub(super) fn is(&self, own: &ProcessIdentity) -> bool {
        (self.process.pid, self.process.pid_namespace) == (own.pid, own.pid_namespace)
    }

    /// Whether the owner's run is live although the lock is free. `own` is the calling process.
    pub(super) fn lives(&self, directory: &Directory, own: &ProcessIdentity) -> bool {
        match self.process.lives(own) {
            // The run state may be from an earlier boot (`ProcessIdentity::in_this_boot`), and the
            // process id may now belong to another process.
            Some(true) => self.maps_state().or_else(|| is_open_for_writing(directory)) != Some(false),
            Some(false) => false,
            None => is_open_for_writing(directory) == Some(true),
        }
    }

    /// Whether the process maps a file in the run's directory; `None` if that can't be read.
    fn maps_state(&self) -> Option<bool> {
        let maps = std::fs::read(format!("/proc/{}/maps", self.process.pid)).ok()?;
        let directory = self.run.to_string();
        Some(maps.windows(directory.len()).any(|window| window == directory.as_bytes()))
    }
}

/// Whether any process on this machine has the run state open or mapped for writing; `None` if
/// unknown.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_open_for_writing(directory: &Directory) -> Option<bool> {
    use std::os::fd::AsRawFd;

    /// From `asm-generic/fcntl.h`.
    const F_SETSIG: i32 = 10;
    let state = directory.file(STATE.as_ref(), false).ok()?;
    let descriptor = state.as_raw_fd();
    let set = |command, argument: i32| {
        // SAFETY: these commands take an integer (fcntl(2)); the descriptor is open. (nix has
        // neither.)
        if unsafe { libc::fcntl(descriptor, command, argument) } == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error().raw_os_error())
        }
    };
    // If another process opens the file for writing while the lease is held, the kernel sends a
    // signal to this process. The default, SIGIO, would terminate it; SIGURG is ignored.
    set(F_SETSIG, libc::SIGURG).ok()?;
    match set(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => {
            let _ = set(libc::F_SETLEASE, libc::F_UNLCK);
            Some(false)
        }
        Err(Some(libc::EAGAIN)) => Some(true),
        Err(_) => None,
    }
}

/// Returns `None`, because other systems don't provide this.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_open_for_writing(_directory: &Directory) -> Option<bool> {
    None
}

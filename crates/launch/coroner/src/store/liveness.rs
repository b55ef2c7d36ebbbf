//! Whether a run lives whose lock is free.
//!
//! An app that closes descriptors which are not its own (`closefrom(3)`, `dup2` over them) drops the lock of its run and goes
//! on. Its run state says which process it is, and so another can ask for that one:
//!
//! * **No such process**: it has ended. The process id alone is not believed: the process must have started before the run began, to
//!   the kernel's clock tick.
//! * **The process lives**: so does the run, unless it was uninstalled, or its state is mapped no longer (the process has
//!   executed another program, or is one of another boot). Where the mappings can't be read, a lease of the state file says it, as
//!   below, and where that is refused, it lives.
//! * **Another pid namespace** (containers that share a store): process ids say nothing. Instead the kernel is asked for a read
//!   lease of the state file (`F_SETLEASE` in fcntl(2)), which it refuses while any process, of whichever namespace, has the
//!   file open or mapped for writing. This needs no sign of life from the app, which may sleep for days. A child that the app
//!   made by `fork` and that goes on keeps the run alive by it; on overlayfs, where a mapping counts for the layer below, and
//!   where leases are refused, the lock alone decides.
//! * **The run state does not say** (a system without `/proc`), or is a copy that a fork child made of its
//!   parent's: the lock alone decides.

use coroner_report::model::{Id, RunFacts};
use coroner_report::run_state::{ExitKind, FIXED_BYTES, ProcessIdentity};

use super::directory::Directory;
use super::layout::STATE;

/// What the run state says of the process whose run it is.
#[derive(Debug)]
pub(super) struct Owner {
    run: Id,
    process: ProcessIdentity,
}

impl Owner {
    /// The owner of the run `run` in `directory`; `None` if its state does not say, or it was uninstalled.
    pub(super) fn of(run: Id, directory: &Directory) -> Option<Self> {
        let state = directory.read_start(STATE.as_ref(), FIXED_BYTES).ok()?;
        let facts = RunFacts::read(&state).ok()?;
        let is_own = facts.run_id == run && facts.lifecycle.exit != ExitKind::UNINSTALLED;
        facts.process.filter(|_| is_own).map(|process| Self { run, process: process.into() })
    }

    /// Whether it has the id of the process `own`.
    pub(super) fn is(&self, own: &ProcessIdentity) -> bool {
        (self.process.pid, self.process.pid_namespace) == (own.pid, own.pid_namespace)
    }

    /// Whether its run lives, though the lock is free. `own` is the calling process.
    pub(super) fn lives(&self, directory: &Directory, own: &ProcessIdentity) -> bool {
        match self.process.lives(own) {
            // A run state says nothing of the boot (`ProcessIdentity::in_this_boot`): its number may be another one's in this one.
            Some(true) => self.has_mapped_its_state().or_else(|| is_open_for_writing(directory)) != Some(false),
            Some(false) => false,
            None => is_open_for_writing(directory) == Some(true),
        }
    }

    /// Whether the process has a file of the run's directory mapped; `None` if that can't be read.
    fn has_mapped_its_state(&self) -> Option<bool> {
        let maps = std::fs::read(format!("/proc/{}/maps", self.process.pid)).ok()?;
        let directory = self.run.to_string();
        Some(maps.windows(directory.len()).any(|window| window == directory.as_bytes()))
    }
}

/// Whether any process of this machine has the run state open or mapped for writing; `None` if the kernel does not say.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_open_for_writing(directory: &Directory) -> Option<bool> {
    use std::os::fd::AsRawFd;

    /// `asm-generic/fcntl.h`.
    const F_SETSIG: i32 = 10;
    let state = directory.file(STATE.as_ref(), false).ok()?;
    let descriptor = state.as_raw_fd();
    let set = |command, argument: i32| {
        // SAFETY: these commands take an integer (fcntl(2)); the descriptor is open.
        if unsafe { libc::fcntl(descriptor, command, argument) } == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error().raw_os_error())
        }
    };
    // Somebody who opens the file for writing while the lease is held has the kernel send a signal to us: SIGIO, which ends a
    // process, unless another is asked for. SIGURG is ignored by default.
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

/// Whether any process has the run state open for writing: other systems do not say.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_open_for_writing(_directory: &Directory) -> Option<bool> {
    None
}

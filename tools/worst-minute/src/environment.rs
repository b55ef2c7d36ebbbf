//! A process's environment: namespaces, mounts, limits, filters, and user.
//!
//! `worst-minute` has its own mount namespace, so its mounts end with it. A row's process is this
//! program again (`--inside`), which enters the environment and becomes the row's command. Process
//! control uses `nix`; there is no shell.

use std::ffi::{CString, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use coroner_faults::seccomp::{self, Action};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Gid, Uid, execvp, fork, setgid, setgroups, setuid};

use super::system_service;

/// An environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Environment {
    /// No changes.
    Plain,
    /// The first process of a PID namespace, as in a container.
    FirstProcess,
    /// No `/proc`.
    NoProc,
    /// The root file system is read-only; the store is elsewhere.
    ReadOnlyRoot,
    /// The store's disk has four megabytes.
    SmallDisk,
    /// The store's disk is full when the process starts.
    FullDisk,
    /// The store's disk has 1.2 megabytes.
    TinyDisk,
    /// The store's disk has room for few files.
    FewInodes,
    /// `RLIMIT_NOFILE` is 9.
    FewDescriptors,
    /// `RLIMIT_SIGPENDING` is 0, for a user other than root.
    NoPendingSignals,
    /// A user other than root, who owns the store.
    Unprivileged,
    /// systemd's `SystemCallFilter=@system-service` with `SystemCallErrorNumber=EPERM`.
    SystemServiceFails,
    /// systemd's `SystemCallFilter=@system-service`.
    SystemServiceKills,
}

impl fmt::Display for Environment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        clap::ValueEnum::to_possible_value(self).map_or(Err(fmt::Error), |value| out.write_str(value.get_name()))
    }
}

/// The file that fills a disk, here and in `crash_program`, whose empty files are `empty-N`.
const FILLER: &str = "everything";

/// Debian's user `nobody`.
const NOBODY: u32 = 65534;

/// Gives this process its own mount namespace.
///
/// Without permission it does nothing, and rows that need it are skipped.
pub(super) fn own_mounts() -> anyhow::Result<()> {
    if !Uid::current().is_root() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace")?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("private mounts")
}

/// The store's own file system, unmounted when dropped.
#[derive(Debug)]
pub(super) struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

impl Environment {
    /// Creates the store's directory and its file system.
    pub(super) fn prepare(self, store: &Path) -> anyhow::Result<Option<Disk>> {
        std::fs::create_dir(store)?;
        let options = match self {
            Environment::ReadOnlyRoot => "size=16m",
            Environment::SmallDisk | Environment::FullDisk => "size=4m",
            Environment::TinyDisk => "size=1200k",
            Environment::FewInodes => "size=16m,nr_inodes=24",
            _ => "",
        };
        if self.is_nobodys() {
            std::os::unix::fs::chown(store, Some(NOBODY), Some(NOBODY))?;
        }
        if options.is_empty() {
            return Ok(None);
        }
        mount(Some("none"), store, Some("tmpfs"), MsFlags::empty(), Some(options))
            .context("can't mount a file system for the store")?;
        let disk = Disk(store.to_path_buf());
        if self == Environment::FullDisk {
            let mut file = std::fs::File::create(store.join(FILLER))?;
            while std::io::Write::write_all(&mut file, &[1; 1024]).is_ok() {}
        }
        Ok(Some(disk))
    }

    /// Frees space on a disk that the process filled, before the next launch.
    pub(super) fn make_room(self, store: &Path) {
        let files = std::fs::read_dir(store).into_iter().flatten().flatten();
        let fillers =
            files.filter(|file| file.file_name().to_string_lossy().starts_with("empty-") || file.file_name() == FILLER);
        for file in fillers.filter(|_| self != Environment::FullDisk) {
            let _ = std::fs::remove_file(file.path());
        }
    }

    /// Whether the process runs as an ordinary user.
    pub(super) fn is_nobodys(self) -> bool {
        matches!(self, Environment::Unprivileged | Environment::NoPendingSignals)
    }

    /// Returns the environment of the next launch.
    pub(super) fn for_next_launch(self) -> Environment {
        match self {
            Environment::Unprivileged | Environment::NoPendingSignals => Environment::Unprivileged,
            _ => Environment::Plain,
        }
    }

    /// Enters the environment and becomes the command. Returns only on failure.
    ///
    /// # Errors
    /// An error if the environment can't be entered, or the command is not found.
    pub(super) fn enter(self, command: &[OsString]) -> anyhow::Result<()> {
        let strings = command.iter().map(|word| CString::new(word.as_bytes()));
        let command = strings.collect::<Result<Vec<_>, _>>().context("a command without NUL")?;
        let program = command.first().context("a command")?;
        limit(libc::RLIMIT_CORE, 0)?;
        match self {
            Environment::Plain
            | Environment::SmallDisk
            | Environment::FullDisk
            | Environment::TinyDisk
            | Environment::FewInodes => {}
            Environment::FirstProcess => {
                unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID).context("a PID namespace")?;
                become_first_process()?;
                mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None::<&str>).context("its /proc")?;
            }
            Environment::NoProc => {
                unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace")?;
                let nothing = Some("size=4k,nr_inodes=1");
                mount(Some("none"), "/proc", Some("tmpfs"), MsFlags::MS_RDONLY, nothing).context("hiding /proc")?;
            }
            Environment::ReadOnlyRoot => {
                unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace")?;
                let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
                mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).context("a read-only root")?;
            }
            Environment::FewDescriptors => limit(libc::RLIMIT_NOFILE, 9)?,
            Environment::NoPendingSignals => {
                become_nobody()?;
                limit(libc::RLIMIT_SIGPENDING, 0)?;
            }
            Environment::Unprivileged => become_nobody()?,
            Environment::SystemServiceFails => filter(Action::Fail(libc::EPERM as u16))?,
            Environment::SystemServiceKills => filter(Action::Kill)?,
        }
        match execvp(program, &command) {
            Ok(never) => match never {},
            Err(errno) => bail!("{} can't be executed: {errno}", program.to_string_lossy()),
        }
    }
}

fn filter(action: Action) -> anyhow::Result<()> {
    seccomp::filter(system_service::REFUSED, action).context("can't install a system call filter")
}

fn limit(resource: libc::__rlimit_resource_t, to: u64) -> anyhow::Result<()> {
    let limit = libc::rlimit { rlim_cur: to, rlim_max: to };
    // SAFETY: the kernel reads a local structure.
    let failed = unsafe { libc::setrlimit(resource, &raw const limit) };
    ensure!(failed == 0, "a limit can't be set: {}", std::io::Error::last_os_error());
    Ok(())
}

fn become_nobody() -> anyhow::Result<()> {
    let group = Gid::from_raw(NOBODY);
    setgroups(&[group])
        .and_then(|()| setgid(group))
        .and_then(|()| setuid(Uid::from_raw(NOBODY)))
        .context("another user")
}

/// Returns in a child, which is the namespace's first process; this process ends as the child does.
fn become_first_process() -> anyhow::Result<()> {
    // SAFETY: this program has one thread.
    match unsafe { fork() }.context("a child")? {
        ForkResult::Child => Ok(()),
        ForkResult::Parent { child } => loop {
            match waitpid(child, None).context("waiting for the first process")? {
                WaitStatus::Exited(_, code) => std::process::exit(code),
                WaitStatus::Signaled(_, signal, _) => std::process::exit(128 + signal as i32),
                _ => {}
            }
        },
    }
}

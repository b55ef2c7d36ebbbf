//! Directories by descriptor (Unix).

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_process::trust::{self, Distrust, OTHERS_WRITE};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, fcntl, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, geteuid, unlinkat};

use super::{FileType, kind_name};

/// An open directory.
///
/// Its methods accept only names of one component: a name that contains `/`, and `.` and `..`, are
/// rejected.
#[derive(Debug)]
pub(crate) struct Directory {
    descriptor: OwnedFd,
    path: PathBuf,
    /// User to whom the files in it must belong, if only theirs may be used.
    user: Option<u32>,
}

/// Flags for opening a directory.
const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Metadata of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) kind: FileType,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Space on disk in bytes. It differs from the length if the file has holes or reserved space.
    pub(crate) disk_bytes: u64,
    pub(crate) modified: SystemTime,
    /// Device and inode, which identify the file independently of its name.
    pub(crate) identity: (u64, u64),
    /// User id of the owner.
    pub(crate) owner: u32,
    /// Kind and permission bits.
    mode: u32,
    /// Number of links. On most file systems a directory has two, plus one for each subdirectory.
    pub(crate) links: u64,
}

impl Status {
    // The fields of `stat` have different integer types on different systems.
    #[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
    fn from_stat(stat: &FileStat) -> Self {
        let seconds = Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
        // Seconds are too coarse: two runs may begin in the same second.
        let nanoseconds = Duration::from_nanos(u64::try_from(stat.st_mtime_nsec).unwrap_or(0));
        Self {
            kind: kind_of(stat),
            length: u64::try_from(stat.st_size).unwrap_or(0),
            disk_bytes: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
            modified: UNIX_EPOCH.checked_add(seconds + nanoseconds).unwrap_or(UNIX_EPOCH),
            identity: (stat.st_dev as u64, stat.st_ino as u64),
            owner: stat.st_uid as u32,
            mode: stat.st_mode as u32,
            links: stat.st_nlink as u64,
        }
    }
}

impl Status {
    /// Returns the status of `path`, or of a symbolic link itself.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::from_stat(&fstatat(AT_FDCWD, path, AtFlags::AT_SYMLINK_NOFOLLOW)?))
    }

    /// Returns the status of an open file.
    pub(crate) fn from_file(file: &File) -> io::Result<Self> {
        Ok(Self::from_stat(&fstat(file)?))
    }

    /// Whether this is a directory of `user` in which nobody else can write.
    pub(crate) fn is_private_directory_of_user(&self, user: u32) -> bool {
        self.entry().check_directory(user).is_ok()
    }

    fn entry(&self) -> trust::Entry {
        trust::Entry { mode: self.mode, owner: self.owner, links: self.links }
    }

    /// Whether the file has holes, which take no space on disk.
    pub(crate) fn has_holes(&self) -> bool {
        self.disk_bytes < self.length
    }
}

impl Directory {
    /// Opens the directory at `path`, whose last component must not be a symbolic link.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let descriptor = openat(AT_FDCWD, path, DIRECTORY, Mode::empty())?;
        Ok(Self { descriptor, path: path.to_owned(), user: None })
    }

    /// Like [`open`](Self::open), for a directory whose files must belong to this user.
    pub(crate) fn open_own(path: &Path) -> io::Result<Self> {
        Ok(Self { user: Some(user()), ..Self::open(path)? })
    }

    /// Returns the path by which the directory was opened, for messages and for callers that can't
    /// use a descriptor.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn status(&self) -> io::Result<Status> {
        Ok(Status::from_stat(&fstat(&self.descriptor)?))
    }

    /// Ensures that only `user` can write in the directory.
    ///
    /// It must belong to the user, and write permission of the group and others is removed. Root
    /// doesn't use directories of other users, either, because they could replace the contents.
    pub(crate) fn make_private_to(&self, user: u32) -> io::Result<()> {
        let status = self.status()?;
        match status.entry().check_directory(user) {
            Err(Distrust::Writable) => {
                Ok(fchmod(&self.descriptor, Mode::from_bits_truncate((status.mode & !OTHERS_WRITE) as _))?)
            }
            Err(Distrust::Owner(owner)) => {
                let message = format!("belongs to user {owner}, not to user {user}");
                Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
            }
            checked => checked.map_err(io::Error::other),
        }
    }

    /// Opens the directory `name` in this one, and ensures that only `user` can write in it.
    /// Creates it if it doesn't exist. An entry that can't be trusted is set aside.
    pub(crate) fn private_subdirectory(&self, name: &OsStr, user: u32) -> io::Result<Self> {
        match self.private_subdirectory_if_any(name, user)? {
            Some(directory) => Ok(directory),
            None => self.create_subdirectory(name),
        }
    }

    /// Like [`private_subdirectory`](Self::private_subdirectory), without creating it.
    pub(crate) fn private_subdirectory_if_any(&self, name: &OsStr, user: u32) -> io::Result<Option<Self>> {
        let opened = self.subdirectory(name);
        let checked = opened.and_then(|directory| directory.make_private_to(user).map(|()| directory));
        match checked {
            Ok(directory) => Ok(Some(directory)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if is_untrusted(&error) => {
                let mut aside = name.to_owned();
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                aside.push(format!(".untrusted-{:x}", now.as_nanos()));
                self.rename(name, self, &aside)?;
                log::warn!(
                    "coroner: `{}` is renamed to `{}`: {error}",
                    self.path.join(name).display(),
                    aside.display()
                );
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the names in the directory, sorted, without `.` and `..`.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::openat(&self.descriptor, ".", DIRECTORY, Mode::empty())? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the status of `name`, or of a symbolic link itself.
    pub(crate) fn status_of(&self, name: &OsStr) -> io::Result<Status> {
        let name = component(name)?;
        Ok(Status::from_stat(&fstatat(&self.descriptor, name, AtFlags::AT_SYMLINK_NOFOLLOW)?))
    }

    /// Opens the directory `name` in this one.
    pub(crate) fn subdirectory(&self, name: &OsStr) -> io::Result<Self> {
        let descriptor = openat(&self.descriptor, component(name)?, DIRECTORY, Mode::empty())?;
        Ok(Self { descriptor, path: self.path.join(name), user: self.user })
    }

    /// Opens the directory `name` in this one, and creates it if it doesn't exist.
    pub(crate) fn create_subdirectory(&self, name: &OsStr) -> io::Result<Self> {
        match mkdirat(&self.descriptor, component(name)?, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => self.subdirectory(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the regular file `name` for reading, and also for writing if `write` is set.
    ///
    /// A named pipe or a device with this name is an error, and doesn't block. So is a file of
    /// another user, or with a second name, in a store that is this process's own.
    pub(crate) fn file(&self, name: &OsStr, write: bool) -> io::Result<File> {
        let access = if write { OFlag::O_RDWR } else { OFlag::O_RDONLY };
        let flags = access | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let descriptor = openat(&self.descriptor, component(name)?, flags, Mode::empty())?;
        let status = Status::from_stat(&fstat(&descriptor)?);
        if status.kind != FileType::RegularFile {
            let message = format!("is {}, not a file", kind_name(status.kind));
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        if let Some(user) = self.user
            && let Err(distrust @ (Distrust::Owner(_) | Distrust::Links(_))) = status.entry().check_file(user)
        {
            return Err(io::Error::new(io::ErrorKind::InvalidData, distrust));
        }
        Ok(File::from(descriptor))
    }

    /// Creates the file `name` for writing.
    pub(crate) fn new_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        Ok(File::from(openat(&self.descriptor, component(name)?, flags, mode)?))
    }

    /// Punches a hole into the zeros at the end of the file `name`, unless it already has holes.
    ///
    /// The file's length doesn't change, so that a process that has mapped it doesn't fault.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn release_zeros(&self, name: &OsStr) -> io::Result<()> {
        /// Maximum size of pages and blocks, in bytes.
        const ALIGNMENT: u64 = 1 << 16;
        /// Maximum size of reserved files, in bytes.
        const MAX_SIZE: u64 = 64 << 20;
        let status = self.status_of(name)?;
        if status.has_holes() {
            return Ok(());
        }
        let bytes = self.read(name, MAX_SIZE)?;
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
        let used = used.next_multiple_of(ALIGNMENT);
        if used >= status.length {
            return Ok(());
        }
        punch_hole(&self.file(name, true)?, used, status.length - used)
    }

    /// Does nothing, because other systems can't free a part of a file.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps)]
    pub(crate) fn release_zeros(&self, _name: &OsStr) -> io::Result<()> {
        Ok(())
    }

    /// Waits until the directory's entries are on disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match fsync(&self.descriptor) {
            // Some file systems (FUSE, 9p) can't sync a directory.
            Err(Errno::EINVAL | Errno::ENOTSUP) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Renames `name` to `new_name` in `target`, replacing a file with that name.
    pub(crate) fn rename(&self, name: &OsStr, target: &Directory, new_name: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.descriptor, component(name)?, &target.descriptor, component(new_name)?)?)
    }

    pub(crate) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.descriptor, component(name)?, UnlinkatFlags::NoRemoveDir)?)
    }

    pub(super) fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.descriptor, component(name)?, UnlinkatFlags::RemoveDir)?)
    }

    /// Removes the directory `name`, in which a file is held open until `release` is called.
    ///
    /// It is renamed first, so that a partly removed directory is never mistaken for a complete
    /// one.
    pub(crate) fn remove_held(&self, name: &OsStr, _last: &[&str], release: impl FnOnce()) -> io::Result<()> {
        let mut removed = OsString::from(super::super::REMOVED);
        removed.push(name);
        self.rename(name, self, &removed)?;
        let done = self.remove_tree(&removed);
        release();
        done
    }

    /// Moves the directory `name` to `target`, including the open file `held`.
    pub(crate) fn move_held(&self, name: &OsStr, target: &Directory, _held: &OsStr) -> io::Result<()> {
        self.rename(name, target, name)
    }

    /// Locks the directory itself (flock(2)) until it is dropped. Returns `false` if another
    /// process holds the lock.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        // nix's `Flock` panics when it is dropped if the app has closed the descriptor.
        // SAFETY: it takes numbers, and the descriptor is open.
        let locked = unsafe { libc::flock(self.descriptor.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        match Errno::result(locked) {
            Err(Errno::EWOULDBLOCK) => Ok(false),
            locked => Ok(locked.map(|_| true)?),
        }
    }
}

/// Returns the kind of a directory entry.
#[allow(clippy::useless_conversion, reason = "the type of `st_mode` differs by system")]
fn kind_of(stat: &FileStat) -> FileType {
    match SFlag::from_bits_truncate(stat.st_mode.into()) & SFlag::S_IFMT {
        SFlag::S_IFREG => FileType::RegularFile,
        SFlag::S_IFDIR => FileType::Directory,
        SFlag::S_IFLNK => FileType::Symlink,
        SFlag::S_IFIFO => FileType::Fifo,
        SFlag::S_IFSOCK => FileType::Socket,
        SFlag::S_IFCHR | SFlag::S_IFBLK => FileType::Device,
        _ => FileType::Unknown,
    }
}

/// Frees a part of a file, whose length doesn't change.
///
/// nix has no `fallocate` for Android.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn punch_hole(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: it takes numbers, and the descriptor is open.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), flags, offset as libc::off_t, length as libc::off_t) };
    Ok(Errno::result(done).map(drop)?)
}

/// Whether a directory must not be used: another user's, a link or a file.
fn is_untrusted(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(Errno::ELOOP as i32)
}

/// Locks a file for this process (`F_SETLK` of fcntl(2)). Returns `false` if another process holds
/// the lock.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: all fields are integers; zeros stand for the whole file.
    let whole_file = libc::flock { l_type: libc::F_WRLCK as libc::c_short, ..unsafe { std::mem::zeroed() } };
    match fcntl(file, FcntlArg::F_SETLK(&whole_file)) {
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        locked => Ok(locked.map(|_| true)?),
    }
}

/// Returns the effective user id, which owns this process's files.
pub(crate) fn user() -> u32 {
    geteuid().as_raw()
}

/// Returns a builder for directories that only their owner can access.
pub(super) fn private_directories() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

/// Returns `name` if it is a single component and not a path that leads elsewhere.
fn component(name: &OsStr) -> io::Result<&OsStr> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') || bytes.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{}` is not a file name", name.display())));
    }
    Ok(name)
}

//! Directories by path, with the standard library only (Windows).
//!
//! On Windows a user's folders are private by inherited permissions.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{FileType, kind_name};

/// A directory. Names passed to its methods are single components.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
}

/// Metadata of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) kind: FileType,
    /// Length in bytes.
    pub(crate) length: u64,
    /// The same as the length.
    pub(crate) disk_bytes: u64,
    pub(crate) modified: SystemTime,
    /// The file's volume and number, which identify it independently of its name.
    pub(crate) identity: (u64, u64),
    /// Unknown on this system.
    pub(crate) owner: u32,
    /// Unknown on this system.
    pub(crate) links: u64,
}

impl Status {
    fn from_metadata(about: &Metadata, identity: (u64, u64)) -> Self {
        let kind = match about.file_type() {
            kind if kind.is_symlink() => FileType::Symlink,
            kind if kind.is_dir() => FileType::Directory,
            kind if kind.is_file() => FileType::RegularFile,
            _ => FileType::Unknown,
        };
        let modified = about.modified().unwrap_or(UNIX_EPOCH);
        Self { kind, length: about.len(), disk_bytes: about.len(), modified, identity, owner: user(), links: 0 }
    }

    /// Returns the status of `path`, or of a symbolic link itself.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::from_metadata(&fs::symlink_metadata(path)?, identity_at(path)))
    }

    /// Returns the status of an open file.
    pub(crate) fn from_file(file: &File) -> io::Result<Self> {
        Ok(Self::from_metadata(&file.metadata()?, identity_of(file)))
    }

    /// Unknown on this system.
    pub(crate) fn has_holes(&self) -> bool {
        false
    }

    /// Whether this is a directory.
    pub(crate) fn is_private_directory_of_user(&self, _user: u32) -> bool {
        self.kind == FileType::Directory
    }
}

impl Directory {
    /// Opens the directory at `path`, whose last component must not be a symbolic link.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        match Status::at(path)?.kind {
            FileType::Directory => Ok(Self { path: path.to_owned() }),
            kind => {
                Err(io::Error::new(io::ErrorKind::NotADirectory, format!("is {}, not a directory", kind_name(kind))))
            }
        }
    }

    /// Like [`open`](Self::open): a user's folders are private by inherited permissions.
    pub(crate) fn open_own(path: &Path) -> io::Result<Self> {
        Self::open(path)
    }

    /// Returns the directory's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn status(&self) -> io::Result<Status> {
        Status::at(&self.path)
    }

    /// Does nothing: a user's folders are private by inherited permissions.
    pub(crate) fn make_private_to(&self, _user: u32) -> io::Result<()> {
        Ok(())
    }

    /// Opens the directory `name` in this one, and creates it if it doesn't exist.
    pub(crate) fn private_subdirectory(&self, name: &OsStr, _user: u32) -> io::Result<Self> {
        self.subdirectory(name).or_else(|_| self.create_subdirectory(name))
    }

    /// Opens the directory `name` in this one, if it exists.
    pub(crate) fn private_subdirectory_if_any(&self, name: &OsStr, _user: u32) -> io::Result<Option<Self>> {
        match self.subdirectory(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Returns the names in the directory, sorted.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let names: io::Result<Vec<_>> = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name())).collect();
        let mut names = names?;
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the status of `name`, or of a symbolic link itself.
    pub(crate) fn status_of(&self, name: &OsStr) -> io::Result<Status> {
        Status::at(&self.path_of(name)?)
    }

    /// Opens the directory `name` in this one.
    pub(crate) fn subdirectory(&self, name: &OsStr) -> io::Result<Self> {
        Self::open(&self.path_of(name)?)
    }

    /// Opens the directory `name` in this one, and creates it if it doesn't exist.
    pub(crate) fn create_subdirectory(&self, name: &OsStr) -> io::Result<Self> {
        match fs::create_dir(self.path_of(name)?) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.subdirectory(name),
        }
    }

    /// Opens the regular file `name` for reading, and also for writing if `write` is set.
    pub(crate) fn file(&self, name: &OsStr, write: bool) -> io::Result<File> {
        let path = self.path_of(name)?;
        match Status::at(&path)?.kind {
            FileType::RegularFile => File::options().read(true).write(write).open(path),
            kind => Err(io::Error::new(io::ErrorKind::InvalidData, format!("is {}, not a file", kind_name(kind)))),
        }
    }

    /// Creates the file `name` for writing.
    pub(crate) fn new_file(&self, name: &OsStr) -> io::Result<File> {
        File::create_new(self.path_of(name)?)
    }

    /// Does nothing, because no part of a file is freed on this system.
    pub(crate) fn release_zeros(&self, _name: &OsStr) -> io::Result<()> {
        Ok(())
    }

    /// Does nothing, because a directory can't be synced on this system.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// Renames `name` to `new_name` in `target`, replacing a file with that name.
    pub(crate) fn rename(&self, name: &OsStr, target: &Directory, new_name: &OsStr) -> io::Result<()> {
        fs::rename(self.path_of(name)?, target.path_of(new_name)?)
    }

    pub(crate) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_file(self.path_of(name)?)
    }

    pub(super) fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_dir(self.path_of(name)?)
    }

    /// Returns `true`, because a directory can't be locked on this system: any process gets it.
    ///
    /// Only called for a run without a lock file.
    #[allow(clippy::unused_self)] // The same signature as on other systems.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Removes the directory `name`.
    ///
    /// One of its files is open until `release` is called, and can't be removed before. The files
    /// named in `last` are removed last, in that order.
    pub(crate) fn remove_held(&self, name: &OsStr, last: &[&str], release: impl FnOnce()) -> io::Result<()> {
        let inner = self.subdirectory(name)?;
        let mut names = inner.names()?;
        let position = |name: &OsString| last.iter().position(|last| *name == **last);
        names.sort_by_key(position);
        for entry in names.iter().filter(|name| position(name) != last.len().checked_sub(1)) {
            inner.remove_tree(entry)?;
        }
        release();
        self.remove_tree(name)
    }

    /// Moves the directory `name` to `target`, except the open file `held`, which stays.
    pub(crate) fn move_held(&self, name: &OsStr, target: &Directory, held: &OsStr) -> io::Result<()> {
        let (from, to) = (self.subdirectory(name)?, target.create_subdirectory(name)?);
        from.names()?.iter().filter(|name| *name != held).try_for_each(|name| from.rename(name, &to, name))
    }

    /// Returns the path of `name` if it is a single component and not a path that leads elsewhere.
    fn path_of(&self, name: &OsStr) -> io::Result<PathBuf> {
        let mut components = Path::new(name).components();
        match (components.next(), components.next()) {
            (Some(Component::Normal(only)), None) if only == name => Ok(self.path.join(name)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{}` is not a file name", name.display()))),
        }
    }
}

/// Locks a file until it is closed. Returns `false` if another handle holds the lock.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Returns a file's volume and number; zeros if unknown.
#[cfg(windows)]
fn identity_of(file: &File) -> (u64, u64) {
    use std::os::windows::io::AsRawHandle;

    /// Size of fileapi.h's `BY_HANDLE_FILE_INFORMATION` in 32-bit words.
    const WORDS: usize = 13;
    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GetFileInformationByHandle(file: *mut std::ffi::c_void, information: *mut [u32; WORDS]) -> i32;
    }
    let mut information = [0; WORDS];
    // SAFETY: the handle is open, and the system writes as many words as the buffer has.
    unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut information) };
    let [_, _, _, _, _, _, _, volume, _, _, _, high, low] = information;
    (volume.into(), u64::from(high) << 32 | u64::from(low))
}

/// Like [`identity_of`], for the entry at a path, which may be a directory.
#[cfg(windows)]
fn identity_at(path: &Path) -> (u64, u64) {
    use std::os::windows::fs::OpenOptionsExt;

    /// `FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT` of winbase.h: opens directories
    /// and links, too.
    const FLAGS: u32 = 0x0200_0000 | 0x0020_0000;
    let opened = File::options().access_mode(0).custom_flags(FLAGS).open(path);
    opened.map_or((0, 0), |file| identity_of(&file))
}

#[cfg(not(windows))]
fn identity_of(_file: &File) -> (u64, u64) {
    (0, 0)
}

#[cfg(not(windows))]
fn identity_at(_path: &Path) -> (u64, u64) {
    (0, 0)
}

/// Returns 0, because users have no numbers on this system.
pub(crate) fn user() -> u32 {
    0
}

/// Returns a builder for directories.
pub(super) fn private_directories() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    builder
}

//! Directories by path, with the standard library only (Windows).
//!
//! There, a user's folders are private by inherited permissions.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::kind_name;

/// The kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileType {
    RegularFile,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
    Unknown,
}

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
    /// Volume and number of the file, which identify it whatever its name.
    pub(crate) identity: (u64, u64),
    /// Unknown here.
    pub(crate) owner: u32,
    /// Unknown here.
    pub(crate) links: u64,
}

impl Status {
    fn of(about: &Metadata, identity: (u64, u64)) -> Self {
        let kind = match about.file_type() {
            kind if kind.is_symlink() => FileType::Symlink,
            kind if kind.is_dir() => FileType::Directory,
            kind if kind.is_file() => FileType::RegularFile,
            _ => FileType::Unknown,
        };
        let modified = about.modified().unwrap_or(UNIX_EPOCH);
        Self { kind, length: about.len(), disk_bytes: about.len(), modified, identity, owner: user(), links: 0 }
    }

    /// Returns the status of `path`; of a symbolic link, not of its target.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of(&fs::symlink_metadata(path)?, identity_at(path)))
    }

    /// Returns the status of an open file.
    pub(crate) fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::of(&file.metadata()?, identity_of(file)))
    }

    /// Unknown here.
    pub(crate) fn has_holes(&self) -> bool {
        false
    }

    /// Whether it is a directory.
    pub(crate) fn is_private_directory_of(&self, _user: u32) -> bool {
        self.kind == FileType::Directory
    }
}

impl Directory {
    /// Opens the directory at `path`. Its last component may not be a symbolic link.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        match Status::at(path)?.kind {
            FileType::Directory => Ok(Self { path: path.to_owned() }),
            kind => {
                Err(io::Error::new(io::ErrorKind::NotADirectory, format!("is {} and not a directory", kind_name(kind))))
            }
        }
    }

    /// Returns the directory's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn status(&self) -> io::Result<Status> {
        Status::at(&self.path)
    }

    pub(crate) fn make_private(&self) -> io::Result<()> {
        self.make_private_of(user())
    }

    /// Does nothing: a user's folders are private by inherited permissions.
    pub(crate) fn make_private_of(&self, _user: u32) -> io::Result<()> {
        Ok(())
    }

    /// Returns the names in the directory, sorted.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let names: io::Result<Vec<_>> = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name())).collect();
        let mut names = names?;
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the status of `name`; of a symbolic link, not of its target.
    pub(crate) fn status_of(&self, name: &OsStr) -> io::Result<Status> {
        Status::at(&self.place(name)?)
    }

    /// Opens the directory `name` in this one.
    pub(crate) fn subdirectory(&self, name: &OsStr) -> io::Result<Self> {
        Self::open(&self.place(name)?)
    }

    /// Opens the directory `name` in this one, and creates it if it doesn't exist.
    pub(crate) fn create_subdirectory(&self, name: &OsStr) -> io::Result<Self> {
        match fs::create_dir(self.place(name)?) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.subdirectory(name),
        }
    }

    /// Opens the regular file `name` for reading, and also for writing if `write` is set.
    pub(crate) fn file(&self, name: &OsStr, write: bool) -> io::Result<File> {
        let place = self.place(name)?;
        match Status::at(&place)?.kind {
            FileType::RegularFile => File::options().read(true).write(write).open(place),
            kind => Err(io::Error::new(io::ErrorKind::InvalidData, format!("is {} and not a file", kind_name(kind)))),
        }
    }

    /// Creates the file `name` for writing.
    pub(crate) fn new_file(&self, name: &OsStr) -> io::Result<File> {
        File::create_new(self.place(name)?)
    }

    /// Does nothing: no part of a file is released here.
    pub(crate) fn release_zeros(&self, _name: &OsStr) -> io::Result<()> {
        Ok(())
    }

    /// Does nothing: a directory can't be synced here.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// Renames `name` to `new_name` in `target`, replacing a file with that name.
    pub(crate) fn rename(&self, name: &OsStr, target: &Directory, new_name: &OsStr) -> io::Result<()> {
        fs::rename(self.place(name)?, target.place(new_name)?)
    }

    pub(crate) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_file(self.place(name)?)
    }

    pub(super) fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_dir(self.place(name)?)
    }

    /// Returns `true`: a directory can't be locked here, so each of several processes gets it.
    ///
    /// Only called for a run without a lock file.
    #[allow(clippy::unused_self)] // For the same signature as on other systems.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Removes the directory `name`, in which a file is held open until `release` is called and
    /// can't be removed before. The files named in `last` are removed last, in that order.
    pub(crate) fn remove_held(&self, name: &OsStr, last: &[&str], release: impl FnOnce()) -> io::Result<()> {
        let inner = self.subdirectory(name)?;
        let mut names = inner.names()?;
        let place = |name: &OsString| last.iter().position(|last| *name == **last);
        names.sort_by_key(|name| place(name));
        for entry in names.iter().filter(|name| place(name) != last.len().checked_sub(1)) {
            inner.remove_tree(entry)?;
        }
        release();
        self.remove_tree(name)
    }

    /// Moves the directory `name` to `target`, except the file `held`, which is open and stays.
    pub(crate) fn move_held(&self, name: &OsStr, target: &Directory, held: &OsStr) -> io::Result<()> {
        let (from, to) = (self.subdirectory(name)?, target.create_subdirectory(name)?);
        from.names()?.iter().filter(|name| *name != held).try_for_each(|name| from.rename(name, &to, name))
    }

    /// Returns the path of `name` if it is a name and not a path that leads elsewhere.
    fn place(&self, name: &OsStr) -> io::Result<PathBuf> {
        let mut components = Path::new(name).components();
        match (components.next(), components.next()) {
            (Some(Component::Normal(only)), None) if only == name => Ok(self.path.join(name)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{}` is not a file name", name.display()))),
        }
    }
}

/// Locks a file until it is closed; returns `false` if another handle has the lock.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Returns volume and number of a file; zeros if they are unknown.
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

/// Returns 0: users have no numbers here.
pub(crate) fn user() -> u32 {
    0
}

/// Returns a builder for directories.
pub(super) fn private_directories() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    builder
}

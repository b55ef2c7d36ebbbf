//! By paths, with what the standard library has everywhere: for systems on which Coroner can't be installed, so that a store which was copied
//! there can be read. Owners and locks are not looked at, and no run is taken for delivery.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::kind_name;

/// What something is.
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

/// A directory. Names given to its functions are single components.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
}

/// What stands under a name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) kind: FileType,
    /// Length in bytes.
    pub(crate) length: u64,
    /// As its length.
    pub(crate) disk_bytes: u64,
    pub(crate) modified: SystemTime,
    /// Not known.
    pub(crate) identity: (u64, u64),
    /// Not known.
    pub(crate) owner: u32,
    /// Not known.
    pub(crate) links: u64,
}

impl Status {
    fn of(about: &Metadata) -> Self {
        let kind = match about.file_type() {
            kind if kind.is_symlink() => FileType::Symlink,
            kind if kind.is_dir() => FileType::Directory,
            kind if kind.is_file() => FileType::RegularFile,
            _ => FileType::Unknown,
        };
        let modified = about.modified().unwrap_or(UNIX_EPOCH);
        Self { kind, length: about.len(), disk_bytes: about.len(), modified, identity: (0, 0), owner: user(), links: 0 }
    }

    /// What stands at `path`, a symbolic link being itself and not what it points to.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of(&fs::symlink_metadata(path)?))
    }

    /// What an open file is.
    pub(crate) fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::of(&file.metadata()?))
    }

    /// Not known.
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

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn status(&self) -> io::Result<Status> {
        Status::at(&self.path)
    }

    pub(crate) fn make_private(&self) -> io::Result<()> {
        self.make_private_of(user())
    }

    /// What a user's folders hold is the user's own, by what they inherit.
    pub(crate) fn make_private_of(&self, _user: u32) -> io::Result<()> {
        Ok(())
    }

    /// The names in it, sorted.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let names: io::Result<Vec<_>> = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name())).collect();
        let mut names = names?;
        names.sort_unstable();
        Ok(names)
    }

    /// What stands under `name`, a symbolic link being itself and not what it points to.
    pub(crate) fn status_of(&self, name: &OsStr) -> io::Result<Status> {
        Status::at(&self.place(name)?)
    }

    /// Opens the directory `name` in this one.
    pub(crate) fn subdirectory(&self, name: &OsStr) -> io::Result<Self> {
        Self::open(&self.place(name)?)
    }

    /// Opens the directory `name` in this one, and makes it where it does not exist.
    pub(crate) fn create_subdirectory(&self, name: &OsStr) -> io::Result<Self> {
        match fs::create_dir(self.place(name)?) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.subdirectory(name),
        }
    }

    /// Opens the regular file `name` to read (and write, if so asked).
    pub(crate) fn file(&self, name: &OsStr, write: bool) -> io::Result<File> {
        let place = self.place(name)?;
        match Status::at(&place)?.kind {
            FileType::RegularFile => File::options().read(true).write(write).open(place),
            kind => Err(io::Error::new(io::ErrorKind::InvalidData, format!("is {} and not a file", kind_name(kind)))),
        }
    }

    /// Makes the file `name` to write to it.
    pub(super) fn new_file(&self, name: &OsStr) -> io::Result<File> {
        File::create_new(self.place(name)?)
    }

    /// Nothing is taken back of a file.
    pub(crate) fn release_zeros(&self, _name: &OsStr) -> io::Result<()> {
        Ok(())
    }

    /// A directory is nothing that can be waited for.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// Gives `name` the name `new_name` in `target`, replacing a file that has it.
    pub(crate) fn rename(&self, name: &OsStr, target: &Directory, new_name: &OsStr) -> io::Result<()> {
        fs::rename(self.place(name)?, target.place(new_name)?)
    }

    pub(crate) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_file(self.place(name)?)
    }

    pub(super) fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_dir(self.place(name)?)
    }

    /// No run is taken.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Where `name` is, if that is a name and not a path that leads elsewhere.
    fn place(&self, name: &OsStr) -> io::Result<PathBuf> {
        let mut components = Path::new(name).components();
        match (components.next(), components.next()) {
            (Some(Component::Normal(only)), None) if only == name => Ok(self.path.join(name)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{}` is not a file name", name.display()))),
        }
    }
}

/// No run is taken.
pub(crate) fn try_lock(_file: &File) -> io::Result<bool> {
    Ok(false)
}

/// Users have no numbers here.
pub(crate) fn user() -> u32 {
    0
}

/// Makes directories.
pub(super) fn private_directories() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    builder
}

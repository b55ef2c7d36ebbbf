//! Opens a sink's files and the files it sends.
//!
//! Files are accessible only to their owner; opening them neither follows links nor blocks on
//! pipes. Files and directories that others may have put there are replaced
//! ([`coroner_process::trust`]). On Windows the files inherit their access rights from the user's
//! folders, which are private.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

/// Name of the file with the user's decision about sending.
pub(crate) const CONSENT: &str = "consent";
pub(crate) const TEMPORARY: &str = ".new-";

pub use system::{Change, open_waiting_for_nothing, read_at, write_at};
pub(crate) use system::{
    check_file, is_passing, is_untrusted, lock, own_directory, remove_foreign, sync_directory, try_lock, unlock,
};

/// Opens the outbox's file at `path` for reading and writing, creating it if necessary. A file that
/// others may have put there is replaced.
///
/// # Errors
/// An I/O error if the file can't be opened or replaced.
pub fn own_file(path: &Path) -> io::Result<File> {
    remove_foreign(path)?;
    let open = || {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).private().neither_link_nor_pipe();
        let file = options.open(path)?;
        check_file(&file, path).map(|()| file)
    };
    open().or_else(|error| {
        if !is_untrusted(&error) {
            return Err(error);
        }
        log::warn!("coroner: replacing `{}`: {error}", path.display());
        remove(path)?;
        open()
    })
}

#[cfg(unix)]
mod system {
    use std::fs::{Metadata, Permissions};
    use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
    use std::time::{SystemTime, UNIX_EPOCH};

    use coroner_process::trust::{Distrust, Entry, OTHERS_WRITE};
    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::libc;
    use nix::unistd::geteuid;

    use super::{DirBuilder, File, OpenOptions, Path, io};

    /// Options for opening a file for writing.
    pub trait Change {
        /// Creates the file accessible only to its owner, and doesn't follow a link.
        fn private(&mut self) -> &mut Self;
        /// Neither follows a link nor blocks on a pipe.
        fn neither_link_nor_pipe(&mut self) -> &mut Self;
    }

    impl Change for OpenOptions {
        fn private(&mut self) -> &mut Self {
            self.mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits())
        }

        fn neither_link_nor_pipe(&mut self) -> &mut Self {
            self.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        }
    }

    /// Opens the file at `path` for reading, without blocking on a pipe.
    ///
    /// # Errors
    /// The I/O errors of [`File::open`].
    pub fn open_waiting_for_nothing(path: &Path) -> io::Result<File> {
        File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)
    }

    /// Reads from a file at an offset until `into` is full.
    ///
    /// # Errors
    /// An I/O error if the file can't be read, or ends earlier.
    pub fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(into, offset)
    }

    /// Writes to a file at an offset.
    ///
    /// # Errors
    /// An I/O error if the file can't be written.
    pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn entry(metadata: &Metadata) -> Entry {
        Entry { mode: metadata.mode(), owner: metadata.uid(), links: metadata.nlink() }
    }

    /// Checks that the open file at `path` is this user's, has one name, and can't be written by
    /// others.
    ///
    /// # Errors
    /// An error for which [`is_untrusted`] returns `true`, or that of fstat.
    pub(crate) fn check_file(file: &File, path: &Path) -> io::Result<()> {
        check_entry(&file.metadata()?, path)
    }

    fn check_entry(metadata: &Metadata, path: &Path) -> io::Result<()> {
        let checked = entry(metadata).check_file(geteuid().as_raw());
        let has_permissions = || {
            let directory = path.parent().and_then(|parent| parent.metadata().ok());
            directory.is_none_or(|directory| directory.mode() & OTHERS_WRITE == 0)
        };
        match checked {
            // The outbox removed this permission from the directory, so this file system has none.
            Err(Distrust::Writable) if !has_permissions() => Ok(()),
            checked => checked.map_err(|distrust| io::Error::new(io::ErrorKind::InvalidData, distrust)),
        }
    }

    /// Removes the file at `path` if another user or another name of it may have put it there.
    ///
    /// # Errors
    /// An I/O error if the file can't be removed.
    pub(crate) fn remove_foreign(path: &Path) -> io::Result<()> {
        let Ok(metadata) = path.symlink_metadata() else { return Ok(()) };
        match entry(&metadata).check_file(geteuid().as_raw()) {
            Err(distrust @ (Distrust::Owner(_) | Distrust::Links(_))) => {
                log::warn!("coroner: removing `{}`, which {distrust}", path.display());
                super::remove(path)
            }
            _ => Ok(()),
        }
    }

    /// Whether a file or directory was put there by others: what [`check_file`] refuses, a link, or
    /// another kind of file.
    pub(crate) fn is_untrusted(error: &io::Error) -> bool {
        const KINDS: [Errno; 4] = [Errno::ELOOP, Errno::ENOTDIR, Errno::EISDIR, Errno::ENXIO];
        error.kind() == io::ErrorKind::InvalidData || is_one_of(error, &KINDS)
    }

    fn is_of_another_user(path: &Path) -> bool {
        path.symlink_metadata().is_ok_and(|metadata| metadata.uid() != geteuid().as_raw())
    }

    /// Creates the directory at `path` if necessary, and ensures that only this user can write to
    /// it. An entry that belongs to another user, a link or a file is renamed.
    ///
    /// # Errors
    /// An I/O error if the directory can't be created or checked.
    pub(crate) fn own_directory(path: &Path) -> io::Result<()> {
        let check = || {
            let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
            let directory = File::options().read(true).custom_flags(flags.bits()).open(path)?;
            let entry = entry(&directory.metadata()?);
            match entry.check_directory(geteuid().as_raw()) {
                // What is in the directory is checked by itself. A file system without permissions
                // refuses.
                Err(Distrust::Writable) => {
                    let private = Permissions::from_mode(entry.mode & 0o7777 & !OTHERS_WRITE);
                    directory.set_permissions(private).or_else(|error| match error.kind() {
                        io::ErrorKind::PermissionDenied => Ok(()),
                        _ => Err(error),
                    })
                }
                checked => checked.map_err(|distrust| io::Error::new(io::ErrorKind::InvalidData, distrust)),
            }
        };
        let mut renamed = None;
        match check() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_untrusted(&error) || is_of_another_user(path) => {
                let mut aside = path.as_os_str().to_owned();
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                aside.push(format!(".untrusted-{:x}", now.as_nanos()));
                std::fs::rename(path, &aside)?;
                log::warn!("coroner: `{}` is renamed to `{}`: {error}", path.display(), aside.display());
                renamed = Some(aside);
            }
            checked => return checked,
        }
        private_directories().create(path)?;
        let checked = check();
        // On a file system where nothing belongs to this user, each launch would rename one more.
        if checked.is_err()
            && let Some(aside) = renamed
        {
            let _ = std::fs::remove_dir(path).and_then(|()| std::fs::rename(&aside, path));
        }
        checked
    }

    /// Whether the error may be temporary.
    pub(crate) fn is_passing(error: &io::Error) -> bool {
        is_one_of(error, &[Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EIO, Errno::EACCES])
    }

    fn is_one_of(error: &io::Error, errors: &[Errno]) -> bool {
        errors.iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
    }

    /// Returns a builder for directories accessible only to their owner.
    fn private_directories() -> DirBuilder {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
    }

    // A lock of this process, not inherited by a child created by fork.
    pub(crate) fn lock(file: &File) -> io::Result<()> {
        Ok(fcntl(file, FcntlArg::F_SETLKW(&whole_file(libc::F_WRLCK as _))).map(drop)?)
    }

    pub(crate) fn try_lock(file: &File) -> io::Result<()> {
        Ok(fcntl(file, FcntlArg::F_SETLK(&whole_file(libc::F_WRLCK as _))).map(drop)?)
    }

    pub(crate) fn unlock(file: &File) -> io::Result<()> {
        Ok(fcntl(file, FcntlArg::F_SETLK(&whole_file(libc::F_UNLCK as _))).map(drop)?)
    }

    fn whole_file(kind: libc::c_short) -> libc::flock {
        // SAFETY: all fields are integers; zeros stand for the whole file.
        libc::flock { l_type: kind, ..unsafe { std::mem::zeroed() } }
    }

    pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
        match File::open(directory)?.sync_all() {
            // Some file systems don't support fsync for directories.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
            synced => synced,
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::io::{Read, Seek, SeekFrom, Write};

    use super::{DirBuilder, File, OpenOptions, Path, io};

    /// Options for opening a file for writing.
    pub trait Change {
        /// Creates the file accessible only to its owner, and doesn't follow a link.
        fn private(&mut self) -> &mut Self;
        /// Neither follows a link nor blocks on a pipe.
        fn neither_link_nor_pipe(&mut self) -> &mut Self;
    }

    /// Opens a link itself, which is not a regular file.
    #[cfg(windows)]
    fn itself(options: &mut OpenOptions) -> &mut OpenOptions {
        /// `FILE_FLAG_OPEN_REPARSE_POINT` of `CreateFileW`.
        const OPEN_REPARSE_POINT: u32 = 0x0020_0000;
        std::os::windows::fs::OpenOptionsExt::custom_flags(options, OPEN_REPARSE_POINT)
    }

    #[cfg(not(windows))]
    fn itself(options: &mut OpenOptions) -> &mut OpenOptions {
        options
    }

    impl Change for OpenOptions {
        fn private(&mut self) -> &mut Self {
            itself(self)
        }

        fn neither_link_nor_pipe(&mut self) -> &mut Self {
            itself(self)
        }
    }

    /// Opens the file at `path` for reading.
    ///
    /// # Errors
    /// The I/O errors of [`File::open`].
    pub fn open_waiting_for_nothing(path: &Path) -> io::Result<File> {
        File::open(path)
    }

    /// Reads from a file at an offset until `into` is full.
    ///
    /// # Errors
    /// An I/O error if the file can't be read, or ends earlier.
    pub fn read_at(mut file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(into)
    }

    /// Writes to a file at an offset.
    ///
    /// # Errors
    /// An I/O error if the file can't be written.
    pub fn write_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)
    }

    /// Checks that an open file is a regular file: a user's folders are private by inherited
    /// permissions.
    pub(crate) fn check_file(file: &File, _path: &Path) -> io::Result<()> {
        if file.metadata()?.is_file() {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"))
        }
    }

    /// Does nothing: a user's folders are private by inherited permissions.
    pub(crate) fn remove_foreign(_path: &Path) -> io::Result<()> {
        Ok(())
    }

    /// Whether a file is of another kind.
    pub(crate) fn is_untrusted(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::InvalidData
    }

    /// Creates the directory at `path` if necessary.
    pub(crate) fn own_directory(path: &Path) -> io::Result<()> {
        private_directories().create(path)
    }

    /// Whether the error may be temporary: any error except a missing file or invalid data.
    pub(crate) fn is_passing(error: &io::Error) -> bool {
        !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
    }

    /// Returns a builder for directories.
    fn private_directories() -> DirBuilder {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        builder
    }

    pub(crate) fn lock(file: &File) -> io::Result<()> {
        file.lock()
    }

    pub(crate) fn try_lock(file: &File) -> io::Result<()> {
        Ok(file.try_lock()?)
    }

    pub(crate) fn unlock(file: &File) -> io::Result<()> {
        file.unlock()
    }

    /// Does nothing: directories can't be opened like files.
    #[allow(clippy::unnecessary_wraps, reason = "as elsewhere")]
    pub(crate) fn sync_directory(_directory: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a file atomically and durably.
pub(crate) fn write_atomically(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    // Created with mode 0600; removed if the write fails.
    let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    let place = directory.join(name);
    if let Err(failed) = file.persist(&place) {
        // A directory in its place is not from this program.
        if !fs::symlink_metadata(&place).is_ok_and(|metadata| metadata.is_dir()) {
            return Err(failed.error);
        }
        remove(&place)?;
        failed.file.persist(&place).map_err(|failed| failed.error)?;
    }
    sync_directory(directory)
}

/// Opens a regular file for reading. Fails for a link, for a pipe, which could block, and for a
/// file that others may have put there.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).neither_link_nor_pipe().open(path)?;
    check_file(&file, path).map(|()| file)
}

/// Removes a file, or a directory with its contents.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(_) if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) => fs::remove_dir_all(path),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

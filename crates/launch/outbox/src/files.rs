//! Opens a sink's files and the files it sends.
//!
//! Files are accessible only to their owner; opening them neither follows links nor blocks on
//! pipes. On Windows the files inherit their access rights from the user's folders, which are
//! private.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;

pub use system::{Change, open_waiting_for_nothing, read_at, write_at};
pub(crate) use system::{is_link, is_passing, lock, private_directories, sync_directory, try_lock, unlock};

#[cfg(unix)]
mod system {
    use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
    use std::path::Path;

    use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
    use rustix::io::Errno;

    use super::{DirBuilder, File, OpenOptions, io};

    /// Options for opening a file for writing.
    pub trait Change {
        /// Creates the file accessible only to its owner, and doesn't follow a link.
        fn private(&mut self) -> &mut Self;
        /// Neither follows a link nor blocks on a pipe.
        fn neither_link_nor_pipe(&mut self) -> &mut Self;
    }

    impl Change for OpenOptions {
        fn private(&mut self) -> &mut Self {
            self.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32)
        }

        fn neither_link_nor_pipe(&mut self) -> &mut Self {
            self.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        }
    }

    /// Opens the file at `path` for reading, without blocking on a pipe.
    ///
    /// # Errors
    /// The I/O errors of [`File::open`].
    pub fn open_waiting_for_nothing(path: &Path) -> io::Result<File> {
        File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
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

    /// Whether a file was not opened because it is a link.
    pub(crate) fn is_link(error: &io::Error) -> bool {
        Errno::from_io_error(error) == Some(Errno::LOOP)
    }

    /// Whether the error may be temporary.
    pub(crate) fn is_passing(error: &io::Error) -> bool {
        const PASSING: [Errno; 5] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO, Errno::ACCESS];
        PASSING.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
    }

    /// Returns a builder for directories accessible only to their owner.
    pub(crate) fn private_directories() -> DirBuilder {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
    }

    // A lock of this process, not inherited by a child created by fork.
    pub(crate) fn lock(file: &File) -> io::Result<()> {
        Ok(fcntl_lock(file, FlockOperation::LockExclusive)?)
    }

    pub(crate) fn try_lock(file: &File) -> io::Result<()> {
        Ok(fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)?)
    }

    pub(crate) fn unlock(file: &File) -> io::Result<()> {
        Ok(fcntl_lock(file, FlockOperation::Unlock)?)
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
    use std::path::Path;

    use super::{DirBuilder, File, OpenOptions, io};

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

    /// Whether a file was not opened because it is a link; always `false`, because links can be
    /// opened.
    pub(crate) fn is_link(_error: &io::Error) -> bool {
        false
    }

    /// Whether the error may be temporary: any error except a missing file or invalid data.
    pub(crate) fn is_passing(error: &io::Error) -> bool {
        !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
    }

    /// Returns a builder for directories.
    pub(crate) fn private_directories() -> DirBuilder {
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

//! How files are opened that a sink keeps, or is given to send, by what each system has for it: for their owner only, without following a
//! link, without waiting for a pipe. On Windows what a user's folders hold is the user's own, by what they inherit.

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

    /// Options of a file that is written.
    pub trait Change {
        /// The file is made for its owner only, and not through a link.
        fn private(&mut self) -> &mut Self;
        /// Neither a link is followed nor a pipe waited for.
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

    /// Opens what is at `path` to read it; a pipe is not waited for.
    ///
    /// # Errors
    /// Those of [`File::open`].
    pub fn open_waiting_for_nothing(path: &Path) -> io::Result<File> {
        File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
    }

    /// Reads from a place of a file, as much as `into` holds.
    ///
    /// # Errors
    /// It can't be read, or ends before.
    pub fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(into, offset)
    }

    /// Writes to a place of a file.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    /// Whether a file was not opened because a link stands there.
    pub(crate) fn is_link(error: &io::Error) -> bool {
        Errno::from_io_error(error) == Some(Errno::LOOP)
    }

    /// Whether another time it may go well.
    pub(crate) fn is_passing(error: &io::Error) -> bool {
        const PASSING: [Errno; 5] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO, Errno::ACCESS];
        PASSING.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
    }

    /// Makes directories, for their owner only.
    pub(crate) fn private_directories() -> DirBuilder {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
    }

    // A lock of the process's, which a child made by fork does not have.
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
            // Some file systems have no fsync of a directory.
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

    /// Options of a file that is written.
    pub trait Change {
        /// The file is made for its owner only, and not through a link.
        fn private(&mut self) -> &mut Self;
        /// Neither a link is followed nor a pipe waited for.
        fn neither_link_nor_pipe(&mut self) -> &mut Self;
    }

    /// A link is opened itself, and is no regular file.
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

    /// Opens what is at `path` to read it.
    ///
    /// # Errors
    /// Those of [`File::open`].
    pub fn open_waiting_for_nothing(path: &Path) -> io::Result<File> {
        File::open(path)
    }

    /// Reads from a place of a file, as much as `into` holds.
    ///
    /// # Errors
    /// It can't be read, or ends before.
    pub fn read_at(mut file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(into)
    }

    /// Writes to a place of a file.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)
    }

    /// Whether a file was not opened because a link stands there: one is opened.
    pub(crate) fn is_link(_error: &io::Error) -> bool {
        false
    }

    /// Whether another time it may go well: all but that there is no such file.
    pub(crate) fn is_passing(error: &io::Error) -> bool {
        !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
    }

    /// Makes directories.
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

    /// A directory is nothing that is opened.
    #[allow(clippy::unnecessary_wraps, reason = "as elsewhere")]
    pub(crate) fn sync_directory(_directory: &Path) -> io::Result<()> {
        Ok(())
    }
}

//! Who has a directory, where no file may be locked: said by a named pipe.
//!
//! iOS ends an app that is suspended while it has a lock on a file in the folder of an app group (`0xdead10cc`), whatever kind of lock
//! it is; and it may suspend an app at any instruction. So nothing is locked there ([`forbids_locks`]). Who has a directory keeps a named pipe in
//! it open for reading, and never reads. The kernel refuses to open a pipe for writing without waiting if nobody has it open for reading
//! (`ENXIO` of open(2); XNU bsd/miscfs/fifofs/fifo_vnops.c, `fifo_open`), and closes it when the process ends, however it ends. A suspended process
//! has it open still. That is all that a lock says, and no other right to see that process is needed.
//!
//! **One has it at a time.** Each who wants it makes a pipe with a name of its own, opens it, and only then gives it the name by which it
//! counts (`held-…`): a pipe with such a name that nobody has open is dead for good. Then it looks at all others. Of two, the one that
//! came second sees the first, whenever that looked: so no two find themselves alone. Who finds another one withdraws, but of two that come at the same
//! moment the one whose name is less waits for the other to do so. The first of a directory, which nobody else knows yet, is `held-0`, before all.
//!
//! A child made by `fork` inherits the open pipe, and holds what its parent held until it ends. (An app of iOS does not fork.)
//!
//! Not async-signal-safe.

/// Whether files at `path` may not be locked: it is in the folder of an app group of iOS, or of its kin, or of their simulators. (Those of macOS are
/// elsewhere, and their locks are nobody's affair.)
pub fn forbids_locks(path: &[u8]) -> bool {
    const GROUPS: &[u8] = b"/Containers/Shared/AppGroup/";
    path.windows(GROUPS.len()).any(|part| part == GROUPS)
}

#[cfg(supported)]
pub use held::{Hold, begin};

#[cfg(supported)]
mod held {
    use core::ffi::CStr;

    use crate::files;
    use crate::os::syscall::{Errno, Result, call};
    use crate::path::LongPath;

    /// What the names of pipes begin with that count.
    const HELD: &[u8] = b"held-";
    /// What they begin with before they count.
    const MADE: &[u8] = b".held-";
    /// So much older than a new pipe is one whose maker has ended before it counted: who makes one takes microseconds.
    const LEFT_S: i64 = 600;
    /// How often one that came at the same moment is given time to withdraw.
    const WAITS: u32 = 10;
    /// So long each time.
    const WAIT_NS: i64 = 10_000_000;

    /// A directory that is this value's until it is dropped.
    #[derive(Debug)]
    pub struct Hold(i32);

    impl Drop for Hold {
        fn drop(&mut self) {
            // The pipe stays, dead, for the next one to remove.
            files::close(self.0);
        }
    }

    impl Hold {
        /// Takes the directory; `None` if somebody has it, in this process or another.
        ///
        /// # Errors
        /// The pipe can't be made (a file system without such), or the directory not be listed.
        pub fn try_take(directory: &CStr) -> Result<Option<Hold>> {
            let mut id = [0; 16];
            if !files::random(&mut id) {
                return Err(Errno::AGAIN);
            }
            let name = LongPath::new().push(HELD).push_hex(&id);
            let hold = Hold(publish(directory, name.as_c_str())?);
            let taken = is_alone(directory, name.as_c_str());
            if taken == Ok(true) {
                remove_dead(directory, name.as_c_str());
                return Ok(Some(hold));
            }
            files::unlink(libc::AT_FDCWD, at(directory, name.as_c_str()).as_c_str(), 0);
            taken.map(|_| None)
        }
    }

    /// Whether nobody else has it, once those have withdrawn that came at the same moment.
    fn is_alone(directory: &CStr, own: &CStr) -> Result<bool> {
        for _ in 0..WAITS {
            let (mut before, mut after) = (false, false);
            each_pipe(directory, HELD, |name| {
                if name != own && is_open(at(directory, name).as_c_str()) {
                    *(if name < own { &mut before } else { &mut after }) = true;
                }
            })?;
            match (before, after) {
                (false, false) => return Ok(true),
                (true, _) => return Ok(false),
                (false, true) => wait(),
            }
        }
        Ok(false)
    }

    /// Has the directory, which nobody else knows yet, for as long as the descriptor is open that is returned.
    ///
    /// # Errors
    /// The pipe can't be made.
    pub fn begin(directory: &CStr) -> Result<i32> {
        publish(directory, c"held-0")
    }

    /// Makes a pipe, and opens it for reading before it has its name.
    fn publish(directory: &CStr, name: &CStr) -> Result<i32> {
        let made = LongPath::new().push(directory.to_bytes()).push(b"/.").push(name.to_bytes());
        make_pipe(made.as_c_str())?;
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let opened = files::open(libc::AT_FDCWD, made.as_c_str(), flags, 0).and_then(|pipe| {
            let named = files::rename(libc::AT_FDCWD, made.as_c_str(), at(directory, name).as_c_str());
            named.map(|()| pipe).inspect_err(|_| files::close(pipe))
        });
        opened.inspect_err(|_| files::unlink(libc::AT_FDCWD, made.as_c_str(), 0))
    }

    #[cfg(target_vendor = "apple")]
    fn make_pipe(path: &CStr) -> Result<()> {
        // SAFETY: the kernel reads the path.
        unsafe { call!(mkfifo, path.as_ptr(), 0o600) }.map(|_| ())
    }

    #[cfg(not(target_vendor = "apple"))]
    fn make_pipe(path: &CStr) -> Result<()> {
        // SAFETY: as above.
        unsafe { call!(mknodat, libc::AT_FDCWD, path.as_ptr(), libc::S_IFIFO | 0o600, 0) }.map(|_| ())
    }

    fn at(directory: &CStr, name: &CStr) -> LongPath {
        LongPath::new().push(directory.to_bytes()).push(b"/").push(name.to_bytes())
    }

    /// Whether the pipe at `path` is open for reading. What can't be known counts as open.
    fn is_open(path: &CStr) -> bool {
        match files::open(libc::AT_FDCWD, path, libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOFOLLOW, 0) {
            Ok(pipe) => {
                // A file of that name is somebody's mistake, and held by nobody.
                let is_pipe = files::status(pipe).is_ok_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFIFO);
                files::close(pipe);
                is_pipe
            }
            Err(Errno(libc::ENXIO | libc::ENOENT)) => false,
            Err(_) => true,
        }
    }

    /// Where libc notes this thread's errors.
    fn errno() -> *mut i32 {
        #[cfg(target_os = "android")]
        use libc::__errno as errno;
        #[cfg(target_os = "linux")]
        use libc::__errno_location as errno;
        #[cfg(target_vendor = "apple")]
        use libc::__error as errno;
        // SAFETY: no condition; it is valid for as long as the thread.
        unsafe { errno() }
    }

    /// Calls `act` with each name in the directory that begins so. Nothing is removed meanwhile: some file systems would leave names out.
    fn each_pipe(directory: &CStr, prefix: &[u8], mut act: impl FnMut(&CStr)) -> Result<()> {
        // SAFETY: a path with its NUL; the stream is closed below.
        let stream = unsafe { libc::opendir(directory.as_ptr()) };
        if stream.is_null() {
            return Err(Errno(libc::EIO));
        }
        let end = loop {
            // An error is no end of the list, and only this tells them apart.
            let errno = errno();
            // SAFETY: this thread's own; an open stream of this function's alone; an entry, whose name ends with a NUL, is valid until
            // the next call.
            let name = unsafe {
                *errno = 0;
                match libc::readdir(stream).as_ref() {
                    Some(entry) => CStr::from_ptr(entry.d_name.as_ptr()),
                    None if *errno == 0 => break Ok(()),
                    None => break Err(Errno(*errno)),
                }
            };
            if name.to_bytes().starts_with(prefix) {
                act(name);
            }
        };
        // SAFETY: the stream is closed once.
        unsafe { libc::closedir(stream) };
        end
    }

    /// Removes the pipes of those that have ended. What stays is the next one's to remove.
    fn remove_dead(directory: &CStr, own: &CStr) {
        let remove = |path: LongPath| files::unlink(libc::AT_FDCWD, path.as_c_str(), 0);
        let _ = each_pipe(directory, HELD, |name| {
            let path = at(directory, name);
            if !is_open(path.as_c_str()) {
                remove(path);
            }
        });
        // The file system's clock, which stamped them all.
        let made = |name: &CStr| {
            files::status_of(libc::AT_FDCWD, at(directory, name).as_c_str()).ok().map(|status| status.st_mtime)
        };
        let Some(now) = made(own) else { return };
        let _ = each_pipe(directory, MADE, |name| {
            if made(name).is_some_and(|then| now.saturating_sub(then) > LEFT_S) {
                remove(at(directory, name));
            }
        });
    }

    fn wait() {
        let time = libc::timespec { tv_sec: 0, tv_nsec: WAIT_NS };
        // SAFETY: the kernel reads one `timespec`.
        unsafe { libc::nanosleep(&raw const time, core::ptr::null_mut()) };
    }
}

#[cfg(all(test, supported))]
mod tests;

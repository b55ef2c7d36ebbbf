//! Directory ownership through a named pipe, for places where file locks are not allowed.
//!
//! iOS kills an app that is suspended while it holds a lock on a file in an app-group container
//! (`0xdead10cc`), whatever the kind of lock; and it may suspend an app at any instruction. So
//! nothing is locked there ([`forbids_locks`]). The owner of a directory keeps a named pipe in it
//! open for reading, and never reads. If nobody has a pipe open for reading, the kernel refuses to
//! open it for writing without waiting (`ENXIO` in open(2); XNU bsd/miscfs/fifofs/fifo_vnops.c,
//! `fifo_open`). It closes the pipe when the process terminates, however that happens. A suspended
//! process still has it open. The pipe thus provides the same information as a lock, and requires
//! no other right to see the owning process.
//!
//! **There is one owner at a time.** Each candidate creates a pipe with a unique name, opens it,
//! and only then gives it the name by which it counts (`held-…`): a pipe with such a name that
//! nobody has open is permanently dead. The candidate then checks all other pipes. Of two
//! candidates, the later one sees the first, whenever the first checked, so no two can both find
//! themselves alone. A candidate that finds another one withdraws, but of two simultaneous
//! candidates, the one with the lesser name waits for the other to withdraw. The first owner of a
//! directory that nobody else knows yet is `held-0`, which sorts before all others.
//!
//! A child created by `fork` inherits the open pipe, and keeps its parent's directory until the
//! child exits. (iOS apps don't fork.)
//!
//! Not async-signal-safe.

/// Whether files at `path` must not be locked because it is in an app-group container.
///
/// Applies to iOS and its relatives, and to their simulators. (The containers of macOS are
/// elsewhere, and locks are allowed there.)
pub fn forbids_locks(path: &[u8]) -> bool {
    const GROUPS: &[u8] = b"/Containers/Shared/AppGroup/";
    path.windows(GROUPS.len()).any(|part| part == GROUPS)
}

#[cfg(supported)]
pub use held::{Hold, begin};

#[cfg(supported)]
mod held {
    use core::ffi::CStr;

    use crate::files::{self, Descriptor, File};
    use crate::os::syscall::{Errno, Result, call};
    use crate::path::LongPath;

    /// Name prefix of pipes that count.
    const HELD: &[u8] = b"held-";
    /// Name prefix of pipes that don't count yet.
    const MADE: &[u8] = b".held-";
    /// Minimum age of an abandoned pipe, relative to a new one, in seconds.
    ///
    /// The creator of an older pipe has terminated before the pipe counted: creating one takes
    /// microseconds.
    const LEFT_S: i64 = 600;
    /// Number of times to wait for a simultaneous candidate to withdraw.
    const WAITS: u32 = 10;
    /// Duration of each wait in nanoseconds.
    const WAIT_NS: i64 = 10_000_000;

    /// Ownership of a directory until this value is dropped.
    ///
    /// The dead pipe stays until the next owner removes it.
    #[derive(Debug)]
    pub struct Hold(#[allow(dead_code, reason = "open until it is dropped")] File);

    impl Hold {
        /// Takes ownership of the directory; `None` if it is owned, by this process or another.
        ///
        /// # Errors
        /// The pipe can't be created (the file system doesn't support pipes), or the directory
        /// can't be listed.
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
            files::unlink(Descriptor::WORKING_DIRECTORY, at(directory, name.as_c_str()).as_c_str(), 0);
            taken.map(|_| None)
        }
    }

    /// Whether nobody else owns the directory, once simultaneous candidates have withdrawn.
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

    /// Takes ownership of a directory that nobody else knows yet.
    ///
    /// The directory is owned as long as the returned descriptor is open.
    ///
    /// # Errors
    /// The pipe can't be created.
    pub fn begin(directory: &CStr) -> Result<File> {
        publish(directory, c"held-0")
    }

    /// Creates a pipe, and opens it for reading before it gets its name.
    fn publish(directory: &CStr, name: &CStr) -> Result<File> {
        let made = LongPath::new().push(directory.to_bytes()).push(b"/.").push(name.to_bytes());
        make_pipe(made.as_c_str())?;
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let opened = files::open(Descriptor::WORKING_DIRECTORY, made.as_c_str(), flags, 0).and_then(|pipe| {
            let named = files::rename(Descriptor::WORKING_DIRECTORY, made.as_c_str(), at(directory, name).as_c_str());
            named.map(|()| pipe)
        });
        opened.inspect_err(|_| files::unlink(Descriptor::WORKING_DIRECTORY, made.as_c_str(), 0))
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

    /// Whether the pipe at `path` is open for reading. If that can't be determined, returns `true`.
    fn is_open(path: &CStr) -> bool {
        match files::open(Descriptor::WORKING_DIRECTORY, path, libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOFOLLOW, 0)
        {
            Ok(pipe) => {
                // A regular file with that name is a mistake, and doesn't mean ownership.
                files::status(&pipe).is_ok_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFIFO)
            }
            Err(Errno(libc::ENXIO | libc::ENOENT)) => false,
            Err(_) => true,
        }
    }

    /// Returns the address of this thread's `errno`.
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

    /// Calls `act` with each name in the directory that begins with `prefix`.
    ///
    /// `act` must not remove anything if a complete list is needed: some file systems would omit
    /// names.
    fn each_pipe(directory: &CStr, prefix: &[u8], mut act: impl FnMut(&CStr)) -> Result<()> {
        // SAFETY: a path with its NUL; the stream is closed below.
        let stream = unsafe { libc::opendir(directory.as_ptr()) };
        if stream.is_null() {
            return Err(Errno(libc::EIO));
        }
        let end = loop {
            // Only `errno` distinguishes an error from the end of the list.
            let errno = errno();
            // SAFETY: this thread's own; an open stream used by this function alone; an entry,
            // whose name ends with a NUL, is valid until the next call.
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

    /// Removes the pipes of terminated processes. Pipes that can't be removed are left to the next
    /// owner.
    fn remove_dead(directory: &CStr, own: &CStr) {
        let remove = |path: LongPath| files::unlink(Descriptor::WORKING_DIRECTORY, path.as_c_str(), 0);
        let _ = each_pipe(directory, HELD, |name| {
            let path = at(directory, name);
            if !is_open(path.as_c_str()) {
                remove(path);
            }
        });
        // Uses the file system's clock, which set the times of all of them.
        let made = |name: &CStr| {
            files::status_of(Descriptor::WORKING_DIRECTORY, at(directory, name).as_c_str())
                .ok()
                .map(|status| status.st_mtime)
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

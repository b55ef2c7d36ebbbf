//! Error numbers, as the functions of libSystem leave them.

/// An error number (positive, <sys/errno.h>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Function not implemented.
    pub const NOSYS: Errno = Errno(libc::ENOSYS);
    /// Operation not permitted.
    pub const PERM: Errno = Errno(libc::EPERM);
    /// Interrupted by a signal.
    pub const INTR: Errno = Errno(libc::EINTR);
    /// Try again.
    pub const AGAIN: Errno = Errno(libc::EAGAIN);

    /// The calling thread's last error.
    pub fn last() -> Errno {
        // SAFETY: the address of the thread's own errno, which lies in its fixed part (no lazy allocation).
        // Async-signal-safe: <sys/errno.h>, `__error`.
        Errno(unsafe { *libc::__error() })
    }

    /// Makes it the calling thread's last error again: what a signal handler must do before it returns.
    pub fn restore(self) {
        // SAFETY: as in `last`.
        unsafe { *libc::__error() = self.0 };
    }
}

/// What a call returned.
pub type Result<T> = core::result::Result<T, Errno>;

/// The result of a function that answers -1 for an error.
///
/// # Errors
/// The thread's errno.
pub fn check(answer: isize) -> Result<usize> {
    if answer == -1 { Err(Errno::last()) } else { Ok(answer as usize) }
}

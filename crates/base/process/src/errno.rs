//! System error numbers.

/// A positive error number (`errno.h`).
///
/// On Linux as returned by the kernel, on Darwin as set by libSystem's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "error number {}", self.0)
    }
}

impl core::error::Error for Errno {}

impl Errno {
    /// Interrupted by a signal.
    pub const INTR: Errno = Errno(libc::EINTR);
    /// Try again.
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
}

/// The result of a system call.
pub type Result<T> = core::result::Result<T, Errno>;

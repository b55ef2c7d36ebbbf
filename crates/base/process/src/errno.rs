//! Error numbers of the system.

/// An error number (positive, `errno.h`): as the kernel returned it on Linux, as libSystem's functions leave it on Darwin.
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

/// What a call returned.
pub type Result<T> = core::result::Result<T, Errno>;

//! Error numbers, as the functions of libSystem leave them.

pub use crate::errno::{Errno, Result};

impl Errno {
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

/// The result of a function that answers -1 for an error.
///
/// # Errors
/// The thread's errno.
pub fn check(answer: isize) -> Result<usize> {
    if answer == -1 { Err(Errno::last()) } else { Ok(answer as usize) }
}

//! Error numbers, as set by libSystem's functions.

pub use crate::errno::{Errno, Result};

impl Errno {
    /// Returns the calling thread's last error.
    pub fn last() -> Errno {
        // SAFETY: the address of the thread's own errno, which lies in its fixed part (no lazy
        // allocation). Async-signal-safe: <sys/errno.h>, `__error`.
        Errno(unsafe { *libc::__error() })
    }

    /// Restores the calling thread's last error, as a signal handler must do before it returns.
    pub fn restore(self) {
        // SAFETY: as in `last`.
        unsafe { *libc::__error() = self.0 };
    }
}

/// Converts the result of a function that returns -1 for an error.
///
/// # Errors
/// The thread's errno.
pub fn check(answer: isize) -> Result<usize> {
    if answer == -1 { Err(Errno::last()) } else { Ok(answer as usize) }
}

/// Makes a call that all systems have: `call!(close, fd)`, for shared code.
///
/// Each is a libSystem function that only enters the kernel (sigaction(2) lists most of them as
/// async-signal-safe).
macro_rules! call {
    (fcntl, $file:expr, $command:expr, $argument:expr) => {
        $crate::syscall::check(libc::fcntl($file, $command, $argument) as isize)
    };
    (openat, $directory:expr, $path:expr, $flags:expr, $mode:expr) => {
        $crate::syscall::check(libc::openat($directory, $path, $flags, $mode) as isize)
    };
    ($name:ident $(, $argument:expr)*) => {
        $crate::syscall::check(libc::$name($($argument as _),*) as isize)
    };
}
pub(crate) use call;

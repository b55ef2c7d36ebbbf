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

/// A call that all systems have: `call!(close, fd)`, for code that they share. Each is a function of libSystem that only enters the
/// kernel (sigaction(2) names most of them async-signal-safe).
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

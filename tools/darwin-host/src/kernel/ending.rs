//! Ends of a program: by a signal as on macOS, or by the host's explicit refusal.

use std::fmt::Write;

/// The exit status of a program that used something unsupported. No other exit has it.
pub(crate) const REFUSED: i32 = 118;

/// A line of text on the stack, for messages where allocations and locks are not allowed.
pub(crate) struct Line {
    bytes: [u8; 512],
    used: usize,
}

impl Line {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; 512], used: 0 }
    }

    /// Writes the line to standard error, with a newline.
    pub(crate) fn print(&mut self) {
        let _ = self.write_str("\n");
        // SAFETY: the buffer is a field, and `used` bytes of it are written.
        unsafe { libc::write(2, self.bytes.as_ptr().cast(), self.used) };
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for &byte in text.as_bytes() {
            if self.used < self.bytes.len() {
                self.bytes[self.used] = byte;
                self.used += 1;
            }
        }
        Ok(())
    }
}

/// Reports on standard error what the host doesn't support, and exits with [`REFUSED`].
///
/// The message is composed on the stack, so this also works in a signal handler.
macro_rules! refuse {
    ($($argument:tt)*) => {{
        use std::fmt::Write as _;
        let mut line = $crate::kernel::ending::Line::new();
        let _ = line.write_str("darwin-host: ");
        let _ = write!(line, $($argument)*);
        line.print();
        $crate::kernel::ending::exit_now($crate::kernel::ending::REFUSED)
    }};
}
pub(crate) use refuse;

/// Exits without running any more of the program's code.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(status) }
}

/// Kills the process by a Linux signal, even if it is handled or blocked.
///
/// The signal's default action must be to terminate.
pub(crate) fn die_by(signal: i32) -> ! {
    // SAFETY: plain system calls on local data. A death that a test expects leaves no core file.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, signal);
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const only, std::ptr::null_mut());
        // The signal's default action is not to terminate.
        libc::_exit(128 + signal)
    }
}

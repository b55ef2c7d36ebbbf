//! Signal dispositions as the kernel has them.

use coroner_machine::syscall::{Result, syscall};

/// `SIG_DFL`.
pub(crate) const DEFAULT: usize = 0;
/// `SIG_IGN`.
pub(crate) const IGNORE: usize = 1;

/// The kernel's `struct sigaction` (asm/signal.h), which is not the C library's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Action {
    /// `SIG_DFL`, `SIG_IGN` or a function's address.
    pub handler: usize,
    /// `SA_*`.
    pub flags: u64,
    /// Where a handler returns to; arm64 has the field too and does not use it.
    pub restorer: usize,
    /// Signals blocked while the handler runs.
    pub mask: u64,
}

impl Action {
    /// The default action.
    pub(crate) const DEFAULT: Action = Action { handler: DEFAULT, flags: 0, restorer: 0, mask: 0 };

    /// The disposition of a signal now.
    pub(crate) fn of(signal: i32) -> Result<Action> {
        let mut now = Action::default();
        // SAFETY: the kernel writes one `struct sigaction`; its set of signals has 8 bytes. Async-signal-safe: one system
        // call.
        unsafe { syscall!(libc::SYS_rt_sigaction, signal, 0, &raw mut now, 8) }?;
        Ok(now)
    }

    /// Makes this the disposition of a signal.
    ///
    /// # Safety
    /// A handler in it must be sound to run for that signal at any moment.
    pub(crate) unsafe fn set(&self, signal: i32) -> Result<()> {
        // SAFETY: the kernel reads one `struct sigaction`; the handler is the caller's promise. Async-signal-safe: one
        // system call.
        unsafe { syscall!(libc::SYS_rt_sigaction, signal, core::ptr::from_ref(self), 0, 8) }.map(|_| ())
    }

    /// Whether a function handles it.
    pub(crate) fn is_function(&self) -> bool {
        self.handler != DEFAULT && self.handler != IGNORE
    }
}

/// The bit of a signal in the kernel's set.
pub(crate) const fn bit(signal: i32) -> u64 {
    if signal >= 1 && signal <= 64 { 1 << (signal - 1) } else { 0 }
}

/// Blocks exactly the signals of `mask` on this thread, and answers what it blocked before.
pub(crate) fn block_exactly(mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: the kernel reads and writes one 8-byte set. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, 8) };
    before
}

/// Blocks the signals of `mask` too, and answers what was blocked before.
pub(crate) fn block_too(mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: as in `block_exactly`.
    let _ = unsafe { syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const mask, &raw mut before, 8) };
    before
}

/// The signals that this thread blocks.
pub(crate) fn blocked() -> u64 {
    let mut now = 0_u64;
    // SAFETY: the kernel writes one 8-byte set. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut now, 8) };
    now
}

/// Takes a signal that is pending for this thread, blocked, so that it is never delivered.
pub(crate) fn take_pending(signal: i32) {
    let set = bit(signal);
    let no_time = [0_i64; 2];
    // SAFETY: the kernel reads one 8-byte set and one timespec. Async-signal-safe: one system call, which does not wait.
    let _ = unsafe { syscall!(libc::SYS_rt_sigtimedwait, &raw const set, 0, no_time.as_ptr(), 8) };
}

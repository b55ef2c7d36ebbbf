//! Signal dispositions and masks. Everything here is async-signal-safe (POSIX).

use super::syscall::{Result, check};

/// A signal's disposition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalAction {
    /// `SIG_DFL`, `SIG_IGN` or a function's address.
    pub handler: usize,
    /// `SA_*`.
    pub flags: i32,
    /// Signals blocked while the handler runs.
    pub mask: u32,
}

impl SignalAction {
    /// The default action.
    pub const DEFAULT: SignalAction = SignalAction { handler: libc::SIG_DFL, flags: 0, mask: 0 };

    /// Returns the current disposition of a signal.
    ///
    /// # Errors
    /// The kernel's error: `EINVAL` for an invalid signal number.
    pub fn of(signal: i32) -> Result<SignalAction> {
        // SAFETY: an all-zero sigaction is valid.
        let mut now: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: writes one sigaction. Async-signal-safe (POSIX).
        check(unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut now) } as isize)?;
        Ok(SignalAction { handler: now.sa_sigaction, flags: now.sa_flags, mask: now.sa_mask })
    }

    /// Makes this the disposition of a signal.
    ///
    /// # Safety
    /// A handler in it must be sound to run for that signal at any moment.
    pub unsafe fn set(&self, signal: i32) -> Result<()> {
        let action = libc::sigaction { sa_sigaction: self.handler, sa_mask: self.mask, sa_flags: self.flags };
        // SAFETY: reads one sigaction; the handler is the caller's promise. Async-signal-safe
        // (POSIX).
        check(unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) } as isize).map(|_| ())
    }

    /// Whether the disposition has that flag, one of `SA_*`.
    pub fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// Whether a function handles it.
    pub fn is_function(&self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }
}

/// Returns the bit of a signal in a set.
pub const fn bit(signal: i32) -> u32 {
    if signal >= 1 && signal < 32 { 1 << (signal - 1) } else { 0 }
}

/// Blocks exactly the signals of `mask` on this thread, and returns the previous mask.
pub fn block_exactly(mask: u32) -> u32 {
    let mut before = 0;
    // SAFETY: reads and writes one set each. Async-signal-safe (POSIX).
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, &raw mut before) };
    before
}

/// Blocks the signals of `mask` too; returns the previous mask.
pub fn block_too(mask: u32) -> u32 {
    let before = blocked();
    block_exactly(before | mask);
    before
}

/// Returns the signals that this thread blocks.
pub fn blocked() -> u32 {
    let mut now = 0;
    // SAFETY: writes one set. Async-signal-safe (POSIX).
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut now) };
    now
}

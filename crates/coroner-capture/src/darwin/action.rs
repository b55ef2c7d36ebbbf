//! Signal dispositions and masks.

use coroner_machine::syscall::{Result, check};

/// A signal's disposition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Action {
    /// `SIG_DFL`, `SIG_IGN` or a function's address.
    pub handler: usize,
    /// `SA_*`.
    pub flags: i32,
    /// Signals blocked while the handler runs.
    pub mask: u32,
}

impl Action {
    /// The default action.
    pub(crate) const DEFAULT: Action = Action { handler: libc::SIG_DFL, flags: 0, mask: 0 };

    /// The disposition of a signal now.
    pub(crate) fn of(signal: i32) -> Result<Action> {
        // SAFETY: an all-zero sigaction is valid.
        let mut now: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: writes one sigaction. Async-signal-safe (POSIX).
        check(unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut now) } as isize)?;
        Ok(Action { handler: now.sa_sigaction, flags: now.sa_flags, mask: now.sa_mask })
    }

    /// Makes this the disposition of a signal.
    ///
    /// # Safety
    /// A handler in it must be sound to run for that signal at any moment.
    pub(crate) unsafe fn set(&self, signal: i32) -> Result<()> {
        let action = libc::sigaction { sa_sigaction: self.handler, sa_mask: self.mask, sa_flags: self.flags };
        // SAFETY: reads one sigaction; the handler is the caller's promise. Async-signal-safe (POSIX).
        check(unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) } as isize).map(|_| ())
    }

    /// Whether a function handles it.
    pub(crate) fn is_function(&self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }
}

/// The bit of a signal in a set.
pub(crate) const fn bit(signal: i32) -> u32 {
    if signal >= 1 && signal < 32 { 1 << (signal - 1) } else { 0 }
}

/// Blocks exactly the signals of `mask` on this thread, and answers what it blocked before.
pub(crate) fn block_exactly(mask: u32) -> u32 {
    let mut before = 0;
    // SAFETY: reads and writes one set each. Async-signal-safe (POSIX).
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, &raw mut before) };
    before
}

/// What this thread blocks now.
pub(crate) fn blocked() -> u32 {
    let mut now = 0;
    // SAFETY: writes one set. Async-signal-safe (POSIX).
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut now) };
    now
}

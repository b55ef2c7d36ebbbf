//! Signal dispositions and masks, directly from the kernel without the C library.
//!
//! rt_sigaction(2), rt_sigprocmask(2), rt_sigtimedwait(2). Every function is one system call and
//! async-signal-safe. The layouts are those of `asm-generic/signal.h`, which x86_64 and arm64
//! share: `struct sigaction` is not the C library's, and a set of signals is one 64-bit word in
//! which bit `n - 1` is signal `n`.

use super::syscall::{Result, syscall};

/// `SIG_DFL`.
pub const DEFAULT_HANDLER: usize = 0;
/// `SIG_IGN`.
pub const IGNORE_HANDLER: usize = 1;

/// Size of the kernel's signal set in bytes.
const SET_SIZE: usize = 8;

/// The kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SignalAction {
    /// `SIG_DFL`, `SIG_IGN` or a function's address.
    pub handler: usize,
    /// `SA_*`.
    pub flags: u64,
    /// The return address of a handler; arm64 has the field too and doesn't use it.
    pub restorer: usize,
    /// Signals blocked while the handler runs.
    pub mask: u64,
}

impl SignalAction {
    /// The default action.
    pub const DEFAULT: SignalAction = SignalAction { handler: DEFAULT_HANDLER, flags: 0, restorer: 0, mask: 0 };
    /// Ignores the signal.
    pub const IGNORE: SignalAction = SignalAction { handler: IGNORE_HANDLER, flags: 0, restorer: 0, mask: 0 };

    /// Returns the current disposition of a signal.
    ///
    /// # Errors
    /// The kernel's error: `EINVAL` for an invalid signal number.
    #[inline(always)]
    pub fn of(signal: i32) -> Result<SignalAction> {
        let mut now = SignalAction::default();
        // SAFETY: the kernel writes one `struct sigaction`; its set of signals has 8 bytes.
        // Async-signal-safe: one system call.
        unsafe { syscall!(libc::SYS_rt_sigaction, signal, 0, &raw mut now, SET_SIZE) }?;
        Ok(now)
    }

    /// Makes this the disposition of a signal.
    ///
    /// # Safety
    /// A handler in it must be sound to run for that signal at any instruction of any thread.
    pub unsafe fn set(&self, signal: i32) -> Result<()> {
        // SAFETY: the kernel reads one `struct sigaction`; the handler is the caller's promise.
        // Async-signal-safe: one system call.
        unsafe { syscall!(libc::SYS_rt_sigaction, signal, core::ptr::from_ref(self), 0, SET_SIZE) }.map(|_| ())
    }

    /// Like [`set`](Self::set); returns the previous disposition.
    ///
    /// # Safety
    /// As for `set`.
    pub unsafe fn replace(&self, signal: i32) -> Result<SignalAction> {
        let mut before = SignalAction::default();
        // SAFETY: as in `set`; the kernel writes one `struct sigaction`. Async-signal-safe: one
        // system call.
        unsafe { syscall!(libc::SYS_rt_sigaction, signal, core::ptr::from_ref(self), &raw mut before, SET_SIZE) }?;
        Ok(before)
    }

    /// Whether the disposition has that flag, one of `SA_*`.
    #[inline(always)]
    pub fn has(&self, flag: i32) -> bool {
        self.flags & flag as u64 != 0
    }

    /// Whether a function handles the signal.
    #[inline(always)]
    pub fn is_function(&self) -> bool {
        self.handler != DEFAULT_HANDLER && self.handler != IGNORE_HANDLER
    }
}

/// Returns the bit of a signal in the kernel's set; 0 for an invalid number.
pub const fn bit(signal: i32) -> u64 {
    if signal >= 1 && signal <= 64 { 1 << (signal - 1) } else { 0 }
}

#[inline(always)]
fn change_mask(how: i32, set: *const u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: the kernel reads one 8-byte set, if there is one, and writes one. Async-signal-safe:
    // one system call.
    let _ = unsafe { syscall!(libc::SYS_rt_sigprocmask, how, set, &raw mut before, SET_SIZE) };
    before
}

/// Blocks exactly the signals of `mask` on this thread; returns the previous mask.
#[inline(always)]
pub fn block_exactly(mask: u64) -> u64 {
    change_mask(libc::SIG_SETMASK, &raw const mask)
}

/// Blocks the signals of `mask` too; returns the previous mask.
#[inline(always)]
pub fn block_too(mask: u64) -> u64 {
    change_mask(libc::SIG_BLOCK, &raw const mask)
}

/// Unblocks the signals of `mask` on this thread; returns the previous mask.
#[inline(always)]
pub fn unblock(mask: u64) -> u64 {
    change_mask(libc::SIG_UNBLOCK, &raw const mask)
}

/// Returns the signals that this thread blocks.
#[inline(always)]
pub fn blocked() -> u64 {
    change_mask(libc::SIG_BLOCK, core::ptr::null())
}

/// Takes a blocked signal that is pending for this thread, so that it is never delivered.
///
/// Doesn't wait.
pub fn take_pending(signal: i32) {
    let set = bit(signal);
    let no_time = [0_i64; 2];
    // SAFETY: the kernel reads one 8-byte set and one timespec. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_rt_sigtimedwait, &raw const set, 0, no_time.as_ptr(), SET_SIZE) };
}

/// `SA_EXPOSE_TAGBITS`: `si_addr` has the pointer's memory tag.
///
/// asm-generic/signal-defs.h, Linux 5.11; older kernels ignore it.
pub const EXPOSE_TAGS: i32 = if cfg!(target_arch = "aarch64") { 0x800 } else { 0 };

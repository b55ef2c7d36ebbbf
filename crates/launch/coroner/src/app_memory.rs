//! Memory and a function of the app's for the moment of a crash.

use std::ffi::c_void;
use std::fmt;

use crate::system::capture::app_memory;

/// A function that is called when the process crashes: with what was given to [`set_crash_callback`], and with memory for so many bytes, of which it
/// returns how many it wrote.
pub use crate::system::capture::app_memory::CrashCallback;

/// Memory that is kept with a crash, until this is dropped.
#[derive(Debug)]
#[must_use = "the memory is kept as long as this is there"]
pub struct RegisteredMemory {
    number: usize,
}

impl RegisteredMemory {
    /// The memory stays registered until the process ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        app_memory::unregister(self.number);
    }
}

/// 16 pieces of memory are registered already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterMemoryError;

impl fmt::Display for RegisterMemoryError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} pieces of memory are registered already", app_memory::MAX_REGIONS)
    }
}

impl std::error::Error for RegisterMemoryError {}

/// Registers memory of the app's, `size` bytes from `start`, whose content goes with each report of this process: a ring of log lines, a game's
/// state. It is read when the process crashes, when all that Coroner itself has to say is in the report, and read guarded: memory that is gone by then
/// is left out. Of each the first 60 KiB are kept. At the next launch it is an attachment of that name, and the report's `app_memory`; it is not
/// scrubbed.
///
/// Can be called before and after [`install`](crate::install).
///
/// ```
/// static LOG: [std::sync::atomic::AtomicU8; 4096] = [const { std::sync::atomic::AtomicU8::new(0) }; 4096];
/// coroner::register_memory("log.txt", LOG.as_ptr().cast(), LOG.len()).unwrap().keep();
/// ```
///
/// # Errors
/// 16 are registered already.
pub fn register_memory(name: &str, start: *const u8, size: usize) -> Result<RegisteredMemory, RegisterMemoryError> {
    let number = app_memory::register(name, start as u64, size).ok_or(RegisterMemoryError)?;
    Ok(RegisteredMemory { number })
}

/// Has a function of the app's called when this process crashes, when all else is in the report, in place of the one before; `None` for none. What it
/// writes, at most 60 KiB, is in the report's `app_memory` and an attachment, `crash_callback`.
///
/// A fault in it ends it alone, and so does the report's deadline ([`Limits::deadline`](crate::Limits::deadline)). It is not called for what the process
/// survives, for hangs, or in children made by `fork`.
///
/// # Safety
/// The function is async-signal-safe (signal-safety(7)): it may not allocate, take a lock, wait, or leave by a jump or an exception, for any thread
/// may have been anywhere. It writes no more bytes than there is room for. `context` is valid for it until another function is set and no crash is
/// being reported.
pub unsafe fn set_crash_callback(callback: Option<CrashCallback>, context: *mut c_void) {
    app_memory::set_callback(callback, context);
}

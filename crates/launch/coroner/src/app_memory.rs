//! The app's memory and callback that add data to a crash report.

use std::ffi::c_void;
use std::fmt;

use crate::system::capture::app_memory;

/// A crash callback, which returns the number of bytes that it wrote.
///
/// It gets the context that was passed to [`set_crash_callback`], and a buffer with its size.
pub use crate::system::capture::app_memory::CrashCallback;

/// Memory that is included in crash reports until this is dropped.
#[derive(Debug)]
#[must_use = "the memory is kept as long as this is there"]
pub struct RegisteredMemory {
    number: usize,
}

impl RegisteredMemory {
    /// Keeps the memory registered until the process ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        app_memory::unregister(self.number);
    }
}

/// The maximum of 16 pieces of memory is already registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterMemoryError;

impl fmt::Display for RegisterMemoryError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} pieces of memory are registered already", app_memory::MAX_REGIONS)
    }
}

impl std::error::Error for RegisterMemoryError {}

/// Registers `size` bytes of the app's memory from `start`, to be included in each report.
///
/// Suited to a ring of log lines or a game's state. The memory is read when the process crashes,
/// after everything of Coroner's own is in the report, and by guarded loads: memory that no longer
/// exists is left out. At most the first 60 KiB of each piece are kept. At the next launch it is an
/// attachment of that name, and in the report's `app_memory`; it is not scrubbed.
///
/// Can be called before and after [`install`](crate::install).
///
/// ```
/// static LOG: [std::sync::atomic::AtomicU8; 4096] = [const { std::sync::atomic::AtomicU8::new(0) }; 4096];
/// coroner::register_memory("log.txt", LOG.as_ptr().cast(), LOG.len()).unwrap().keep();
/// ```
///
/// # Errors
/// [`RegisterMemoryError`] if 16 pieces are already registered.
pub fn register_memory(name: &str, start: *const u8, size: usize) -> Result<RegisteredMemory, RegisterMemoryError> {
    let number = app_memory::register(name, start as u64, size).ok_or(RegisterMemoryError)?;
    Ok(RegisteredMemory { number })
}

/// Sets a callback for crashes, which is called after everything else is in the report.
///
/// It replaces the previous callback; `None` sets none. What it writes, at most 60 KiB, is in the
/// report's `app_memory` and in the attachment `crash_callback`.
///
/// A fault in the callback ends only the callback, and so does the report's deadline
/// ([`Limits::deadline`](crate::Limits::deadline)). The callback is not called for non-fatal
/// reports, for hangs, or in children created by `fork`.
///
/// # Safety
/// The function must be async-signal-safe (signal-safety(7)): it may not allocate, take a lock,
/// wait, or leave by a jump or an exception, because any thread may have been anywhere. It must not
/// write more bytes than the buffer has. `context` must be valid for it until another function is
/// set and no crash is being reported.
pub unsafe fn set_crash_callback(callback: Option<CrashCallback>, context: *mut c_void) {
    app_memory::set_callback(callback, context);
}

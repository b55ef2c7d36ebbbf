//! The app's memory and callback that add data to a crash report.

use std::ffi::c_void;
use std::fmt;

use crate::system::capture::app_memory;

/// A function that the app runs at crash time; returns the number of bytes that it wrote.
///
/// Its arguments are the context passed to [`set_crash_callback`], a buffer, and the buffer's size.
pub use crate::system::capture::app_memory::CrashCallback;

/// Memory that is included in crash reports until this is dropped.
#[derive(Debug)]
#[must_use = "the memory is unregistered when this is dropped"]
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

/// Returned by [`register_memory`] if 16 pieces of memory are already registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterMemoryError;

impl fmt::Display for RegisterMemoryError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "can't register memory: {} pieces are already registered, the maximum", app_memory::MAX_REGIONS)
    }
}

impl std::error::Error for RegisterMemoryError {}

/// Registers `size` bytes of the app's memory from `start`, to be included in each report.
///
/// Suited to a ring buffer of log lines or a game's state. When the process crashes, the memory is
/// read with guarded loads after the rest of the report is written; unmapped memory is left out. At
/// most the first 60 KiB of each piece are kept. At the next launch it is in the report's
/// `app_memory` and becomes an attachment named `name`; it is not scrubbed.
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

/// Sets a function to call at a crash, after the rest of the report is written.
///
/// It replaces the previous callback; `None` removes it. The bytes that it writes, at most 60 KiB,
/// are in the report's `app_memory` and in the attachment `crash_callback`.
///
/// ```
/// unsafe extern "C" fn describe(_: *mut std::ffi::c_void, into: *mut u8, room: usize) -> usize {
///     let text = b"level 3";
///     let length = text.len().min(room);
///     // SAFETY: `into` has room for `room` bytes.
///     unsafe { into.copy_from_nonoverlapping(text.as_ptr(), length) };
///     length
/// }
/// // SAFETY: `describe` is async-signal-safe, stays within the buffer, and ignores its context.
/// unsafe { coroner::set_crash_callback(Some(describe), std::ptr::null_mut()) };
/// ```
///
/// A fault in the callback ends only the callback, and so does the report's deadline
/// ([`Limits::deadline`](crate::Limits::deadline)). The callback is not called for non-fatal
/// reports, for hangs, or in children created by `fork`.
///
/// # Safety
/// The function must be async-signal-safe (signal-safety(7)): it must not allocate, take a lock,
/// wait, or leave by a jump or an exception. It must not write more bytes than the buffer has.
/// `context` must be valid for it until another function is set and no crash is being reported.
pub unsafe fn set_crash_callback(callback: Option<CrashCallback>, context: *mut c_void) {
    // SAFETY: by the contract.
    unsafe { app_memory::set_callback(callback, context) };
}

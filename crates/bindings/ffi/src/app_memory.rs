//! App memory and an app callback that are added to a crash report.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};

use coroner::RegisteredMemory;

use crate::status::{Status, fail, guarded};
use crate::text::text;

/// The registered memory, by name.
static REGISTERED: Mutex<Vec<(String, RegisteredMemory)>> = Mutex::new(Vec::new());

/// Called when the process crashes, after the rest of the report is written.
///
/// Writes at most `room` bytes to `into` and returns the number of bytes written.
///
/// The callback must be async-signal-safe: it must not allocate, take a lock, wait, or leave by
/// longjmp or an exception.
pub type CrashCallback = Option<unsafe extern "C" fn(context: *mut c_void, into: *mut u8, room: usize) -> usize>;

/// Registers `size` bytes of memory at `start` as an attachment to each report of this process.
///
/// Use it for a ring buffer of log lines or a game's state. The memory is read with guarded loads
/// when the process crashes, at most the first 60 KiB. Replaces memory registered under the same
/// name. At most 16 can be registered, before or after coroner_install.
///
/// # Safety
/// The general rules apply. `start` need not stay valid: unmapped memory is left out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_register_memory(name: *const c_char, start: *const c_void, size: usize) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let name = unsafe { text(name, "name")? };
        let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        registered.retain(|(other, _)| other != name);
        let memory = coroner::register_memory(name, start.cast(), size);
        let memory = memory.map_err(|error| fail(Status::Full, error.to_string()))?;
        registered.push((name.to_owned(), memory));
        Ok(())
    })
}

/// Unregisters the memory under this name. Does nothing if there is none.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_unregister_memory(name: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let name = unsafe { text(name, "name")? };
        REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| other != name);
        Ok(())
    })
}

/// Sets the function to call as `callback(context, into, room)` when this process crashes.
///
/// Replaces the previous callback; NULL removes it. The bytes that the callback writes, at most 60
/// KiB, become the report's attachment `crash_callback`. A fault in the callback, or the report's
/// deadline, ends only the callback. It isn't called for non-fatal reports, hangs, or children
/// created by fork.
///
/// # Safety
/// `callback` must be async-signal-safe; `context` must stay valid while it is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_crash_callback(callback: CrashCallback, context: *mut c_void) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        unsafe { coroner::set_crash_callback(callback, context) };
        Ok(())
    })
}

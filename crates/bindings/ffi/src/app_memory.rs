//! Memory and a function of the app's for the moment of a crash.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};

use coroner::RegisteredMemory;

use crate::status::{Status, fail, guarded};
use crate::text::text;

/// What is registered, by its name.
static REGISTERED: Mutex<Vec<(String, RegisteredMemory)>> = Mutex::new(Vec::new());

/// Is called when the process crashes, when all else is in the report: writes at most `room` bytes to `into` and returns how many. It must be
/// async-signal-safe: it may not allocate, take a lock, wait, or leave by longjmp or an exception.
pub type CrashCallback = Option<unsafe extern "C" fn(context: *mut c_void, into: *mut u8, room: usize) -> usize>;

/// Registers memory, `size` bytes from `start`, whose content goes with each report of this process as an attachment of that name: a ring of log
/// lines, a game's state. It is read when the process crashes, guarded, the first 60 KiB of it. Replaces what has the same name. At most 16; can be
/// called before and after coroner_install.
///
/// # Safety
/// `name` is a text that ends with a NUL. `start` need not stay valid: memory that is gone is left out.
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

/// The memory with that name goes with reports no longer. Does nothing if there is none.
///
/// # Safety
/// `name` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_unregister_memory(name: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let name = unsafe { text(name, "name")? };
        REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| other != name);
        Ok(())
    })
}

/// Has `callback(context, into, room)` called when this process crashes, in place of the one before; NULL for none. What it writes, at most 60 KiB,
/// is an attachment `crash_callback` of the report. A fault in it ends it alone, and so does the report's deadline. Not for what the process
/// survives, hangs, or children made by fork.
///
/// # Safety
/// `callback` is async-signal-safe, and `context` valid for it as long as it is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_crash_callback(callback: CrashCallback, context: *mut c_void) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        unsafe { coroner::set_crash_callback(callback, context) };
        Ok(())
    })
}

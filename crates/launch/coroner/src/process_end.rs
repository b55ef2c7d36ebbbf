//! Handles an exit by `ExitProcess`, which Rust's `exit` calls on Windows.
//!
//! `ExitProcess` doesn't call functions registered with `atexit`. After all other threads are gone,
//! it calls the image's TLS callbacks ("PE Format", section *The .tls Section*), which the standard
//! library's thread-local destructors rely on, too. Wine calls only those of libraries.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Address of the function to call; 0 for none.
static AT_END: AtomicUsize = AtomicUsize::new(0);

/// From winnt.h.
const DLL_PROCESS_DETACH: u32 = 0;

/// The callback's entry in the image's list.
///
/// The linker merges the sections of this kind in order, between the C library's `.CRT$XLA` and
/// `.CRT$XLZ`.
#[unsafe(link_section = ".CRT$XLC")]
#[used]
static CALLBACK: unsafe extern "system" fn(*mut c_void, u32, *mut c_void) = on_event;

unsafe extern "system" fn on_event(_image: *mut c_void, reason: u32, _reserved: *mut c_void) {
    let function = AT_END.load(Ordering::Acquire);
    if reason == DLL_PROCESS_DETACH && function != 0 {
        // SAFETY: the function that was passed to `call_at_end`.
        unsafe { std::mem::transmute::<usize, extern "C" fn()>(function)() };
    }
}

/// Registers `function` to be called at a clean exit of the process.
///
/// It must not wait for other threads, which no longer exist.
pub(crate) fn call_at_end(function: extern "C" fn()) {
    // Reference the entry: linkers drop unreferenced objects of a library.
    std::hint::black_box(&raw const CALLBACK);
    AT_END.store(function as usize, Ordering::Release);
}

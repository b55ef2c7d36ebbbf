//! Handles the end of the process by `ExitProcess`, which Rust's `exit` calls on Windows.
//!
//! `ExitProcess` calls no function registered with `atexit`, but the image's TLS callbacks ("PE
//! Format", section *The .tls Section*; the standard library's destructors of thread-locals rely on
//! it), after all other threads are gone. (Wine calls only those of libraries.)

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Address of the function to call; 0 for none.
static AT_END: AtomicUsize = AtomicUsize::new(0);

/// From winnt.h.
const DLL_PROCESS_DETACH: u32 = 0;

/// The linker merges all sections of this kind, in order, into the image's list of callbacks,
/// between the C library's `.CRT$XLA` and `.CRT$XLZ`.
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

/// Makes `function` be called at a clean end of the process.
///
/// It must not wait for other threads, which no longer exist.
pub(crate) fn call_at_end(function: extern "C" fn()) {
    // A linker leaves out unreferenced objects of a library.
    std::hint::black_box(&raw const CALLBACK);
    AT_END.store(function as usize, Ordering::Release);
}

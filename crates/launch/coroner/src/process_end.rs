//! The end of the process by `ExitProcess`, which is what Rust's `exit` is on Windows: no function of `atexit` is called then, but the image's TLS callbacks
//! are ("PE Format", section *The .tls Section*; the standard library's destructors of thread-locals rely on it), once all other threads are gone. (Wine calls
//! those of libraries alone.)

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is called.
static AT_END: AtomicUsize = AtomicUsize::new(0);

/// As winnt.h has it.
const DLL_PROCESS_DETACH: u32 = 0;

/// The linker puts all of these sections, in their order, into the image's list of callbacks, between the C library's `.CRT$XLA` and `.CRT$XLZ`.
#[unsafe(link_section = ".CRT$XLC")]
#[used]
static CALLBACK: unsafe extern "system" fn(*mut c_void, u32, *mut c_void) = on_event;

unsafe extern "system" fn on_event(_image: *mut c_void, reason: u32, _reserved: *mut c_void) {
    let function = AT_END.load(Ordering::Acquire);
    if reason == DLL_PROCESS_DETACH && function != 0 {
        // SAFETY: what `call_at_end` was given.
        unsafe { std::mem::transmute::<usize, extern "C" fn()>(function)() };
    }
}

/// Has `function` called when the process ends by itself. It must wait for nobody: whoever is waited for is gone.
pub(crate) fn call_at_end(function: extern "C" fn()) {
    // What nobody refers to, a linker leaves in its library.
    std::hint::black_box(&raw const CALLBACK);
    AT_END.store(function as usize, Ordering::Release);
}

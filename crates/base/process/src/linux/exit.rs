//! A definition of `_exit` that says so before it ends the process: the C library's runs nothing, and so nobody hears of it.
//!
//! The dynamic linker binds every image's calls to the program's definition, as of `pthread_create`. What the C library itself calls at the end of
//! `exit` is its own.

use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::process::exit;

/// The function that is called first, as an address; 0 for none.
static HOOK: AtomicUsize = AtomicUsize::new(0);

/// Has a function called before the process ends by `_exit` or `_Exit`, which may be in a signal handler and in a child made by fork or vfork.
pub(crate) fn set_hook(hook: fn()) {
    HOOK.store(hook as usize, Ordering::Release);
}

fn end(status: c_int) -> ! {
    let hook = HOOK.load(Ordering::Acquire);
    if hook != 0 {
        // SAFETY: a function of this type, by `set_hook`.
        unsafe { core::mem::transmute::<usize, fn()>(hook)() };
    }
    exit(status)
}

/// _exit(2).
#[unsafe(no_mangle)]
extern "C" fn _exit(status: c_int) -> ! {
    end(status)
}

/// _Exit(3), the same by the name that C gives it.
#[unsafe(no_mangle)]
extern "C" fn _Exit(status: c_int) -> ! {
    end(status)
}

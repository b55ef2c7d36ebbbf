//! Calls a function before the process exits by `_exit`.
//!
//! The C library's `_exit` runs no handlers, so a definition of `_exit` and `_Exit` calls the
//! function first. The dynamic linker binds every image's calls to the program's definition, as for
//! `pthread_create`. The C library's own call at the end of `exit` is not affected.

#[cfg(interpose)]
mod interposed {
    use core::ffi::c_int;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use crate::linux::process::exit;

    /// The function that is called first, as an address; 0 for none.
    static HOOK: AtomicUsize = AtomicUsize::new(0);

    /// Sets the function to call before the process exits by `_exit` or `_Exit`.
    ///
    /// The call may be in a signal handler and in a child created by fork or vfork.
    pub(super) fn set_hook(hook: fn()) {
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

    /// _Exit(3), C's name for the same function.
    #[unsafe(no_mangle)]
    extern "C" fn _Exit(status: c_int) -> ! {
        end(status)
    }
}

/// Sets a function to call before the process exits by `_exit`.
///
/// Works if calls of `_exit` can be bound to our definition (glibc's shared library), otherwise
/// does nothing. The function must be async-signal-safe.
pub fn before_immediate_exit(hook: fn()) {
    #[cfg(interpose)]
    interposed::set_hook(hook);
    #[cfg(not(interpose))]
    let _ = hook;
}

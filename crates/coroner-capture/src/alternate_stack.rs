//! Alternate signal stacks that Coroner gives threads, and their end.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

use coroner_process::stack::{Stack, alternate_stack, set_alternate_stack};
use coroner_process::syscall::Result;

/// The system's page size (not async-signal-safe).
pub(crate) fn page_size() -> usize {
    /// The largest page of all systems.
    const LARGEST: usize = 1 << 16;
    // SAFETY: only asks.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(LARGEST)
}

/// Makes `stack` the calling thread's alternate stack and leaves it to be freed when the thread ends, by the destructor of a
/// thread-specific value, which is the mapping's own base address.
///
/// # Errors
/// What the kernel answered: the thread is running on its alternate stack. `stack` is unmapped then.
pub(crate) fn adopt(stack: Stack) -> Result<()> {
    // SAFETY: the stack is mapped, and nobody else uses it; it is unmapped only after it has been taken out of use.
    if let Err(errno) = unsafe { set_alternate_stack(&stack.as_signal_stack()) } {
        stack.unmap();
        return Err(errno);
    }
    let key = KEY.load(Ordering::Acquire);
    if key != NO_KEY {
        // SAFETY: the key is made by `prepare`. Not async-signal-safe.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, stack.base() as *const c_void) };
    }
    Ok(())
}

/// No key yet.
const NO_KEY: usize = usize::MAX;
/// The key whose destructor frees a thread's stack.
static KEY: AtomicUsize = AtomicUsize::new(NO_KEY);

/// Frees the alternate stack of a thread that ends.
unsafe extern "C" fn release(base: *mut c_void) {
    #[cfg(not(target_vendor = "apple"))]
    coroner_process::threads::withdraw_thread();
    let Ok(mut now) = alternate_stack() else { return };
    if now.sp != base as usize || now.flags & libc::SS_ONSTACK != 0 {
        // Somebody replaced it, or the thread ends in a handler: then it is better kept.
        return;
    }
    let size = now.size;
    now.flags = libc::SS_DISABLE;
    // SAFETY: takes the stack out of use.
    if unsafe { set_alternate_stack(&now) }.is_ok() {
        Stack::from_parts(base as usize, size, page_size()).unmap();
    }
}

/// Makes the key (not async-signal-safe, once).
pub(crate) fn prepare() {
    if KEY.load(Ordering::Acquire) != NO_KEY {
        return;
    }
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: writes one key; the destructor is sound for any value that `adopt` sets.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(release)) } == 0 {
        KEY.store(key as usize, Ordering::Release);
    }
}

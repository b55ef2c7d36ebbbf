//! Alternate signal stacks.
//!
//! Exceptions need none: they are handled on Coroner's own threads, a stack overflow, too. Signal handlers need one where the
//! exceptions are not Coroner's (under a debugger, or where the app wants no exception ports), for a stack that is full:
//! the installing thread gets one, others by [`crate::attach_current_thread`]. Rust's standard library gives its threads
//! one of its own.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

use coroner_machine::stack::{Stack, alternate_stack, set_alternate_stack};
use coroner_machine::syscall::{Errno, Result};

/// `SIGSTKSZ`: what a handler of an app that runs after Coroner's may use (Coroner's own hands over at once).
const SIZE: usize = 128 << 10;
/// The least that an alternate stack that is there already must have to be left as it is: `MINSIGSTKSZ`.
const LEAST: usize = 32 << 10;

/// The system's page size (normal life).
pub(crate) fn page_size() -> usize {
    // SAFETY: only asks.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(16384)
}

/// Gives the calling thread an alternate stack unless it has a good one (normal life). It is freed when the thread ends.
///
/// # Errors
/// What the kernel answered: no memory, or the thread is running on its alternate stack.
pub(crate) fn attach() -> core::result::Result<(), Errno> {
    let now = alternate_stack()?;
    if now.flags & libc::SS_DISABLE == 0 && now.size >= LEAST {
        return Ok(());
    }
    adopt(Stack::map_touching(SIZE, page_size(), LEAST)?)
}

fn adopt(stack: Stack) -> Result<()> {
    // SAFETY: the stack is mapped, and nobody else uses it; it is unmapped only after it has been taken out of use.
    if let Err(errno) = unsafe { set_alternate_stack(&stack.as_signal_stack()) } {
        stack.unmap();
        return Err(errno);
    }
    let key = KEY.load(Ordering::Acquire);
    if key != NO_KEY {
        // SAFETY: the key is made by `prepare`. Normal life.
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

/// Makes the key (normal life, once).
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

/// Whether threads that are made from now on get an alternate stack by themselves: they need none, see the module.
pub(crate) fn interposes() -> bool {
    false
}

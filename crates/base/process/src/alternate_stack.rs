//! Alternate signal stacks for threads.
//!
//! Without one, a thread whose stack is full dies silently: the kernel has no place for the signal
//! frame. Rust's standard library gives its threads 8 KiB, which is enough for the first steps of a
//! handler; bionic gives one to every thread; threads created by C or C++ code with glibc or musl
//! have none.
//!
//! How every thread gets one on Linux:
//! * the calling thread: [`attach`];
//! * existing threads: each is interrupted once (by the signal that stops threads), and its
//!   context, from which the kernel restores the alternate stack, is given one
//!   (`thread_stacks::attach_threads`);
//! * later threads: with a shared glibc, this crate defines `pthread_create`
//!   (`linux/pthread_create.rs`). If a host forbids that (feature `interpose-pthread-create` off,
//!   static or musl programs, a program in which another definition comes first), each thread
//!   attaches itself as its first action. `thread_stacks::interposes` returns which of the two
//!   applies.
//!
//! On Darwin, exceptions don't need alternate stacks: they are handled on threads of their own,
//! even a stack overflow. Signal handlers need one if no exception is received (under a debugger,
//! or if the app doesn't want exception ports), and hand over at once.
//!
//! Not async-signal-safe.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::os::alternate_stack::{least_size, new_stack};
use crate::os::syscall::Result;
use crate::stack::{Stack, alternate_stack, page_size, set_alternate_stack};

/// Gives the calling thread an alternate stack unless it has a sufficient one.
///
/// The stack is freed when the thread exits.
///
/// # Errors
/// The kernel's error: no memory, or the thread is running on its alternate stack.
pub fn attach() -> Result<()> {
    prepare();
    adopt(new_stack()?, least_size())
}

/// Makes `stack` the calling thread's alternate stack, unless it has one of `least` bytes.
///
/// There is no check beforehand, because most threads have none. The stack is freed when the thread
/// exits, by the destructor of a thread-specific value. The value is the mapping's base address
/// with the number of destructor calls in its low bits, which are zero in the address.
///
/// # Errors
/// The kernel's error: the thread is running on its alternate stack. `stack` is then unmapped.
pub(crate) fn adopt(stack: Stack, least: usize) -> Result<()> {
    // SAFETY: the stack is mapped, and nobody else uses it; it is unmapped only after it has been
    // taken out of use.
    let before = unsafe { set_alternate_stack(&stack.as_signal_stack()) };
    let keeps = before.is_ok_and(|before| before.flags & libc::SS_DISABLE == 0 && before.size >= least);
    if keeps && let Ok(before) = before {
        // SAFETY: the thread's own stack, as it was.
        unsafe { set_alternate_stack(&before) }?;
    }
    if keeps || before.is_err() {
        stack.unmap();
        return before.map(|_| ());
    }
    let key = KEY.load(Ordering::Acquire);
    if key != NO_KEY {
        // SAFETY: the key was created by `prepare`.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, stack.base() as *const c_void) };
    }
    Ok(())
}

/// The value of [`KEY`] before the key is created.
const NO_KEY: usize = usize::MAX;
/// The key whose destructor frees a thread's stack.
static KEY: AtomicUsize = AtomicUsize::new(NO_KEY);

/// Number of destructor calls that leave the stack in place.
///
/// The destructors of the app's own values may overflow the stack, and run after this one because
/// its key is older. A value that is set again is destroyed in the next round, of which there are 4
/// (`PTHREAD_DESTRUCTOR_ITERATIONS` in limits.h); a stack that the thread got in its second round
/// is freed as well.
const KEPT_ROUNDS: usize = 2;

/// Frees the alternate stack of an exiting thread.
unsafe extern "C" fn release(value: *mut c_void) {
    /// Bits that are zero in every base address.
    const ROUND: usize = 3;
    let (base, round) = (value as usize & !ROUND, value as usize & ROUND);
    let key = KEY.load(Ordering::Acquire) as libc::pthread_key_t;
    // SAFETY: the key exists, because this is its destructor.
    if round < KEPT_ROUNDS && unsafe { libc::pthread_setspecific(key, (base | (round + 1)) as *const c_void) } == 0 {
        return;
    }
    #[cfg(not(target_vendor = "apple"))]
    crate::threads::withdraw_thread();
    let Ok(mut now) = alternate_stack() else { return };
    if now.sp != base || now.flags & libc::SS_ONSTACK != 0 {
        // The stack was replaced, or the thread exits in a handler: then it is safer to keep it.
        return;
    }
    let size = now.size;
    now.flags = libc::SS_DISABLE;
    // SAFETY: takes the stack out of use.
    if unsafe { set_alternate_stack(&now) }.is_ok() {
        // SAFETY: the stack that `attach` made for this thread and forgot; nothing runs on it.
        unsafe { Stack::from_parts(base, size, page_size()) }.unmap();
    }
}

/// Creates the key whose destructor frees stacks when threads exit, once per process.
pub fn prepare() {
    if KEY.load(Ordering::Acquire) != NO_KEY {
        return;
    }
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: writes one key; the destructor is sound for any value that `adopt` sets.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(release)) } == 0 {
        KEY.store(key as usize, Ordering::Release);
    }
}

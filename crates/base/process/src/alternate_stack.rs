//! Alternate signal stacks for threads.
//!
//! Without one, a thread whose stack is full dies without a word: the kernel has nowhere to put the signal's frame. Rust's
//! standard library gives its threads 8 KiB, which is enough for the first steps of a handler; bionic gives one to every
//! thread; threads that C or C++ code makes with glibc or musl have none.
//!
//! How every thread gets one on Linux:
//! * the calling thread: [`attach`];
//! * threads that exist: each is interrupted once (by the signal that stops threads) and its context, which the kernel
//!   restores with the alternate stack that stands in it, is given one (`thread_stacks::attach_threads`);
//! * later threads: with a shared glibc, this crate defines `pthread_create` (`linux/pthread_create.rs`). Where a host forbids that
//!   (feature `interpose-pthread-create` off, static or musl programs, a program in which another definition comes first), each thread
//!   attaches itself as the first thing that it does. `thread_stacks::interposes` says which it is.
//!
//! On Darwin exceptions need none: they are handled on threads of their own, a stack overflow, too. Signal handlers need one where no
//! exception is taken (under a debugger, or where the app wants no exception ports), and hand over at once.
//!
//! Not async-signal-safe.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::os::alternate_stack::{least_size, new_stack};
use crate::os::syscall::Result;
use crate::stack::{Stack, alternate_stack, page_size, set_alternate_stack};

/// Gives the calling thread an alternate stack unless it has a good one. It is freed when the thread ends.
///
/// # Errors
/// What the kernel answered: no memory, or the thread is running on its alternate stack.
pub fn attach() -> Result<()> {
    prepare();
    adopt(new_stack()?, least_size())
}

/// Makes `stack` the calling thread's alternate stack, unless it has one of `least` bytes (nothing is asked before: most have none), and
/// leaves it to be freed when the thread ends, by the destructor of a thread-specific value, which is the mapping's own base address and,
/// in the bits that are zero there, how often the destructor was called.
///
/// # Errors
/// What the kernel answered: the thread is running on its alternate stack. `stack` is unmapped then.
pub(crate) fn adopt(stack: Stack, least: usize) -> Result<()> {
    // SAFETY: the stack is mapped, and nobody else uses it; it is unmapped only after it has been taken out of use.
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
        // SAFETY: the key is made by `prepare`.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, stack.base() as *const c_void) };
    }
    Ok(())
}

/// No key yet.
const NO_KEY: usize = usize::MAX;
/// The key whose destructor frees a thread's stack.
static KEY: AtomicUsize = AtomicUsize::new(NO_KEY);

/// How often the destructor leaves the stack as it is: those of the app's own values, which may overflow the stack, are called after
/// it, since its key is older. A value that is set again is destroyed in the next round, of which there are 4
/// (`PTHREAD_DESTRUCTOR_ITERATIONS` of limits.h); a stack that the thread got in its second round is freed as well.
const KEPT_ROUNDS: usize = 2;

/// Frees the alternate stack of a thread that ends.
unsafe extern "C" fn release(value: *mut c_void) {
    /// No base address has these bits.
    const ROUND: usize = 3;
    let (base, round) = (value as usize & !ROUND, value as usize & ROUND);
    let key = KEY.load(Ordering::Acquire) as libc::pthread_key_t;
    // SAFETY: the key exists, this being its destructor.
    if round < KEPT_ROUNDS && unsafe { libc::pthread_setspecific(key, (base | (round + 1)) as *const c_void) } == 0 {
        return;
    }
    #[cfg(not(target_vendor = "apple"))]
    crate::threads::withdraw_thread();
    let Ok(mut now) = alternate_stack() else { return };
    if now.sp != base || now.flags & libc::SS_ONSTACK != 0 {
        // Somebody replaced it, or the thread ends in a handler: then it is better kept.
        return;
    }
    let size = now.size;
    now.flags = libc::SS_DISABLE;
    // SAFETY: takes the stack out of use.
    if unsafe { set_alternate_stack(&now) }.is_ok() {
        Stack::from_parts(base, size, page_size()).unmap();
    }
}

/// Makes what frees stacks when threads end, once in a process.
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

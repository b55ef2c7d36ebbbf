//! The size of alternate signal stacks, and giving them to threads that exist and to those that are made later.

use core::sync::atomic::{AtomicBool, Ordering};

use super::stop_the_world::ThreadStopper;
use super::syscall::Result;
use super::threads::{TaskDirectory, this_thread};
use crate::stack::{Stack, page_size};

/// Bytes that Coroner's handler uses before it goes on to a stack of its own, generously.
const HANDLER: usize = 4 << 10;

/// The size of an alternate stack: room for the kernel's frame (which is larger on processors with larger vector
/// registers: AT_MINSIGSTKSZ of getauxval(3)) and Coroner's handler, then for an app's handler that runs after it and may
/// raise a signal of its own. (Rust's handler of stack overflows prints a message and aborts; with Coroner's frames above
/// it, std's own 8 KiB would be too little.)
fn wanted_size() -> usize {
    2 * frame_size() + 6 * HANDLER
}

/// The least that an alternate stack that is there already must have to be left as it is.
pub(crate) fn least_size() -> usize {
    2 * frame_size() + 3 * HANDLER
}

/// Bytes of a signal's frame.
fn frame_size() -> usize {
    /// `AT_MINSIGSTKSZ` of linux/auxvec.h.
    const AT_MINSIGSTKSZ: libc::c_ulong = 51;
    // SAFETY: only reads the auxiliary vector.
    let frame = unsafe { libc::getauxval(AT_MINSIGSTKSZ) } as usize;
    frame.max(libc::MINSIGSTKSZ)
}

/// An alternate stack. Only the pages that the handler needs are touched: a thousand threads have one each.
pub(crate) fn new_stack() -> Result<Stack> {
    Stack::map(wanted_size(), page_size(), frame_size() + HANDLER)
}

/// Whether threads that are made from now on get one, see [`attach_new_threads`].
static NEW_THREADS: AtomicBool = AtomicBool::new(false);

#[cfg(interpose)]
pub(crate) fn wants_new_threads() -> bool {
    NEW_THREADS.load(Ordering::Relaxed)
}

/// Says whether threads that are made from now on get an alternate stack, where that can be done ([`interposes`]).
pub fn attach_new_threads(wants: bool) {
    #[cfg(interpose)]
    super::pthread_create::prepare();
    NEW_THREADS.store(wants, Ordering::Relaxed);
}

/// Whether threads that are made from now on get an alternate stack by themselves.
pub fn interposes() -> bool {
    #[cfg(interpose)]
    return super::pthread_create::is_first();
    #[cfg(not(interpose))]
    return cfg!(target_os = "android");
}

/// How long a thread may take to answer; one that does not (it blocks the signal) goes without.
const ANSWER_NS: u64 = 2_000_000;

/// Gives an alternate stack to each thread of this process that has none, by its context. The stacks of these threads are not freed
/// when they end.
pub fn attach_threads(stopper: &ThreadStopper, tasks: &TaskDirectory) {
    if stopper.signal() == 0 || tasks.had_one_thread() {
        return;
    }
    let me = this_thread();
    let mut tids = [0; 256];
    let mut count = 0;
    tasks.list(&mut |tid| {
        if tid != me
            && let Some(place) = tids.get_mut(count)
        {
            *place = tid;
            count += 1;
        }
    });
    for tid in tids.iter().take(count) {
        let Ok(stack) = new_stack() else { return };
        let wanted = stack.as_signal_stack();
        let least = least_size();
        let mut taken = false;
        if let Ok(mut interrupted) = stopper.interrupt(*tid, ANSWER_NS) {
            let now = interrupted.context_mut().alternate_stack();
            if now.flags & libc::SS_DISABLE != 0 || now.size < least {
                *now = wanted;
                taken = true;
            }
        }
        if !taken {
            stack.unmap();
        }
    }
}

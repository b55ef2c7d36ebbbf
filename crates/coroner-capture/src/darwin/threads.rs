//! Alternate signal stacks.
//!
//! Exceptions need none: they are handled on Coroner's own threads, a stack overflow, too. Signal handlers need one where the
//! exceptions are not Coroner's (under a debugger, or where the app wants no exception ports), for a stack that is full:
//! the installing thread gets one, others by [`crate::attach_current_thread`]. Rust's standard library gives its threads
//! one of its own.

use coroner_process::stack::{Stack, alternate_stack};
use coroner_process::syscall::Errno;

use crate::alternate_stack::adopt;
pub(crate) use crate::alternate_stack::{page_size, prepare};

/// `SIGSTKSZ`: what a handler of an app that runs after Coroner's may use (Coroner's own hands over at once).
const SIZE: usize = 128 << 10;
/// The least that an alternate stack that is there already must have to be left as it is: `MINSIGSTKSZ`.
const LEAST: usize = 32 << 10;

/// Gives the calling thread an alternate stack unless it has a good one (not async-signal-safe). It is freed when the thread ends.
///
/// # Errors
/// What the kernel answered: no memory, or the thread is running on its alternate stack.
pub(crate) fn attach() -> core::result::Result<(), Errno> {
    let now = alternate_stack()?;
    if now.flags & libc::SS_DISABLE == 0 && now.size >= LEAST {
        return Ok(());
    }
    adopt(Stack::map(SIZE, page_size(), LEAST)?)
}

/// Whether threads that are made from now on get an alternate stack by themselves: they need none, see the module.
pub(crate) fn interposes() -> bool {
    false
}

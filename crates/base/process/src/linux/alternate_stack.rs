//! The size of alternate signal stacks.

use super::syscall::Result;
use crate::stack::{Stack, page_size};

/// Bytes that Coroner's handler uses before it switches to its own stack, estimated generously.
const HANDLER: usize = 4 << 10;

/// Maximum size of a new alternate stack: of address space, since only its highest pages are
/// touched.
///
/// The app's own handlers with SA_ONSTACK, which would otherwise have the thread's stack, run
/// there, and so do its crash handlers.
const MAX_SIZE: usize = 1 << 20;

/// Returns the size of a new alternate stack for a thread whose own stack has that size.
///
/// There is room for the kernel's frame (which is larger on processors with larger vector
/// registers: AT_MINSIGSTKSZ in getauxval(3)) and Coroner's handler, then for an app's handler, in
/// as much space as the thread's own stack has, and for a signal that this handler raises.
fn wanted_size(own: usize) -> usize {
    2 * frame_size() + 6 * HANDLER + own.min(MAX_SIZE)
}

/// Returns the minimum size of an existing alternate stack for it to be kept.
pub(crate) fn least_size() -> usize {
    2 * frame_size() + 3 * HANDLER
}

/// Returns the size of a signal frame in bytes.
fn frame_size() -> usize {
    /// `AT_MINSIGSTKSZ` of linux/auxvec.h.
    const AT_MINSIGSTKSZ: libc::c_ulong = 51;
    // SAFETY: only reads the auxiliary vector.
    let frame = unsafe { libc::getauxval(AT_MINSIGSTKSZ) } as usize;
    frame.max(libc::MINSIGSTKSZ)
}

/// Creates an alternate stack for a thread with a stack of the usual size.
///
/// Only the pages that the handler needs are touched: a thousand threads have one each.
pub(crate) fn new_stack() -> Result<Stack> {
    new_stack_beside(MAX_SIZE)
}

/// Creates an alternate stack for a thread whose own stack has that size: with less room for the
/// app's handlers where limits (setrlimit(2), mlockall(2)) don't allow as much.
pub(super) fn new_stack_beside(own: usize) -> Result<Stack> {
    let map = |own| Stack::map(wanted_size(own), page_size(), frame_size() + HANDLER);
    map(own).or_else(|_| map(0))
}

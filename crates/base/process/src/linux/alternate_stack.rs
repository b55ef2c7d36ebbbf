//! The size of alternate signal stacks.

use super::syscall::Result;
use crate::stack::{Stack, page_size};

/// Bytes that Coroner's handler uses before it switches to its own stack, estimated generously.
const HANDLER: usize = 4 << 10;

/// Returns the size of a new alternate stack.
///
/// There is room for the kernel's frame (which is larger on processors with larger vector
/// registers: AT_MINSIGSTKSZ in getauxval(3)) and Coroner's handler, then for an app's handler that
/// runs after it and may raise a signal of its own. (Rust's handler of stack overflows prints a
/// message and aborts; with Coroner's frames above it, std's own 8 KiB would be too small.)
fn wanted_size() -> usize {
    2 * frame_size() + 6 * HANDLER
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

/// Creates an alternate stack.
///
/// Only the pages that the handler needs are touched: a thousand threads have one each.
pub(crate) fn new_stack() -> Result<Stack> {
    Stack::map(wanted_size(), page_size(), frame_size() + HANDLER)
}

//! A thread's hardware shadow stack, if the kernel enables one.
//!
//! It contains return addresses that the processor keeps apart from the stack, out of reach of the
//! program's writes. x86_64 (CET, Linux 6.6), arm64 (GCS, Linux 6.13).
//!
//! It is read at crash time, and later compared with the walk. Code that jumps over frames has to
//! drop them from the shadow stack, too: [`guarded_run`](crate::guarded_run).

use crate::memory::Memory;
use crate::os::context::Context;

/// Number of words above the handler in which to search for the kernel's word.
///
/// The handler and its callers are in between.
const SEARCHED: u64 = 512;

/// Returns the shadow stack pointer of the thread interrupted with this context, for [`at_signal`].
///
/// 0 if there is no shadow stack. Must be called by that thread, in the signal's handler.
/// Async-signal-safe: no call.
#[inline(always)]
pub fn of_handler(context: &Context) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let _ = context;
        let mut pointer = 0_u64;
        // SAFETY: reads the shadow stack pointer; without a shadow stack (CET is off, or an older
        // processor) the instruction does nothing.
        unsafe {
            core::arch::asm!("rdsspq {}", inout(reg) pointer, options(nomem, nostack, preserves_flags));
        }
        pointer
    }
    #[cfg(all(target_arch = "aarch64", not(target_vendor = "apple")))]
    return context.shadow_stack();
    #[cfg(any(all(target_arch = "x86_64", miri), all(target_arch = "aarch64", target_vendor = "apple")))]
    {
        let _ = context;
        0
    }
}

/// Returns the shadow stack pointer at the time of the signal.
///
/// `of_handler` is that of its handler (x86_64) or that of the context (arm64). `None` if there is
/// no shadow stack, or it can't be read.
///
/// The x86_64 kernel saves the pointer on the shadow stack itself (`shstk_push_sigframe` in Linux's
/// arch/x86/kernel/shstk.c), in a word that contains its own location with the highest bit set,
/// which no return address has.
///
/// Async-signal-safe: reads through `memory`, a limited number of words.
pub fn at_signal<M: Memory>(of_handler: u64, memory: &mut M) -> Option<u64> {
    if of_handler == 0 || !of_handler.is_multiple_of(8) {
        return None;
    }
    if cfg!(target_arch = "aarch64") {
        return Some(of_handler);
    }
    for number in 0..SEARCHED {
        let at = of_handler.checked_add(number * 8)?;
        let before = at.checked_add(8)?;
        if memory.read_u64(at).ok()? == before | 1 << 63 {
            return Some(before);
        }
    }
    None
}

#[cfg(test)]
mod tests;

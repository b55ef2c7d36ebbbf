//! A thread's shadow stack, where the kernel has one for it: return addresses that the processor keeps beside the stack, and that no write of
//! the program's reaches. x86_64 (CET, Linux 6.6), arm64 (GCS, Linux 6.13).
//!
//! They are read at crash time, and compared with the walk at the desk. Who jumps over frames has to drop them there, too:
//! [`guarded_run`](crate::guarded_run).

use crate::memory::Memory;
use crate::os::context::Context;

/// How many words above the handler the kernel's own is looked for: the handler and who called it are in between.
const SEARCHED: u64 = 512;

/// Where the shadow stack of the thread is that was interrupted with this context, for [`at_signal`]; 0 if it has none.
///
/// It must be that thread which calls, in the signal's handler. Async-signal-safe: no call.
#[inline(always)]
pub fn of_handler(context: &Context) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let _ = context;
        let mut pointer = 0_u64;
        // SAFETY: reads the shadow stack's pointer; where there is none (CET is off, or an older processor) the instruction does nothing.
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

/// The shadow stack's pointer when the signal came, given that of its handler (x86_64) or what the context has (arm64). `None` if there is no
/// shadow stack, or it can't be read.
///
/// The kernel of x86_64 saves the pointer on the shadow stack itself (`shstk_push_sigframe` of Linux's arch/x86/kernel/shstk.c): in a word
/// that says where it lies, with the highest bit set, as no return address has it.
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

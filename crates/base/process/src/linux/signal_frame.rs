//! The signal frame that the kernel puts on the stack, with the siginfo and the ucontext.
//!
//! A handler that was installed later may call the earlier one with only the signal's number (Ruby
//! does, and so does code that calls `sa_handler` without checking `SA_SIGINFO`): the registers of
//! the other two arguments then contain arbitrary values. The kernel puts the ucontext on the stack
//! for every handler; if the handler doesn't want a siginfo, it leaves the space for it beside the
//! ucontext uninitialized.
//!
//! Sources: `struct rt_sigframe` in arch/x86/include/asm/sigframe.h and arch/arm64/kernel/signal.c.

use core::mem::{offset_of, size_of};

use super::context::{Layout, SignalInfo};
use super::kernel_copy::KernelCopy;
use super::threads::process_id;
use crate::memory::Memory;

/// Distance above the handler's frame to search for the kernel's frame, in bytes.
///
/// The frames of the calling handlers are in between.
const REACH: u64 = 64 << 10;
/// `UC_FP_XSTATE`, `UC_SIGCONTEXT_SS` and `UC_STRICT_RESTORE_SS`
/// (arch/x86/include/uapi/asm/ucontext.h); arm64 has no flags.
const FLAGS: u64 = 7;

/// Returns the address of the siginfo in the frame with this context.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
const fn info_beside(context: u64) -> u64 {
    context.wrapping_add(size_of::<Layout>() as u64)
}

/// Returns the address of the siginfo in the frame with this context.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
const fn info_beside(context: u64) -> u64 {
    context.wrapping_sub(size_of::<SignalInfo>() as u64)
}

/// Returns the addresses of siginfo and context for a handler with these arguments.
///
/// The handler was called for `signal`, and its frame is at `sp`. The result is the arguments, if
/// they are the kernel's or a copy of them, else those in the kernel's frame above, with a siginfo
/// reconstructed from the context. `None` if there is neither.
///
/// Async-signal-safe: no call for the kernel's own arguments, else some copies by the kernel.
#[inline(always)]
pub fn arguments(signal: i32, info: u64, context: u64, sp: u64) -> Option<(u64, u64)> {
    let is_frame = info.is_multiple_of(8) && info == info_beside(context);
    if cfg!(miri) || is_frame { Some((info, context)) } else { copied_or_found(signal, info, context, sp) }
}

// A separate function: a handler on a small alternate stack has no room for its buffers.
#[cold]
#[inline(never)]
fn copied_or_found(signal: i32, info: u64, context: u64, sp: u64) -> Option<(u64, u64)> {
    let mut memory = KernelCopy::new()?;
    if is_aligned(info) && is_aligned(context) && is_info(&mut memory, signal, info) && is_context(&mut memory, context)
    {
        return Some((info, context));
    }
    let mut window = [0; 256];
    for at in (sp & !7..sp.saturating_add(REACH)).step_by(window.len()) {
        // The end of the stack.
        memory.read(at, &mut window).ok()?;
        let words = window.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        for (index, flags) in words.enumerate() {
            let context = at.wrapping_add(index as u64 * 8);
            if flags & !FLAGS == 0 && is_context(&mut memory, context) {
                let info = info_beside(context);
                // SAFETY: the kernel's frame has room for it there, on the stack of this thread,
                // below frames that are in use and above those of the handlers.
                unsafe { (info as *mut SignalInfo).write(info_of(&mut memory, signal, context)) };
                return Some((info, context));
            }
        }
    }
    None
}

/// Reconstructs the siginfo of a signal from its context.
///
/// It is an exception of the processor or else, as far as is known, a signal that was sent.
fn info_of(memory: &mut KernelCopy, signal: i32, context: u64) -> SignalInfo {
    /// `SI_TKILL` (asm-generic/siginfo.h).
    const SENT: i32 = -6;
    let mut word = |offset: usize| word_at(memory, context, offset).unwrap_or_default();
    match fault(signal, &mut word) {
        Some((code, address)) => SignalInfo::made(signal, code, address),
        None => SignalInfo::made(signal, SENT, process_id() as u64),
    }
}

/// Returns `si_code` and `si_addr`, if the thread's last exception is one that raises the signal.
///
/// Intel SDM volume 3, 6.15; `SI_KERNEL` means that there is no address.
#[cfg(target_arch = "x86_64")]
fn fault(signal: i32, word: &mut impl FnMut(usize) -> u64) -> Option<(i32, u64)> {
    const SI_KERNEL: i32 = 0x80;
    let exception = word(offset_of!(Layout, trapno));
    match (signal, exception) {
        // A page fault: bit 0 of the error is set if the page is present.
        (libc::SIGSEGV, 14) => Some((1 + (word(offset_of!(Layout, err)) & 1) as i32, word(offset_of!(Layout, cr2)))),
        (libc::SIGBUS, 14) => Some((2, word(offset_of!(Layout, cr2)))),
        (libc::SIGSEGV, 13) | (libc::SIGBUS, 12 | 17) | (libc::SIGTRAP, 3) => Some((SI_KERNEL, 0)),
        // `FPE_INTDIV`, and `ILL_ILLOPN`.
        (libc::SIGFPE, 0) => Some((1, word(offset_of!(Layout, rip)))),
        (libc::SIGILL, 6) => Some((2, word(offset_of!(Layout, rip)))),
        _ => None,
    }
}

/// Returns `si_code` and `si_addr` of a memory fault, whose address is in the context.
#[cfg(target_arch = "aarch64")]
fn fault(signal: i32, word: &mut impl FnMut(usize) -> u64) -> Option<(i32, u64)> {
    let address = word(offset_of!(Layout, fault_address));
    match signal {
        libc::SIGSEGV => Some((1, address)),
        libc::SIGBUS => Some((2, address)),
        libc::SIGILL => Some((1, word(offset_of!(Layout, pc)))),
        _ => None,
    }
}

fn word_at(memory: &mut KernelCopy, context: u64, offset: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(context.wrapping_add(offset as u64), &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

fn is_aligned(address: u64) -> bool {
    address != 0 && address.is_multiple_of(8)
}

fn is_info(memory: &mut KernelCopy, signal: i32, at: u64) -> bool {
    let mut info = [0; size_of::<SignalInfo>()];
    memory.read(at, &mut info).is_ok() && info.first_chunk().is_some_and(|number| i32::from_le_bytes(*number) == signal)
}

/// Whether there is a context from the kernel at this address, by its constant parts.
fn is_context(memory: &mut KernelCopy, at: u64) -> bool {
    let mut word = |offset: usize| word_at(memory, at, offset);
    let is_head = word(offset_of!(Layout, flags)).is_some_and(|flags| flags & !FLAGS == 0)
        && word(offset_of!(Layout, link)) == Some(0);
    is_head && is_machine(&mut word)
}

/// Checks for the code segment of 64-bit programs, `__USER_CS` in arch/x86/include/asm/segment.h.
#[cfg(target_arch = "x86_64")]
fn is_machine(word: &mut impl FnMut(usize) -> Option<u64>) -> bool {
    word(offset_of!(Layout, segments)).is_some_and(|segments| segments as u16 == 0x33)
}

/// Checks for exception level 0, and for the record that always comes first after the state.
///
/// The record is `FPSIMD_MAGIC` in arch/arm64/include/uapi/asm/sigcontext.h.
#[cfg(target_arch = "aarch64")]
fn is_machine(word: &mut impl FnMut(usize) -> Option<u64>) -> bool {
    word(offset_of!(Layout, pstate)).is_some_and(|state| state & 0xf == 0 && state >> 32 == 0)
        && word(offset_of!(Layout, extension)).is_some_and(|record| record as u32 == 0x4650_8001)
}

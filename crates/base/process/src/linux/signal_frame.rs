//! The frame that the kernel lays on the stack for a signal handler, with the siginfo and the ucontext.
//!
//! A handler that was installed later may call the one that it found with the signal's number alone (Ruby does, and who calls
//! `sa_handler` without a look at `SA_SIGINFO`): what stands in the other two arguments' registers is anything then. The kernel lays the
//! ucontext on the stack for every handler, and leaves the room for the siginfo beside it as it was if the handler does not want one.
//!
//! Sources: `struct rt_sigframe` of arch/x86/include/asm/sigframe.h and arch/arm64/kernel/signal.c.

use core::mem::{offset_of, size_of};

use super::context::{Layout, SignalInfo};
use super::kernel_copy::KernelCopy;
use super::threads::process_id;
use crate::memory::Memory;

/// How far above the handler's frame the kernel's is searched for, bytes: between them are the frames of the handlers that called.
const REACH: u64 = 64 << 10;
/// `UC_FP_XSTATE`, `UC_SIGCONTEXT_SS` and `UC_STRICT_RESTORE_SS` (arch/x86/include/uapi/asm/ucontext.h); arm64 has no flags.
const FLAGS: u64 = 7;

/// Where the siginfo lies in the frame whose context lies there.
#[cfg(target_arch = "x86_64")]
const fn info_beside(context: u64) -> u64 {
    context.wrapping_add(size_of::<Layout>() as u64)
}

/// Where the siginfo lies in the frame whose context lies there.
#[cfg(target_arch = "aarch64")]
const fn info_beside(context: u64) -> u64 {
    context.wrapping_sub(size_of::<SignalInfo>() as u64)
}

/// The addresses of siginfo and context for a handler that was called for `signal` with these two arguments, and whose frame lies at `sp`: the
/// arguments, if they are what the kernel gave or a copy of it, else those of the kernel's frame above, with a siginfo that says what the
/// context says. `None` if there is neither.
///
/// Async-signal-safe: no call for the kernel's own arguments, else some copies by the kernel.
#[inline(always)]
pub fn arguments(signal: i32, info: u64, context: u64, sp: u64) -> Option<(u64, u64)> {
    let is_frame = info.is_multiple_of(8) && info == info_beside(context);
    if cfg!(miri) || is_frame { Some((info, context)) } else { copied_or_found(signal, info, context, sp) }
}

// A function of its own: a handler on a small alternate stack has no room for its buffers.
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
        // The stack ends there.
        memory.read(at, &mut window).ok()?;
        let words = window.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        for (index, flags) in words.enumerate() {
            let context = at.wrapping_add(index as u64 * 8);
            if flags & !FLAGS == 0 && is_context(&mut memory, context) {
                let info = info_beside(context);
                // SAFETY: the kernel's frame has room for it there, on the stack of this thread, below frames that are in use and
                // above those of the handlers.
                unsafe { (info as *mut SignalInfo).write(info_of(&mut memory, signal, context)) };
                return Some((info, context));
            }
        }
    }
    None
}

/// What the context says of a signal: an exception of the processor, or, as far as is known, a signal that was sent.
fn info_of(memory: &mut KernelCopy, signal: i32, context: u64) -> SignalInfo {
    /// `SI_TKILL` (asm-generic/siginfo.h).
    const SENT: i32 = -6;
    let mut word = |offset: usize| word_at(memory, context, offset).unwrap_or_default();
    match fault(signal, &mut word) {
        Some((code, address)) => SignalInfo::made(signal, code, address),
        None => SignalInfo::made(signal, SENT, process_id() as u64),
    }
}

/// `si_code` and `si_addr`, if the last exception of the thread is one that raises the signal (Intel SDM volume 3, 6.15; `SI_KERNEL` says that
/// there is no address).
#[cfg(target_arch = "x86_64")]
fn fault(signal: i32, word: &mut impl FnMut(usize) -> u64) -> Option<(i32, u64)> {
    const SI_KERNEL: i32 = 0x80;
    let exception = word(offset_of!(Layout, trapno));
    match (signal, exception) {
        // Of a page: bit 0 of the error says that it is there.
        (libc::SIGSEGV, 14) => Some((1 + (word(offset_of!(Layout, err)) & 1) as i32, word(offset_of!(Layout, cr2)))),
        (libc::SIGBUS, 14) => Some((2, word(offset_of!(Layout, cr2)))),
        (libc::SIGSEGV, 13) | (libc::SIGBUS, 12 | 17) | (libc::SIGTRAP, 3) => Some((SI_KERNEL, 0)),
        // `FPE_INTDIV`, and `ILL_ILLOPN`.
        (libc::SIGFPE, 0) => Some((1, word(offset_of!(Layout, rip)))),
        (libc::SIGILL, 6) => Some((2, word(offset_of!(Layout, rip)))),
        _ => None,
    }
}

/// `si_code` and `si_addr` of a fault of memory: the context has its address.
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

/// Whether a context that the kernel made lies there, by what it is the same in.
fn is_context(memory: &mut KernelCopy, at: u64) -> bool {
    let mut word = |offset: usize| word_at(memory, at, offset);
    let is_head = word(offset_of!(Layout, flags)).is_some_and(|flags| flags & !FLAGS == 0)
        && word(offset_of!(Layout, link)) == Some(0);
    is_head && is_machine(&mut word)
}

/// The code segment of 64-bit programs, `__USER_CS` of arch/x86/include/asm/segment.h.
#[cfg(target_arch = "x86_64")]
fn is_machine(word: &mut impl FnMut(usize) -> Option<u64>) -> bool {
    word(offset_of!(Layout, segments)).is_some_and(|segments| segments as u16 == 0x33)
}

/// Exception level 0 in the processor's state, and the record that is always the first behind it: `FPSIMD_MAGIC` of
/// arch/arm64/include/uapi/asm/sigcontext.h.
#[cfg(target_arch = "aarch64")]
fn is_machine(word: &mut impl FnMut(usize) -> Option<u64>) -> bool {
    word(offset_of!(Layout, pstate)).is_some_and(|state| state & 0xf == 0 && state >> 32 == 0)
        && word(offset_of!(Layout, extension)).is_some_and(|record| record as u32 == 0x4650_8001)
}

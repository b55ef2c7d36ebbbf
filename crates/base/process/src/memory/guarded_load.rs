//! Guarded loads: loads from possibly bad addresses, whose faults a handler recovers.

use super::{BLOCK, Memory, Unreadable};
use crate::assembly_routine::routine;
use crate::os::context::Context;

// The only code that loads from possibly bad addresses. It has no stack frame, so that a return to
// the caller is `ret` at any of its instructions: a fault in it continues at `coroner_load_failed`,
// which returns 1. All loads are within `LOADS` bytes of their routine's start.
//
//     coroner_load_pair(address): 16 bytes into registers; returns status, first, second
//     coroner_load_word(address): 8 bytes
//     coroner_load_bytes(to, address, count): copies upwards; returns status
//     coroner_load_block(address, to): copies 64 bytes through vector registers; returns status
#[cfg(target_arch = "x86_64")]
mod routines {
    use super::routine;

    routine!("coroner_load_pair", "mov rdx, [rdi + 8]", "mov rdi, [rdi]", "xor eax, eax", "ret");
    routine!("coroner_load_word", "mov rdi, [rdi]", "xor eax, eax", "ret");
    routine!("coroner_load_bytes", "mov rcx, rdx", "rep movsb", "xor eax, eax", "ret");
    routine!(
        "coroner_load_block",
        "movups xmm0, [rdi]",
        "movups xmm1, [rdi + 16]",
        "movups xmm2, [rdi + 32]",
        "movups xmm3, [rdi + 48]",
        "movups [rsi], xmm0",
        "movups [rsi + 16], xmm1",
        "movups [rsi + 32], xmm2",
        "movups [rsi + 48], xmm3",
        "xor eax, eax",
        "ret",
    );
    routine!("coroner_load_failed", "mov eax, 1", "ret");
}
#[cfg(target_arch = "aarch64")]
mod routines {
    use super::routine;

    routine!("coroner_load_pair", "ldp x1, x2, [x0]", "mov x0, #0", "ret");
    routine!("coroner_load_word", "ldr x1, [x0]", "mov x0, #0", "ret");
    routine!(
        "coroner_load_bytes",
        "cbz x2, 3f",
        "2: ldrb w3, [x1], #1",
        "strb w3, [x0], #1",
        "subs x2, x2, #1",
        "b.ne 2b",
        "3: mov x0, #0",
        "ret",
    );
    routine!(
        "coroner_load_block",
        "ldp q0, q1, [x0]",
        "ldp q2, q3, [x0, #32]",
        "stp q0, q1, [x1]",
        "stp q2, q3, [x1, #32]",
        "mov x0, #0",
        "ret",
    );
    routine!("coroner_load_failed", "mov x0, #1", "ret");
}

/// All loads of a routine are at offsets below this.
///
/// The last one in x86_64's block is at 11. This is also the routines' alignment, so that nothing
/// else begins within it.
const LOADS: u64 = 16;

unsafe extern "C" {
    fn coroner_load_pair();
    fn coroner_load_word();
    fn coroner_load_bytes(to: *mut u8, address: u64, count: usize) -> usize;
    fn coroner_load_block();
    fn coroner_load_failed();
}

/// Plain loads whose faults are recovered by [`recover_guarded_load`].
///
/// See [`crate::memory`] for when to use it.
#[derive(Clone, Copy, Debug)]
pub struct LoadGuarded(());

impl LoadGuarded {
    /// Creates a reader.
    ///
    /// # Safety
    /// While it is used with possibly bad addresses, faults of this thread must reach a handler
    /// that calls [`recover_guarded_load`] first: otherwise the process dies on the first bad
    /// address. On Linux that is the handler of SIGSEGV and SIGBUS, which the thread must not
    /// block; on Darwin one of its exceptions, on another thread.
    pub const unsafe fn new() -> Self {
        LoadGuarded(())
    }
}

impl Memory for LoadGuarded {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        // A range that wraps around can't be memory; the copy would fault at its end only after
        // reading the start.
        if address.checked_add(into.len() as u64).is_none() {
            return Err(Unreadable { address });
        }
        // SAFETY: writes `into.len()` bytes at most into `into`; a load that faults ends with an
        // error by the contract of `new`. Async-signal-safe: a leaf routine without a frame.
        let failed = unsafe { coroner_load_bytes(into.as_mut_ptr(), address, into.len()) };
        if failed == 0 { Ok(()) } else { Err(Unreadable { address }) }
    }

    #[cfg(not(miri))]
    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        let failed: usize;
        let word: u64;
        // SAFETY: the routine only loads from the address, and a fault becomes an error by the
        // contract of `new`. It changes the named registers only. Async-signal-safe: a leaf routine
        // without a frame.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("call {}", sym coroner_load_word, inlateout("rdi") address => word, lateout("rax") failed);
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("bl {}", sym coroner_load_word, inlateout("x0") address => failed, lateout("x1") word, out("x30") _);
        }
        if failed == 0 { Ok(word) } else { Err(Unreadable { address }) }
    }

    #[cfg(not(miri))]
    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        let failed: usize;
        let first: u64;
        let second: u64;
        // SAFETY: as in `read_u64`.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("call {}", sym coroner_load_pair, inlateout("rdi") address => first, lateout("rax") failed,
                lateout("rdx") second);
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("bl {}", sym coroner_load_pair, inlateout("x0") address => failed, lateout("x1") first,
                lateout("x2") second, out("x30") _);
        }
        if failed == 0 { Ok((first, second)) } else { Err(Unreadable { address }) }
    }

    #[cfg(not(miri))]
    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        let failed: usize;
        // SAFETY: the routine loads 64 bytes from the address, of which a fault becomes an error by
        // the contract of `new`, and stores them to `into`, which has room for them. It changes the
        // named registers only. Async-signal-safe: a leaf routine without a frame; the kernel keeps
        // the vector registers of the code that a signal interrupts.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("call {}", sym coroner_load_block, in("rdi") address, in("rsi") into.as_mut_ptr(), lateout("rax") failed,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _);
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("bl {}", sym coroner_load_block, inlateout("x0") address => failed, in("x1") into.as_mut_ptr(),
                out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("x30") _);
        }
        if failed == 0 { Ok(()) } else { Err(Unreadable { address }) }
    }
}

/// Recovers a guarded load: if this context faulted in one, continues with its error.
///
/// Returns whether the context was changed. This is the first thing that a fault handler does: on
/// Linux that of SIGSEGV and SIGBUS, on Darwin that of exceptions.
#[inline(always)]
pub fn recover_guarded_load(context: &mut Context) -> bool {
    let pc = context.pc();
    let routines = [
        coroner_load_pair as *const () as u64,
        coroner_load_word as *const () as u64,
        coroner_load_bytes as *const () as u64,
        coroner_load_block as *const () as u64,
    ];
    if !routines.iter().any(|start| pc.wrapping_sub(*start) < LOADS) {
        return false;
    }
    context.set_pc(coroner_load_failed as *const () as u64);
    true
}

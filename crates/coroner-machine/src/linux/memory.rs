//! The two guarded readers of Linux: loads that Coroner's fault handler makes good, and the kernel's copy.

use core::arch::global_asm;

use super::context::Context;
use super::syscall::syscall;
use crate::memory::{BLOCK, Memory, Unreadable};

// The only code that loads from addresses that may be bad. It has no stack frame, so that at any of its instructions a
// return to the caller is `ret`; its first label and its last bound the range that `make_good` looks for; a fault in it
// continues at `coroner_load_failed`, which answers 1.
//
//   coroner_load_pair(address, count, out): 16 or 8 bytes into registers; answers status, first, second
//   coroner_load_bytes(to, address, count): copies upwards; answers status
//   coroner_load_block(address, to): copies 64 bytes through vector registers; answers status
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.coroner_loads,\"ax\",@progbits",
    ".globl coroner_loads_begin",
    ".globl coroner_loads_end",
    ".globl coroner_load_failed",
    ".globl coroner_load_pair",
    ".globl coroner_load_word",
    ".globl coroner_load_bytes",
    ".globl coroner_load_block",
    ".hidden coroner_loads_begin",
    ".hidden coroner_loads_end",
    ".hidden coroner_load_failed",
    ".hidden coroner_load_pair",
    ".hidden coroner_load_word",
    ".hidden coroner_load_bytes",
    ".hidden coroner_load_block",
    ".balign 16",
    "coroner_loads_begin:",
    ".type coroner_load_pair,@function",
    "coroner_load_pair:",
    ".cfi_startproc",
    "mov rdx, [rdi + 8]",
    "mov rdi, [rdi]",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size coroner_load_pair, . - coroner_load_pair",
    ".balign 16",
    ".type coroner_load_word,@function",
    "coroner_load_word:",
    ".cfi_startproc",
    "mov rdi, [rdi]",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size coroner_load_word, . - coroner_load_word",
    ".balign 16",
    ".type coroner_load_bytes,@function",
    "coroner_load_bytes:",
    ".cfi_startproc",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size coroner_load_bytes, . - coroner_load_bytes",
    ".balign 16",
    ".type coroner_load_block,@function",
    "coroner_load_block:",
    ".cfi_startproc",
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
    ".cfi_endproc",
    ".size coroner_load_block, . - coroner_load_block",
    "coroner_loads_end:",
    ".type coroner_load_failed,@function",
    "coroner_load_failed:",
    ".cfi_startproc",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".size coroner_load_failed, . - coroner_load_failed",
    ".popsection",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.coroner_loads,\"ax\",@progbits",
    ".globl coroner_loads_begin",
    ".globl coroner_loads_end",
    ".globl coroner_load_failed",
    ".globl coroner_load_pair",
    ".globl coroner_load_word",
    ".globl coroner_load_bytes",
    ".globl coroner_load_block",
    ".hidden coroner_loads_begin",
    ".hidden coroner_loads_end",
    ".hidden coroner_load_failed",
    ".hidden coroner_load_pair",
    ".hidden coroner_load_word",
    ".hidden coroner_load_bytes",
    ".hidden coroner_load_block",
    ".balign 16",
    "coroner_loads_begin:",
    ".type coroner_load_pair,@function",
    "coroner_load_pair:",
    ".cfi_startproc",
    "ldp x1, x2, [x0]",
    "mov x0, #0",
    "ret",
    ".cfi_endproc",
    ".size coroner_load_pair, . - coroner_load_pair",
    ".type coroner_load_word,@function",
    "coroner_load_word:",
    ".cfi_startproc",
    "ldr x1, [x0]",
    "mov x0, #0",
    "ret",
    ".cfi_endproc",
    ".size coroner_load_word, . - coroner_load_word",
    ".type coroner_load_bytes,@function",
    "coroner_load_bytes:",
    ".cfi_startproc",
    "cbz x2, 3f",
    "2: ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "subs x2, x2, #1",
    "b.ne 2b",
    "3: mov x0, #0",
    "ret",
    ".cfi_endproc",
    ".size coroner_load_bytes, . - coroner_load_bytes",
    ".type coroner_load_block,@function",
    "coroner_load_block:",
    ".cfi_startproc",
    "ldp q0, q1, [x0]",
    "ldp q2, q3, [x0, #32]",
    "stp q0, q1, [x1]",
    "stp q2, q3, [x1, #32]",
    "mov x0, #0",
    "ret",
    ".cfi_endproc",
    ".size coroner_load_block, . - coroner_load_block",
    "coroner_loads_end:",
    ".type coroner_load_failed,@function",
    "coroner_load_failed:",
    ".cfi_startproc",
    "mov x0, #1",
    "ret",
    ".cfi_endproc",
    ".size coroner_load_failed, . - coroner_load_failed",
    ".popsection",
);

unsafe extern "C" {
    static coroner_loads_begin: u8;
    static coroner_loads_end: u8;
    static coroner_load_failed: u8;
    fn coroner_load_bytes(to: *mut u8, address: u64, count: usize) -> usize;
}

/// Plain loads whose faults are made good by [`make_good`].
///
/// See [`crate::memory`] for when it is right to use.
#[derive(Clone, Copy, Debug)]
pub struct LoadGuarded(());

impl LoadGuarded {
    /// A reader.
    ///
    /// # Safety
    /// While it is used with addresses that may be bad, this thread must not block SIGSEGV and SIGBUS, and the handler
    /// of both must be one that calls [`make_good`] first: else the process dies on the first bad address.
    pub const unsafe fn new() -> Self {
        LoadGuarded(())
    }
}

impl Memory for LoadGuarded {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        // A range that wraps around can't be memory; the copy would fault at its end only after reading the start.
        if address.checked_add(into.len() as u64).is_none() {
            return Err(Unreadable { address });
        }
        // SAFETY: writes `into.len()` bytes at most into `into`; a load that faults ends with an error by the contract
        // of `new`. Async-signal-safe: a leaf routine without a frame.
        let failed = unsafe { coroner_load_bytes(into.as_mut_ptr(), address, into.len()) };
        if failed == 0 { Ok(()) } else { Err(Unreadable { address }) }
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        let failed: usize;
        let word: u64;
        // SAFETY: the routine only loads from the address, and a fault becomes an error by the contract of `new`. It
        // changes the named registers only. Async-signal-safe: a leaf routine without a frame.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("call coroner_load_word", inlateout("rdi") address => word, lateout("rax") failed);
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("bl coroner_load_word", inlateout("x0") address => failed, lateout("x1") word, out("x30") _);
        }
        if failed == 0 { Ok(word) } else { Err(Unreadable { address }) }
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        let failed: usize;
        let first: u64;
        let second: u64;
        // SAFETY: as in `read_u64`.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("call coroner_load_pair", inlateout("rdi") address => first, lateout("rax") failed,
                lateout("rdx") second);
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("bl coroner_load_pair", inlateout("x0") address => failed, lateout("x1") first,
                lateout("x2") second, out("x30") _);
        }
        if failed == 0 { Ok((first, second)) } else { Err(Unreadable { address }) }
    }

    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        let failed: usize;
        // SAFETY: the routine loads 64 bytes from the address, of which a fault becomes an error by the contract of `new`, and
        // stores them to `into`, which has room for them. It changes the named registers only. Async-signal-safe: a leaf
        // routine without a frame; the kernel keeps the vector registers of what a signal interrupts.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("call coroner_load_block", in("rdi") address, in("rsi") into.as_mut_ptr(), lateout("rax") failed,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _);
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("bl coroner_load_block", inlateout("x0") address => failed, in("x1") into.as_mut_ptr(),
                out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("x30") _);
        }
        if failed == 0 { Ok(()) } else { Err(Unreadable { address }) }
    }
}

/// If the interrupted thread faulted in a guarded load, lets it go on with that load's error and answers true.
///
/// This is the first thing that the handler of SIGSEGV and SIGBUS does.
pub fn make_good(context: &mut Context) -> bool {
    let begin = &raw const coroner_loads_begin as u64;
    let end = &raw const coroner_loads_end as u64;
    if !(begin..end).contains(&context.pc()) {
        return false;
    }
    context.set_pc(&raw const coroner_load_failed as u64);
    true
}

/// The kernel's copy, process_vm_readv(2), of this process's own memory.
#[derive(Clone, Copy, Debug)]
pub struct KernelCopy {
    pid: i32,
}

impl KernelCopy {
    /// A reader of this process's memory, or nothing where the kernel or a sandbox refuses the call.
    ///
    /// Asks the kernel for the process id each time it is made: a child of fork must not read its parent.
    pub fn new() -> Option<Self> {
        // SAFETY: getpid has no arguments and no effects.
        let pid = unsafe { syscall!(libc::SYS_getpid) }.ok()?;
        let mut copy = KernelCopy { pid: pid as i32 };
        let probe = [0x5a_u8; 8];
        let mut got = [0; 8];
        copy.read(probe.as_ptr() as u64, &mut got).ok()?;
        (got == probe).then_some(copy)
    }
}

impl Memory for KernelCopy {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        if into.is_empty() {
            return Ok(());
        }
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: into.len() };
        // SAFETY: the kernel writes at most `into.len()` bytes into `into` and reports bad addresses as an error or a
        // short count. Async-signal-safe: one system call.
        let copied =
            unsafe { syscall!(libc::SYS_process_vm_readv, self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        if copied == Ok(into.len()) { Ok(()) } else { Err(Unreadable { address }) }
    }
}

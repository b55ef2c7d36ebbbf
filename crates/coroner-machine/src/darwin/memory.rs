//! The two guarded readers of Darwin: loads whose faults Coroner's exception threads make good, and the kernel's copy.

use core::arch::global_asm;

use mach2::kern_return::KERN_SUCCESS;
use mach2::traps::mach_task_self;
use mach2::vm::mach_vm_read_overwrite;

use super::context::Context;
use crate::memory::{BLOCK, Memory, Unreadable};

// The only code that loads from addresses that may be bad. It has no stack frame, so that at any of its instructions a return
// to the caller is `ret`. Each routine is an atom of its own to Mach-O's linkers, which may move them apart: `make_good` looks
// for each. All loads are within `LOADS` bytes of their routine's start.
//
//   coroner_load_pair(address): 16 bytes into registers; answers status, first, second
//   coroner_load_word(address): 8 bytes
//   coroner_load_bytes(to, address, count): copies upwards; answers status
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".section __TEXT,__text,regular,pure_instructions",
    ".p2align 4",
    ".globl _coroner_load_pair",
    ".private_extern _coroner_load_pair",
    "_coroner_load_pair:",
    ".cfi_startproc",
    "mov rdx, [rdi + 8]",
    "mov rdi, [rdi]",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".p2align 4",
    ".globl _coroner_load_word",
    ".private_extern _coroner_load_word",
    "_coroner_load_word:",
    ".cfi_startproc",
    "mov rdi, [rdi]",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".p2align 4",
    ".globl _coroner_load_bytes",
    ".private_extern _coroner_load_bytes",
    "_coroner_load_bytes:",
    ".cfi_startproc",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".p2align 4",
    ".globl _coroner_load_failed",
    ".private_extern _coroner_load_failed",
    "_coroner_load_failed:",
    ".cfi_startproc",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".section __TEXT,__text,regular,pure_instructions",
    ".p2align 2",
    ".globl _coroner_load_pair",
    ".private_extern _coroner_load_pair",
    "_coroner_load_pair:",
    ".cfi_startproc",
    "ldp x1, x2, [x0]",
    "mov x0, #0",
    "ret",
    ".cfi_endproc",
    ".p2align 2",
    ".globl _coroner_load_word",
    ".private_extern _coroner_load_word",
    "_coroner_load_word:",
    ".cfi_startproc",
    "ldr x1, [x0]",
    "mov x0, #0",
    "ret",
    ".cfi_endproc",
    ".p2align 2",
    ".globl _coroner_load_bytes",
    ".private_extern _coroner_load_bytes",
    "_coroner_load_bytes:",
    ".cfi_startproc",
    "cbz x2, 3f",
    "2: ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "subs x2, x2, #1",
    "b.ne 2b",
    "3: mov x0, #0",
    "ret",
    ".cfi_endproc",
    ".p2align 2",
    ".globl _coroner_load_failed",
    ".private_extern _coroner_load_failed",
    "_coroner_load_failed:",
    ".cfi_startproc",
    "mov x0, #1",
    "ret",
    ".cfi_endproc",
);

/// All loads of a routine are at offsets below this: the second of x86_64's pair is at 4.
const LOADS: u64 = 8;

unsafe extern "C" {
    fn coroner_load_pair();
    fn coroner_load_word();
    fn coroner_load_bytes(to: *mut u8, address: u64, count: usize) -> usize;
    fn coroner_load_failed();
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
    /// While it is used with addresses that may be bad, the exceptions of this thread must go to a handler on another thread
    /// that calls [`make_good`] first: else the process dies on the first bad address.
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
        // SAFETY: writes `into.len()` bytes at most into `into`; a load that faults ends with an error by the contract of
        // `new`. Async-signal-safe: a leaf routine without a frame.
        let failed = unsafe { coroner_load_bytes(into.as_mut_ptr(), address, into.len()) };
        if failed == 0 { Ok(()) } else { Err(Unreadable { address }) }
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        let failed: usize;
        let word: u64;
        // SAFETY: the routine only loads from the address, and a fault becomes an error by the contract of `new`. It changes
        // the named registers only. Async-signal-safe: a leaf routine without a frame.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("call {}", sym coroner_load_word, inlateout("rdi") address => word, lateout("rax") failed);
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("bl {}", sym coroner_load_word, inlateout("x0") address => failed, lateout("x1") word,
                out("x30") _);
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
            core::arch::asm!("call {}", sym coroner_load_pair, inlateout("rdi") address => first, lateout("rax") failed,
                lateout("rdx") second);
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("bl {}", sym coroner_load_pair, inlateout("x0") address => failed, lateout("x1") first,
                lateout("x2") second, out("x30") _);
        }
        if failed == 0 { Ok((first, second)) } else { Err(Unreadable { address }) }
    }

    /// By pairs, which cost less than a copy by bytes.
    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        let (pairs, _) = into.as_chunks_mut::<16>();
        let mut at = address;
        for pair in pairs {
            let (first, second) = self.read_pair(at)?;
            let (low, high) = pair.split_at_mut(8);
            low.copy_from_slice(&first.to_le_bytes());
            high.copy_from_slice(&second.to_le_bytes());
            at = at.wrapping_add(16);
        }
        Ok(())
    }
}

/// If the thread faulted in a guarded load, changes its state so that it goes on with that load's error and answers true.
///
/// This is the first thing that a handler of exceptions does.
pub fn make_good(context: &mut Context) -> bool {
    let pc = context.pc();
    let routines = [
        coroner_load_pair as *const () as u64,
        coroner_load_word as *const () as u64,
        coroner_load_bytes as *const () as u64,
    ];
    if !routines.iter().any(|start| pc.wrapping_sub(*start) < LOADS) {
        return false;
    }
    context.set_pc(coroner_load_failed as *const () as u64);
    true
}

/// The kernel's copy, `mach_vm_read_overwrite`, of this process's own memory.
#[derive(Clone, Copy, Debug)]
pub struct KernelCopy {
    task: u32,
}

impl KernelCopy {
    /// A reader of this process's memory, or nothing where the kernel or a sandbox refuses the call.
    pub fn new() -> Option<Self> {
        // SAFETY: the port's name, a constant of the process (a child of fork has its own).
        let mut copy = KernelCopy { task: unsafe { mach_task_self() } };
        let probe = [0x5a_u8; 8];
        let mut got = [0; 8];
        copy.read(probe.as_ptr() as u64, &mut got).ok()?;
        (got == probe).then_some(copy)
    }
}

impl Memory for KernelCopy {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let mut copied = 0;
        // SAFETY: the kernel writes at most `into.len()` bytes into `into` and reports bad addresses as an error.
        // Async-signal-safe: one message to the kernel.
        let answer = unsafe {
            let to = into.as_mut_ptr() as u64;
            mach_vm_read_overwrite(self.task, address, into.len() as u64, to, &raw mut copied)
        };
        let whole = answer == KERN_SUCCESS && copied == into.len() as u64;
        if whole || into.is_empty() { Ok(()) } else { Err(Unreadable { address }) }
    }
}

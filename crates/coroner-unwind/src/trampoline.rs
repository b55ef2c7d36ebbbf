//! Signal trampolines: the code that a signal handler returns to. Linux's are known by their instructions, Darwin's by
//! the frame that the kernel made.
//!
//! Their return address is the first instruction of the trampoline and not one behind a call, and some have no unwind
//! data (musl's, qemu-user's) or data that need the registers' places in the kernel's frame anyway.

use crate::arch::Architecture;
use crate::registers::RegisterFile;
use crate::rule::{Row, SignalContext};
use coroner_machine::memory::Memory;
use coroner_machine::registers::Arch;

/// x86_64 Linux: `mov $__NR_rt_sigreturn, %rax; syscall`, as glibc and bionic write it.
const X86_64: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// The same with `%eax`.
const X86_64_SHORT: [u8; 7] = [0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// arm64 Linux: `mov x8, #__NR_rt_sigreturn; svc #0`, of the vDSO, bionic and qemu-user.
const AARCH64: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

/// arm64 Darwin: `struct user_sigframe64` of XNU's `bsd/dev/arm/unix_signal.c`, at the stack pointer with which the kernel
/// enters `_sigtramp`, its canonical frame address: siginfo (104 bytes), `ucontext64` (56 bytes), machine context. Two
/// fields of the `ucontext64` have only one possible value: `uc_mcsize` and `uc_mcontext64`.
const DARWIN_CONTEXT: u64 = 104;
const DARWIN_SIZE: u64 = DARWIN_CONTEXT + 40;
const DARWIN_MACHINE_CONTEXT: u64 = 160;
/// `UC_FLAVOR_SIZE64`.
const DARWIN_MACHINE_CONTEXT_SIZE: u64 = 816;

/// The signal context of an arm64 Darwin frame whose body has the row `row`, if the kernel made one there. (On x86_64 the
/// unwind data of `_sigtramp` say where the registers are; on arm64 it is an ordinary function, whose caller would be
/// taken to be the caller of what was interrupted.)
pub fn recognise_darwin<A: Architecture, M: Memory>(
    memory: &mut M,
    registers: &mut RegisterFile<A>,
    row: &Row,
) -> Option<SignalContext> {
    if A::ARCH != Arch::Aarch64 {
        return None;
    }
    let cfa = registers.address(row.cfa_register, memory).ok()??.wrapping_add_signed(row.cfa_offset.into());
    let offset = row.cfa_offset.checked_add(DARWIN_CONTEXT as i32)?;
    is_darwin_frame(memory, cfa).then_some(SignalContext::Darwin { register: row.cfa_register, offset })
}

/// Whether the arm64 frame with this canonical frame address is one that Darwin's kernel made for a signal handler.
#[inline]
pub fn is_darwin_frame<M: Memory>(memory: &mut M, cfa: u64) -> bool {
    memory.read_pair(cfa.wrapping_add(DARWIN_SIZE)).is_ok_and(|(size, context)| {
        size == DARWIN_MACHINE_CONTEXT_SIZE && context == cfa.wrapping_add(DARWIN_MACHINE_CONTEXT)
    })
}

/// The signal context at the stack pointer if the code at `pc` is a Linux signal trampoline.
#[inline]
pub fn recognise<A: Architecture, M: Memory>(memory: &mut M, pc: u64) -> Option<SignalContext> {
    let first = memory.read_u64(pc).ok()?.to_le_bytes();
    let found = match A::ARCH {
        Arch::X86_64 if first.starts_with(&X86_64_SHORT) => true,
        Arch::X86_64 if X86_64.starts_with(&first) => {
            let mut last = [0u8; 1];
            memory.read(pc.wrapping_add(8), &mut last).is_ok() && X86_64.ends_with(&last)
        }
        Arch::X86_64 => false,
        Arch::Aarch64 => first == AARCH64,
    };
    found.then_some(SignalContext::Linux)
}

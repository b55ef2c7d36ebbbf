//! Signal trampolines: the code that a signal handler returns to. Linux's are recognized by their
//! instructions, Darwin's by the frame that the kernel created.
//!
//! Linux: the kernel makes the handler return to the trampoline's first instruction, which follows
//! no call. Some have no unwind data (musl, static programs, qemu-user), and none are needed: the
//! interrupted registers are in the `ucontext` on the stack.

use crate::arch::Architecture;
use crate::registers::RegisterFile;
use crate::rule::{Row, SignalContext};
use coroner_process::memory::Memory;
use coroner_process::registers::Arch;

/// x86_64 Linux: `mov $__NR_rt_sigreturn, %rax; syscall`, as glibc and bionic write it.
const X86_64: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// The same with `%eax`.
const X86_64_SHORT: [u8; 7] = [0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// arm64 Linux: `mov x8, #__NR_rt_sigreturn; svc #0`, of the vDSO, bionic and qemu-user.
const AARCH64: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

/// arm64 Darwin: `struct user_sigframe64` of XNU's `bsd/dev/arm/unix_signal.c`, at the stack
/// pointer with which the kernel enters `_sigtramp`, its CFA: siginfo (104 bytes), `ucontext64` (56
/// bytes), machine context. Two fields of the `ucontext64` have only one possible value:
/// `uc_mcsize` and `uc_mcontext64`.
const DARWIN_CONTEXT: u64 = 104;
const DARWIN_SIZE: u64 = DARWIN_CONTEXT + 40;
const DARWIN_MACHINE_CONTEXT: u64 = 160;
/// `UC_FLAVOR_SIZE64`.
const DARWIN_MACHINE_CONTEXT_SIZE: u64 = 816;

/// Returns the signal context of an arm64 Darwin frame whose body has the row `row`, if the kernel
/// created one there. (On x86_64 the unwind data of `_sigtramp` describe where the registers are;
/// on arm64 it is an ordinary function, whose caller would be mistaken for the caller of the
/// interrupted code.)
pub(crate) fn recognize_darwin<A: Architecture, M: Memory>(
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

/// Returns `true` if Darwin's kernel created the arm64 frame with this CFA for a signal handler.
#[inline]
pub(crate) fn is_darwin_frame<M: Memory>(memory: &mut M, cfa: u64) -> bool {
    memory.read_pair(cfa.wrapping_add(DARWIN_SIZE)).is_ok_and(|(size, context)| {
        size == DARWIN_MACHINE_CONTEXT_SIZE && context == cfa.wrapping_add(DARWIN_MACHINE_CONTEXT)
    })
}

/// Returns the signal context at the stack pointer if the code at `pc` is a Linux signal
/// trampoline.
#[inline]
pub(crate) fn recognize<A: Architecture, M: Memory>(memory: &mut M, pc: u64) -> Option<SignalContext> {
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

/// Returns `true` if Linux's kernel created a signal frame at `sp`, the stack pointer at the
/// trampoline's first instruction: `uc_link` is 0 and `cs` is that of user code. On arm64 there is
/// no equally certain check.
pub(crate) fn is_signal_frame<A: Architecture, M: Memory>(memory: &mut M, sp: u64) -> bool {
    const UC_LINK: u64 = 8;
    const CS: u64 = 40 + 18 * 8;
    A::ARCH == Arch::X86_64
        && memory.read_u64(sp.wrapping_add(UC_LINK)) == Ok(0)
        && memory.read_u64(sp.wrapping_add(CS)).is_ok_and(|selectors| selectors & 0xffff == 0x33)
}

//! Detects memory faults that are stack overflows.

use coroner_process::images::{Mapping, Mappings};
use coroner_process::memory::Memory as _;
use coroner_report::wire::{Access, Signal};

use crate::crash_context::CrashContext;
use crate::session::memory;

/// Maximum distance, in bytes, that one function's frame reaches below what was touched before.
/// (Larger frames are probed page by page by compilers that handle stack overflows at all.)
const FRAME: u64 = 1 << 20;

/// Maximum distance above the stack pointer, in bytes, of the first access to a frame that does not
/// fit.
const ABOVE: u64 = 64 << 10;

/// Maximum distance below the stack pointer, in bytes, at which a function uses its stack: by a
/// call or a push, in the red zone (x86_64: 128 bytes), by a pair of arm64's registers with the
/// move of the stack pointer (1,024 bytes at most). Memory further below belongs to something else:
/// a buffer next to a small stack that is overrun or used too late.
const BELOW: u64 = if cfg!(target_arch = "x86_64") { 128 } else { 1024 };

/// Bytes that the kernel keeps free below a stack that grows: `stack_guard_gap`, 256 pages by
/// default.
const GAP: u64 = 256 * 4096;

/// Whether the fault may be in a guard inside a readable and writable mapping
/// (`MADV_GUARD_INSTALL`, Linux 6.13; threads' stacks have it since glibc 2.42): the kernel reports
/// that nothing is mapped there.
fn is_guard_within(context: &CrashContext) -> bool {
    /// `SEGV_MAPERR` of asm-generic/siginfo.h.
    const NOT_MAPPED: i32 = 1;
    let is_so = |signal: Signal| (signal.number, signal.code) == (libc::SIGSEGV, NOT_MAPPED);
    cfg!(not(target_vendor = "apple")) && context.signal.is_some_and(is_so)
}

/// Whether the instruction that accessed memory is an arm64 instruction whose base isn't the stack
/// pointer: below the stack pointer, functions use their stack only through it.
///
/// All loads and stores have their base register in bits 5 to 9, where 31 is the stack pointer
/// (Arm's reference manual, C4.1, Loads and Stores).
fn is_by_another_register(pc: u64) -> bool {
    let mut bytes = [0; 4];
    cfg!(target_arch = "aarch64") && memory().read(pc, &mut bytes).is_ok() && u32::from_le_bytes(bytes) >> 5 & 31 != 31
}

/// Whether the instruction probes whether the stack has room for a frame, before the stack pointer
/// is moved there: far below it, by another register.
///
/// Apple's compilers call `___chkstk_darwin` for each frame of a page or more and wherever Swift's
/// values of generic types need room. If there is none, it reads the guard page itself (libpthread,
/// src/pthread_asm.s). GCC's `-fstack-check` (Ada always has it) writes zeros through a register
/// computed from the stack pointer.
#[cfg(target_arch = "aarch64")]
fn is_probe(pc: u64) -> bool {
    let mut code = [[0; 4]; 4];
    if memory().read(pc.wrapping_sub(12), code.as_flattened_mut()).is_err() {
        return false;
    }
    let [before @ .., third, second, last] = &code.map(u32::from_le_bytes);
    match (third, second, last) {
        // ldp x10, x11, [sp, #-16]; ret; ldur x11, [x11, #-8]
        (0xa97f_2fea, 0xd65f_03c0, 0xf85f_816b)
        // sub x10, x10, #1, lsl #12, or sub x10, x10, x9; ldr x11, [x10]
        | (_, 0xd140_054a | 0xcb09_014a, 0xf940_014b) => return true,
        _ => {}
    }
    let base = last >> 5 & 31;
    // str xzr, [base, #…]
    let writes_zero = |word: &u32| word & 0xffc0_03ff == 0xf900_001f | base << 5;
    // sub base, base, #…; sub base, sp, #…
    let moves = |word: &u32| word & 0xff80_03ff == 0xd100_0000 | base << 5 | base;
    let begins = |word: &u32| word & 0xff80_03ff == 0xd100_03e0 | base;
    let mut earlier = [second, third].into_iter().chain(before);
    base != 31 && writes_zero(last) && earlier.find(|word| !writes_zero(word) && !moves(word)).is_some_and(begins)
}

/// Same as for arm64. (On x86_64, GCC moves the stack pointer first.)
#[cfg(target_arch = "x86_64")]
fn is_probe(pc: u64) -> bool {
    let mut code = [0; 4];
    // testq %rcx, -8(%rcx); testq %rcx, (%rcx): no compiler tests a pointer against the value that
    // it points to.
    memory().read(pc, &mut code).is_ok() && matches!(code, [0x48, 0x85, 0x49, 0xf8] | [0x48, 0x85, 0x09, _])
}

/// Whether the stack had no room for the frame of a signal that was to be handled there. The kernel
/// then raises `SIGSEGV`, without an address.
fn has_no_room_for_signal(context: &CrashContext, mappings: &Mappings) -> bool {
    /// From asm-generic/siginfo.h, and `X86_TRAP_GP` from asm/trapnr.h: a non-canonical address has
    /// the same code.
    const SI_KERNEL: i32 = 0x80;
    const GENERAL_PROTECTION: u64 = 13;
    /// Size in bytes of the smallest `struct rt_sigframe`: on arm64 with its 4 KiB for further
    /// registers; on x86_64 with 512 bytes for them below the red zone.
    const SMALLEST: u64 = if cfg!(target_arch = "x86_64") { 128 + 512 + 440 } else { 4688 };
    let is_forced = |signal: Signal| {
        (signal.number, signal.code) == (libc::SIGSEGV, SI_KERNEL) && signal.trap_number != Some(GENERAL_PROTECTION)
    };
    if cfg!(target_vendor = "apple") || !context.signal.is_some_and(is_forced) {
        return false;
    }
    let sp = context.registers.sp();
    let Ok(Some(stack)) = mappings.at(sp) else { return false };
    let is_closed = |below: Mapping| below.permissions.is_guard();
    let is_end = matches!(mappings.at(stack.start.wrapping_sub(1)), Ok(below) if below.is_none_or(is_closed));
    let below = sp.saturating_sub(SMALLEST);
    // A guard may be within a mapping.
    let is_closed_below = if below < stack.start { is_end } else { memory().read_u64(below).is_err() };
    stack.permissions.read && stack.permissions.write && is_closed_below
}

/// Returns `true` if the thread ran out of stack: it read or wrote at its stack pointer, in a guard
/// page or below all memory that its stack has.
///
/// Uses the kernel's list of mappings, not a thread library, whose tables are behind locks.
pub(crate) fn is_overflow(context: &CrashContext, mappings: &Mappings) -> bool {
    if has_no_room_for_signal(context, mappings) {
        return true;
    }
    let Some(address) = context.address.filter(|_| context.is_memory_fault) else { return false };
    if context.access == Some(Access::EXECUTE) {
        return false;
    }
    let sp = context.registers.sp();
    let is_probe = address < sp && is_probe(context.registers.pc);
    let is_of_frame = address <= sp.saturating_add(ABOVE) && address >= sp.saturating_sub(BELOW);
    if !is_probe && (!is_of_frame || address < sp && is_by_another_register(context.registers.pc)) {
        return false;
    }
    // A buffer on the stack that is overrun up to a guard page above it: the stack pointer is
    // valid. (A guard may be within a mapping.)
    let is_well = |own: Mapping| own.permissions.write && memory().read_u64(sp).is_ok();
    if sp < address && matches!(mappings.at(sp), Ok(Some(own)) if is_well(own)) {
        return false;
    }
    let Ok(Some(at)) = mappings.at_or_after(address) else { return false };
    let stack = if at.permissions.is_guard() {
        // A frame may reach across it, to where nothing is mapped.
        match mappings.at_or_after(at.end) {
            Ok(Some(above)) if above.start == at.end => above,
            _ => return false,
        }
    } else if !at.contains(address) || is_guard_within(context) {
        at
    } else {
        return false;
    };
    // A probe is only for the stack that it runs on.
    (!is_probe || stack.contains(sp))
        && stack.permissions.read
        && stack.permissions.write
        && stack.start.saturating_sub(address) <= FRAME.max(GAP)
}

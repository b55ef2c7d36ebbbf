//! Faults that the handler from before the install receives before a report is written: those that
//! it turns into an exception of its language, repairs or answers. They aren't crashes, write no
//! report and stop no thread.
//!
//! | signal | evidence | handled by |
//! |---|---|---|
//! | SIGSYS with `SYS_SECCOMP` | the filter is the app's own, or its sandbox's | a system call broker |
//! | SEGV, BUS, FPE, ILL, TRAP of an instruction | the instruction is in executable memory outside all images: a JIT compiler's | HotSpot, V8, .NET, Mono, wasmtime, LuaJIT |
//! | the same | it is in the handler's image, which exports what only a runtime exports | HotSpot, .NET and Mono themselves |
//! | SEGV at a protected page near the stack pointer | a runtime is loaded that guards the ends of stacks and opens them for native code | HotSpot's yellow zone |
//! | SEGV, BUS, FPE, ILL, TRAP of an instruction | it is in an image with Go's runtime, and Go created the stack | Go (C code called from Go has the thread's own stack) |
//! | any but ABRT | [`chain_first`](crate::InstallOptions::chain_first) | the app's choice |
//! | any but ABRT | the process lived on after [`REPORTED_FIRST`] crash reports | a handler that repairs faults or leaves them by a jump |
//!
//! A handler that only describes a crash and ends the process (AddressSanitizer's, Python's
//! faulthandler) is called first only in the last case: it has nothing to repair, and would prevent
//! the report. The handler of Android's dynamic linker, which every process has, is never called
//! first.
//!
//! # Guarantees
//! A crash record is written before the handler is called. If the handler ends the process by
//! `abort` or `exit`, or raises another crash signal, the report of the first fault is written
//! then, with its own context. If it ends the process by `_exit`, only the record remains.
//!
//! # Limits
//! Code that a runtime compiled ahead of time into an image (.NET's native AOT, Mono's AOT images,
//! GraalVM's native images) looks like any other code: `chain_first` is for these. ART calls its
//! own handler before any other.

use coroner_process::context::SignalInfo;
use coroner_walk::loaded_image::{self, Holder};

use crate::handler_kind::HandlerKind;

/// Number of crashes of a run that are reported before an unknown handler is called first. A
/// process that survives this many has a handler that deals with them: from then on it is called
/// first.
const REPORTED_FIRST: u32 = 3;

/// A signal, or a Mach exception that becomes one, before it is known whether it is a crash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub signal: i32,
    /// `si_code`, 0 for a Mach exception.
    pub code: i32,
    /// Whether an instruction of the thread raised the signal.
    pub is_raised_by_instruction: bool,
    pub address: u64,
    pub pc: u64,
    pub sp: u64,
}

impl Fault {
    pub(crate) fn of(info: &SignalInfo, pc: u64, sp: u64) -> Fault {
        let (signal, code) = (info.signo, info.code);
        Fault { signal, code, is_raised_by_instruction: info.is_fault(), address: info.address(), pc, sp }
    }
}

/// Returns `true` if the earlier handler of this signal or exception is called before a report is
/// written. The handler has that address and kind, or is [`HandlerKind::Unknown`] at 0.
/// `chain_first` is the install option, `reports` the number of crashes that this run has reported.
///
/// Async-signal-safe. On Linux the thread must not block SIGSEGV and SIGBUS.
pub(crate) fn is_asked_first(
    fault: &Fault,
    (handler, kind): (usize, HandlerKind),
    chain_first: bool,
    reports: u32,
) -> bool {
    /// `SYS_SECCOMP`, asm-generic/siginfo.h.
    const SECCOMP: i32 = 1;
    match fault.signal {
        _ if kind == HandlerKind::System => return false,
        libc::SIGABRT => return false,
        libc::SIGSYS if cfg!(not(target_vendor = "apple")) && fault.code == SECCOMP => return true,
        _ => {}
    }
    if reports >= REPORTED_FIRST {
        return true;
    }
    if kind == HandlerKind::Describes {
        return false;
    }
    let is_memory = matches!(fault.signal, libc::SIGSEGV | libc::SIGBUS);
    let may_be_handled = is_memory || matches!(fault.signal, libc::SIGFPE | libc::SIGILL | libc::SIGTRAP);
    // An instruction that can't be fetched belongs to no code.
    let is_executed = fault.is_raised_by_instruction && !(is_memory && fault.address == fault.pc);
    chain_first
        || is_stack_guard(fault, kind)
        || (may_be_handled && is_executed && is_of_runtime(fault.pc, fault.sp, kind, handler as u64))
}

/// Whether the address may be in one of the pages by which a runtime detects the end of a stack.
/// Code of any image touches them. (If it was a real overflow, the runtime ends the process by
/// `abort`, and the report is written then.)
fn is_stack_guard(fault: &Fault, kind: HandlerKind) -> bool {
    /// `SEGV_ACCERR`, asm-generic/siginfo.h and sys/signal.h.
    const PROTECTED: i32 = 2;
    /// Maximum distance from the stack pointer, in bytes, at which a function first touches its
    /// frame: larger frames are touched page by page.
    const NEAR: u64 = 1 << 16;
    kind == HandlerKind::Runtime
        && (fault.signal, fault.code) == (libc::SIGSEGV, PROTECTED)
        && fault.address.abs_diff(fault.sp) < NEAR
}

/// Whether the instruction at `pc`, executed with stack pointer `sp`, belongs to the runtime whose
/// handler is at that address.
fn is_of_runtime(pc: u64, sp: u64, kind: HandlerKind, handler: u64) -> bool {
    /// Range in which Go creates its heap and the goroutines' stacks, and no other memory is mapped
    /// unless requested (runtime/malloc.go, `mallocinit`): from `0x00c0 << 32`.
    const GO_HEAP: core::ops::Range<u64> = 0xc0 << 32..0xe0 << 32;
    let image = match loaded_image::holder_of(pc) {
        image @ Holder::Image(_) => image,
        Holder::Nothing => return true,
        Holder::Unknown => return false,
    };
    let is_same = || loaded_image::holder_of(handler) == image;
    match kind {
        HandlerKind::Runtime => is_same(),
        HandlerKind::Go => GO_HEAP.contains(&sp) && is_same(),
        HandlerKind::Unknown | HandlerKind::Describes | HandlerKind::System => false,
    }
}

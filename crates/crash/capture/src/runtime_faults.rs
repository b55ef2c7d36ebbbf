//! Which faults the handler from before the install sees before a report is written: those that it turns into an exception of its
//! language, repairs or answers. They are no crashes, write no report and stop no thread.
//!
//! | the signal | the evidence | whose |
//! |---|---|---|
//! | SIGSYS with `SYS_SECCOMP` | the filter is the app's own, or its sandbox's | a broker of system calls |
//! | SEGV, BUS, FPE, ILL, TRAP of an instruction | the instruction is in executable memory of no image: a JIT compiler's | HotSpot, V8, .NET, Mono, wasmtime, LuaJIT |
//! | the same | it is in the image that the handler is in, which exports what only a runtime does | HotSpot, .NET and Mono themselves |
//! | SEGV at a protected page near the stack pointer | a runtime is there, which guards the ends of stacks and opens them for native code | HotSpot's yellow zone |
//! | SEGV, BUS, FPE, ILL, TRAP of an instruction | it is in an image with Go's runtime, and the stack is one that Go made | Go (C code called from Go has the thread's own stack) |
//! | any but ABRT | [`chain_first`](crate::InstallOptions::chain_first) | who the app says |
//! | any but ABRT | the process lived on after [`REPORTED_FIRST`] reports of crashes | a handler that repairs faults or leaves them by a jump |
//!
//! A handler that only says what it knows of a crash and ends the process (AddressSanitizer's, Python's faulthandler) is never asked
//! first but by the last line: it has nothing to repair, and would take the report with it. The handler of Android's dynamic linker, which
//! every process has, is never asked first.
//!
//! # Guarantees
//! A crash record is written before the handler is called. If the handler ends the process by `abort` or `exit`, or has another crash
//! signal, the report of the first fault is written then, with its own context. If it ends it by `_exit`, there is what the record has.
//!
//! # Limits
//! Code that a runtime compiled ahead of time into an image (.NET's native AOT, Mono's AOT images, GraalVM's native images) looks like
//! any other code: `chain_first` is for these. ART asks its own handler before it calls anybody's.

use coroner_process::context::SignalInfo;
use coroner_walk::loaded_image::{self, Holder};

use crate::handler_kind::HandlerKind;

/// Crashes of a run that are reported before a handler that nothing is known of is asked. A process that lives on after as many has
/// one that deals with them: from then on it is asked first.
const REPORTED_FIRST: u32 = 3;

/// A signal, or what becomes one, before it is known whether it is a crash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub signal: i32,
    /// `si_code`, 0 for a Mach exception.
    pub code: i32,
    /// An instruction of the thread raised it.
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

/// Whether who had this signal, or exception, before is asked before a report is written: a handler at that address and of that kind, or
/// [`HandlerKind::Unknown`] at 0. `chain_first` is the install option of that name, `reports` the number of crashes that this run has
/// reported.
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
    // An instruction that can't be fetched is nobody's code.
    let is_executed = fault.is_raised_by_instruction && !(is_memory && fault.address == fault.pc);
    chain_first
        || is_stack_guard(fault, kind)
        || (may_be_handled && is_executed && is_of_runtime(fault.pc, fault.sp, kind, handler as u64))
}

/// Whether it may be one of the pages by which a runtime notices that a stack ends. Code of any image touches them. (If it was a real overflow,
/// the runtime ends the process by `abort`, and the report is written then.)
fn is_stack_guard(fault: &Fault, kind: HandlerKind) -> bool {
    /// `SEGV_ACCERR`, asm-generic/siginfo.h and sys/signal.h.
    const PROTECTED: i32 = 2;
    /// How far from the stack pointer a function touches its frame, in bytes: larger frames are touched page by page.
    const NEAR: u64 = 1 << 16;
    kind == HandlerKind::Runtime
        && (fault.signal, fault.code) == (libc::SIGSEGV, PROTECTED)
        && fault.address.abs_diff(fault.sp) < NEAR
}

/// Whether the instruction at `pc`, which was executed with the stack pointer `sp`, is of a runtime whose handler is at that address.
fn is_of_runtime(pc: u64, sp: u64, kind: HandlerKind, handler: u64) -> bool {
    /// Where Go makes its heap and the stacks of goroutines, and where no other memory comes to be by itself (runtime/malloc.go,
    /// `mallocinit`): from `0x00c0 << 32`.
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

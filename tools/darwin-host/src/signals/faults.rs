//! CPU faults: first a Mach exception, then, if it is not handled, a BSD signal, then death.
//!
//! Sources: XNU osfmk/kern/exception.c (exception_triage: thread's port, task's port, then the
//! host's, which is the BSD side); bsd/uxkern/ux_exception.c (ux_exception: which signal; stack
//! overflow of the main thread is SIGSEGV and needs an alternate stack); bsd/dev/i386/unix_signal.c
//! and bsd/dev/arm/unix_signal.c (machine_exception, sendsig: si_code).

use super::{
    delivery::{self, Action},
    layout::SignalInfo,
    numbers::{self, SIGBUS, SIGEMT, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGTRAP},
    standing,
};
use crate::host::{
    gate::{self, LinuxContext},
    kernel::thread::Thread,
    mach::exceptions::{
        self, EXC_ARITHMETIC, EXC_BAD_ACCESS, EXC_BAD_INSTRUCTION, EXC_BREAKPOINT, EXC_EMULATION, EXC_GUARD,
        EXC_SOFTWARE,
    },
};

const KERN_INVALID_ADDRESS: i64 = 1;
const KERN_PROTECTION_FAILURE: i64 = 2;
const KERN_MEMORY_ERROR: i64 = 10;
#[cfg(target_arch = "x86_64")]
const EXC_I386_GPFLT: i64 = 13;

/// Returns the code of an EXC_BAD_ACCESS from Linux's signal.
///
/// The address is not mapped, access is not allowed, or it is beyond a mapped file's end.
pub(crate) fn access_code(signal: i32, si_code: i32) -> i64 {
    const SEGV_MAPERR: i32 = 1;
    match (signal, si_code) {
        (libc::SIGSEGV, SEGV_MAPERR) => KERN_INVALID_ADDRESS,
        (libc::SIGSEGV, _) => KERN_PROTECTION_FAILURE,
        _ => KERN_MEMORY_ERROR,
    }
}

/// Handles a fault completely: the thread continues, runs a signal handler, or the process dies.
///
/// If the thread continues, its state may have changed.
pub(super) fn take(thread: &mut Thread, signal: i32, si_code: i32, address: usize, context: &mut LinuxContext) {
    thread.last_fault = (signal, address);
    let (exception, code, subcode) = gate::classify(context, signal, si_code, address);
    standing::publish(thread, context);
    let taken = exceptions::raise(thread, exception, [code, subcode], context);
    standing::leave_when_running(thread);
    if !taken {
        let mut number = unix_signal(exception, code);
        let overflow = code == KERN_PROTECTION_FAILURE && number == SIGBUS && overflows_main_stack(address);
        if overflow {
            number = SIGSEGV;
        }
        send(thread, number, exception, code, address, overflow, context);
    }
}

/// Raises an exception on the calling thread as the kernel does when a thread leaves it.
///
/// Source: osfmk/kern/ast.c.
///
/// The program continues in its call if a handler handles the exception.
pub(crate) fn raise_here(thread: &mut Thread, exception: i32, codes: [i64; 2]) {
    thread.raised = (exception, codes);
    standing::interrupt(thread);
}

/// Handles such an exception completely.
///
/// EXC_GUARD kills the process by SIGKILL, regardless of its handler's answer
/// (osfmk/ipc/mach_port.c, mach_port_guard_ast).
pub(super) fn take_raised(thread: &mut Thread, exception: i32, codes: [i64; 2], context: &mut LinuxContext) {
    standing::publish(thread, context);
    let taken = exceptions::raise(thread, exception, codes, context);
    standing::leave_when_running(thread);
    if exception == EXC_GUARD {
        delivery::die(SIGKILL);
    }
    if !taken {
        let number = unix_signal(exception, codes[0]);
        send(thread, number, exception, codes[0], codes[1] as usize, false, context);
    }
}

/// Returns an exception's signal.
fn unix_signal(exception: i32, code: i64) -> i32 {
    match exception {
        #[cfg(target_arch = "x86_64")]
        EXC_BAD_ACCESS if code == EXC_I386_GPFLT => SIGSEGV,
        EXC_BAD_ACCESS if code == KERN_INVALID_ADDRESS => SIGSEGV,
        EXC_BAD_ACCESS => SIGBUS,
        EXC_BAD_INSTRUCTION => SIGILL,
        EXC_ARITHMETIC => SIGFPE,
        EXC_EMULATION => SIGEMT,
        EXC_BREAKPOINT => SIGTRAP,
        EXC_SOFTWARE => match code {
            0x10000 => numbers::SIGSYS,  // EXC_UNIX_BAD_SYSCALL
            0x10001 => numbers::SIGPIPE, // EXC_UNIX_BAD_PIPE
            0x10002 => numbers::SIGABRT, // EXC_UNIX_ABORT
            _ => SIGKILL,                // EXC_SOFT_SIGNAL
        },
        other => crate::host::kernel::ending::refuse!("an unhandled exception of type {other} has no signal"),
    }
}

/// Whether the address overflows the main thread's stack; ux_exception.c checks this on any thread.
fn overflows_main_stack(address: usize) -> bool {
    let (guard, end) = crate::host::launch::main_stack();
    (guard..end).contains(&address)
}

fn send(
    thread: &mut Thread,
    number: i32,
    exception: i32,
    code: i64,
    address: usize,
    overflow: bool,
    context: &mut LinuxContext,
) {
    let action = delivery::action(number);
    let blocked = thread.blocked.load(std::sync::atomic::Ordering::SeqCst) & numbers::bit(number) != 0;
    let unready = overflow && action.flags & Action::ON_STACK == 0;
    // A blocked signal stays pending, and the thread continues, usually into the same fault
    // (bsd/kern/kern_sig.c, threadsignal).
    if blocked && !unready {
        thread.pending.fetch_or(numbers::bit(number), std::sync::atomic::Ordering::SeqCst);
        return;
    }
    thread.pending.fetch_and(!numbers::bit(number), std::sync::atomic::Ordering::SeqCst);
    // With an ignored signal the thread would fault forever, as on macOS; here it dies, so that a
    // test ends.
    if unready || action.handler <= 1 {
        delivery::die(number);
    }
    let state = gate::thread_state(thread, context);
    let info = SignalInfo {
        signo: number,
        code: signal_code(number, exception, code),
        address: match number {
            SIGSEGV | SIGBUS if !is_general_protection(exception, code) => address,
            SIGSEGV => 0,
            _ => state.pc(),
        },
        ..SignalInfo::default()
    };
    delivery::deliver(thread, number, info, context);
}

fn is_general_protection(exception: i32, code: i64) -> bool {
    cfg!(target_arch = "x86_64") && exception == EXC_BAD_ACCESS && code == 13
}

/// Returns the `si_code` (<sys/signal.h>) that sendsig derives from the exception's code.
fn signal_code(number: i32, exception: i32, code: i64) -> i32 {
    // Names of <sys/signal.h>.
    const SEGV_MAPERR: i32 = 1;
    const SEGV_ACCERR: i32 = 2;
    const BUS_ADRALN: i32 = 1;
    const BUS_ADRERR: i32 = 2;
    const ILL_ILLOPC: i32 = 1;
    const FPE_INTDIV: i32 = 7;
    const TRAP_BRKPT: i32 = 1;
    const TRAP_TRACE: i32 = 2;
    let (breakpoint, misaligned) = (code == 2 || cfg!(target_arch = "aarch64"), code == 0x101);
    match number {
        SIGSEGV if is_general_protection(exception, code) => 0,
        SIGSEGV => match code {
            KERN_INVALID_ADDRESS => SEGV_MAPERR,
            KERN_PROTECTION_FAILURE => SEGV_ACCERR,
            _ => 0,
        },
        SIGBUS => {
            if misaligned {
                BUS_ADRALN
            } else {
                BUS_ADRERR
            }
        }
        SIGILL => ILL_ILLOPC,
        SIGFPE if code == 1 => FPE_INTDIV,
        SIGTRAP => {
            if breakpoint {
                TRAP_BRKPT
            } else {
                TRAP_TRACE
            }
        }
        _ => 0,
    }
}

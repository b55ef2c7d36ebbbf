//! The primary thread writes a report, of an exception or of a crash that a signal handler handed over.

use core::sync::atomic::Ordering;

use coroner_process::threads::{self, Tid, monotonic_now};
use coroner_process::{context::Context, registers::Registers};
use coroner_report::wire::{Mach, Monitor, Signal};
use mach2::port::mach_port_t;

use super::handed_over::HandedOver;
use super::other_threads::OtherThreads;
use crate::crash_context::{CrashContext, EXTRA, access, extra};
use crate::installed::Installed;
use crate::monitor::exception::Ending;
use crate::report_lock::{Claim, REPORT_LOCK};
use crate::session::{self, CrashSession, Next, Reported};
use coroner_process::exception_messages::{self, Own, Request};

/// <mach/exception_types.h>.
pub(crate) const EXC_BAD_ACCESS: i32 = 1;
/// `EXC_I386_GPFLT`.
const GENERAL_PROTECTION: i64 = 13;
const EXC_BAD_INSTRUCTION: i32 = 2;
const EXC_ARITHMETIC: i32 = 3;
const EXC_EMULATION: i32 = 4;
const EXC_SOFTWARE: i32 = 5;
const EXC_BREAKPOINT: i32 = 6;

/// Whether an exception is this process's. A child inherits its parent's exception ports, and its exceptions come here.
pub(crate) fn is_ours(request: &Request) -> bool {
    request.thread != 0
}

/// The signal that an exception becomes if nobody takes it; 0 where there is none (XNU bsd/uxkern/ux_exception.c,
/// `ux_exception` and `machine_exception`). The overflow of the main thread's stack, which the kernel makes a SIGSEGV of, is
/// a SIGBUS here.
pub(crate) fn signal_of(exception: i32, codes: [i64; 2]) -> i32 {
    const KERN_INVALID_ADDRESS: i64 = 1;
    const UNIX_BAD_SYSCALL: i64 = 0x10000;
    const UNIX_BAD_PIPE: i64 = 0x10001;
    const UNIX_ABORT: i64 = 0x10002;
    match (exception, codes[0]) {
        (EXC_BAD_ACCESS, KERN_INVALID_ADDRESS) => libc::SIGSEGV,
        (EXC_BAD_ACCESS, GENERAL_PROTECTION) if cfg!(target_arch = "x86_64") => libc::SIGSEGV,
        (EXC_BAD_ACCESS, _) => libc::SIGBUS,
        (EXC_BAD_INSTRUCTION, _) => libc::SIGILL,
        (EXC_ARITHMETIC, _) => libc::SIGFPE,
        (EXC_EMULATION, _) => libc::SIGEMT,
        (EXC_SOFTWARE, UNIX_BAD_SYSCALL) => libc::SIGSYS,
        (EXC_SOFTWARE, UNIX_BAD_PIPE) => libc::SIGPIPE,
        (EXC_SOFTWARE, UNIX_ABORT) => libc::SIGABRT,
        (EXC_SOFTWARE, _) => libc::SIGKILL,
        (EXC_BREAKPOINT, _) => libc::SIGTRAP,
        _ => 0,
    }
}

/// What happened, from an exception's message.
pub(crate) fn crash_context(request: &Request, context: &Context) -> CrashContext {
    let is_memory_fault = request.exception == EXC_BAD_ACCESS;
    let registers = context.registers();
    // Of a general protection fault the subcode is no address (0), and the processor gives none.
    let is_known = !(cfg!(target_arch = "x86_64") && is_memory_fault && request.codes[0] == GENERAL_PROTECTION);
    let address = is_known.then_some(if is_memory_fault { request.codes[1] as u64 } else { registers.pc });
    let number = signal_of(request.exception, request.codes);
    let fault = context.fault();
    CrashContext {
        monitor: Monitor::MACH,
        // The signal that it would become: nothing has been sent yet.
        signal: (number != 0).then_some(Signal {
            number,
            address,
            error_code: Some(fault.error),
            trap_number: cfg!(target_arch = "x86_64").then_some(fault.trap),
            ..Signal::default()
        }),
        mach: Some(Mach { exception: request.exception, code: request.codes[0], subcode: request.codes[1] }),
        time_ns: threads::wall_now(),
        pid: threads::process_id(),
        tid: request.tid,
        registers,
        extra: extra(context),
        extra_count: EXTRA,
        shadow_stack: 0,
        address,
        access: if is_memory_fault { access(context) } else { None },
        is_memory_fault,
        uncaught: None,
        hung: None,
    }
}

/// Writes a report, on the primary thread. With it come the other threads where a handler is asked next: they stay stopped until the
/// result is dropped. `crashed` is the port of the thread that it is about, 0 where that is not known.
pub(crate) fn write(
    installed: &'static Installed,
    context: &CrashContext,
    crashed: mach_port_t,
    next: Next,
) -> (Reported, Option<OtherThreads>) {
    let started = monotonic_now();
    let platform = &installed.platform;
    // First of all: what the next launch makes a report of, whatever happens to this one.
    let is_crash = context.ending() != Ending::NonFatal;
    let number = if is_crash { installed.run.state.set_crash(&context.record()) } else { 0 };
    let me = platform.primary_tid.load(Ordering::Acquire);
    // Nobody but an install that has come meanwhile has the lock, or this thread itself: the process is dying.
    let Claim::Mine(owner) = REPORT_LOCK.claim(context.pid, me, !is_crash) else {
        return (Reported::Not, None);
    };
    platform.crashed.store(crashed, Ordering::Release);
    let mut session = match CrashSession::open(owner, installed, context, started) {
        Ok(session) => session,
        Err(owner) => {
            session::release(owner);
            return (Reported::Not, None);
        }
    };
    session.write_report(|session| {
        let limit = u64::from(session.installed.options.deadline_ms).saturating_mul(1_000_000);
        platform.deadline.store(started.saturating_add(limit).max(1), Ordering::Release);
        exception_messages::tell(platform.secondary_port, Own::Watch);
    });
    platform.deadline.store(0, Ordering::Release);
    if let Some(images) = session.images() {
        images.release();
    }
    let mut held = None;
    match next {
        Next::Dies => session.end_dying(),
        Next::AsksHandler => {
            held = session.threads.take();
            session::release(session.end());
        }
        Next::RunsOn => session::release(session.end()),
    }
    (Reported::Here(number), held)
}

/// Hands a crash of the calling thread over to the primary thread, which writes its report, and waits for the end of it.
pub(crate) fn hand_over(installed: &Installed, context: &CrashContext) -> Reported {
    // The report's own limit, and twice as long for one that is being written now, and an earlier holder of the ports.
    let limit = installed.options.deadline_ms.saturating_mul(3).saturating_add(5000);
    HandedOver::hand_over(&installed.platform, context, limit)
}

/// Takes what was noticed outside a signal handler by the calling thread into a report: the primary thread writes it. False if
/// there is none.
pub(crate) fn report_context(
    installed: &'static Installed,
    _registers: &Registers,
    (pid, _tid): (i32, Tid),
    context: &CrashContext,
) -> bool {
    // A child made by fork has none of Coroner's threads.
    pid == installed.run.pid && hand_over(installed, context) != Reported::Not
}

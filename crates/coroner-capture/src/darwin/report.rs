//! The primary thread writes a report, of an exception or of a crash that a signal handler handed over.

use core::sync::atomic::Ordering;

use coroner_machine::context::{self, Context};
use coroner_machine::registers::Registers;
use coroner_machine::threads::{self, Tid, monotonic_now};
use coroner_report::wire::{Access, ExtraRegister, Mach, Monitor, Signal};
use mach2::port::mach_port_t;

use super::files;
use super::handed::Handed;
use super::messages::{self, Own, Request};
use crate::global::Global;
use crate::monitor::exception::{Ending, Uncaught};
use crate::pipeline::incident::Incident;
use crate::pipeline::{Task, report_file, sections};

/// <mach/exception_types.h>.
pub(crate) const EXC_BAD_ACCESS: i32 = 1;
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
    /// `EXC_I386_GPFLT`.
    const GENERAL_PROTECTION: i64 = 13;
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

/// The exception state's registers.
pub(crate) fn extra(context: &Context) -> [(ExtraRegister, u64); 3] {
    let fault = context.fault();
    #[cfg(target_arch = "x86_64")]
    return [
        (ExtraRegister::TRAPNO, fault.trap),
        (ExtraRegister::ERR, fault.error),
        (ExtraRegister::CR2, fault.address),
    ];
    #[cfg(target_arch = "aarch64")]
    [(ExtraRegister::ESR, fault.error), (ExtraRegister::FAR, fault.address), (ExtraRegister::EXCEPTION, fault.trap)]
}

/// How the instruction touched memory, as the report has it.
pub(crate) fn access(context: &Context) -> Option<Access> {
    context.access().map(|access| match access {
        context::Access::Read => Access::READ,
        context::Access::Write => Access::WRITE,
        context::Access::Execute => Access::EXECUTE,
    })
}

/// What happened, from an exception's message.
pub(crate) fn incident(request: &Request, context: &Context) -> Incident {
    let is_memory_fault = request.exception == EXC_BAD_ACCESS;
    let registers = context.registers();
    // Of a general protection fault the subcode is no address (0), and the processor tells none.
    let address = if is_memory_fault { request.codes[1] as u64 } else { registers.pc };
    let number = signal_of(request.exception, request.codes);
    let fault = context.fault();
    Incident {
        monitor: Monitor::MACH,
        // The signal that it would become: nothing has been sent yet.
        signal: (number != 0).then_some(Signal {
            number,
            address: Some(address),
            error_code: Some(fault.error),
            trap_number: cfg!(target_arch = "x86_64").then_some(fault.trap),
            ..Signal::default()
        }),
        mach: Some(Mach { exception: request.exception, code: request.codes[0], subcode: request.codes[1] }),
        pid: threads::process_id(),
        tid: request.tid,
        registers,
        extra: extra(context),
        extra_count: 3,
        address: Some(address),
        access: if is_memory_fault { access(context) } else { None },
        is_memory_fault,
        uncaught: None,
        hung: None,
    }
}

/// Writes a report. False where there is none: too many of this run, or no file.
pub(crate) fn write(global: &'static Global, incident: &Incident, crashed: mach_port_t) -> bool {
    let started = monotonic_now();
    let os = &global.os;
    let Ok(file) = report_file(global, incident.ending()) else { return false };
    os.crashed.store(crashed, Ordering::Release);
    let mut task = Task::new(global, incident, file, global.run.files.id, started);
    let limit = u64::from(global.setup.deadline_ms).saturating_mul(1_000_000);
    os.deadline.store(started.saturating_add(limit), Ordering::Release);
    os.writing.store(true, Ordering::Release);
    messages::tell(os.secondary_port, Own::Watch);
    sections::write_all(&mut task);
    os.writing.store(false, Ordering::Release);
    // SAFETY: the primary thread owns the scratch, and no section runs.
    unsafe { crate::pipeline::scratch(global) }.images.release();
    global.seconds.reopen();
    if incident.ending() == Ending::GoesOn {
        // Of a file of its own, which nothing is written to any more.
        files::close(file);
    } else {
        global.note_crash(incident.monitor);
    }
    true
}

/// Takes an exception of the calling thread, which has these registers, into a report: the primary thread writes it. Normal
/// life. False where there is none.
pub(crate) fn enter_uncaught(
    global: &'static Global,
    registers: &Registers,
    (pid, tid): (i32, Tid),
    uncaught: &Uncaught<'_>,
) -> bool {
    // SAFETY: it is the caller's, who waits here for longer than the report may take.
    let incident = unsafe { Incident::of_exception(uncaught, registers, pid, tid) };
    enter_incident(global, registers, (pid, tid), &incident)
}

/// Takes what was noticed in normal life by the calling thread into a report: the primary thread writes it. False where there
/// is none.
pub(crate) fn enter_incident(
    global: &'static Global,
    _registers: &Registers,
    (pid, _tid): (i32, Tid),
    incident: &Incident,
) -> bool {
    // A child made by fork has none of Coroner's threads.
    if pid != global.run.pid {
        return false;
    }
    // The report's own limit, and twice as long for one that is being written now.
    let patience = global.setup.deadline_ms.saturating_mul(3).saturating_add(5000);
    Handed::over(global, incident, patience)
}

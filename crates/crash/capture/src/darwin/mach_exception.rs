//! A Mach exception: whether it is this process's and not a crash, the signal that it becomes, and
//! its description in the report.

use coroner_process::context::Context;
use coroner_process::exception_messages::Request;
use coroner_process::memory::recover_guarded_load;
use coroner_process::threads;
use coroner_report::wire::{Mach, Monitor, Signal};
use mach2::kern_return::{KERN_FAILURE, KERN_SUCCESS};

use crate::crash_context::{CrashContext, EXTRA, access, extra};
use crate::guarded_call;
use crate::installed::Installed;

/// From <mach/exception_types.h>.
pub(crate) const EXC_BAD_ACCESS: i32 = 1;
/// `EXC_I386_GPFLT`.
const GENERAL_PROTECTION: i64 = 13;
const EXC_BAD_INSTRUCTION: i32 = 2;
const EXC_ARITHMETIC: i32 = 3;
const EXC_EMULATION: i32 = 4;
const EXC_SOFTWARE: i32 = 5;
const EXC_BREAKPOINT: i32 = 6;

/// Returns `true` if an exception is this process's. A child inherits its parent's exception ports,
/// and its exceptions come here.
pub(crate) fn is_ours(request: &Request) -> bool {
    request.thread != 0
}

/// Returns the signal that an exception becomes if nobody takes it; 0 if there is none (XNU
/// bsd/uxkern/ux_exception.c, `ux_exception` and `machine_exception`). The overflow of the main
/// thread's stack, for which the kernel raises SIGSEGV, is a SIGBUS here.
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

/// Creates the crash context from an exception's message.
pub(crate) fn crash_context(request: &Request, context: &Context) -> CrashContext {
    let is_memory_fault = request.exception == EXC_BAD_ACCESS;
    let registers = context.registers();
    // The subcode of a general protection fault isn't an address (0), and the processor provides
    // none.
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

/// Lets an exception's thread continue if the exception is not a crash: a fault of a guarded load,
/// of code that is called under guard, or at a lost page of the run state (its file was truncated).
/// Returns `true` if the exception is answered.
pub(crate) fn is_recovered(installed: &Installed, request: &Request) -> bool {
    let Ok(mut context) = Context::of_thread(request.thread) else { return false };
    let is_access = request.exception == EXC_BAD_ACCESS;
    if is_access && installed.replace_lost_page(request.codes[1] as u64) {
        request.answer(KERN_SUCCESS);
        return true;
    }
    let recovered = is_access && recover_guarded_load(&mut context)
        || guarded_call::recover(installed.run.pid, request.tid, &mut context);
    if !recovered {
        return false;
    }
    // SAFETY: a guarded load continues with its error, code under guard where it was called.
    let set = unsafe { context.set_to(request.thread) };
    request.answer(if set.is_ok() { KERN_SUCCESS } else { KERN_FAILURE });
    true
}

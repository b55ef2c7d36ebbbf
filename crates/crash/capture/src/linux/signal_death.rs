//! Lets the process die of a signal that no other handler takes.

use coroner_process::context::{SignalContext, SignalInfo};
#[cfg(target_arch = "x86_64")]
use coroner_process::memory::{KernelCopy, Memory};
use coroner_process::process;
use coroner_process::shared_handlers;
use coroner_process::signals::{SignalAction, bit};
use coroner_process::syscall::syscall;
use coroner_process::threads::{process_id, this_thread};

use crate::installed;
use crate::taken_signals;

/// Lets the process die of this signal when the handler returns, with the thread where the signal
/// found it (as a core dump shows it):
/// * A fault occurs again when the thread continues, now with the default action, which kills even
///   the first process of a pid namespace; the other threads are stopped, so nobody can have
///   repaired it in the meantime.
/// * A signal that was sent or [forced](is_forced), an `int3` and a seccomp trap do not occur
///   again: the signal is queued once more, blocked until the handler returns, with its siginfo.
///   This doesn't kill the first process of a pid namespace (pid_namespaces(7)): there `int3` is
///   executed again, and for the others the exit status gives the signal as a shell would. The same
///   exit status is used if no signal can be sent.
pub(crate) fn die(info: &SignalInfo, context: &mut SignalContext) {
    let (signal, pid) = (info.signo, process_id());
    if installed::get().is_some_and(|of| of.run.pid != pid && shared_handlers::are_shared_with(of.run.pid)) {
        // SAFETY: Coroner's own handler, which the parent has now.
        unsafe { shared_handlers::restore_after_death(signal, &taken_signals::ours(signal)) };
    } else {
        taken_signals::give_back();
    }
    // SAFETY: the default action runs no code.
    let is_reset = unsafe { SignalAction::DEFAULT.set(signal) }.is_ok();
    let mask = context.signal_mask();
    // If a system call filter refuses it: the kernel kills for a fault whose signal is blocked
    // (`force_sig_info_to_task` of kernel/signal.c).
    context.set_signal_mask(if is_reset { mask & !bit(signal) } else { mask | bit(signal) });
    if (occurs_again(info) && !is_forced(info, context)) || (pid == 1 && step_back(info, context)) {
        return;
    }
    if pid == 1 {
        process::exit(128 + signal);
    }
    let tid = this_thread();
    // SAFETY: the kernel reads one siginfo. Async-signal-safe: one system call. A process may send
    // itself any siginfo.
    let queued = unsafe { syscall!(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, core::ptr::from_ref(info)) };
    if queued.is_err() {
        // SAFETY: no memory is touched. Async-signal-safe: one system call.
        let sent = unsafe { syscall!(libc::SYS_tgkill, pid, tid, signal) };
        if sent.is_err() {
            process::exit(128 + signal);
        }
    }
}

/// Lets the process die of a signal of which only the number is known, by the default action: of
/// the fault that occurs again, or of the signal that is sent once more.
pub(crate) fn by_default(signal: i32) {
    taken_signals::give_back();
    // SAFETY: the default action runs no code.
    let _ = unsafe { SignalAction::DEFAULT.set(signal) };
    // SAFETY: no memory is touched. Async-signal-safe: one system call.
    if unsafe { syscall!(libc::SYS_tgkill, process_id(), this_thread(), signal) }.is_err() {
        process::exit(128 + signal);
    }
}

/// Returns `true` if the signal is raised again when the thread continues: a fault of the
/// instruction at its program counter.
pub(crate) fn occurs_again(info: &SignalInfo) -> bool {
    /// Failed memory, `BUS_MCEERR_AR` and `BUS_MCEERR_AO`: the kernel takes the page away at the
    /// first access.
    const MEMORY_FAILURE: core::ops::RangeInclusive<i32> = 4..=5;
    match info.signo {
        libc::SIGBUS => info.is_fault() && !MEMORY_FAILURE.contains(&info.code),
        libc::SIGSEGV | libc::SIGILL | libc::SIGFPE => info.is_fault(),
        // arm64 reports `brk` at its own address, x86_64 reports `int3` after it.
        libc::SIGTRAP => info.is_fault() && cfg!(target_arch = "aarch64"),
        _ => false,
    }
}

/// Whether no instruction raised the `SIGSEGV`: the kernel could not write another signal's frame
/// to the thread's stack, or could not read it when the handler returned (`force_sigsegv` of
/// kernel/signal.c). The thread would continue as if nothing had happened.
fn is_forced(info: &SignalInfo, context: &SignalContext) -> bool {
    /// From asm-generic/siginfo.h.
    const SI_KERNEL: i32 = 0x80;
    /// x86_64's exception for a non-canonical address (`X86_TRAP_GP` of asm/trapnr.h), which has
    /// the same code.
    const GENERAL_PROTECTION: u64 = 13;
    let is_of_instruction = cfg!(target_arch = "x86_64") && context.fault().trap == GENERAL_PROTECTION;
    info.signo == libc::SIGSEGV && info.code == SI_KERNEL && !is_of_instruction
}

/// Moves the thread back to an `int3` that it has just executed. Returns `false` if there is none.
#[cfg(target_arch = "x86_64")]
fn step_back(info: &SignalInfo, context: &mut SignalContext) -> bool {
    /// The one-byte breakpoint instruction.
    const INT3: u8 = 0xcc;
    let before = context.pc().wrapping_sub(1);
    let mut byte = [0];
    // Coroner's handlers of SIGSEGV and SIGBUS may have been given back by now, so the kernel
    // reads.
    let read = KernelCopy::new().is_some_and(|mut memory| memory.read(before, &mut byte).is_ok());
    if info.signo != libc::SIGTRAP || !info.is_fault() || !read || byte != [INT3] {
        return false;
    }
    context.set_pc(before);
    true
}

/// Does nothing: `brk` on arm64 doesn't advance the program counter.
#[cfg(target_arch = "aarch64")]
fn step_back(_info: &SignalInfo, _context: &mut SignalContext) -> bool {
    false
}

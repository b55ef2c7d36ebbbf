//! Restores a report of before a signal handler, from the handler's frame on the stack.

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Crash, Registers, Signal, Thread, signal_name};
use coroner_report::wire::FoundBy;

use crate::instruction::State;

const SIGILL: i32 = 4;
const SIGTRAP: i32 = 5;
const SIGABRT: i32 = 6;
const SIGFPE: i32 = 8;
const SIGSEGV: i32 = 11;

/// Returns the report as it was before the innermost signal handler ran. `None` if none is on the
/// crashed thread's stack, if its signal was not a fault's, or if its frame wasn't saved.
pub(crate) fn before_handler(report: &Report) -> Option<Report> {
    /// Offsets in the x86_64 kernel's `struct ucontext`, at which the stack pointer points when a
    /// handler returns: `r8` to `cr2` of its `struct sigcontext`.
    const CONTEXT: u64 = 40;
    const PAGE_FAULT: u64 = 14;
    let signal = report.crash.as_ref()?.signal.as_ref()?;
    let thread = report.crashed_thread()?;
    let place = thread.frames.iter().position(|frame| frame.found_by == FoundBy::SIGNAL_FRAME)?;
    let (handler, interrupted) = (thread.frames.get(place.checked_sub(1)?)?, thread.frames.get(place)?);
    let arch = thread.registers.as_ref()?.arch.filter(|arch| *arch == Arch::X86_64)?;
    let registers = thread.registers.as_ref()?;
    let state = State::new(report, registers);
    let word = |index: u64| state.saved(handler.sp?.0.checked_add(CONTEXT)?.checked_add(index * 8)?, 8);
    // r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, flags.
    let saved = (0..18).map(word).collect::<Option<Vec<u64>>>()?;
    let [r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, flags] = saved[..] else {
        return None;
    };
    if rip != interrupted.address.0 {
        return None;
    }
    let number = match (signal.number, word(20)?) {
        (SIGABRT, PAGE_FAULT | 13) => SIGSEGV,
        (SIGABRT, 0) => SIGFPE,
        (SIGABRT, 6) => SIGILL,
        (SIGABRT, 3) => SIGTRAP,
        (SIGABRT, _) => return None,
        (number, _) => number,
    };
    let general = vec![rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15, rip, flags];
    let mut report = report.clone();
    let crash: &mut Crash = report.crash.as_mut()?;
    crash.signal = Some(Signal { number, name: signal_name(report.header.os, number), ..Signal::default() });
    let tid = crash.tid;
    let thread: &mut Thread = report.threads.iter_mut().find(|thread| thread.tid == tid)?;
    thread.frames.drain(..place);
    thread.registers = Some(Registers { arch: Some(arch), general, ..Registers::default() });
    Some(report)
}

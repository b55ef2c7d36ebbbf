//! Finds the fault behind a signal that the process sent itself, and the kind of fault of a signal
//! without the kernel's information.
//!
//! A handler that sets `SIG_DFL` and calls `raise` (libgfortran's, glog's and many programs' own)
//! ends the process when it returns: the thread is back at the instruction that faulted. A handler
//! that calls `abort` ends it earlier: the registers of the fault are in the signal frame.

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, CrashFlag, Explanation, FaultKind, Signal, signal_code_name, signal_name};
use coroner_report::wire::{Access, Monitor, Os};

use crate::bad_operand::{self, NEAR_NULL};
use crate::before_handler::before_handler;
use crate::code_source::CodeSource;
use crate::fault::MIN_ERROR_VALUE;
use crate::instruction::{Class, Decoded, MemoryOperand, State};
use crate::memory_map::{MAY_EXECUTE, MAY_READ, MAY_WRITE, permissions_at};
use crate::{architecture, decode};

const SIGILL: i32 = 4;
const SIGTRAP: i32 = 5;
const SIGBUS: i32 = 7;
const SIGFPE: i32 = 8;
const SIGSEGV: i32 = 11;
/// `SEGV_MAPERR`, `FPE_INTDIV`, `ILL_ILLOPC`.
const FIRST: i32 = 1;
/// `SEGV_ACCERR`, `BUS_ADRERR`.
const SECOND: i32 = 2;
const SI_KERNEL: i32 = 0x80;

/// Returns the report with the fault in place of the signal that followed it, and a sentence on
/// that signal. `None` unless the code at the program counter proves the fault.
pub(crate) fn find_fault(report: &Report, code: &dyn CodeSource) -> Option<(Report, &'static str)> {
    let crash =
        report.crash.as_ref().filter(|crash| crash.monitor == Monitor::SIGNAL && report.exceptions.is_empty())?;
    let signal = crash.signal.as_ref().filter(|_| matches!(report.header.os, Os::LINUX | Os::ANDROID))?;
    let is_own = signal.code <= 0 && signal.sender_pid.is_none_or(|pid| pid == report.header.pid);
    if !is_own {
        return None;
    }
    if let Some(mut interrupted) = before_handler(report) {
        prove(&mut interrupted, code)?;
        return Some((interrupted, "the program's own signal handler ended the process after the fault"));
    }
    let mut report = report.clone();
    let fact = match signal.unknown_code {
        true => "the kernel's information about the signal is missing: kind and address follow from the instruction",
        false => "the signal was raised again, by the program's own handler or a library's",
    };
    prove(&mut report, code)?;
    Some((report, fact))
}

/// Whether an explanation is that of a fault that the instruction caused.
pub(crate) fn is_proven(explanation: &Explanation) -> bool {
    explanation.kind.is_fault() && explanation.kind != FaultKind::DivisionError
}

/// Replaces the signal with the fault that the instruction at the program counter causes. `None` if
/// it causes none, as far as the report shows.
fn prove(report: &mut Report, code: &dyn CodeSource) -> Option<()> {
    let thread = report.crashed_thread()?;
    let registers = thread.registers.as_ref().filter(|registers| !registers.only_preserved)?;
    let (arch, pc, sp) = (registers.arch?, registers.pc()?, registers.sp()?);
    let state = State::new(report, registers);
    let found = decode::decode(arch, pc, code, &state).map(|(decoded, _)| decoded);
    let number = report.crash.as_ref()?.signal.as_ref()?.number;
    let (kind, address) = match number {
        SIGSEGV | SIGBUS => memory_fault(report, arch, pc, sp, &state, found.as_ref(), number)?,
        SIGFPE => match found?.class {
            Class::Division { divisor: Some(divisor) } if matches!(divisor.value, 0 | 0xffff_ffff | u64::MAX) => {
                (FIRST, Some(pc))
            }
            _ => return None,
        },
        SIGILL if matches!(found?.class, Class::Trap(_) | Class::Invalid | Class::Privileged) => (FIRST, Some(pc)),
        SIGTRAP if code.code(Address(pc.0.checked_sub(1)?), 1)?.bytes == [0xcc] => (SI_KERNEL, None),
        _ => return None,
    };
    let is_overflow = address.is_some_and(|address| {
        let is_of_frame = address.0.wrapping_sub(sp.0.saturating_sub(128)) <= 64 << 10;
        let stack = thread.stack.filter(|(start, _)| start.0.wrapping_sub(address.0) <= 1 << 20);
        number == SIGSEGV && is_of_frame && stack.is_some_and(|(start, _)| address < start)
    });
    let os = report.header.os;
    let crash = report.crash.as_mut()?;
    (crash.address, crash.access) = (address, None);
    crash.signal = Some(Signal {
        number,
        name: signal_name(os, number),
        code: kind,
        code_name: signal_code_name(os, number, kind),
        address,
        ..Signal::default()
    });
    if is_overflow && !crash.has(CrashFlag::StackOverflow) {
        crash.flags.push(CrashFlag::StackOverflow);
    }
    Some(())
}

/// Returns the code and the address of the memory fault that the instruction causes.
fn memory_fault(
    report: &Report,
    arch: Arch,
    pc: Address,
    sp: Address,
    state: &State<'_>,
    found: Option<&Decoded>,
    number: i32,
) -> Option<(i32, Option<Address>)> {
    let mapped = |address: u64| report.mappings.iter().any(|mapping| mapping.contains(Address(address)));
    // A report by the process itself has only the mappings next to the fault.
    let is_complete = report.header.sdk_version.is_empty() && mapped(pc.0);
    let may_execute = permissions_at(report, pc).is_some_and(|permissions| permissions & MAY_EXECUTE != 0);
    let is_known = report.header.sdk_version.is_empty() && mapped(sp.0);
    if pc.0 < NEAR_NULL || (is_known && !may_execute) {
        return Some((if mapped(pc.0) { SECOND } else { FIRST }, Some(pc)));
    }
    let found = found?;
    let is_bad = |value: u64| !architecture::is_canonical(arch, value);
    let leads_nowhere = match found.class {
        Class::Privileged => true,
        Class::Branch { value, .. } => is_bad(value),
        Class::BranchByMemory | Class::Return => {
            let target = found.memory.iter().find(|operand| operand.access == Some(Access::READ));
            target.and_then(|operand| state.saved(operand.address, 8)).is_some_and(is_bad)
        }
        _ => false,
    };
    if leads_nowhere || bad_operand::find_non_canonical(found, arch).is_some() {
        return Some((SI_KERNEL, None));
    }
    let fault = |operand: &MemoryOperand| {
        let address = operand.address;
        let last = address.checked_add(u64::from(operand.width.unwrap_or(1).max(1)) - 1)?;
        if !(NEAR_NULL..MIN_ERROR_VALUE).contains(&address) {
            return Some((FIRST, Some(Address(address))));
        }
        let needed = match operand.access {
            Some(Access::READ) => MAY_READ,
            Some(Access::WRITE) => MAY_WRITE,
            _ => MAY_READ | MAY_WRITE,
        };
        [address, last].into_iter().filter(|_| is_complete).find_map(|address| {
            let mapping = report.mappings.iter().find(|mapping| mapping.contains(Address(address)));
            let is_file = |name: &String| name.starts_with('/');
            match mapping {
                None => Some((FIRST, Some(Address(address)))),
                Some(mapping) if mapping.protection & needed != needed => Some((SECOND, Some(Address(address)))),
                // The file may be shorter than its mapping.
                Some(mapping) if number == SIGBUS && mapping.name.as_ref().is_some_and(is_file) => {
                    Some((SECOND, Some(Address(address))))
                }
                Some(_) => None,
            }
        })
    };
    let mut faults = found.memory.iter().filter_map(fault);
    let first = faults.next();
    if first.is_none() && bad_operand::find_unaligned(found).is_some() {
        return Some((SI_KERNEL, None));
    }
    first.filter(|_| faults.next().is_none())
}

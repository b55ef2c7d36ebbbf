//! The fault as reported by the system.
//!
//! Linux signals, Mach exceptions and Windows exceptions are mapped to the same values.

use coroner_report::Report;
use coroner_report::model::{Crash, Signal};
use coroner_report::wire::{Access, Monitor};

use crate::bad_operand::NEAR_NULL;
use crate::memory_map::{MAY_EXECUTE, MAY_READ, MAY_WRITE};

/// The fault that the system reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Nothing is mapped at the address.
    Unmapped,
    /// The mapping doesn't allow the access.
    Denied,
    /// A protection key doesn't allow the access.
    DeniedByKey,
    /// Windows: a guard page, which reports its first access.
    GuardPage,
    /// x86_64: a general protection or stack fault, without an address.
    GeneralProtection,
    /// The address is not aligned.
    Unaligned,
    /// The mapped object has no byte at the address.
    NoObject,
    MemoryFailure,
    Tag,
    ShadowStack,
    IntegerDivision,
    FloatingPoint,
    /// An invalid or undefined instruction.
    Illegal,
    Privileged,
    Breakpoint,
    /// The allocator found its own data overwritten.
    Heap,
    Abort,
    /// An uncaught language exception.
    Thrown,
    SystemCall,
    /// The signal was sent by software.
    Sent,
    Other,
}

/// Returns the fault that the system reported for a crash.
pub(crate) fn from_crash(report: &Report, crash: &Crash) -> Notice {
    match (&crash.mach, &crash.signal) {
        (None, Some(signal)) if crash.monitor == Monitor::SEH => from_windows_exception(report, crash, signal),
        // <mach/exception_types.h>, <mach/kern_return.h>, <mach/i386/exception.h>,
        // <mach/arm/exception.h>.
        (Some(mach), _) => match (mach.exception, mach.code) {
            (1, 1) => Notice::Unmapped,
            (1, 2) => Notice::Denied,
            (1, 10) => Notice::NoObject,
            (1, 13) => Notice::GeneralProtection,
            (1, 0x101) => Notice::Unaligned,
            (1, 0x106) => Notice::Tag,
            (2, _) => Notice::Illegal,
            (3, 1) => Notice::IntegerDivision,
            (6, _) => Notice::Breakpoint,
            (10, _) if crash.signal.as_ref().is_some_and(|signal| signal.name == Some("SIGABRT")) => Notice::Abort,
            _ => Notice::Other,
        },
        (None, Some(signal)) => from_signal(report, crash, signal),
        (None, None) => Notice::Other,
    }
}

fn from_signal(report: &Report, crash: &Crash, signal: &Signal) -> Notice {
    // `SI_USER`, `SI_QUEUE`, `SI_TKILL` and other codes for signals sent by software.
    let is_sent = signal.code <= 0 && !signal.unknown_code || matches!(signal.code_name, Some("SI_USER" | "SI_QUEUE"));
    match (signal.name.unwrap_or_default(), signal.code_name.unwrap_or_default()) {
        ("SIGABRT", _) => Notice::Abort,
        _ if is_sent => Notice::Sent,
        ("SIGSYS", _) => Notice::SystemCall,
        ("SIGSEGV", _) if signal.unknown_code && crash.address.is_some() => from_access_violation(report, crash),
        ("SIGSEGV", "SEGV_MAPERR") => Notice::Unmapped,
        ("SIGSEGV", "SEGV_ACCERR") => Notice::Denied,
        ("SIGSEGV", "SEGV_PKUERR") => Notice::DeniedByKey,
        ("SIGSEGV", "SEGV_MTEAERR" | "SEGV_MTESERR") => Notice::Tag,
        ("SIGSEGV", "SEGV_CPERR") => Notice::ShadowStack,
        // A stack fault (for an address computed from the stack pointer) is a SIGBUS on Linux.
        ("SIGSEGV" | "SIGBUS", "SI_KERNEL") if crash.address.is_none() => Notice::GeneralProtection,
        ("SIGBUS", "BUS_ADRALN") => Notice::Unaligned,
        ("SIGBUS", "BUS_ADRERR") => Notice::NoObject,
        ("SIGBUS", "BUS_MCEERR_AR" | "BUS_MCEERR_AO") => Notice::MemoryFailure,
        ("SIGFPE", "FPE_INTDIV") => Notice::IntegerDivision,
        ("SIGFPE", code) if code.starts_with("FPE_FLT") => Notice::FloatingPoint,
        ("SIGILL", _) => Notice::Illegal,
        ("SIGTRAP", _) => Notice::Breakpoint,
        _ => Notice::Other,
    }
}

/// Returns the fault for a Windows exception code (ntstatus.h), or the C runtime's SIGABRT.
fn from_windows_exception(report: &Report, crash: &Crash, signal: &Signal) -> Notice {
    match signal.number.cast_unsigned() {
        // SIGABRT, which minidumps also contain; an invalid parameter of a C runtime function;
        // `__fastfail`.
        22 | 0x4000_0015 | 0xc000_0417 | 0xc000_0409 => Notice::Abort,
        0xc000_0005 => from_access_violation(report, crash),
        0x8000_0001 => Notice::GuardPage,
        0x8000_0002 => Notice::Unaligned,
        0x8000_0003 => Notice::Breakpoint,
        0xc000_0006 => Notice::NoObject,
        0xc000_001d => Notice::Illegal,
        0xc000_008d..=0xc000_0093 | 0xc000_02b4 | 0xc000_02b5 => Notice::FloatingPoint,
        0xc000_0094 | 0xc000_0095 => Notice::IntegerDivision,
        0xc000_0096 => Notice::Privileged,
        0xc000_0374 => Notice::Heap,
        0xe06d_7363 | 0x2047_4343 | 0xe043_4352 => Notice::Thrown,
        _ => Notice::Other,
    }
}

/// Returns the fault for an access violation, or a SIGSEGV without a code.
///
/// Windows doesn't report whether something is mapped at the address. The mappings show it: a
/// report contains the one at the address or else those next to it.
fn from_access_violation(report: &Report, crash: &Crash) -> Notice {
    // −1 is not the fault's address: the processor reported none.
    let Some(address) = crash.address else { return Notice::GeneralProtection };
    let needed = match crash.access {
        Some(Access::READ) => MAY_READ,
        Some(Access::WRITE) => MAY_WRITE,
        Some(Access::EXECUTE) => MAY_EXECUTE,
        _ => 0,
    };
    match report.mappings.iter().find(|mapping| mapping.contains(address)) {
        // The mapping was created after the fault, or the program raised the exception itself.
        Some(mapping) if mapping.protection & needed != 0 => Notice::Other,
        Some(_) => Notice::Denied,
        // Windows never maps the lowest 64 KiB (`lpMinimumApplicationAddress` of `GetSystemInfo`).
        None if address.0 < NEAR_NULL || !report.mappings.is_empty() => Notice::Unmapped,
        None => Notice::Other,
    }
}

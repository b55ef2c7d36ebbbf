//! What the system said: signals of Linux and exceptions of Mach as one.

use coroner_report::model::{Crash, Signal};

/// What the system noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Nothing is mapped at the address.
    Unmapped,
    /// What is mapped there does not allow the access.
    Denied,
    /// A protection key does not allow it.
    DeniedByKey,
    /// x86_64: a general protection or stack fault, without an address.
    GeneralProtection,
    /// The address is not aligned.
    Unaligned,
    /// A mapped object has no byte there.
    NoObject,
    MemoryFailure,
    Tag,
    ShadowStack,
    IntegerDivision,
    FloatingPoint,
    /// No instruction, or one that is undefined.
    Illegal,
    Breakpoint,
    Abort,
    SystemCall,
    /// Software sent the signal.
    Sent,
    Other,
}

/// What the system said of a crash.
pub(crate) fn of(crash: &Crash) -> Notice {
    match (&crash.mach, &crash.signal) {
        // <mach/exception_types.h>, <mach/kern_return.h>, <mach/i386/exception.h>, <mach/arm/exception.h>.
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
        (None, Some(signal)) => of_signal(crash, signal),
        (None, None) => Notice::Other,
    }
}

fn of_signal(crash: &Crash, signal: &Signal) -> Notice {
    // `SI_USER`, `SI_QUEUE`, `SI_TKILL` and others of software.
    let is_sent = signal.code <= 0 || matches!(signal.code_name, Some("SI_USER" | "SI_QUEUE"));
    match (signal.name.unwrap_or_default(), signal.code_name.unwrap_or_default()) {
        ("SIGABRT", _) => Notice::Abort,
        _ if is_sent => Notice::Sent,
        ("SIGSYS", _) => Notice::SystemCall,
        ("SIGSEGV", "SEGV_MAPERR") => Notice::Unmapped,
        ("SIGSEGV", "SEGV_ACCERR") => Notice::Denied,
        ("SIGSEGV", "SEGV_PKUERR") => Notice::DeniedByKey,
        ("SIGSEGV", "SEGV_MTEAERR" | "SEGV_MTESERR") => Notice::Tag,
        ("SIGSEGV", "SEGV_CPERR") => Notice::ShadowStack,
        // A stack fault (an address by the stack pointer) is a SIGBUS on Linux.
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

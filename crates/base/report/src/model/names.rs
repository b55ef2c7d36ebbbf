//! Names of signals, signal codes and Mach exceptions, by the numbering of the report's system.
//!
//! Sources: Linux `uapi/asm-generic/signal.h` and `siginfo.h`; Darwin `sys/signal.h`,
//! `mach/exception_types.h`, `mach/kern_return.h`, `mach/i386/exception.h`, `mach/arm/exception.h`;
//! Windows `ntstatus.h`, `minwinbase.h`, `signal.h`.

use crate::wire::Os;

pub(super) fn is_linux(os: Os) -> bool {
    matches!(os, Os::LINUX | Os::ANDROID)
}

/// The name of a Windows exception code, or of a signal of Microsoft's C runtime.
fn windows_name(number: i32) -> Option<&'static str> {
    Some(match number.cast_unsigned() {
        2 => "SIGINT",
        4 => "SIGILL",
        8 => "SIGFPE",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        21 => "SIGBREAK",
        22 => "SIGABRT",
        0x4000_0015 => "STATUS_FATAL_APP_EXIT",
        0x8000_0001 => "EXCEPTION_GUARD_PAGE",
        0x8000_0002 => "EXCEPTION_DATATYPE_MISALIGNMENT",
        0x8000_0003 => "EXCEPTION_BREAKPOINT",
        0x8000_0004 => "EXCEPTION_SINGLE_STEP",
        0xc000_0005 => "EXCEPTION_ACCESS_VIOLATION",
        0xc000_0006 => "EXCEPTION_IN_PAGE_ERROR",
        0xc000_0008 => "EXCEPTION_INVALID_HANDLE",
        0xc000_001d => "EXCEPTION_ILLEGAL_INSTRUCTION",
        0xc000_0025 => "EXCEPTION_NONCONTINUABLE_EXCEPTION",
        0xc000_0026 => "EXCEPTION_INVALID_DISPOSITION",
        0xc000_008c => "EXCEPTION_ARRAY_BOUNDS_EXCEEDED",
        0xc000_008d => "EXCEPTION_FLT_DENORMAL_OPERAND",
        0xc000_008e => "EXCEPTION_FLT_DIVIDE_BY_ZERO",
        0xc000_008f => "EXCEPTION_FLT_INEXACT_RESULT",
        0xc000_0090 => "EXCEPTION_FLT_INVALID_OPERATION",
        0xc000_0091 => "EXCEPTION_FLT_OVERFLOW",
        0xc000_0092 => "EXCEPTION_FLT_STACK_CHECK",
        0xc000_0093 => "EXCEPTION_FLT_UNDERFLOW",
        0xc000_0094 => "EXCEPTION_INT_DIVIDE_BY_ZERO",
        0xc000_0095 => "EXCEPTION_INT_OVERFLOW",
        0xc000_0096 => "EXCEPTION_PRIV_INSTRUCTION",
        0xc000_00fd => "EXCEPTION_STACK_OVERFLOW",
        0xc000_02b4 => "STATUS_FLOAT_MULTIPLE_FAULTS",
        0xc000_02b5 => "STATUS_FLOAT_MULTIPLE_TRAPS",
        0xc000_0374 => "STATUS_HEAP_CORRUPTION",
        0xc000_0409 => "STATUS_STACK_BUFFER_OVERRUN",
        0xc000_0417 => "STATUS_INVALID_CRUNTIME_PARAMETER",
        0xc000_0420 => "STATUS_ASSERTION_FAILURE",
        // `VcppException` in delayimp.h: for a library that is loaded on first use.
        0xc06d_007e => "delay-loaded library that was not found",
        0xc06d_007f => "function that was not found in a delay-loaded library",
        // Raised by Microsoft's and GNU compilers for a `throw`.
        0xe06d_7363 => "C++ exception",
        0x2047_4343 => "GNU exception",
        0xe043_4352 => ".NET exception",
        _ => return None,
    })
}

/// The name of signal `number` on `os`, such as `SIGSEGV`.
pub fn signal_name(os: Os, number: i32) -> Option<&'static str> {
    if os == Os::WINDOWS {
        return windows_name(number);
    }
    // Numbers that are the same on both systems.
    Some(match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        21 => "SIGTTIN",
        22 => "SIGTTOU",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        26 => "SIGVTALRM",
        27 => "SIGPROF",
        28 => "SIGWINCH",
        _ if is_linux(os) => match number {
            7 => "SIGBUS",
            10 => "SIGUSR1",
            12 => "SIGUSR2",
            16 => "SIGSTKFLT",
            17 => "SIGCHLD",
            18 => "SIGCONT",
            19 => "SIGSTOP",
            20 => "SIGTSTP",
            23 => "SIGURG",
            29 => "SIGIO",
            30 => "SIGPWR",
            31 => "SIGSYS",
            _ => return None,
        },
        7 => "SIGEMT",
        10 => "SIGBUS",
        12 => "SIGSYS",
        16 => "SIGURG",
        17 => "SIGSTOP",
        18 => "SIGTSTP",
        19 => "SIGCONT",
        20 => "SIGCHLD",
        23 => "SIGIO",
        29 => "SIGINFO",
        30 => "SIGUSR1",
        31 => "SIGUSR2",
        _ => return None,
    })
}

/// The name of `code` (`si_code`) of signal `number` on `os`, such as `SEGV_MAPERR`.
pub fn signal_code_name(os: Os, number: i32, code: i32) -> Option<&'static str> {
    let linux = is_linux(os);
    // Codes that any signal can have.
    let general = match (linux, code) {
        (true, 0) | (false, 0x10001) => Some("SI_USER"),
        (true, 0x80) => Some("SI_KERNEL"),
        (true, -1) | (false, 0x10002) => Some("SI_QUEUE"),
        (true, -2) | (false, 0x10003) => Some("SI_TIMER"),
        (true, -3) | (false, 0x10005) => Some("SI_MESGQ"),
        (true, -4) | (false, 0x10004) => Some("SI_ASYNCIO"),
        (true, -5) => Some("SI_SIGIO"),
        (true, -6) => Some("SI_TKILL"),
        _ => None,
    };
    if general.is_some() {
        return general;
    }
    let names: &[&str] = match signal_name(os, number)? {
        "SIGILL" if os.is_apple() => &[
            "ILL_ILLOPC",
            "ILL_ILLTRP",
            "ILL_PRVOPC",
            "ILL_ILLOPN",
            "ILL_ILLADR",
            "ILL_PRVREG",
            "ILL_COPROC",
            "ILL_BADSTK",
        ][..],
        "SIGILL" => &[
            "ILL_ILLOPC",
            "ILL_ILLOPN",
            "ILL_ILLADR",
            "ILL_ILLTRP",
            "ILL_PRVOPC",
            "ILL_PRVREG",
            "ILL_COPROC",
            "ILL_BADSTK",
        ],
        "SIGFPE" if linux => &[
            "FPE_INTDIV",
            "FPE_INTOVF",
            "FPE_FLTDIV",
            "FPE_FLTOVF",
            "FPE_FLTUND",
            "FPE_FLTRES",
            "FPE_FLTINV",
            "FPE_FLTSUB",
        ],
        "SIGFPE" => &[
            "FPE_FLTDIV",
            "FPE_FLTOVF",
            "FPE_FLTUND",
            "FPE_FLTRES",
            "FPE_FLTINV",
            "FPE_FLTSUB",
            "FPE_INTDIV",
            "FPE_INTOVF",
        ],
        "SIGSEGV" if linux => &[
            "SEGV_MAPERR",
            "SEGV_ACCERR",
            "SEGV_BNDERR",
            "SEGV_PKUERR",
            "SEGV_ACCADI",
            "SEGV_ADIDERR",
            "SEGV_ADIPERR",
            "SEGV_MTEAERR",
            "SEGV_MTESERR",
            "SEGV_CPERR",
        ],
        "SIGSEGV" => &["SEGV_MAPERR", "SEGV_ACCERR"],
        "SIGBUS" if linux => &["BUS_ADRALN", "BUS_ADRERR", "BUS_OBJERR", "BUS_MCEERR_AR", "BUS_MCEERR_AO"],
        "SIGBUS" => &["BUS_ADRALN", "BUS_ADRERR", "BUS_OBJERR"],
        "SIGTRAP" if linux => &["TRAP_BRKPT", "TRAP_TRACE", "TRAP_BRANCH", "TRAP_HWBKPT", "TRAP_UNK", "TRAP_PERF"],
        "SIGTRAP" => &["TRAP_BRKPT", "TRAP_TRACE"],
        "SIGSYS" if linux => &["SYS_SECCOMP", "SYS_USER_DISPATCH"],
        _ => &[],
    };
    names.get(usize::try_from(code.checked_sub(1)?).ok()?).copied()
}

/// The name of a Mach exception, such as `EXC_BAD_ACCESS`.
pub fn mach_exception_name(exception: i32) -> Option<&'static str> {
    Some(match exception {
        1 => "EXC_BAD_ACCESS",
        2 => "EXC_BAD_INSTRUCTION",
        3 => "EXC_ARITHMETIC",
        4 => "EXC_EMULATION",
        5 => "EXC_SOFTWARE",
        6 => "EXC_BREAKPOINT",
        7 => "EXC_SYSCALL",
        8 => "EXC_MACH_SYSCALL",
        9 => "EXC_RPC_ALERT",
        10 => "EXC_CRASH",
        11 => "EXC_RESOURCE",
        12 => "EXC_GUARD",
        13 => "EXC_CORPSE_NOTIFY",
        _ => return None,
    })
}

/// The name of a Mach exception's code, such as `KERN_INVALID_ADDRESS`.
///
/// Only for codes that mean the same on all architectures.
pub fn mach_code_name(exception: i32, code: i64) -> Option<&'static str> {
    match (exception, code) {
        (1, 1) => Some("KERN_INVALID_ADDRESS"),
        (1, 2) => Some("KERN_PROTECTION_FAILURE"),
        (1, 8) => Some("KERN_NO_ACCESS"),
        (1, 9) => Some("KERN_MEMORY_FAILURE"),
        (1, 10) => Some("KERN_MEMORY_ERROR"),
        (1, 14) => Some("KERN_MEMORY_PRESENT"),
        (1, 50) => Some("KERN_CODESIGN_ERROR"),
        (5, 0x10000) => Some("EXC_UNIX_BAD_SYSCALL"),
        (5, 0x10001) => Some("EXC_UNIX_BAD_PIPE"),
        (5, 0x10002) => Some("EXC_UNIX_ABORT"),
        (5, 0x10003) => Some("EXC_SOFT_SIGNAL"),
        _ => None,
    }
}

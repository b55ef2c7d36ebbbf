//! Deliberate faults by name, to test a crash reporter in a process that may die.
//!
//! [`FAULTS`] is the table. Each entry describes what happens, how the process dies without a crash
//! reporter, and which functions a correct report contains, from the innermost out. Nearly every
//! fault is called through [`chain::chain_a`] → [`chain::chain_b`] → [`chain::chain_c`], so that a
//! reader of the report can tell correct callers from plausible ones.
//!
//! ```
//! let fault = coroner_faults::find("null-store").expect("it is in the table");
//! assert_eq!(fault.frames[..2], ["null_store", "chain_c"]);
//! // (fault.run)() would now end this process.
//! ```
//!
//! This crate does not depend on Coroner: the same fault runs with and without it, to compare how
//! the process ends.
#![deny(missing_docs)]

pub mod chain;
mod instructions;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod loader;
mod memory;
mod processes;
#[cfg(not(target_vendor = "apple"))]
mod runtime;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub mod seccomp;
mod signals;
mod stack;
pub mod threads;

/// A deliberate fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Name on a command line: lower case, words joined by `-`.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// The way the process ends without a crash reporter.
    pub ending: Ending,
    /// The signal's `si_code`, if it is always the same.
    pub code: Option<i32>,
    /// The signal's `si_addr`, if it is always the same.
    pub address: Option<u64>,
    /// The Mach exception on Apple systems; `None` elsewhere and for signals sent by software.
    pub mach: Option<Mach>,
    /// The thread that faults.
    pub thread: Thread,
    /// The location of the crashed thread's innermost frame.
    pub top: Top,
    /// Functions that a correct report of the crashed thread contains, innermost first.
    ///
    /// Each is the last part of the function's path. Other functions may lie between them (such as
    /// the C library's `raise` above `abort_here`) and after the last one.
    pub frames: &'static [&'static str],
    /// Runs the fault. It returns only if the process survives according to [`Ending`].
    pub run: fn(),
}

/// The way a fault ends the process if nothing intervenes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The process is killed by this signal.
    Signal(i32),
    /// The process is killed by one of two signals, depending on the language runtime.
    ///
    /// Rust's own handler turns a stack overflow into an abort.
    Either(i32, i32),
    /// A child process is killed by this signal; the parent waits for it and continues normally.
    Child(i32),
}

/// A Mach exception (<mach/exception_types.h>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mach {
    /// The exception's number.
    pub exception: i32,
    /// The exception's code, if it is always the same.
    pub code: Option<i64>,
    /// The exception's subcode, if it is always the same: the address of a bad access.
    pub subcode: Option<i64>,
}

impl Mach {
    /// The signal of a denied access (`KERN_PROTECTION_FAILURE`), regardless of its address.
    pub fn signal_of_denial(self) -> Option<i32> {
        let denied = self.exception == EXC_BAD_ACCESS && self.code == Some(KERN_PROTECTION_FAILURE);
        denied.then_some(libc::SIGBUS)
    }
}

/// The thread that faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The process's first thread.
    Main,
    /// Another thread, named [`threads::CRASHER`].
    Crasher,
}

/// The location of the crashed thread's innermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Top {
    /// In the first function of [`Fault::frames`].
    Function,
    /// In the C library or the dynamic linker, called by the first function of [`Fault::frames`].
    ///
    /// The call may be indirect.
    Library,
    /// Outside any function, called by the first function of [`Fault::frames`].
    ///
    /// At address 0 or in a page that is not code.
    Nowhere,
}

/// Returns the fault with this name.
pub fn find(name: &str) -> Option<&'static Fault> {
    FAULTS.iter().find(|fault| fault.name == name)
}

/// The signal for a store to a read-only page.
///
/// SIGSEGV on Linux, SIGBUS on Darwin (`KERN_PROTECTION_FAILURE`).
const PROTECTION: i32 = if cfg!(target_vendor = "apple") { libc::SIGBUS } else { libc::SIGSEGV };
/// The signal for a privileged instruction.
///
/// SIGSEGV (general protection fault) on x86_64, SIGILL on arm64.
const PRIVILEGED: i32 = if cfg!(target_arch = "x86_64") { libc::SIGSEGV } else { libc::SIGILL };
/// The signal for a breakpoint instruction: SIGTRAP everywhere.
const BREAKPOINT: i32 = libc::SIGTRAP;
/// The end of the process after a stack overflow on a thread other than the main one.
///
/// Darwin recognizes only the main thread's guard page. It can't run a handler if there is no stack
/// for it: the signal is then SIGILL (XNU's sendsig).
const OVERFLOW: Ending = if cfg!(target_vendor = "apple") {
    Ending::Either(libc::SIGABRT, libc::SIGBUS)
} else {
    Ending::Either(libc::SIGABRT, libc::SIGSEGV)
};
const OVERFLOW_WITHOUT_STACK: Ending = if cfg!(target_vendor = "apple") {
    Ending::Either(libc::SIGILL, libc::SIGBUS)
} else {
    Ending::Signal(libc::SIGSEGV)
};

// Exceptions, and codes of EXC_BAD_ACCESS (<mach/kern_return.h>).
const EXC_BAD_ACCESS: i32 = 1;
const EXC_BAD_INSTRUCTION: i32 = 2;
#[cfg(target_arch = "x86_64")]
const EXC_ARITHMETIC: i32 = 3;
const EXC_BREAKPOINT: i32 = 6;
const KERN_INVALID_ADDRESS: i64 = 1;
const KERN_PROTECTION_FAILURE: i64 = 2;
const KERN_MEMORY_ERROR: i64 = 10;
/// `EXC_I386_GPFLT`: the address is not reported.
const GENERAL_PROTECTION: i64 = 13;

const fn on_darwin(exception: i32, code: Option<i64>, subcode: Option<i64>) -> Option<Mach> {
    if cfg!(target_vendor = "apple") { Some(Mach { exception, code, subcode }) } else { None }
}
/// A bad access with this code, on Darwin.
const fn bad_access(code: i64) -> Option<Mach> {
    on_darwin(EXC_BAD_ACCESS, Some(code), None)
}
const AT_NULL: Option<Mach> = on_darwin(EXC_BAD_ACCESS, Some(KERN_INVALID_ADDRESS), Some(0));

const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
/// Returns an `si_code` on Linux only; Darwin's values differ and come from Mach exceptions.
const fn on_linux(code: i32) -> Option<i32> {
    if cfg!(any(target_os = "linux", target_os = "android")) { Some(code) } else { None }
}

macro_rules! through_chain {
    ($($first:literal),+) => { &[$($first,)+ "chain_c", "chain_b", "chain_a"] };
}

/// Defaults for most faults: main thread, SIGSEGV, code and address not checked.
const PLAIN: Fault = Fault {
    name: "",
    about: "",
    ending: Ending::Signal(libc::SIGSEGV),
    code: None,
    address: None,
    mach: None,
    thread: Thread::Main,
    top: Top::Function,
    frames: &[],
    run: || {},
};

/// All faults of this platform, the most common ones first.
pub static FAULTS: &[Fault] = &[
    // Bad addresses.
    Fault {
        name: "null-store",
        about: "writes to address 0",
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        mach: AT_NULL,
        frames: through_chain!("null_store"),
        run: || chain::here(memory::null_store),
        ..PLAIN
    },
    Fault {
        name: "null-store-thread",
        about: "writes to address 0 on another thread",
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        thread: Thread::Crasher,
        mach: AT_NULL,
        frames: through_chain!("null_store"),
        run: || threads::on_rust_thread(memory::null_store),
        ..PLAIN
    },
    Fault {
        name: "null-store-pthread",
        about: "writes to address 0 on a thread created with pthread_create",
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        thread: Thread::Crasher,
        mach: AT_NULL,
        frames: through_chain!("null_store"),
        run: || threads::on_c_thread(memory::null_store),
        ..PLAIN
    },
    Fault {
        name: "bad-pointer",
        about: "reads from an unmapped page",
        code: on_linux(SEGV_MAPERR),
        mach: bad_access(KERN_INVALID_ADDRESS),
        frames: through_chain!("bad_pointer"),
        run: || chain::here(memory::bad_pointer),
        ..PLAIN
    },
    Fault {
        name: "non-canonical",
        about: "reads from a non-canonical address",
        mach: if cfg!(target_arch = "x86_64") {
            bad_access(GENERAL_PROTECTION)
        } else {
            on_darwin(EXC_BAD_ACCESS, None, None)
        },
        frames: through_chain!("non_canonical"),
        run: || chain::here(memory::non_canonical),
        ..PLAIN
    },
    Fault {
        name: "read-only-store",
        about: "writes to a read-only page",
        ending: Ending::Signal(PROTECTION),
        code: on_linux(SEGV_ACCERR),
        mach: bad_access(KERN_PROTECTION_FAILURE),
        frames: through_chain!("read_only_store"),
        run: || chain::here(memory::read_only_store),
        ..PLAIN
    },
    Fault {
        name: "bus-error",
        about: "reads beyond the end of a mapped file",
        ending: Ending::Signal(libc::SIGBUS),
        code: on_linux(2), // BUS_ADRERR
        mach: bad_access(KERN_MEMORY_ERROR),
        frames: through_chain!("bus_error"),
        run: || chain::here(memory::bus_error),
        ..PLAIN
    },
    Fault {
        name: "call-null",
        about: "calls a null function pointer",
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        top: Top::Nowhere,
        mach: AT_NULL,
        frames: through_chain!("call_null"),
        run: || chain::here(memory::call_null),
        ..PLAIN
    },
    Fault {
        name: "call-data",
        about: "calls into a non-executable page",
        ending: Ending::Signal(PROTECTION),
        code: on_linux(SEGV_ACCERR),
        top: Top::Nowhere,
        mach: bad_access(KERN_PROTECTION_FAILURE),
        frames: through_chain!("call_data"),
        run: || chain::here(memory::call_data),
        ..PLAIN
    },
    // Instructions. Without Coroner, bionic's own handler faults, and the process ends by another
    // signal.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Fault {
        name: "alignment-check",
        about: "writes to address 0 with alignment checks enabled (EFLAGS.AC)",
        // Rust's own handler may make an unaligned access, which then faults.
        ending: Ending::Either(libc::SIGBUS, libc::SIGSEGV),
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        frames: through_chain!("alignment_check"),
        run: || chain::here(instructions::alignment_check),
        ..PLAIN
    },
    #[cfg(target_arch = "x86_64")]
    Fault {
        name: "divide-by-zero",
        about: "divides an integer by zero",
        ending: Ending::Signal(libc::SIGFPE),
        code: on_linux(1), // FPE_INTDIV
        mach: on_darwin(EXC_ARITHMETIC, Some(1), None),
        frames: through_chain!("divide_by_zero"),
        run: || chain::here(instructions::divide_by_zero),
        ..PLAIN
    },
    Fault {
        name: "illegal-instruction",
        about: "executes an undefined instruction (ud2, udf)",
        ending: Ending::Signal(libc::SIGILL),
        mach: on_darwin(EXC_BAD_INSTRUCTION, Some(1), None),
        frames: through_chain!("illegal_instruction"),
        run: || chain::here(instructions::illegal_instruction),
        ..PLAIN
    },
    Fault {
        name: "breakpoint",
        about: "executes a breakpoint instruction (int3, brk) without a debugger",
        ending: Ending::Signal(BREAKPOINT),
        mach: on_darwin(EXC_BREAKPOINT, Some(if cfg!(target_arch = "x86_64") { 2 } else { 1 }), None),
        frames: through_chain!("breakpoint"),
        run: || chain::here(instructions::breakpoint),
        ..PLAIN
    },
    Fault {
        name: "privileged-instruction",
        about: "executes a privileged instruction",
        ending: Ending::Signal(PRIVILEGED),
        mach: if cfg!(target_arch = "x86_64") {
            bad_access(GENERAL_PROTECTION)
        } else {
            on_darwin(EXC_BAD_INSTRUCTION, Some(1), None)
        },
        frames: through_chain!("privileged_instruction"),
        run: || chain::here(instructions::privileged_instruction),
        ..PLAIN
    },
    // Signals raised by software.
    Fault {
        name: "abort",
        about: "calls abort()",
        ending: Ending::Signal(libc::SIGABRT),
        code: on_linux(-6), // SI_TKILL
        top: Top::Library,
        frames: through_chain!("abort_here"),
        run: || chain::here(signals::abort_here),
        ..PLAIN
    },
    Fault {
        name: "assert",
        about: "fails a C assert()",
        ending: Ending::Signal(libc::SIGABRT),
        code: on_linux(-6), // SI_TKILL
        top: Top::Library,
        frames: through_chain!("assert_here"),
        run: || chain::here(signals::assert_here),
        ..PLAIN
    },
    #[cfg(any(all(target_os = "linux", target_env = "gnu"), target_os = "android"))]
    Fault {
        name: "fortify",
        about: "fails the bounds check of a fortified memcpy",
        ending: Ending::Signal(libc::SIGABRT),
        code: on_linux(-6), // SI_TKILL
        top: Top::Library,
        frames: through_chain!("copy_too_much"),
        run: || chain::here(signals::copy_too_much),
        ..PLAIN
    },
    Fault {
        name: "panic-abort",
        about: "panics in a function that must not unwind",
        ending: Ending::Signal(libc::SIGABRT),
        code: on_linux(-6), // SI_TKILL
        top: Top::Library,
        frames: through_chain!("panic_in_c_function", "panic_abort"),
        run: || chain::here(signals::panic_abort),
        ..PLAIN
    },
    Fault {
        name: "kill-segv",
        about: "sends itself SIGSEGV with kill(), again if it survives",
        code: on_linux(0), // SI_USER
        top: Top::Library,
        frames: through_chain!("kill_segv"),
        run: || chain::here(signals::kill_segv),
        ..PLAIN
    },
    Fault {
        name: "raise-fpe",
        about: "raises SIGFPE with raise()",
        ending: Ending::Signal(libc::SIGFPE),
        code: on_linux(-6), // SI_TKILL
        top: Top::Library,
        frames: through_chain!("raise_fpe"),
        run: || chain::here(signals::raise_fpe),
        ..PLAIN
    },
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Fault {
        name: "bad-system-call",
        about: "makes a system call that a seccomp filter traps (SIGSYS)",
        ending: Ending::Signal(libc::SIGSYS),
        code: on_linux(1), // SYS_SECCOMP
        top: Top::Library,
        frames: through_chain!("bad_system_call"),
        run: || chain::here(signals::bad_system_call),
        ..PLAIN
    },
    Fault {
        name: "in-signal-handler",
        about: "writes to address 0 in its own SIGUSR1 handler",
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        mach: AT_NULL,
        frames: through_chain!("null_store", "on_usr1", "in_signal_handler"),
        run: || chain::here(signals::in_signal_handler),
        ..PLAIN
    },
    // The stack.
    Fault {
        name: "stack-overflow",
        about: "recurses endlessly on the main thread",
        ending: Ending::Either(libc::SIGABRT, libc::SIGSEGV),
        mach: bad_access(KERN_PROTECTION_FAILURE),
        frames: &["recurse_for_ever", "recurse_for_ever", "recurse_for_ever"],
        run: || chain::here(stack::overflow_main),
        ..PLAIN
    },
    Fault {
        name: "stack-overflow-thread",
        about: "recurses endlessly on a Rust thread",
        ending: OVERFLOW,
        thread: Thread::Crasher,
        mach: bad_access(KERN_PROTECTION_FAILURE),
        frames: &["recurse_for_ever", "recurse_for_ever", "recurse_for_ever"],
        run: || threads::on_rust_thread(stack::overflow),
        ..PLAIN
    },
    Fault {
        name: "stack-overflow-pthread",
        about: "recurses endlessly on a thread created with pthread_create, which has no alternate stack",
        ending: OVERFLOW_WITHOUT_STACK,
        thread: Thread::Crasher,
        mach: bad_access(KERN_PROTECTION_FAILURE),
        frames: &["recurse_for_ever", "recurse_for_ever", "recurse_for_ever"],
        run: || threads::on_c_thread(stack::overflow),
        ..PLAIN
    },
    Fault {
        name: "deep-recursion",
        about: "writes to address 0 below 100,000 frames",
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        thread: Thread::Crasher,
        mach: AT_NULL,
        frames: through_chain!("null_store", "recurse_to", "recurse_to", "deep_recursion"),
        run: || threads::on_big_thread(stack::deep_recursion),
        ..PLAIN
    },
    Fault {
        name: "no-frame-pointer",
        about: "writes to address 0 below functions that use the frame pointer register for other values",
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        mach: AT_NULL,
        frames: through_chain!("frameless_leaf", "frameless_middle", "frameless_outer", "no_frame_pointer"),
        run: || chain::here(stack::no_frame_pointer),
        ..PLAIN
    },
    Fault {
        name: "broken-stack-pointer",
        about: "pushes with a broken stack pointer but an intact frame pointer",
        mach: bad_access(KERN_INVALID_ADDRESS),
        frames: through_chain!("broken_stack_pointer_leaf", "broken_stack_pointer"),
        run: || chain::here(stack::broken_stack_pointer),
        ..PLAIN
    },
    Fault {
        name: "broken-stack-and-frame-pointer",
        about: "faults with a broken stack pointer and frame pointer",
        mach: bad_access(KERN_INVALID_ADDRESS),
        frames: &["broken_both_leaf"],
        run: || chain::here(stack::broken_stack_and_frame_pointer),
        ..PLAIN
    },
    // Locks of the C library that the crashed thread holds.
    #[cfg(not(target_vendor = "apple"))]
    // Android 9's malloc doesn't detect it.
    #[cfg(not(target_os = "android"))]
    Fault {
        name: "double-free",
        about: "frees a block twice, so that the C library aborts",
        ending: Ending::Signal(libc::SIGABRT),
        top: Top::Library,
        frames: through_chain!("double_free"),
        run: || chain::here(runtime::double_free),
        ..PLAIN
    },
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    Fault {
        name: "abort-in-malloc",
        about: "corrupts the heap so that malloc aborts while holding its arena's lock",
        ending: Ending::Signal(libc::SIGABRT),
        code: on_linux(-6), // SI_TKILL
        top: Top::Library,
        frames: through_chain!("abort_in_malloc"),
        run: || chain::here(runtime::abort_in_malloc),
        ..PLAIN
    },
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    Fault {
        name: "segv-in-malloc",
        about: "corrupts the heap so that malloc faults while holding its arena's lock",
        top: Top::Library,
        frames: through_chain!("segv_in_malloc"),
        run: || chain::here(runtime::segv_in_malloc),
        ..PLAIN
    },
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Fault {
        name: "in-dl-iterate-phdr",
        about: "writes to address 0 in a dl_iterate_phdr callback, with the dynamic linker's lock held",
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        frames: through_chain!("null_store", "on_image", "in_dl_iterate_phdr"),
        run: || chain::here(loader::in_dl_iterate_phdr),
        ..PLAIN
    },
    // bionic doesn't load a library without section headers, like this one.
    #[cfg(target_os = "linux")]
    Fault {
        name: "in-constructor",
        about: "writes to address 0 in the constructor of a library loaded with dlopen",
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        frames: through_chain!("null_store", "in_constructor"),
        run: || chain::here(loader::in_constructor),
        ..PLAIN
    },
    // Several crashes at once.
    Fault {
        name: "two-threads",
        about: "writes to address 0 on two threads at the same time",
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        thread: Thread::Crasher,
        mach: AT_NULL,
        frames: through_chain!("null_store"),
        run: || threads::on_two_threads(memory::null_store),
        ..PLAIN
    },
    Fault {
        name: "fork-child",
        about: "writes to address 0 in a forked child",
        ending: Ending::Child(libc::SIGSEGV),
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        mach: AT_NULL,
        frames: through_chain!("null_store"),
        run: || processes::in_fork_child(memory::null_store),
        ..PLAIN
    },
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Fault {
        name: "vfork-child",
        about: "writes to address 0 in a child that shares its parent's memory, as after vfork()",
        ending: Ending::Child(libc::SIGSEGV),
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        frames: through_chain!("null_store"),
        run: || processes::in_vfork_child(memory::null_store),
        ..PLAIN
    },
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Fault {
        name: "sighand-child",
        about: "writes to address 0 in a child that shares its parent's memory and signal handlers (CLONE_SIGHAND)",
        ending: Ending::Child(libc::SIGSEGV),
        code: on_linux(SEGV_MAPERR),
        address: Some(0),
        frames: through_chain!("null_store"),
        run: || processes::in_sighand_child(memory::null_store),
        ..PLAIN
    },
];

//! Other signal handlers in the process, installed before or after Coroner: other reporters,
//! runtimes, brokers.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use coroner_faults::seccomp::{self, Action};

use super::{Condition, HANDLER_EXIT, Handler, PAGE, PLAIN, handle, make_writable};
use crate::recoverable;

pub(super) static CONDITIONS: &[Condition] = &[
    Condition {
        name: "seccomp-broker",
        before_install: || handle(libc::SIGSYS, answer_call),
        before_fault: call_broker,
        ..PLAIN
    },
    Condition {
        name: "repaired-faults",
        before_install: || handle(libc::SIGSEGV, make_writable),
        before_fault: repair_faults,
        ..PLAIN
    },
    Condition {
        name: "left-faults",
        before_install: || handle(libc::SIGSEGV, leave_fault),
        before_fault: leave_faults,
        ..PLAIN
    },
    Condition {
        name: "jit-faults",
        before_install: || handle(libc::SIGSEGV, leave_jit_code),
        before_fault: run_jit_code,
        ..PLAIN
    },
    Condition {
        name: "jit-crash-aborts",
        before_install: || handle(libc::SIGSEGV, abort),
        before_fault: fault_in_jit_code,
        ..PLAIN
    },
    Condition {
        name: "jit-crash-exits",
        before_install: || handle(libc::SIGSEGV, exit),
        before_fault: fault_in_jit_code,
        ..PLAIN
    },
    Condition {
        name: "jit-crash-ends-at-once",
        before_install: || handle(libc::SIGSEGV, exit_at_once),
        before_fault: fault_in_jit_code,
        ..PLAIN
    },
    #[cfg(target_os = "linux")]
    Condition { name: "renderer-filter", before_fault: enter_renderer_sandbox, ..PLAIN },
    Condition { name: "forbidden-call", before_fault: make_forbidden_call, ..PLAIN },
    Condition { name: "handler-exits", before_install: || handle(libc::SIGSEGV, exit), ..PLAIN },
    Condition { name: "handler-after", before_fault: handle_and_look, ..PLAIN },
    Condition { name: "crash-handler-before", before_install: attach_crash_handler, ..PLAIN },
    Condition { name: "crash-handler-after", before_fault: attach_crash_handler, ..PLAIN },
    Condition { name: "breakpad-before", before_install: install_breakpad, ..PLAIN },
    Condition { name: "breakpad-after", before_fault: install_breakpad, ..PLAIN },
    Condition { name: "small-signal-stack", before_fault: use_small_signal_stack, ..PLAIN },
];

/// Number of faults that a handler handles before the crash.
const RUNS: i32 = 1000;

/// Runs `fault` a thousand times. With `CORONER_TEST_COSTS`, prints the time of one in nanoseconds.
fn repeat_a_thousand_times(mut fault: impl FnMut()) {
    let began = std::time::Instant::now();
    for _ in 0..RUNS {
        fault();
    }
    if std::env::var_os("CORONER_TEST_COSTS").is_some() {
        println!("{}", began.elapsed().as_nanos() / RUNS as u128);
    }
}

/// The system call that the broker answers, and its result.
const BROKERED: libc::c_long = libc::SYS_getpriority;
const ANSWER: i64 = 7;

/// A sandbox's broker: sets the call's result.
extern "C" fn answer_call(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    set_register(context, Register::Result, ANSWER);
}

fn call_broker() {
    seccomp::filter(&[BROKERED], Action::Trap).expect("can't install a system call filter");
    // SAFETY: the handler above sets the result.
    let ask = || unsafe { libc::syscall(BROKERED, libc::PRIO_PROCESS, 0) };
    repeat_a_thousand_times(|| assert_eq!(ask(), ANSWER as libc::c_long));
}

/// Enters a sandbox like a Chromium renderer's: it is installed after the reporter, handles SIGSYS,
/// and crashes for a call that its policy doesn't allow.
#[cfg(target_os = "linux")]
fn enter_renderer_sandbox() {
    extern "C" fn crash(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
        // SAFETY: none: this crashes on purpose.
        unsafe { std::ptr::without_provenance_mut::<u8>(16).write_volatile(1) };
    }
    handle(libc::SIGSYS, crash);
    crate::renderer_policy::apply_policy().expect("can't install a system call filter");
}

/// Makes a system call for which the sandbox crashes.
fn make_forbidden_call() {
    // SAFETY: only reads.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) };
}

fn new_page(protection: i32) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
    // SAFETY: a new mapping at an address chosen by the kernel.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
    assert!(page != libc::MAP_FAILED, "memory");
    page.cast()
}

fn repair_faults() {
    // SAFETY: this function's own page; the handler allows the store.
    repeat_a_thousand_times(|| unsafe { new_page(libc::PROT_READ).write_volatile(1) });
}

extern "C" fn leave_fault(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    recoverable::leave();
    // The actual crash.
    // SAFETY: async-signal-safe.
    unsafe { libc::_exit(3) }
}

fn leave_faults() {
    extern "C" fn fault() {
        // SAFETY: none: this crashes on purpose.
        unsafe { std::ptr::without_provenance_mut::<u8>(64).write_volatile(1) };
    }
    repeat_a_thousand_times(|| assert!(recoverable::call(fault), "the handler did not leave the fault"));
}

/// Number of faults that [`leave_jit_code`] has handled.
static LEFT: AtomicI32 = AtomicI32::new(0);

/// Code of a load from address 0 (an instruction of two bytes on x86_64, four on arm64) and a
/// return.
#[cfg(target_arch = "x86_64")]
const CODE: &[u8] = &[0x31, 0xc0, 0x8b, 0x00, 0xc3];
#[cfg(target_arch = "aarch64")]
const CODE: &[u8] = &[0, 0, 0x80, 0xd2, 0, 0, 0x40, 0xb9, 0xc0, 0x03, 0x5f, 0xd6];
const LOAD_SIZE: i64 = if cfg!(target_arch = "x86_64") { 2 } else { 4 };

/// Handles a null load like a JIT compiler's runtime, which throws an exception: here, it continues
/// after the load.
extern "C" fn leave_jit_code(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if LEFT.fetch_add(1, Ordering::SeqCst) < RUNS {
        set_register(context, Register::ProgramCounterBehind, LOAD_SIZE);
    } else {
        // SAFETY: async-signal-safe; a fault outside the runtime's code is repeated.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn jit_code() -> extern "C" fn() {
    let page = new_page(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
    // SAFETY: the page is large enough, writable and executable; the instruction cache is
    // synchronized.
    unsafe {
        page.copy_from(CODE.as_ptr(), CODE.len());
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", "dsb ish", "isb", in(reg) page);
        std::mem::transmute::<*mut u8, extern "C" fn()>(page)
    }
}

fn run_jit_code() {
    let code = jit_code();
    repeat_a_thousand_times(|| code());
    assert_eq!(LEFT.load(Ordering::SeqCst), RUNS);
}

extern "C" fn abort(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    std::process::abort();
}

extern "C" fn exit(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the thread holds no lock.
    unsafe { libc::exit(HANDLER_EXIT) }
}

extern "C" fn exit_at_once(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: async-signal-safe.
    unsafe { libc::_exit(HANDLER_EXIT) }
}

fn fault_in_jit_code() {
    jit_code()();
}

/// A register in a context.
enum Register {
    Result,
    ProgramCounterBehind,
}

fn set_register(context: *mut libc::c_void, register: Register, value: i64) {
    // SAFETY: the kernel's context of the current signal.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    match register {
        Register::Result => context.uc_mcontext.gregs[libc::REG_RAX as usize] = value,
        Register::ProgramCounterBehind => context.uc_mcontext.gregs[libc::REG_RIP as usize] += value,
    }
    #[cfg(target_arch = "aarch64")]
    match register {
        Register::Result => context.uc_mcontext.regs[0] = value as u64,
        Register::ProgramCounterBehind => context.uc_mcontext.pc += value as u64,
    }
}

/// Installs a handler after Coroner's that calls no other one, like redis. Then the app continues
/// for a while.
fn handle_and_look() {
    extern "C" fn own(signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
        // SAFETY: async-signal-safe; the fault is repeated.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    handle(libc::SIGSEGV, own);
    coroner::add_breadcrumb(&coroner::Breadcrumb::new("serving"));
}

/// Environment variable with the library that contains Embark's reporter. (A program that also
/// contains it would have two `pthread_create`.)
const CRASH_HANDLER: &str = "CORONER_CRASH_HANDLER";

fn attach_crash_handler() {
    let path = std::env::var(CRASH_HANDLER).expect("CORONER_CRASH_HANDLER is not set");
    let path = std::ffi::CString::new(path).expect("a path");
    // SAFETY: the library's function takes no arguments.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "can't load the library");
        let attach = libc::dlsym(library, c"attach_crash_handler".as_ptr());
        assert!(!attach.is_null(), "the library lacks attach_crash_handler");
        std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(attach)();
    }
}

/// Installs handlers like Breakpad's `ExceptionHandler`
/// (client/linux/handler/exception_handler.cc): on an alternate stack, with all of its signals
/// blocked; the first crash writes a dump, the earlier handlers are restored, and a signal that
/// doesn't repeat by itself is sent again.
fn install_breakpad() {
    const SIGNALS: [i32; 6] = [libc::SIGSEGV, libc::SIGABRT, libc::SIGFPE, libc::SIGILL, libc::SIGBUS, libc::SIGTRAP];
    static OLD: [AtomicUsize; SIGNALS.len()] = [const { AtomicUsize::new(0) }; SIGNALS.len()];
    static IS_WRITTEN: AtomicBool = AtomicBool::new(false);
    extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
        // SAFETY: async-signal-safe calls; the restored actions are the previous ones.
        unsafe {
            if !IS_WRITTEN.swap(true, Ordering::SeqCst) {
                libc::write(1, c"breakpad ".as_ptr().cast(), 9);
            }
            for (signal, old) in SIGNALS.iter().zip(&OLD) {
                let action = old.load(Ordering::SeqCst) as *const libc::sigaction;
                libc::sigaction(*signal, action, std::ptr::null_mut());
            }
            if (*info).si_code <= 0 || signal == libc::SIGABRT {
                libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal);
            }
        }
    }
    for (signal, old) in SIGNALS.iter().zip(&OLD) {
        // SAFETY: both actions are initialized; the handler is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            for blocked in SIGNALS {
                libc::sigaddset(&raw mut action.sa_mask, blocked);
            }
            action.sa_sigaction = handler as Handler as usize;
            action.sa_flags = libc::SA_ONSTACK | libc::SA_SIGINFO;
            let found: *mut libc::sigaction = Box::leak(Box::new(std::mem::zeroed()));
            assert_eq!(libc::sigaction(*signal, &raw const action, found), 0);
            old.store(found as usize, Ordering::SeqCst);
        }
    }
}

/// Sets an alternate stack with room for this processor's signal frame and slightly more than the
/// minimum in docs/limits.md.
fn use_small_signal_stack() {
    /// `AT_MINSIGSTKSZ` of linux/auxvec.h.
    const AT_MINSIGSTKSZ: libc::c_ulong = 51;
    // SAFETY: the stack stays mapped and isn't used otherwise.
    unsafe {
        let size = libc::getauxval(AT_MINSIGSTKSZ).max(2048) as usize + 1024;
        let room = size.next_multiple_of(PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        let pages = libc::mmap(std::ptr::null_mut(), room + 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
        assert!(pages != libc::MAP_FAILED, "memory");
        let above = pages.add(PAGE);
        assert_eq!(libc::mprotect(above, room, libc::PROT_READ | libc::PROT_WRITE), 0);
        let stack = libc::stack_t { ss_sp: above, ss_flags: 0, ss_size: size };
        assert_eq!(libc::sigaltstack(&raw const stack, std::ptr::null_mut()), 0);
    }
}

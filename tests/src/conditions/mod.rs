//! What the crashing process does to itself, before Coroner is installed or right before the fault.

use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(any(target_os = "linux", target_os = "android"))]
mod neighbours;
#[cfg(target_os = "macos")]
#[path = "darwin.rs"]
mod os;
#[cfg(any(target_os = "linux", target_os = "android"))]
#[path = "linux.rs"]
mod os;

/// One condition, by name on the program's command line.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// Its name.
    pub name: &'static str,
    /// What it does before install.
    pub before_install: fn(),
    /// What it does between install (and the start of parked threads) and the fault.
    pub before_fault: fn(),
}

fn nothing() {}

const PLAIN: Condition = Condition { name: "", before_install: nothing, before_fault: nothing };

/// Those of every system.
static COMMON: &[Condition] = &[
    Condition { name: "c-dispositions", before_install: c_dispositions, ..PLAIN },
    Condition { name: "exiting-handler", before_install: || handle(libc::SIGSEGV, report_and_exit), ..PLAIN },
    Condition { name: "repairing-handler", before_install: || handle(PROTECTION, make_writable), ..PLAIN },
    Condition { name: "fpe-ignored", before_install: || ignore(libc::SIGFPE), ..PLAIN },
    Condition { name: "segv-ignored", before_install: || ignore(libc::SIGSEGV), ..PLAIN },
    Condition {
        name: "ignore-next-signal",
        before_fault: || assert!(coroner::ignore_next_signal(libc::SIGSEGV), "Coroner is installed"),
        ..PLAIN
    },
    Condition { name: "poisoned-malloc", before_fault: || POISONED.store(true, Ordering::SeqCst), ..PLAIN },
    Condition { name: "reinstalled", before_fault: reinstall_handlers, ..PLAIN },
    Condition { name: "uninstalled", before_fault: uninstall, ..PLAIN },
];

/// What a store to a page that may not be written is.
const PROTECTION: i32 = if cfg!(target_vendor = "apple") { libc::SIGBUS } else { libc::SIGSEGV };

/// The size of the page that `read-only-store` maps, or a part of it.
pub(crate) const PAGE: usize =
    if cfg!(all(target_vendor = "apple", target_arch = "aarch64")) { 1 << 14 } else { 1 << 12 };

/// The condition of that name.
pub fn find(name: &str) -> Option<&'static Condition> {
    let all = COMMON.iter().chain(os::CONDITIONS);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let all = all.chain(neighbours::CONDITIONS);
    all.into_iter().find(|condition| condition.name == name)
}

/// Whether malloc and free end the process: set when nothing but the fault and the crash path is still to run.
pub static POISONED: AtomicBool = AtomicBool::new(false);
/// Whether parked threads block every signal.
pub static DEAF: AtomicBool = AtomicBool::new(false);
/// The directory whose disk `full-disk` fills.
pub static DISK: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();

/// What the process exits with where malloc was called when it was poisoned.
pub const POISONED_EXIT: i32 = 99;
/// What `exiting-handler` exits with.
pub const HANDLER_EXIT: i32 = 42;

/// As in a program that has no Rust `main`: nobody handles anything.
fn c_dispositions() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default disposition.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn ignore(signal: i32) {
    // SAFETY: a disposition without code.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

fn handle(signal: i32, handler: Handler) {
    // SAFETY: the action is fully initialised; the handlers below are async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Says what it was given, in a fixed form and without allocating, and exits.
extern "C" fn report_and_exit(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let mut line = [0_u8; 64];
    let mut at = 0;
    // SAFETY: a handler with SA_SIGINFO is given both.
    let (code, address, has_context) = unsafe { ((*info).si_code, (*info).si_addr() as usize, !context.is_null()) };
    for number in [signal as usize, code as usize, address, usize::from(has_context)] {
        // The numbers here have one digit or two.
        line[at] = b'0' + (number / 10 % 10) as u8;
        line[at + 1] = b'0' + (number % 10) as u8;
        line[at + 2] = b' ';
        at += 3;
    }
    // SAFETY: async-signal-safe calls with a buffer of our own.
    unsafe {
        libc::write(1, line.as_ptr().cast(), at);
        libc::_exit(HANDLER_EXIT);
    }
}

/// Makes the page that was stored to writable, as a managed runtime's write barrier does, and returns: the store is made
/// again.
extern "C" fn make_writable(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the page is the fault's own mapping.
    unsafe {
        let page = (*info).si_addr() as usize & !(PAGE - 1);
        if libc::mprotect(page as *mut libc::c_void, PAGE, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            libc::_exit(3);
        }
    }
}

/// A library that puts its own handlers over Coroner's and calls back what it found.
fn reinstall_handlers() {
    use std::sync::atomic::AtomicUsize;
    static BEFORE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn over(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: Coroner's handler, which stood there before, has this signature.
        let before: Handler = unsafe { std::mem::transmute(BEFORE.load(Ordering::SeqCst)) };
        before(signal, info, context);
    }
    // SAFETY: asks for the disposition.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut now);
        BEFORE.store(now.sa_sigaction, Ordering::SeqCst);
    }
    handle(libc::SIGSEGV, over);
    // Coroner looks who has the signals.
    coroner::add_breadcrumb(&coroner::Breadcrumb::new("serving"));
}

fn uninstall() {
    if let Some(coroner) = coroner::installed() {
        coroner.uninstall();
    }
}

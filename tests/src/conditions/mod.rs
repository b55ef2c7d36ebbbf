//! Conditions that the crashing process creates before Coroner is installed or right before the
//! fault.

use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(any(target_os = "linux", target_os = "android"))]
mod neighbours;
#[cfg(target_os = "macos")]
#[path = "darwin.rs"]
mod os;
#[cfg(any(target_os = "linux", target_os = "android"))]
#[path = "linux.rs"]
mod os;

/// A condition, given by name on the program's command line.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// Name of the condition.
    pub name: &'static str,
    /// Runs before install.
    pub before_install: fn(),
    /// Runs after install and the start of parked threads, before the fault.
    pub before_fault: fn(),
}

fn nothing() {}

const PLAIN: Condition = Condition { name: "", before_install: nothing, before_fault: nothing };

/// The conditions on all systems.
static COMMON: &[Condition] = &[
    Condition { name: "c-dispositions", before_install: c_dispositions, ..PLAIN },
    Condition { name: "exiting-handler", before_install: || handle(libc::SIGSEGV, report_and_exit), ..PLAIN },
    Condition { name: "repairing-handler", before_install: || handle(PROTECTION, make_writable), ..PLAIN },
    Condition { name: "fpe-ignored", before_install: || ignore(libc::SIGFPE), ..PLAIN },
    Condition { name: "segv-ignored", before_install: || ignore(libc::SIGSEGV), ..PLAIN },
    Condition {
        name: "ignore-next-signal",
        before_fault: || assert!(coroner::ignore_next_signal(libc::SIGSEGV), "Coroner is not installed"),
        ..PLAIN
    },
    Condition { name: "poisoned-malloc", before_fault: || POISONED.store(true, Ordering::SeqCst), ..PLAIN },
    Condition { name: "reinstalled", before_fault: reinstall_handlers, ..PLAIN },
    Condition { name: "uninstalled", before_fault: uninstall, ..PLAIN },
];

/// The signal of a store to a read-only page.
const PROTECTION: i32 = if cfg!(target_vendor = "apple") { libc::SIGBUS } else { libc::SIGSEGV };

/// Size of the page that `read-only-store` maps, or a part of it.
pub(crate) const PAGE: usize =
    if cfg!(all(target_vendor = "apple", target_arch = "aarch64")) { 1 << 14 } else { 1 << 12 };

/// Returns the condition with that name.
pub fn find(name: &str) -> Option<&'static Condition> {
    let all = COMMON.iter().chain(os::CONDITIONS);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let all = all.chain(neighbours::CONDITIONS);
    all.into_iter().find(|condition| condition.name == name)
}

/// Whether malloc and free end the process: set when only the fault and the crash path may still
/// run.
pub static POISONED: AtomicBool = AtomicBool::new(false);
/// Whether parked threads block every signal.
pub static DEAF: AtomicBool = AtomicBool::new(false);
/// The directory on the disk that `full-disk` fills.
pub static DISK: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();

/// Exit status after a call of malloc while [`POISONED`].
pub const POISONED_EXIT: i32 = 99;
/// Exit status of `exiting-handler`.
pub const HANDLER_EXIT: i32 = 42;

/// Sets the default dispositions, as in a program without a Rust `main`.
fn c_dispositions() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: sets the default disposition.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn ignore(signal: i32) {
    // SAFETY: sets a disposition without a handler.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

fn handle(signal: i32, handler: Handler) {
    // SAFETY: the action is fully initialized; the handlers below are async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Prints its arguments in a fixed format without allocating, and exits.
extern "C" fn report_and_exit(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let mut line = [0_u8; 64];
    let mut at = 0;
    // SAFETY: handlers with SA_SIGINFO receive both.
    let (code, address, has_context) = unsafe { ((*info).si_code, (*info).si_addr() as usize, !context.is_null()) };
    for number in [signal as usize, code as usize, address, usize::from(has_context)] {
        // These numbers have one or two digits.
        line[at] = b'0' + (number / 10 % 10) as u8;
        line[at + 1] = b'0' + (number % 10) as u8;
        line[at + 2] = b' ';
        at += 3;
    }
    // SAFETY: async-signal-safe calls with a local buffer.
    unsafe {
        libc::write(1, line.as_ptr().cast(), at);
        libc::_exit(HANDLER_EXIT);
    }
}

/// Makes the page of the store writable, like a managed runtime's write barrier, and returns, which
/// repeats the store.
extern "C" fn make_writable(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the fault's own mapping.
    unsafe {
        let page = (*info).si_addr() as usize & !(PAGE - 1);
        if libc::mprotect(page as *mut libc::c_void, PAGE, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            libc::_exit(3);
        }
    }
}

/// Installs handlers over Coroner's that call the previous ones, like a library.
fn reinstall_handlers() {
    use std::sync::atomic::AtomicUsize;
    static BEFORE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn over(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: Coroner's handler, which was installed before, has this signature.
        let before: Handler = unsafe { std::mem::transmute(BEFORE.load(Ordering::SeqCst)) };
        before(signal, info, context);
    }
    // SAFETY: reads the disposition.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut now);
        BEFORE.store(now.sa_sigaction, Ordering::SeqCst);
    }
    handle(libc::SIGSEGV, over);
    // Coroner checks who owns the signals.
    coroner::add_breadcrumb(&coroner::Breadcrumb::new("serving"));
}

fn uninstall() {
    if let Some(coroner) = coroner::installed() {
        coroner.uninstall();
    }
}

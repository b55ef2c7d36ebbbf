//! The cases: the act of a process, and its expected report.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use coroner_capture::InstallOptions;

use crate::deaths::{call_death, named, park_here, say_last_words};
use crate::earlier;
use coroner_test_support::death_cases::{Ending, STORE};

/// The thread that crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    Main,
    /// A thread with this name.
    Thread,
}

/// The name of a thread that crashes.
pub(crate) const VICTIM: &str = "victim";

/// The expected contents of the report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    /// Exception and code; none for a signal.
    pub mach: Option<(i32, i64)>,
    pub signal: i32,
    /// The function of the frame that names the death, and the frame's index after leaving out the
    /// system libraries' frames at the top (such as `abort`), whose number depends on the system.
    pub function: &'static str,
    pub frame: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub name: &'static str,
    /// The name of a death.
    pub death: &'static str,
    pub place: Where,
    /// Number of threads that wait during the crash.
    pub parked: usize,
    /// An additional act: a name that [`run`] handles.
    pub with: &'static str,
    pub report: Option<Report>,
    pub ending: Ending,
}

const BAD_ACCESS: i32 = 1;
const BAD_INSTRUCTION: i32 = 2;
#[cfg(target_arch = "x86_64")]
const ARITHMETIC: i32 = 3;
const SOFTWARE: i32 = 5;
const BREAKPOINT: i32 = 6;
const GUARD: i32 = 12;
/// `EXC_I386_GPFLT`.
#[cfg(target_arch = "x86_64")]
const GENERAL_PROTECTION: i64 = 13;
/// `GUARD_TYPE_MACH_PORT` and `kGUARD_EXC_MOD_REFS`; the lowest 32 bits are the port's name.
const GUARD_CODE: i64 = 1 << 61 | 2 << 32;
const INVALID_ADDRESS: i64 = 1;
const PROTECTION_FAILURE: i64 = 2;

const fn case(
    death: &'static str,
    mach: Option<(i32, i64)>,
    signal: i32,
    function: &'static str,
    frame: usize,
) -> Case {
    let report = Some(Report { mach, signal, function, frame });
    Case { name: death, death, place: Where::Main, parked: 3, with: "", report, ending: Ending::Signal(signal) }
}

const NULL_MACH: Option<(i32, i64)> = Some((BAD_ACCESS, INVALID_ADDRESS));

/// A null store.
const NULL: Case = case("null-store", Some((BAD_ACCESS, INVALID_ADDRESS)), libc::SIGSEGV, "die_null_store", 0);
const READ_ONLY: Case = case("read-only", Some((BAD_ACCESS, PROTECTION_FAILURE)), libc::SIGBUS, "die_read_only", 0);
const ABORT: Case = case("abort", None, libc::SIGABRT, "die_abort", 0);
const OVERFLOW: Case = case("overflow", Some((BAD_ACCESS, PROTECTION_FAILURE)), libc::SIGBUS, "deeper", 0);

#[cfg(target_arch = "x86_64")]
const KILL: Case = case("kill", None, libc::SIGABRT, "die_kill", 0);

/// The code of a trap's exception: `EXC_I386_BPT` on x86_64, `EXC_ARM_BREAKPOINT` on arm64.
const TRAP_CODE: i64 = if cfg!(target_arch = "x86_64") { 2 } else { 1 };

pub(crate) const CASES: &[Case] = &[
    NULL,
    Case { name: "null-store-on-a-thread", place: Where::Thread, ..NULL },
    Case { name: "null-store-10-threads", parked: 10, ..NULL },
    Case { name: "null-store-200-threads", parked: 200, place: Where::Thread, ..NULL },
    Case { name: "null-store-alone", parked: 0, ..NULL },
    case("bad-pointer", Some((BAD_ACCESS, INVALID_ADDRESS)), libc::SIGSEGV, "die_bad_pointer", 0),
    READ_ONLY,
    // The jump is lost, its caller is not.
    case("jump-null", Some((BAD_ACCESS, INVALID_ADDRESS)), libc::SIGSEGV, "die_jump_null", 1),
    case("no-execute", Some((BAD_ACCESS, PROTECTION_FAILURE)), libc::SIGBUS, "die_no_execute", 1),
    case("undefined", Some((BAD_INSTRUCTION, 1)), libc::SIGILL, "die_undefined", 0),
    case("trap", Some((BREAKPOINT, TRAP_CODE)), libc::SIGTRAP, "die_trap", 0),
    #[cfg(target_arch = "x86_64")]
    case("divide", Some((ARITHMETIC, 1)), libc::SIGFPE, "die_divide", 0),
    #[cfg(target_arch = "x86_64")]
    case("privileged", Some((BAD_ACCESS, GENERAL_PROTECTION)), libc::SIGSEGV, "die_privileged", 0),
    #[cfg(target_arch = "aarch64")]
    case("privileged", Some((BAD_INSTRUCTION, 1)), libc::SIGILL, "die_privileged", 0),
    // The kernel kills the process, whatever the answer: there is no signal to report.
    Case { ending: Ending::Signal(libc::SIGKILL), ..case("guard", Some((GUARD, GUARD_CODE)), 0, "die_guard", 0) },
    case("software", Some((SOFTWARE, 0x10002)), libc::SIGABRT, "die_software", 0),
    Case { place: Where::Thread, ..case("in-queue", NULL_MACH, libc::SIGSEGV, "die_null_store", 0) },
    // Below an async function of Swift's, whose callers are its contexts if the thread runs a task,
    // and those on the stack if not.
    case("in-task", NULL_MACH, libc::SIGSEGV, "die_null_store", 0),
    Case {
        name: "in-task-on-a-thread",
        place: Where::Thread,
        ..case("in-task", NULL_MACH, libc::SIGSEGV, "die_null_store", 0)
    },
    case("beside-task", NULL_MACH, libc::SIGSEGV, "die_null_store", 0),
    // The caller of the signed frame is found by a return address that is stored with its
    // authentication code.
    #[cfg(target_arch = "aarch64")]
    case("signed-frame", NULL_MACH, libc::SIGSEGV, "die_signed", 2),
    ABORT,
    Case { name: "abort-on-a-thread", place: Where::Thread, parked: 10, ..ABORT },
    // A signal that was sent is not an exception.
    case("raise", None, libc::SIGSEGV, "die_raise", 0),
    // Rust's standard library has a handler for overflows, which prints a line and aborts: the same
    // death.
    Case { ending: Ending::Signal(libc::SIGABRT), ..OVERFLOW },
    Case { name: "overflow-on-a-thread", place: Where::Thread, ending: Ending::Signal(libc::SIGABRT), ..OVERFLOW },
    // Without it, the kernel sends SIGSEGV for the main thread's (which the report can't know), and
    // SIGBUS for others'.
    Case { name: "overflow-default", with: "default", ending: Ending::Signal(libc::SIGSEGV), ..OVERFLOW },
    Case { name: "overflow-default-on-a-thread", with: "default", place: Where::Thread, ..OVERFLOW },
    Case { name: "null-store-default", with: "default", ..NULL },
    // Sent to the process while its only thread blocks it: it must not be delivered to one of
    // Coroner's threads. (qemu-user has no signals that are pending for a process: one that finds
    // every thread blocked stays with the thread that it came to.)
    #[cfg(target_arch = "x86_64")]
    Case { name: "kill-of-a-blocked-signal", parked: 0, ..KILL },
    Case { name: "two-threads", with: "two", place: Where::Thread, ..NULL },
    Case { name: "earlier-port-refuses", with: "port-refuses", ..NULL },
    Case { name: "earlier-port-accepts", with: "port-accepts", ending: Ending::Status(0), ..NULL },
    Case { name: "earlier-port-with-state", with: "port-with-state", ending: Ending::Status(0), ..NULL },
    Case { name: "earlier-port-with-state-alone", with: "port-with-state-alone", ending: Ending::Status(0), ..NULL },
    Case { name: "earlier-port-is-dead", with: "port-dead", ..NULL },
    // A later system, which protects the ports of the task and its threads.
    Case { name: "later-system", with: "later", ..NULL },
    Case { name: "later-system-200-threads", with: "later", parked: 200, place: Where::Thread, ..NULL },
    Case { name: "later-system-overflow", with: "later", ending: Ending::Signal(libc::SIGABRT), ..OVERFLOW },
    Case { name: "later-system-enforced", with: "later-enforced", ..NULL },
    Case { name: "later-system-port-refuses", with: "later-port-refuses", ..NULL },
    Case { name: "later-system-port-accepts", with: "later-port-accepts", ending: Ending::Status(0), ..NULL },
    // No handler of a signal gives it the exception back: only the port can be asked.
    Case {
        name: "later-system-port-alone-accepts",
        with: "later-port-alone-accepts",
        ending: Ending::Status(0),
        ..NULL
    },
    Case {
        name: "later-system-port-with-state-alone",
        with: "later-port-with-state-alone",
        ending: Ending::Status(0),
        ..NULL
    },
    Case {
        name: "later-system-port-with-protected-state",
        with: "later-port-with-protected-state",
        ending: Ending::Status(0),
        ..NULL
    },
    Case { name: "later-system-loads", with: "later-live", report: None, ending: Ending::Status(0), ..NULL },
    // Forged messages; then the crash, and no other report.
    Case { name: "forged-messages", with: "forged", ..NULL },
    // Another thread is in abort(), which has blocked all signals of all threads.
    Case { name: "abort-in-flight", with: "abort-in-flight", place: Where::Thread, ..NULL },
    Case { name: "under-a-debugger", with: "debugger", report: Some(Report { mach: None, ..NULL_REPORT }), ..NULL },
    #[cfg(feature = "fault-injection")]
    Case { name: "installs-in-vain", with: "installs-in-vain", ..NULL },
    Case { name: "earlier-signal-handler", with: "handler", ending: Ending::Status(42), ..NULL },
    Case { name: "earlier-handler-of-abort", with: "handler", ending: Ending::Status(42), ..ABORT },
    Case { name: "handler-over-ours", with: "handler-after", ending: Ending::Status(42), ..NULL },
    Case { name: "ignored-once", with: "ignore", report: None, ..NULL },
    Case { name: "uninstalled", with: "uninstall", report: None, ..NULL },
    Case { name: "sigterm", with: "sigterm", report: None, ending: Ending::Signal(libc::SIGTERM), ..NULL },
    Case {
        name: "no-exception-ports",
        with: "signals-only",
        report: Some(Report { mach: None, ..NULL_REPORT }),
        ..NULL
    },
    Case { name: "child-of-fork", with: "fork", report: None, ending: Ending::Status(0), ..NULL },
    Case { name: "loads-beside-a-crash", with: "faulting-loads", ..NULL },
    // The app's handler repairs the fault: the app continues, whatever other threads do, and every
    // thread keeps its mask.
    Case { name: "repaired", with: "repair", ending: Ending::Status(0), ..READ_ONLY },
    Case { name: "repaired-beside-loads", with: "repair-beside-loads", ending: Ending::Status(0), ..READ_ONLY },
    // dyld 4, and all that a later system has.
    Case { name: "later-system-from-the-start", with: "later-from-the-start", ..NULL },
    Case { name: "later-system-from-the-start-abort", with: "later-from-the-start", ..ABORT },
    Case { name: "loads-in-normal-life", with: "live", report: None, ending: Ending::Status(0), ..NULL },
];

const NULL_REPORT: Report =
    Report { mach: Some((BAD_ACCESS, INVALID_ADDRESS)), signal: libc::SIGSEGV, function: "die_null_store", frame: 0 };

static READY: AtomicU32 = AtomicU32::new(0);

/// Runs the process that crashes.
pub(crate) fn run(name: &str) {
    let case = CASES.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("no case is called {name}"));
    let store = CString::new(std::env::var_os(STORE).expect("a store").as_bytes()).expect("a path");
    say_last_words();
    earlier::before_install(case.with);
    let mut setup = InstallOptions::DEFAULT;
    // Under an emulator on a busy machine two hundred threads take their time.
    setup.deadline_ms = 60_000;
    if case.with == "signals-only" {
        setup.exceptions = coroner_capture::ExceptionSet::EMPTY;
    }
    #[cfg(feature = "fault-injection")]
    if case.with == "installs-in-vain" {
        earlier::install_in_vain(&store, &setup);
    }
    coroner_capture::install(&store, &setup).expect("installed");
    for index in 0..case.parked {
        let thread = std::thread::Builder::new().name(format!("parked-{index}")).stack_size(64 << 10);
        thread
            .spawn(|| {
                READY.fetch_add(1, Ordering::SeqCst);
                park_here();
            })
            .expect("a thread");
    }
    while (READY.load(Ordering::SeqCst) as usize) < case.parked {
        std::thread::yield_now();
    }
    earlier::after_install(case.with);
    let death = named(case.death);
    match case.place {
        Where::Main => {
            call_death(death);
            if case.with.starts_with("repair") {
                earlier::check_masks();
                std::process::exit(0);
            }
        }
        Where::Thread => {
            let victims = if case.with == "two" { 2 } else { 1 };
            let together = Arc::new(Barrier::new(victims));
            for _ in 0..victims {
                let thread = std::thread::Builder::new().name(VICTIM.to_owned());
                let together = Arc::clone(&together);
                let victim = move || {
                    together.wait();
                    call_death(death);
                };
                thread.spawn(victim).expect("a thread");
            }
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    // The earlier owner of the port repaired the fault.
    std::process::exit(if earlier::MENDED.load(Ordering::SeqCst) { 0 } else { 3 });
}

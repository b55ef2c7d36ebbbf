//! Rust panics: a hook that records each panic and then calls the previous hook.
//!
//! What a panic becomes depends on where it will end, which is determined when it begins: the
//! frames above are searched for one that catches it ([`landing`]).
//!
//! | the panic | becomes |
//! |---|---|
//! | is caught by the app (`catch_unwind`, a runtime of tasks) | a breadcrumb; with [`PanicPolicy::All`] a non-fatal report |
//! | is caught, and its thread aborts within a second (rayon's `spawn`) | the exception of the SIGABRT's report, of type `panic shortly before the abort` |
//! | is raised again (`resume_unwind`) and reaches the top of the main thread | the cause of a crash, reported at the end of the process |
//! | reaches the top of the main thread | the cause of a crash, reported where it panicked: the process ends with it |
//! | reaches the top of another thread | a non-fatal report of type `panic that ended its thread` |
//! | `panic = "abort"` | the cause of a crash |
//! | meets a function that can't unwind (`extern "C"`) | the cause of a crash, when the runtime aborts |
//! | leaves a destructor while another one unwinds | the cause of a crash, of type `panic while panicking`, with the first panic as the next exception |
//!
//! At the time of the panic it is unknown whether another thread joins the panicked thread. The
//! report's type therefore only records that the panic ended its thread. A thread that joins and
//! unwraps panics itself and has its own report.
//!
//! The SIGABRT that follows a fatal panic is the same death and gets no separate report.
//!
//! # Limits
//! A hook that the app sets later and that doesn't call the previous one hides panics from Coroner:
//! an abort is then reported as a SIGABRT. Payloads that are not text (`panic_any`) have no
//! message.
//!
//! `resume_unwind` calls no hook. Coroner detects in two ways that such a panic ended `main`: a
//! [`Coroner`](crate::Coroner) that lives in `main` is dropped while the thread panics, and with
//! glibc the process exits with status 101 as `main` returns. Which panic it was is unknown; the
//! last one is assumed.

mod landing;

use std::cell::RefCell;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};

use coroner_process::registers::Registers;
use coroner_report::model::{CrashFlag, Report};
use coroner_report::wire::{Exception, Language, Monitor};

use crate::config::PanicPolicy;
use crate::level::Level;
use crate::own_run;
use crate::scope::{Breadcrumb, add_breadcrumb};
use crate::system::Stack;
use crate::system::capture::caught_panic;
use crate::system::capture::exception::{self, Ending};
use crate::system::process::threads;
use crate::system::walk::current_registers;
use landing::Landing;

/// Whether panics are recorded.
static IS_ENABLED: AtomicBool = AtomicBool::new(false);

/// Whether caught panics are reported.
static REPORT_ALL: AtomicBool = AtomicBool::new(false);

/// The process's last panic, which may be raised again.
///
/// Use only `try_lock`: in a child created by fork it may be locked forever.
static LAST: Mutex<Option<Arc<Panic>>> = Mutex::new(None);

/// Maximum number of panics kept per thread. A later panic may show that an earlier one was fatal.
const MAX_KEPT_PANICS: usize = 4;

#[derive(Debug)]
struct Panic {
    tid: u64,
    message: String,
    location: Option<String>,
    stack: Stack,
}

/// A thread's last panics, the newest last.
#[derive(Default)]
struct Recent {
    panics: Vec<Arc<Panic>>,
    /// Whether one of the panics was reported as the process's end.
    fatal: bool,
    /// Whether the newest panic was reported, or will be when the runtime aborts.
    #[cfg_attr(not(feature = "sentry-client"), allow(dead_code))]
    reported: bool,
}

thread_local! {
    static RECENT: RefCell<Recent> = const { RefCell::new(Recent { panics: Vec::new(), fatal: false, reported: false }) };
}

/// Starts to record panics. The hook is set once per process and stays.
pub(crate) fn install(policy: PanicPolicy) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if IS_ENABLED.load(Ordering::Acquire) {
                record_panic(info, &current_registers());
            }
            before(info);
            caught_panic::unwinds();
        }));
    });
    REPORT_ALL.store(policy == PanicPolicy::All, Ordering::Release);
    IS_ENABLED.store(true, Ordering::Release);
}

/// Whether the panic whose hooks are running on this thread was reported.
#[cfg(feature = "sentry-client")]
pub(crate) fn is_reported() -> bool {
    RECENT.try_with(|recent| recent.try_borrow().is_ok_and(|recent| recent.reported)).unwrap_or(false)
}

/// Stops recording panics.
pub(crate) fn uninstall() {
    IS_ENABLED.store(false, Ordering::Release);
}

/// The reason for an abort that the runtime announces by its own panic (`core::panicking`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum AbortReason {
    CannotUnwind,
    InCleanup,
}

/// Returns the reason for the abort if the message is such a panic's.
fn abort_reason(message: &str) -> Option<AbortReason> {
    match message {
        "panic in a function that cannot unwind" => Some(AbortReason::CannotUnwind),
        "panic in a destructor during cleanup" => Some(AbortReason::InCleanup),
        _ => None,
    }
}

fn record_panic(info: &PanicHookInfo<'_>, registers: &Registers) {
    let message = info.payload_as_str().unwrap_or_default();
    // If the thread's thread-local variables are destroyed, earlier panics are unknown.
    let _ = RECENT.try_with(|recent| {
        let Ok(mut recent) = recent.try_borrow_mut() else { return };
        recent.reported = false;
        if let Some(why) = abort_reason(message) {
            report_end(&mut recent, why, registers);
            return;
        }
        if recent.panics.len() == MAX_KEPT_PANICS {
            recent.panics.remove(0);
        }
        let panic = Arc::new(Panic {
            tid: threads::this_thread() as u64,
            message: message.to_owned(),
            location: info.location().map(ToString::to_string),
            stack: Stack::above(registers),
        });
        recent.panics.push(Arc::clone(&panic));
        if let Ok(mut last) = LAST.try_lock() {
            *last = Some(Arc::clone(&panic));
        }
        watch_exit();
        // The code that catches the panic, or a hook, may abort later. A fatal panic is reported
        // here.
        #[cfg(supported)]
        caught_panic::keep(&panic.wire(""));
        let landing = if cfg!(panic = "abort") { Landing::Nowhere } else { landing::find_landing() };
        match landing {
            Landing::Caught => {
                if REPORT_ALL.load(Ordering::Acquire)
                    && report(&mut recent, &["caught panic"], Ending::NonFatal, registers)
                {
                    return;
                }
                let text = format!("panic caught: {message}");
                add_breadcrumb(&Breadcrumb::new(&text).category("panic").level(Level::Error));
            }
            // The runtime raises another panic at that frame.
            Landing::CannotUnwind => recent.reported = true,
            Landing::Top if !is_main_thread() => {
                report(&mut recent, &["panic that ended its thread"], Ending::NonFatal, registers);
            }
            Landing::Nowhere | Landing::Top => {
                report(&mut recent, &["panic"], Ending::Fatal, registers);
            }
        }
    });
}

/// Reports the previous panics as the reason for which the runtime aborts.
fn report_end(recent: &mut Recent, why: AbortReason, registers: &Registers) {
    let kinds: &[&str] = match why {
        AbortReason::CannotUnwind => &["panic in a function that cannot unwind"],
        AbortReason::InCleanup => &["panic while panicking", "panic"],
    };
    report(recent, kinds, Ending::Fatal, registers);
}

/// Reports the newest panics, one for each of `kinds`, the newest first.
fn report(recent: &mut Recent, kinds: &[&str], ending: Ending, registers: &Registers) -> bool {
    let exceptions: Vec<Exception<'_>> =
        recent.panics.iter().rev().zip(kinds).map(|(panic, kind)| panic.wire(kind)).collect();
    // A panic that was already reported as fatal: this is the same death.
    let ending = if recent.fatal && ending == Ending::Fatal { Ending::FatalAgain } else { ending };
    let reported = exception::report(registers, Monitor::PANIC, &exceptions, ending);
    recent.reported = reported;
    if reported && ending == Ending::NonFatal {
        own_run::survived_error();
    } else if reported {
        recent.fatal = true;
        exception::dies();
    }
    reported
}

impl Panic {
    fn wire<'a>(&'a self, kind: &'a str) -> Exception<'a> {
        Exception {
            language: Language::RUST,
            type_name: Some(kind.as_bytes()),
            message: Some(self.message.as_bytes()).filter(|message| !message.is_empty()),
            tid: self.tid,
            location: self.location.as_ref().map(String::as_bytes),
            frames: self.stack.frames(),
            user_info: self.stack.text(),
        }
    }

    /// Whether `report` is this panic's non-fatal report.
    fn is_non_fatal_report_of(&self, report: &Report) -> bool {
        let is_survived = report.crash.as_ref().is_some_and(|crash| {
            crash.monitor == Monitor::PANIC && crash.has(CrashFlag::NotFatal) && crash.tid == self.tid
        });
        let frames = report.exceptions.first().map(|first| first.frames.iter().map(|frame| frame.address.0));
        let is_same = |first: &coroner_report::model::Exception| {
            first.message.as_deref().unwrap_or_default() == self.message && first.location == self.location
        };
        is_survived
            && report.exceptions.first().is_some_and(is_same)
            && frames.is_some_and(|frames| frames.eq(self.stack.frames().iter().map(|frame| frame.pc)))
    }
}

/// Reports that a panic that was raised again has ended `main`.
///
/// It is assumed to be the process's last panic, whose non-fatal report is replaced.
fn main_ended() {
    let panic = LAST.try_lock().ok().and_then(|last| last.clone());
    let Some(panic) = panic.filter(|_| IS_ENABLED.load(Ordering::Acquire) && !exception::is_reported_as_fatal()) else {
        return;
    };
    if exception::report(&current_registers(), Monitor::PANIC, &[panic.wire("panic")], Ending::Fatal)
        && let Some(run) = own_run::directory()
    {
        let files = std::fs::read_dir(run).into_iter().flatten().flatten().map(|entry| entry.path());
        for file in
            files.filter(|file| Report::read_file(file).is_ok_and(|report| panic.is_non_fatal_report_of(&report)))
        {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Called when a [`Coroner`](crate::Coroner) is dropped. If a panic is unwinding `main`, the
/// process is ending.
pub(crate) fn dropped() {
    if std::thread::panicking() && runs_rust_main() && landing::is_caught_by_top() {
        main_ended();
    }
}

/// Watches the process's exit status from now on, if the system provides it.
fn watch_exit() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::{c_int, c_void};

        // From glibc, on_exit(3).
        unsafe extern "C" {
            fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        }
        /// The standard library's return value of `main` after a panic.
        const PANICKED: c_int = 101;
        extern "C" fn ends(status: c_int, _argument: *mut c_void) {
            // If the app called `exit`, the frames of `main` are still on the stack.
            if status == PANICKED && runs_rust_main() && landing::is_main_gone() {
                main_ended();
            }
        }
        static WATCHED: Once = Once::new();
        // SAFETY: registers a function that doesn't unwind and stays loaded as long as the panic
        // hook.
        WATCHED.call_once(|| unsafe {
            on_exit(ends, std::ptr::null_mut());
        });
    }
}

/// Whether the standard library runs `main` on the calling thread.
///
/// It then names the thread. A program whose `main` is of another language may catch a panic in any
/// function that it calls, and go on.
fn runs_rust_main() -> bool {
    is_main_thread() && std::thread::current().name() == Some("main")
}

fn is_main_thread() -> bool {
    #[cfg(target_vendor = "apple")]
    // SAFETY: only queries the thread.
    return unsafe { libc::pthread_main_np() } == 1;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return threads::this_thread() as i64 == i64::from(threads::process_id());
    // The standard library gives this name only to the main thread.
    #[cfg(not(any(target_vendor = "apple", target_os = "linux", target_os = "android")))]
    return std::thread::current().name() == Some("main");
}

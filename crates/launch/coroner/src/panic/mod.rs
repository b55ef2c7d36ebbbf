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
//! It is not known at the panic whether another thread joins a thread that has panicked. The
//! report's type is therefore that it ended its thread, and a thread that joins and unwraps has a
//! panic and a report of its own.
//!
//! The SIGABRT that follows is the same death and gets no report of its own.
//!
//! # Limits
//! A hook that the app sets later and that does not call the previous one hides panics from
//! Coroner: an abort is then reported as a SIGABRT. Payloads that are not text (`panic_any`) have
//! no message.
//!
//! `resume_unwind` calls no hook. There are two signs that `main` ended by such a panic: a
//! [`Coroner`](crate::Coroner) that lives in `main` is dropped while the thread panics; and with
//! glibc the process ends with status 101 as `main` returns. It is not known which panic it was:
//! the last one is assumed.

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
static ON: AtomicBool = AtomicBool::new(false);

/// Whether caught panics are reported.
static ALL: AtomicBool = AtomicBool::new(false);

/// The process's last panic, which may be raised again.
///
/// Never waited for, because a child created by fork may find it locked.
static LAST: Mutex<Option<Arc<Panic>>> = Mutex::new(None);

/// Maximum number of panics that are kept per thread, because a later one may show that they were
/// fatal.
const KEPT: usize = 4;

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
    /// One of the panics was reported as the end of the process.
    fatal: bool,
    /// The newest panic was reported, or will be when the runtime aborts.
    #[cfg_attr(not(feature = "sentry-client"), allow(dead_code))]
    reported: bool,
}

thread_local! {
    static RECENT: RefCell<Recent> = const { RefCell::new(Recent { panics: Vec::new(), fatal: false, reported: false }) };
}

/// Records panics from now on. The hook is set once per process and stays.
pub(crate) fn install(policy: PanicPolicy) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if ON.load(Ordering::Acquire) {
                take_in(info, &current_registers());
            }
            before(info);
            caught_panic::unwinds();
        }));
    });
    ALL.store(policy == PanicPolicy::All, Ordering::Release);
    ON.store(true, Ordering::Release);
}

/// Whether Coroner has a report of the panic whose hooks are running on this thread.
#[cfg(feature = "sentry-client")]
pub(crate) fn is_reported() -> bool {
    RECENT.try_with(|recent| recent.try_borrow().is_ok_and(|recent| recent.reported)).unwrap_or(false)
}

/// Records no panics from now on.
pub(crate) fn uninstall() {
    ON.store(false, Ordering::Release);
}

/// The reason why the runtime aborts, if it raises a panic of its own for it (`core::panicking`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivesUp {
    CannotUnwind,
    InCleanup,
}

/// Returns the reason for the abort if the message is that of such a panic.
fn gives_up(message: &str) -> Option<GivesUp> {
    match message {
        "panic in a function that cannot unwind" => Some(GivesUp::CannotUnwind),
        "panic in a destructor during cleanup" => Some(GivesUp::InCleanup),
        _ => None,
    }
}

fn take_in(info: &PanicHookInfo<'_>, registers: &Registers) {
    let message = info.payload_as_str().unwrap_or_default();
    // A thread whose thread-locals are gone keeps nothing from before.
    let _ = RECENT.try_with(|recent| {
        let Ok(mut recent) = recent.try_borrow_mut() else { return };
        recent.reported = false;
        if let Some(why) = gives_up(message) {
            report_end(&mut recent, why, registers);
            return;
        }
        if recent.panics.len() == KEPT {
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
        // The code that catches the panic, or a hook, may then abort; a fatal panic has a report of
        // its own.
        #[cfg(supported)]
        caught_panic::keep(&panic.wire(""));
        let landing = if cfg!(panic = "abort") { Landing::Nowhere } else { landing::of_this_panic() };
        match landing {
            Landing::Caught => {
                if ALL.load(Ordering::Acquire) && report(&mut recent, &["caught panic"], Ending::NonFatal, registers) {
                    return;
                }
                let text = format!("panic caught: {message}");
                add_breadcrumb(&Breadcrumb::new(&text).category("panic").level(Level::Error));
            }
            // The runtime raises a panic of its own when it gets there.
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

/// Reports that the runtime aborts, because of the previous panics.
fn report_end(recent: &mut Recent, why: GivesUp, registers: &Registers) {
    let kinds: &[&str] = match why {
        GivesUp::CannotUnwind => &["panic in a function that cannot unwind"],
        GivesUp::InCleanup => &["panic while panicking", "panic"],
    };
    report(recent, kinds, Ending::Fatal, registers);
}

/// Reports the newest panics, one for each kind, the newest first.
fn report(recent: &mut Recent, kinds: &[&str], ending: Ending, registers: &Registers) -> bool {
    let exceptions: Vec<Exception<'_>> =
        recent.panics.iter().rev().zip(kinds).map(|(panic, kind)| panic.wire(kind)).collect();
    // A panic that was already fatal has got worse on its way up: still one death.
    let ending = if recent.fatal && ending == Ending::Fatal { Ending::FatalAgain } else { ending };
    let reported = exception::report(registers, Monitor::PANIC, &exceptions, ending);
    recent.reported = reported;
    if reported && ending == Ending::NonFatal {
        own_run::survived();
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

    /// Whether the report is a non-fatal one of this panic.
    fn is_survived_in(&self, report: &Report) -> bool {
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

/// Reports that `main` has ended by a panic that was raised again, taken to be the process's last
/// one, whose non-fatal report this replaces.
fn main_ended() {
    let panic = LAST.try_lock().ok().and_then(|last| last.clone());
    let Some(panic) = panic.filter(|_| ON.load(Ordering::Acquire) && !exception::is_reported_as_fatal()) else {
        return;
    };
    if exception::report(&current_registers(), Monitor::PANIC, &[panic.wire("panic")], Ending::Fatal)
        && let Some(run) = own_run::directory()
    {
        let files = std::fs::read_dir(run).into_iter().flatten().flatten().map(|entry| entry.path());
        for file in files.filter(|file| Report::read_file(file).is_ok_and(|report| panic.is_survived_in(&report))) {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Called when a [`Coroner`](crate::Coroner) is dropped: if `main` is unwinding out of the program,
/// the process ends.
pub(crate) fn dropped() {
    if std::thread::panicking() && is_main_thread() && landing::is_caught_by_top() {
        main_ended();
    }
}

/// Watches the exit status of the process from now on, where the system provides it.
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
            // If the app called `exit`, the frames of `main` are still above.
            if status == PANICKED && is_main_thread() && landing::is_main_gone() {
                main_ended();
            }
        }
        static WATCHED: Once = Once::new();
        // SAFETY: registers a function that does not unwind, and that exists as long as the panic
        // hook does.
        WATCHED.call_once(|| unsafe {
            on_exit(ends, std::ptr::null_mut());
        });
    }
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

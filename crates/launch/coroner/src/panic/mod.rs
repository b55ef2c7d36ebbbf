//! Rust panics: a hook that takes each panic in and then calls the hook that was there before.
//!
//! What a panic becomes depends on where it will end, which is known when it begins: the frames above are looked through for
//! the one that catches it ([`landing`]).
//!
//! | the panic | becomes |
//! |---|---|
//! | is caught by the app (`catch_unwind`, a runtime of tasks) | a breadcrumb; with [`PanicPolicy::All`] a report that the process survives |
//! | is caught, and its thread aborts within a second (rayon's `spawn`) | the exception of the SIGABRT's report, of type `panic shortly before the abort` |
//! | is raised again (`resume_unwind`) and reaches the top of the main thread | the cause of a crash, reported at the end of the process |
//! | reaches the top of the main thread | the cause of a crash, reported where it panicked: the process ends with it |
//! | reaches the top of another thread | a report that the process survives, of type `panic that ended its thread` |
//! | `panic = "abort"` | the cause of a crash |
//! | meets a function that can't unwind (`extern "C"`) | the cause of a crash, when the runtime gives up |
//! | leaves a destructor while another one unwinds | the cause of a crash, of type `panic while panicking`, with the first panic behind it |
//!
//! Whether anybody joins a thread that has panicked is not known when it does; its report says that it ended its thread, and a
//! thread that joins it and unwraps has a panic and a report of its own.
//!
//! The SIGABRT that follows is the same death and makes no report of its own.
//!
//! # Limits
//! A hook that the app sets later and that does not call the one before it takes panics away from Coroner: what aborts is then
//! reported as a SIGABRT. Payloads that are no text (`panic_any`) have no message.
//!
//! `resume_unwind` calls no hook. That `main` ended by such a panic is known by two things: a [`Coroner`](crate::Coroner) that lives in
//! `main` is dropped while the thread panics; and with glibc the process ends with status 101 as `main` returns. Which panic it was is not
//! known: it is taken to be the last one.

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

/// Whether panics are taken in.
static ON: AtomicBool = AtomicBool::new(false);

/// Whether caught ones are reported.
static ALL: AtomicBool = AtomicBool::new(false);

/// The process's last panic, which may be raised again. Tried and never waited for: a child made by fork may find it locked.
static LAST: Mutex<Option<Arc<Panic>>> = Mutex::new(None);

/// Panics of a thread that are kept, since a later one may show that they were fatal.
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
    /// One of them was reported as the end of the process.
    fatal: bool,
    /// The newest was reported, or will be when the runtime gives up.
    #[cfg_attr(not(feature = "sentry-client"), allow(dead_code))]
    reported: bool,
}

thread_local! {
    static RECENT: RefCell<Recent> = const { RefCell::new(Recent { panics: Vec::new(), fatal: false, reported: false }) };
}

/// Takes panics in from now on. The hook is set once in a process and stays.
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

/// Whether the panic whose hooks run on this thread now has a report of Coroner's.
#[cfg(feature = "sentry-client")]
pub(crate) fn is_reported() -> bool {
    RECENT.try_with(|recent| recent.try_borrow().is_ok_and(|recent| recent.reported)).unwrap_or(false)
}

/// Takes none in from now on.
pub(crate) fn uninstall() {
    ON.store(false, Ordering::Release);
}

/// Why the runtime gives up, where it says so by a panic of its own (`core::panicking`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivesUp {
    CannotUnwind,
    InCleanup,
}

/// Whether the message is one with which the runtime gives up.
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
        // Whoever catches it may then abort, as may a hook; what is fatal has a report of its own.
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
            // The runtime says so itself when it gets there.
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

/// The runtime gives up, because of the panics before.
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
    // One that was fatal already has grown worse on its way up: still one death.
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

    /// Whether a report is of this panic, which the process had survived by then.
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

/// `main` has ended by a panic that was raised again: the last one of the process, whose report this becomes.
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

/// A [`Coroner`](crate::Coroner) is dropped: if that is since `main` unwinds, out of the program, that is the end of it.
pub(crate) fn dropped() {
    if std::thread::panicking() && is_main_thread() && landing::is_caught_by_top() {
        main_ended();
    }
}

/// From now on the status of the process's end is known, where the system tells.
fn watch_exit() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::{c_int, c_void};

        // glibc, on_exit(3).
        unsafe extern "C" {
            fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        }
        /// What the standard library returns from `main` after a panic.
        const PANICKED: c_int = 101;
        extern "C" fn ends(status: c_int, _argument: *mut c_void) {
            // `exit` called by the app has the frames of `main` above it.
            if status == PANICKED && is_main_thread() && landing::is_main_gone() {
                main_ended();
            }
        }
        static WATCHED: Once = Once::new();
        // SAFETY: registers a function that does not unwind, and is there as long as the panic hook is.
        WATCHED.call_once(|| unsafe {
            on_exit(ends, std::ptr::null_mut());
        });
    }
}

fn is_main_thread() -> bool {
    #[cfg(target_vendor = "apple")]
    // SAFETY: only asks.
    return unsafe { libc::pthread_main_np() } == 1;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return threads::this_thread() as i64 == i64::from(threads::process_id());
    // The standard library names it, and no other by itself.
    #[cfg(not(any(target_vendor = "apple", target_os = "linux", target_os = "android")))]
    return std::thread::current().name() == Some("main");
}
